"""Tokens in files of the data folder, and how the database knows them.

The token of all agents and that of the local admin stay files, because they are copied and read there; the database has
a row for each, so that they can be listed and revoked. Tokens of single hosts, which older hubs kept in
`host-tokens.json`, are imported once. The hashes of all valid tokens are copied to `tokens.json`, so that agents and
scripts go on when a hub starts without its database.
"""

import logging
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from gpudeck.agent.push import read_token
from gpudeck.auth.caller import Role
from gpudeck.auth.local_copy import LocalCopy
from gpudeck.auth.parts import Auth
from gpudeck.auth.passwords import hash_secret
from gpudeck.auth.token_rules import NAME_LENGTH
from gpudeck.auth.tokens import SECRET_LENGTH, Token, Tokens
from gpudeck.database import schema
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.wire import HOST_NAME

log = logging.getLogger(__name__)

AGENTS_NAME = "all agents (agent.token)"
ADMIN_NAME = "this machine (admin.token)"
_HOST_TOKENS = "host-tokens.json"
_PLACE_LENGTH = 128
_table = schema.tokens
FILE_NAME: Final = "tokens.json"
LONGEST: Final = 86_400.0
"""A token that was revoked elsewhere while this hub could not ask works for so long at most after a restart."""
_AGAIN_SECONDS: Final = 600.0


class _HostToken(Struct, frozen=True):
    host: Annotated[str, Meta(pattern=HOST_NAME)]
    hash: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    made_at: float


async def take_over_files(tokens: Tokens, data_dir: Path, *, agent_file: Path | None = None) -> "TokenFiles":
    """Make the tokens in the hub's files known. `follow` of what this returns sees later changes of them.

    To be called at the start, when the files have been made. `agent_file` is the token of all agents, if it does not
    lie in the data folder. Raises UsageError when a file makes no sense, and Temporary.
    """
    await _import_host_tokens(tokens, data_dir / _HOST_TOKENS)
    place = _name_place(tokens, data_dir)
    followed = [
        _FollowedFile(tokens, agent_file or data_dir / "agent.token", AGENTS_NAME, "agent", place),
        _FollowedFile(tokens, data_dir / "admin.token", ADMIN_NAME, "admin", place),
    ]
    for file in followed:
        await file.follow()
    await tokens.load()
    return TokenFiles(followed)


class TokenFiles:
    """The files whose tokens the database follows."""

    def __init__(self, files: "list[_FollowedFile]") -> None:
        self._files = files

    async def follow(self) -> None:
        """See whether a file has changed. What is wrong with one is logged, and its last token still counts."""
        for file in self._files:
            try:
                await file.follow()
            except UsageError as error:
                log.warning("%s Until then its last token counts.", error)
            except Temporary as error:
                log.warning("a changed token file is not taken over yet: %s", error)
                file.forget()


class _FollowedFile:
    """A file with a token, and its row. `place` tells the rows of hubs that share a database apart."""

    def __init__(self, tokens: Tokens, file: Path, name: str, role: Role, place: str) -> None:
        self._tokens = tokens
        self._file = file
        self._name = name
        self._role = role
        self._place = place
        self._seen: object = None

    def forget(self) -> None:
        """Look at the file again, whether it has changed or not."""
        self._seen = None

    async def follow(self) -> None:
        """Give the row the file's token if the file has changed. A file that is gone changes nothing."""
        stamp = _stamp(self._file)
        if stamp is None or stamp == self._seen:
            return
        self._seen = stamp
        hash_ = hash_secret(_read(self._file))
        try:
            await self._keep(hash_)
        except IntegrityError:
            # Another hub, given the same token, was faster.
            await self._keep(hash_)
        await self._tokens.load()

    async def _keep(self, hash_: str) -> None:
        now = self._tokens.now()
        async with self._tokens.database.begin() as connection:
            known = (await connection.execute(select(_table).where(_table.c.hash == hash_))).one_or_none()
            own = await self._find_own(connection)
            if known is not None:
                # Revoked, or made by hand and then put into the file: it stays what it is, and the one before goes.
                replaced = update(_table).where(_table.c.id.in_(own), _table.c.id != known.id)
                await connection.execute(replaced.values(revoked_at=now))
                self._warn_of(known.revoked_at, known.role)
            elif own:
                # Another `created_at` tells other hubs that there is something to read again.
                changed = {"hash": hash_, "created_at": now, "last_used_at": None}
                await connection.execute(update(_table).where(_table.c.id == own[0]).values(changed))
            else:
                new = {"name": self._name, "role": self._role, "created_at": now, "created_by": self._place}
                await connection.execute(insert(_table).values(hash=hash_, **new))

    async def _find_own(self, connection: AsyncConnection) -> Sequence[int]:
        is_own = (_table.c.name == self._name) & (_table.c.created_by == self._place) & _table.c.revoked_at.is_(None)
        return (await connection.execute(select(_table.c.id).where(is_own).with_for_update())).scalars().all()

    def _warn_of(self, revoked_at: float | None, role: Role) -> None:
        if revoked_at is not None:
            log.warning(
                "the token in %s was revoked and is worth nothing: delete the file, and the next start makes a new one",
                self._file,
            )
        elif role != self._role:
            log.warning("the token in %s is one of the role %s, not %s", self._file, role, self._role)


