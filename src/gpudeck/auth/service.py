"""Accounts and tokens of a running hub: their database, refreshing, and tokens in files of the data folder.

The token of all agents and that of the local admin stay files, because they are copied and read there; the database has
a row for each, so that they can be listed and revoked. The hashes of all valid tokens are copied to `tokens.json`, so
that agents and scripts go on when a hub starts without its database.
"""

import asyncio
import contextlib
import hashlib
import logging
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Final

from msgspec import Struct
from sqlalchemy import insert, select, update
from sqlalchemy.exc import IntegrityError

from gpudeck.agent.push import read_token
from gpudeck.agent.token_file import replace_file
from gpudeck.auth.accounts import hash_secret
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Role
from gpudeck.auth.identities import HUB
from gpudeck.auth.settings import AuthSettings, UserEntries
from gpudeck.auth.tokens import SECRET_LENGTH, Token, Tokens
from gpudeck.database import schema
from gpudeck.database.background import LocalCopy
from gpudeck.database.engine import open_database
from gpudeck.database.sqlite import LOCAL_NAME
from gpudeck.model.clock import RetentionClock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.settings import file_stamp

log = logging.getLogger(__name__)

REFRESH_SECONDS = 3.0
TRIM_SECONDS = 3600.0
AUDIT_SECONDS = 400 * 86_400.0
AGENTS_NAME = "all agents (agent.token)"
ADMIN_NAME = "this machine (admin.token)"
_PLACE_LENGTH = 128
COPY_NAME: Final = "tokens.json"
LONGEST: Final = 86_400.0
"""A token that was revoked elsewhere while this hub could not ask works for so long at most after a restart."""
_AGAIN_SECONDS: Final = 600.0


class TokenFiles:
    """The files with the token of all agents and that of the local admin. The database follows them."""

    def __init__(self, tokens: Tokens, data_dir: Path, agent_file: Path | None = None) -> None:
        """`agent_file` is the token of all agents if it is not in the data folder."""
        self._tokens = tokens
        # Distinguishes the rows of hubs that share a database. One in the data folder has one hub, wherever that moves.
        shared = f"{data_dir.absolute()} on {socket.gethostname()}"[-_PLACE_LENGTH:]
        self._place = "a file of the hub" if tokens.database.kind == "sqlite" else shared
        self._files: tuple[tuple[Path, str, Role], ...] = (
            (agent_file or data_dir / "agent.token", AGENTS_NAME, "agent"),
            (data_dir / "admin.token", ADMIN_NAME, "admin"),
        )
        self._stamps: dict[Path, object] = {}

    async def load(self) -> None:
        """At the start, after the files were made. Raises UsageError for an invalid file, and Temporary."""
        for file, name, role in self._files:
            await self._import(file, name, role)
        await self._tokens.load()

    async def follow(self) -> None:
        """Import files that have changed. An invalid one is logged, and its last token still counts."""
        for file, name, role in self._files:
            try:
                await self._import(file, name, role)
            except UsageError as error:
                log.warning("%s Until then its last token counts.", error)
            except Temporary as error:
                log.warning("a changed token file is not imported yet: %s", error)
                del self._stamps[file]

    async def _import(self, file: Path, name: str, role: Role) -> None:
        """Give the row the file's token if the file has changed. A missing file changes nothing."""
        stamp = file_stamp(file)
        if stamp is None or stamp == self._stamps.get(file):
            return
        self._stamps[file] = stamp
        hash_ = hash_secret(_read(file))
        try:
            await self._write(hash_, file, name, role)
        except IntegrityError:
            # Another hub, given the same token, was faster.
            await self._write(hash_, file, name, role)
        await self._tokens.load()

    async def _write(self, hash_: str, file: Path, name: str, role: Role) -> None:
        now, table = self._tokens.now(), schema.tokens
        is_own = (table.c.name == name) & (table.c.created_by == self._place) & table.c.revoked_at.is_(None)
        async with self._tokens.database.begin() as connection:
            known = (await connection.execute(select(table).where(table.c.hash == hash_))).one_or_none()
            own = (await connection.execute(select(table.c.id).where(is_own).with_for_update())).scalars().all()
            if known is not None:
                # Revoked, or made by hand and then put into the file: it stays what it is, and the one before goes.
                replaced = update(table).where(table.c.id.in_(own), table.c.id != known.id)
                await connection.execute(replaced.values(revoked_at=now))
                if known.revoked_at is not None:
                    log.warning(
                        "the token in %s was revoked: delete the file, and the next start makes a new one", file
                    )
                elif known.role != role:
                    log.warning("the token in %s is one of the role %s, not %s", file, known.role, role)
            elif own:
                # A new `created_at` makes other hubs read the row again.
                changed = {"hash": hash_, "created_at": now, "last_used_at": None}
                await connection.execute(update(table).where(table.c.id == own[0]).values(changed))
            else:
                new = {"name": name, "role": role, "created_at": now, "created_by": self._place}
                await connection.execute(insert(table).values(hash=hash_, **new))


def _read(file: Path) -> str:
    secret = read_token(file, "Check its owner and mode, or delete it: the next start creates a new one.")
    if len(secret) > SECRET_LENGTH:
        raise UsageError(f"the token in {file} is longer than {SECRET_LENGTH} characters.", "Choose a shorter one.")
    return secret


