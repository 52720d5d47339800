"""The hub's tables on a PostgreSQL server, which several hubs may share."""

import os
import re
import socket
import ssl
from typing import Any

from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from gpudeck.database import DatabaseTrouble
from gpudeck.model.errors import UsageError
from gpudeck.model.plugins import need

POOL_SIZE = 5
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
WAIT_SECONDS = 10.0
"""How long to wait for a connection while all are in use."""

_SEE_SERVER = "Look at the server, and at what is between it and this machine."
_SEE_ADDRESS = "Check `database` in gpudeck.yaml."
_AGAIN = "Try again."
_DAMAGED = "A part of it is damaged: restore a backup on the server."
_NEXT_STEPS = {
    "25006": "It is a copy that can only be read: name the server that writes.",
    "28": "Check user and password of `database` in gpudeck.yaml, and pg_hba.conf of the server.",
    "3D": "Make that database, or correct `database` in gpudeck.yaml.",
    "40": _AGAIN,
    "42704": _SEE_ADDRESS,  # an option that no server knows
    "42501": "Make that user the owner of the database.",
    "53": "Make room on the server, or let it take more connections.",
    "55P03": _AGAIN,
    "57": _SEE_SERVER,
    "58": _SEE_SERVER,
    "XX001": _DAMAGED,  # a page
    "XX002": _DAMAGED,  # an index
}
"""By SQLSTATE, or its first two characters (the class). All others are bugs of ours."""
_FOR_A_PERSON = ("28", "3D", "42")
"""Classes that only a changed configuration, of the hub or of the server, can resolve."""

_HOST = r"(?:[\w.-]+|\[[\da-fA-F:.]+\])(?::\d+)?"
_ADDRESS = re.compile(rf"postgres(?:ql)?://(?:[^?#]*@)?((?:{_HOST}(?:,{_HOST})*)?(?:/[\w.-]*)?)(?:\?.*)?")


def make_engine(
    address: str,
    *,
    keeps_connections: bool = True,
    answers_in: float | None = ANSWER_SECONDS,
    connects_in: float = CONNECT_SECONDS,
    most: int = POOL_SIZE,
) -> AsyncEngine:
    """At most `most` connections, each tested before use. `address` is parsed as PostgreSQL's own programs do. Raises
    UsageError if gpudeck[postgresql] is not installed."""
    need("postgresql", "the setting `database`")
    few: dict[str, Any] = {"poolclass": AsyncAdaptedQueuePool, "pool_size": most, "max_overflow": 0}
    # Without the ping, each connection from before a restart of the server would fail once.
    few |= {"pool_pre_ping": True, "pool_timeout": WAIT_SECONDS}
    return create_async_engine(
        "postgresql+asyncpg://",
        async_creator=lambda: _connect(address, answers_in, connects_in),
        hide_parameters=True,
        **(few if keeps_connections else {"poolclass": NullPool}),
    )


async def _connect(address: str, answers_in: float | None, connects_in: float) -> Any:
    import asyncpg  # type: ignore[import-untyped]  # noqa: PLC0415 - a hub with SQLite does without

    try:
        return await asyncpg.connect(
            address, timeout=connects_in, command_timeout=answers_in, server_settings={"application_name": "gpudeck"}
        )
    except FileNotFoundError as error:
        # Neither names the file: that of a server's socket, or a certificate.
        error.filename = "a certificate" if "sslrootcert=" in address or "sslcert=" in address else None
        raise
    except ValueError:
        # Its text may contain part of the password, if that contains a delimiter.
        raise UsageError(
            "the setting `database` is no address of a PostgreSQL server.",
            "It looks like postgresql://user:password@host:5432/gpudeck; @ : / ? # % in a password are written as %40 "
            "%3A %2F %3F %23 %25.",
        ) from None


def name_place(address: str) -> str:
    """The address for display: without user, password and options, any of which may be secret."""
    found = _ADDRESS.fullmatch(address)
    return f"postgresql://{found[1] if found else '…'}"


def explain(error: BaseException) -> DatabaseTrouble | None:
    """Why the database does not answer; None for a bug of ours, such as a column that does not exist."""
    if isinstance(error, PoolTimeout):
        return DatabaseTrouble(f"is busy: all {POOL_SIZE} connections were in use for {WAIT_SECONDS:g} s", _AGAIN)
    cause = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(cause, OSError):
        return _explain_network(cause)
    state = getattr(cause, "sqlstate", None) or ""
    if state.startswith("08") or (isinstance(error, DBAPIError) and error.connection_invalidated):
        return DatabaseTrouble("broke the connection", _SEE_SERVER)
    next_step = _NEXT_STEPS.get(state) or _NEXT_STEPS.get(state[:2])
    return (
        DatabaseTrouble(f"answers: {_first_line(cause)}", next_step, state[:2] not in _FOR_A_PERSON)
        if next_step
        else None
    )


def _explain_network(error: OSError) -> DatabaseTrouble:
    if isinstance(error, TimeoutError):
        return DatabaseTrouble("does not answer in time", _SEE_SERVER)
    if isinstance(error, socket.gaierror):
        return DatabaseTrouble(f"has a host that is not known: {error.strerror}", _SEE_ADDRESS)
    if isinstance(error, ssl.SSLCertVerificationError):
        return DatabaseTrouble(
            f"has a certificate that is not trusted: {error.verify_message}", _SEE_ADDRESS, may_pass=False
        )
    if isinstance(error, FileNotFoundError):
        # The server creates its socket file when it starts.
        what = "a file that its address names is not there"
        return DatabaseTrouble(f"cannot be reached: {what}", _SEE_ADDRESS, may_pass=error.filename is None)
    # asyncio says "Connect call failed" for every error number.
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return DatabaseTrouble(f"cannot be reached: {reason}", _SEE_SERVER, may_pass="rejected SSL" not in reason)


def _first_line(cause: BaseException | None) -> str:
    return str(cause).rpartition(">: ")[2].partition("\n")[0].rstrip(".")