def _name_place(tokens: Tokens, data_dir: Path) -> str:
    """Who made the rows. A database in the data folder has one hub, wherever the folder and its machine move."""
    if tokens.database.kind == "sqlite":
        return "a file of the hub"
    return f"{data_dir.absolute()} on {socket.gethostname()}"[-_PLACE_LENGTH:]


def _stamp(file: Path) -> object:
    """Differs when the file has changed; None where there is none."""
    try:
        status = file.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return "unreadable"
    return status.st_mtime_ns, status.st_size, status.st_ino


def _read(file: Path) -> str:
    secret = read_token(
        file,
        if_unreadable="The hub has to be able to read it: check its owner and its mode.",
        if_none="Delete it: a new one is made at the next start.",
    )
    if len(secret) > SECRET_LENGTH:
        raise UsageError(f"the token in {file} is longer than {SECRET_LENGTH} characters.", "Choose a shorter one.")
    return secret


async def _import_host_tokens(tokens: Tokens, file: Path) -> None:
    found = {token.hash: token for token in _read_host_tokens(file)}
    if found:
        async with tokens.database.begin() as connection:
            # Some may be there, if the hub was ended before it could rename the file.
            known = set((await connection.execute(select(_table.c.hash))).scalars())
            rows = [_row(token) for token in found.values() if token.hash not in known]
            if rows:
                await connection.execute(insert(_table), rows)
        log.info("tokens of hosts that were taken over from %s: %d", file, len(rows))
    _put_aside(file)


def _row(token: _HostToken) -> dict[str, object]:
    names = {"name": token.host[:NAME_LENGTH], "role": "agent", "hosts": token.host}
    return names | {"hash": token.hash, "created_at": token.made_at, "created_by": _HOST_TOKENS}


def _read_host_tokens(file: Path) -> list[_HostToken]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=list[_HostToken])
    except FileNotFoundError:
        return []
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"the hosts' tokens in {file} cannot be read: {error}.",
            "Mend the file, or delete it and add those hosts again.",
        ) from error


def _put_aside(file: Path) -> None:
    try:
        file.rename(file.with_name(f"{file.name}.imported"))
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("%s is taken over, and cannot be renamed: %s", file, error.strerror)


class KnownTokens(Struct, frozen=True):
    """`at` is when the database last said so, in Unix seconds. The SHA-256 of each secret is in hex."""

    at: float
    has_accounts: bool
    tokens: dict[str, Token]


class TokenCopy:
    """`keep` every few seconds while the hub runs; `use` at a start without the database."""

    def __init__(self, auth: Auth, data_dir: Path, agent_file: Path) -> None:
        self._auth = auth
        self._copy = LocalCopy(data_dir / FILE_NAME, KnownTokens)
        self._files = (agent_file, data_dir / "admin.token")
        self._written: dict[bytes, Token] | None = None
        self._written_at = 0.0

    async def keep(self) -> None:
        """Write what counts, where it is other than before, or was confirmed again since."""
        auth = self._auth
        at = auth.tokens.confirmed_at
        live = auth.tokens.live
        if at is None or (live is self._written and 0 <= at - self._written_at < _AGAIN_SECONDS):
            return
        self._written, self._written_at = live, at
        tokens = {digest.hex(): token for digest, token in live.items()}
        await self._copy.write(KnownTokens(at, auth.has_accounts, tokens))

    def use(self) -> None:
        """With a copy that is too old the tokens in the hub's own files count, if they counted then. Without one none
        does, as any may have been revoked, and there are taken to be accounts: nobody is let in for sitting at the
        machine."""
        auth, copy = self._auth, self._copy.read()
        if copy is None:
            log.warning("there is no copy of the tokens that count: all are refused until the database answers")
            auth.adopt({}, has_accounts=True)
            return
        known = copy.tokens
        if not 0 <= auth.tokens.now() - copy.at < LONGEST:
            of_files = {self._hash(file) for file in self._files}
            known = {digest: token for digest, token in known.items() if digest in of_files}
        auth.adopt({bytes.fromhex(digest): token for digest, token in known.items()}, has_accounts=copy.has_accounts)

    def _hash(self, file: Path) -> str:
        return hash_secret(read_token(file, if_unreadable="Check its owner and its mode.", if_none="Delete it."))
