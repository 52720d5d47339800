"""/api/v1/watches (GET, POST) and /api/v1/watches/{id} (DELETE): to be told once when GPUs are free."""

from collections.abc import Callable
from typing import Annotated, Any

from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta

from gpudeck.alerts.watches import LONGEST, USUAL, TooManyWatches, Watches
from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import allow, documented
from gpudeck.api.errors import respond
from gpudeck.api.login import AuthRequest, Done, TheAuth
from gpudeck.auth.caller import Caller
from gpudeck.auth.parts import Auth
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.printable import clean
from gpudeck.model.wanted import Wanted
from gpudeck.model.watch import Watch, WatchList, WatchView
from gpudeck.server.asgi import ErrorBody


class WatchDesk:
    """The way to the watches; None where there are none, as before the hub has started. `reaches` says whether an
    account can be told by itself."""

    def __init__(self, watches: Watches | None, reaches: Callable[[str | None], bool] | None = None) -> None:
        self._watches = watches
        self._reaches = reaches

    @property
    def watches(self) -> Watches:
        """Raises Temporary."""
        if self._watches is None:
            raise Temporary("this hub has no watches.", "Ask again when it has started.")
        if not self._watches.is_loaded:
            raise Temporary("watches are not known: the hub's database does not answer.", "Try again later.")
        return self._watches

    def show(self, one: Watch) -> "WatchView":
        return WatchView(
            id=one.id,
            user=one.user,
            wanted=one.wanted,
            description=one.wanted.describe(),
            created_at=one.created_at,
            expires_at=one.expires_at,
            fired_at=one.fired_at,
            found=one.found,
            is_sent=self._reaches is not None and self._reaches(one.account),
        )


TheWatches = NamedDependency[WatchDesk]
"""As a route's parameter `lookout`."""


class WatchRefused(GpudeckError):
    """With the HTTP answer it deserves, and a word for programs."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


class NewWatch(Wanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`expire_seconds` is how long it counts. `user` is a login on the hosts, and counts where an admin asks whom no
    account names."""

    expire_seconds: Annotated[float, Meta(ge=60, le=LONGEST)] = USUAL
    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


@get("/api/v1/watches", opt=access("user"))
async def list_watches(
    request: AuthRequest,
    lookout: TheWatches,
    mine: Annotated[bool, QueryParameter(description="Of an admin: not those of others")] = False,
) -> WatchList:
    """What you want to be told of. Admins see those of all."""
    caller = caller_of(request)
    sees_all = caller.is_at_least("admin") and not mine
    return WatchList([lookout.show(one) for one in lookout.watches.list_of() if sees_all or _is_of(one, caller)])


@post(
    "/api/v1/watches",
    opt=access("user"),
    responses={
        201: documented(WatchView, "You will be told, once"),
        400: documented(ErrorBody, "A wish that makes no sense"),
        409: documented(ErrorBody, "Too many are watched for already"),
    },
)
async def add_watch(request: AuthRequest, data: JSONBody[NewWatch], auth: TheAuth, lookout: TheWatches) -> WatchView:
    """Ask to be told when such GPUs are free. Nothing is held then: whoever is first has them."""
    caller = caller_of(request)
    names = (name for name in Wanted.__struct_fields__ if name != "near")
    wanted = Wanted(**{name: getattr(data, name) for name in names})
    user, account = _who(caller, data.user, auth)
    try:
        made = await lookout.watches.add(user, account, wanted, data.expire_seconds)
    except TooManyWatches as error:
        raise WatchRefused(409, "full", error.message, error.hint) from error
    await auth.audit.record(caller, "add watch", f"{made.id} {user}", details=wanted.describe())
    return lookout.show(made)


@delete(
    "/api/v1/watches/{number:int}",
    status_code=200,
    opt=access("user"),
    responses={200: documented(Done, "Nobody is told any more"), 404: documented(ErrorBody, "No such watch")},
)
async def remove_watch(
    request: AuthRequest,
    number: Annotated[int, PathParameter(description="The watch's number", ge=1, le=2**53)],
    auth: TheAuth,
    lookout: TheWatches,
) -> Done:
    """Forget a watch of yours; admins may forget any."""
    caller = caller_of(request)
    one = lookout.watches.find(number)
    if one is None:
        raise _unknown(number)
    if not _is_of(one, caller) and not caller.is_at_least("admin"):
        raise WatchRefused(403, "forbidden", f"watch {number} is {one.user}'s.")
    if not await lookout.watches.remove(number):
        raise _unknown(number)
    await auth.audit.record(caller, "remove watch", str(number))
    return Done()


allow_watches = allow("/api/v1/watches", "GET", "POST")


def on_watch_refused(_: Request[Any, Any, Any], error: WatchRefused) -> Response[bytes]:
    return respond(error.status, error.code, error.message, error.hint)


def _who(caller: Caller, told: str | None, auth: Auth) -> tuple[str, str | None]:
    """The name, and the account whose ways are used. Nobody watches as somebody else; an admin without an account, as
    at the machine of the hub, watches as the login that they have there."""
    if caller.account_id is not None:
        return caller.name, caller.name
    if told is None or not caller.is_at_least("admin"):
        return caller.name, None
    login = clean(told)
    return login, auth.people.account_of(login)


def _is_of(one: Watch, caller: Caller) -> bool:
    """Who has no account is known by the token alone."""
    return one.user == caller.name


def _unknown(number: int) -> WatchRefused:
    return WatchRefused(404, "unknown_watch", f"there is no watch {number}.", "`gpudeck watch list` shows yours.")


ROUTES = [allow_watches, list_watches, add_watch, remove_watch]
