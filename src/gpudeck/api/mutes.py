"""/api/v1/me/mutes (GET, PUT): what you do not want to hear of."""

from typing import Annotated

from litestar import get, put
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException
from litestar.params import JSONBody
from msgspec import Meta, Struct

from gpudeck.alerts.notifiers.mutes import MOST_MUTES, Mutes
from gpudeck.alerts.notifiers.settings import TOLD
from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import allow
from gpudeck.api.login import AuthRequest, TheAuth
from gpudeck.auth.parts import Auth
from gpudeck.auth.settings import RuleName
from gpudeck.model.errors import Temporary


class MuteDesk:
    """The way to the mutes; None where there are none, as before the hub has started."""

    def __init__(self, mutes: Mutes | None) -> None:
        self._mutes = mutes

    @property
    def mutes(self) -> Mutes:
        """Raises Temporary."""
        if self._mutes is None:
            raise Temporary("this hub sends no messages.", "Ask again when it has started.")
        return self._mutes


TheMutes = NamedDependency[MuteDesk]
"""As a route's parameter `silence`."""


class MuteChoice(Struct, frozen=True, forbid_unknown_fields=True):
    """The names of rules, such as `gpu_held_idle`; `watch` are your own watches."""

    rules: Annotated[list[RuleName], Meta(max_length=MOST_MUTES)]


class MuteView(Struct, frozen=True):
    """`rules` are your own choice; `by_settings` is what the hub's settings mute for you."""

    rules: list[str]
    by_settings: list[str]


@get("/api/v1/me/mutes", opt=access("self"))
async def read_mutes(request: AuthRequest, auth: TheAuth, silence: TheMutes) -> MuteView:
    """What you do not want to hear of."""
    return _show(caller_of(request).name, auth, silence)


@put("/api/v1/me/mutes", status_code=200, opt=access("self"))
async def choose_mutes(request: AuthRequest, data: JSONBody[MuteChoice], auth: TheAuth, silence: TheMutes) -> MuteView:
    """From here on these, and no others."""
    caller = caller_of(request)
    if unknown := sorted(set(data.rules) - set(TOLD)):
        raise ValidationException(f"rules: there is no rule {unknown[0]}")
    await silence.mutes.choose(caller.name, data.rules)
    await auth.audit.record(caller, "choose mutes", caller.name, details=", ".join(sorted(set(data.rules))))
    return _show(caller.name, auth, silence)


def _show(account: str, auth: Auth, silence: MuteDesk) -> MuteView:
    return MuteView(sorted(silence.mutes.of(account)), sorted(auth.people.person_of(account).mute))


allow_mutes = allow("/api/v1/me/mutes", "GET", "PUT")

ROUTES = [allow_mutes, read_mutes, choose_mutes]