class KnownTokens(Struct, frozen=True):
    """`at` is when the database last said so, in Unix seconds. The SHA-256 of each secret is in hex."""

    at: float
    has_accounts: bool
    tokens: dict[str, Token]


class TokenCopy:
    """`keep` every few seconds while the hub runs; `use` at a start without the database."""

    def __init__(self, auth: Auth, data_dir: Path, agent_file: Path) -> None:
        self._auth = auth
        self._copy = LocalCopy(data_dir / COPY_NAME, KnownTokens)
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
        does, as any may have been revoked, and there are taken to be accounts: no one is let in for being at the
        machine."""
        auth, copy = self._auth, self._copy.read()
        if copy is None:
            log.warning("there is no copy of the tokens that count: all are refused until the database answers")
            auth.adopt({}, has_accounts=True)
            return
        known = copy.tokens
        if not 0 <= auth.tokens.now() - copy.at < LONGEST:
            of_files = {hash_secret(_read(file)) for file in self._files}
            known = {digest: token for digest, token in known.items() if digest in of_files}
        auth.adopt({bytes.fromhex(digest): token for digest, token in known.items()}, has_accounts=copy.has_accounts)


@contextlib.asynccontextmanager
async def running_auth(
    data_dir: Path,
    token_file: Path,
    config: Path | None = None,
    *,
    database_url: str | None = None,
    login: AuthSettings | None = None,
    users: UserEntries | None = None,
    public_url: str | None = None,
    retention: RetentionClock | None = None,
    when_loaded: Callable[[Auth], Awaitable[None]] | None = None,
) -> AsyncIterator[Auth]:
    """Accounts, sessions and tokens, as long as the block lasts. A database that does not answer is no error: it is
    asked again and again, and until then the tokens of the last time count. `when_loaded` is called as soon as it has
    answered. Raises UsageError."""
    async with contextlib.AsyncExitStack() as stack:
        database = await open_database(database_url, data_dir, may_be_away=True)
        stack.push_async_callback(database.close)
        local = database
        if database.kind == "postgresql":
            local = await open_database(None, data_dir, name=LOCAL_NAME)
            stack.push_async_callback(local.close)
        auth = Auth(database, login or AuthSettings(), users, local=local, public_url=public_url)
        providers = [logins for logins in (auth.oidc, auth.ldap) if logins is not None]
        for logins in providers:
            stack.push_async_callback(logins.close)
        copy = TokenCopy(auth, data_dir, token_file)

        async def load() -> TokenFiles:
            files = TokenFiles(auth.tokens, data_dir, token_file)
            await files.load()
            await auth.load()
            if when_loaded is not None:
                await when_loaded(auth)
            await note_configuration(auth, data_dir, config)
            return files

        files = None
        try:
            files = await load()
        except Temporary as error:
            log.warning("accounts and tokens are those of the last time: %s", error)
            copy.use()
        tasks = [
            asyncio.create_task(database.watch()),
            asyncio.create_task(_keep_fresh(auth, files, load, copy, retention=retention or RetentionClock())),
        ]
        for logins in providers:
            logins.start()
        try:
            yield auth
        finally:
            await cancel_tasks(*tasks)
            await auth.tokens.flush(at_once=True)
            await copy.keep()


async def note_configuration(auth: Auth, data_dir: Path, config: Path | None) -> None:
    """Record in the audit log that the hub runs with another configuration than before, without its content."""
    try:
        changed = _keep_hash(data_dir / "config.sha256", config)
    except OSError as error:
        log.warning("cannot check whether the configuration has changed: %s", error)
        return
    if changed is not None:
        subject = "no file" if config is None else str(config)
        await auth.audit.record(HUB, "read configuration", subject, details=f"sha256 {changed[:16]}")


def _keep_hash(kept: Path, config: Path | None) -> str | None:
    """The hash of a configuration that is another than last time; None for the same. Raises OSError."""
    now = "none" if config is None else hashlib.sha256(config.read_bytes()).hexdigest()
    if kept.exists() and kept.read_text().strip() == now:
        return None
    replace_file(kept, f"{now}\n".encode())
    return now


async def _keep_fresh(
    auth: Auth,
    files: TokenFiles | None,
    load: Callable[[], Awaitable[TokenFiles]],
    copy: TokenCopy,
    *,
    retention: RetentionClock,
) -> None:
    """A database that is away is logged by its users; here it is asked again soon."""
    loop = asyncio.get_running_loop()
    trimmed_at = loop.time()
    while True:
        try:
            await copy.keep()
            await asyncio.sleep(REFRESH_SECONDS)
            if files is None:
                files = await load()
            await files.follow()
            await auth.refresh()
            if loop.time() - trimmed_at > TRIM_SECONDS and (time := retention.deletion_time()) is not None:
                trimmed_at = loop.time()
                await auth.sessions.trim(time)
                await auth.audit.trim(time - AUDIT_SECONDS)
        except Temporary as error:
            log.debug("accounts and tokens cannot be read: %s", error)
        except UsageError as error:
            log.warning("%s", error)
        except Exception:
            log.exception("accounts and tokens could not be refreshed")
