"""Logins that admins try: what a provider says about a user, what becomes of it here, and why. Nobody is logged in.

They are in the database for some minutes: behind a load balancer the browser comes back to another hub.
"""

import secrets
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace
from sqlalchemy import delete, insert, select, update

from gpudeck.auth.claims import MappedUser, Reason
from gpudeck.auth.settings import AccountRole
from gpudeck.database import schema
from gpudeck.database.engine import Database
from gpudeck.model import clock
from gpudeck.model.errors import Refused

KEPT_SECONDS: Final = 1200.0
_ID_BYTES: Final = 32
_HIDDEN: Final = frozenset({"at_hash", "c_hash", "s_hash", "nonce", "jti", "sid"})
_table = schema.login_trials


class Trial(Struct, frozen=True):
    """One login that an admin tries: nobody is logged in by it. `claims` are those of the ID token, or the attributes
    of the directory; they and `userinfo` are as the provider sent them, without those that are secret. `url` is empty
    where there is nothing to open in a browser."""

    id: str
    provider: str
    url: str
    created_at: float
    state: Literal["waiting", "done", "refused"] = "waiting"
    problem: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    userinfo: dict[str, Any] = field(default_factory=dict)
    name: str = ""
    role: AccountRole | None = None
    group: str | None = None
    mail: str | None = None
    reasons: list[Reason] = field(default_factory=list)

    def with_user(self, user: MappedUser) -> "Trial":
        return replace(self, name=user.name, group=user.group, mail=user.mail, reasons=list(user.reasons))

    def end(self, name: str, role: AccountRole) -> "Trial":
        """The account and the role that the login would give."""
        return replace(self, state="done", name=name, role=role)

    def refuse(self, why: Refused) -> "Trial":
        return replace(self, state="refused", problem=" ".join(filter(None, (self.problem, str(why)))))


class Trials:
    """All of them. Everything raises Temporary when the database does not answer."""

    def __init__(self, database: Database, now: clock.Clock = clock.wall) -> None:
        self._database = database
        self._now = now

    async def make(self, provider: str, url: str = "") -> Trial:
        """`url` is where it begins; its id is added."""
        id_ = secrets.token_urlsafe(_ID_BYTES)
        trial = Trial(id_, provider, url and f"{url}?trial={id_}", self._now())
        async with self._database.begin() as connection:
            await connection.execute(delete(_table).where(_table.c.created_at < self._now() - KEPT_SECONDS))
            row = {"id": id_, "created_at": trial.created_at, "body": msgspec.json.encode(trial).decode()}
            await connection.execute(insert(_table).values(row))
        return trial

    async def find(self, id_: str) -> Trial | None:
        """None for one that never was, or is too old."""
        wanted = select(_table.c.body).where(_table.c.id == id_, _table.c.created_at >= self._now() - KEPT_SECONDS)
        body = (await self._database.execute(wanted)).scalar() if id_.isascii() and id_.isprintable() else None
        return None if body is None else msgspec.json.decode(body, type=Trial)

    async def write(self, trial: Trial) -> None:
        body = msgspec.json.encode(trial).decode()
        await self._database.execute(update(_table).where(_table.c.id == trial.id).values(body=body))


def hide_secrets(claims: Mapping[str, Any]) -> dict[str, Any]:
    return {name: "(hidden)" if name in _HIDDEN else value for name, value in claims.items()}
