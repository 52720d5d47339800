"""The hub's tables on a PostgreSQL server, which several hubs may share."""

import socket
from typing import Any
from urllib.parse import parse_qs, urlsplit

from sqlalchemy.exc import DBAPIError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from gpudeck.database.trouble import Trouble

POOL_SIZE = 5
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
WAIT_SECONDS = 10.0
"""How long to wait for a connection while others use them all."""

_SEE_SERVER = "Look at the server and at what is between it and this machine."
_SEE_ADDRESS = "Check `database` in gpudeck.yaml."
_AGAIN = "Try again."


def make_engine(
    address: str, *, keeps_connections: bool = True, answers_in: float | None = ANSWER_SECONDS
) -> AsyncEngine:
    """At most `POOL_SIZE` connections, each looked at before it is used, or a new one each time.

    `address` is read as PostgreSQL's own programs read it, with `sslmode` and all.
    """

    async def connect() -> Any:
        import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415 - a hub with SQLite does without

        return await asyncpg.connect(
            address,
            timeout=CONNECT_SECONDS,
            command_timeout=answers_in,
            server_settings={"application_name": "gpudeck"},
        )

    return create_async_engine("postgresql+asyncpg://", async_creator=connect, **_POOLS[keeps_connections])


_POOLS: dict[bool, dict[str, object]] = {
    True: {
        "poolclass": AsyncAdaptedQueuePool,
        "pool_size": POOL_SIZE,
        "max_overflow": 0,
        "pool_timeout": WAIT_SECONDS,
        "pool_pre_ping": True,
    },
    False: {"poolclass": NullPool},
}


def name_place(address: str) -> str:
    """The address without user, password and options, which may be secret: `postgresql://db.example/gpudeck`."""
    parts = urlsplit(address)
    hosts = parts.netloc.rpartition("@")[2] or ",".join(parse_qs(parts.query).get("host", []))
    return f"postgresql://{hosts}{parts.path}"


def explain(error: BaseException) -> Trouble | None:
    """None for a mistake of ours, such as a column that does not exist."""
    if isinstance(error, PoolTimeout):
        return Trouble(f"is busy: all {POOL_SIZE} connections were in use for {WAIT_SECONDS:g} s", _AGAIN)
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, TimeoutError):
        return Trouble("does not answer in time", _SEE_SERVER)
    if isinstance(cause, socket.gaierror):
        return Trouble(f"has a name that is not known: {cause.strerror}", _SEE_ADDRESS)
    if isinstance(cause, OSError):
        return Trouble(f"cannot be reached: {cause.strerror or cause}", _SEE_SERVER)
    state = getattr(cause, "sqlstate", None)
    if state is None:
        return Trouble("broke the connection", _AGAIN) if _is_broken(error) else None
    next_step = _NEXT_STEPS.get(state) or _NEXT_STEPS.get(state[:2])
    return Trouble(f"answers: {_first_line(cause)}", next_step) if next_step else None


_NEXT_STEPS = {
    "08": _AGAIN,
    "25006": "It is a copy that only reads: name the one that writes, or wait for it.",
    "28": "Check user and password of `database` in gpudeck.yaml, and pg_hba.conf of the server.",
    "3D": "Make it: `createdb gpudeck`.",
    "40": _AGAIN,
    "42501": "Give the database to that user: `ALTER DATABASE gpudeck OWNER TO …`.",
    "53": "Make room on the server, or let it take more connections.",
    "55P03": _AGAIN,
    "57": _SEE_SERVER,
    "58": _SEE_SERVER,
}
"""By SQLSTATE, or by its first two characters, its class."""


def _is_broken(error: BaseException) -> bool:
    return isinstance(error, InterfaceError) or (isinstance(error, DBAPIError) and error.connection_invalidated)


def _first_line(cause: BaseException | None) -> str:
    return str(cause).rpartition(">: ")[2].partition("\n")[0].rstrip(".")
