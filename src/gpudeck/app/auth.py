"""Start the room of accounts and tokens: its database, the files of an older hub, and its refreshing."""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from gpudeck.agent.token_file import replace_file
from gpudeck.api.access import Policy
from gpudeck.api.callers import Door, Doorkeeper
from gpudeck.api.reports import FindGrant, Grant
from gpudeck.auth.caller import Caller
from gpudeck.auth.parts import Auth
from gpudeck.auth.token_files import TokenCopy, TokenFiles, take_over_files
from gpudeck.database.engine import open_database
from gpudeck.database.sqlite import FILE_NAME, LOCAL_NAME, DatabaseFile
from gpudeck.hub.token_limit import TokenName
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.retention import RetentionClock
from gpudeck.model.settings import is_loopback
from gpudeck.ops.restore import record_restore
from gpudeck.settings import Settings

log = logging.getLogger(__name__)

_HUB = Caller(kind="local", role="admin", name="the hub")
REFRESH_SECONDS = 3.0
TRIM_SECONDS = 3600.0
AUDIT_SECONDS = 400 * 86_400.0


@contextlib.asynccontextmanager
async def running_auth(
    settings: Settings,
    data_dir: Path,
    token_file: Path,
    config: Path | None = None,
    *,
    retention: RetentionClock | None = None,
) -> AsyncIterator[Auth]:
    """Accounts, sessions and tokens, as long as the block lasts. A database that does not answer is no error: it is
    asked again and again, and until then the tokens of the last time count. Raises UsageError."""
    async with contextlib.AsyncExitStack() as stack:
        database = await open_database(settings.database, data_dir, may_be_away=True)
        stack.push_async_callback(database.close)
        local = database
        if database.kind == "postgresql":
            local = await open_database(None, data_dir, name=LOCAL_NAME)
            stack.push_async_callback(local.close)
        auth = Auth(database, settings.login, settings.people, local=local)
        copy = TokenCopy(auth, data_dir, token_file)

        async def load() -> TokenFiles:
            files = await take_over_files(auth.tokens, data_dir, agent_file=token_file)
            await auth.load()
            await record_restore(auth.audit, data_dir)
            await note_configuration(auth, data_dir, config)
            return files

        files = None
        try:
            files = await load()
        except Temporary as error:
            log.warning("accounts and tokens are those of the last time: %s", error)
            copy.use()
        file = DatabaseFile(data_dir / FILE_NAME, auth.note_trouble) if database.kind == "sqlite" else None
        tasks = [
            asyncio.create_task(database.watch()),
            asyncio.create_task(
                _keep_fresh(auth, files, load, copy, database=file, retention=retention or RetentionClock())
            ),
        ]
        try:
            yield auth
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await auth.tokens.flush(at_once=True)
            await copy.keep()


async def note_configuration(auth: Auth, data_dir: Path, config: Path | None) -> None:
    """Write down that the hub runs with another configuration than before. What is in it is nobody else's business."""
    try:
        changed = _keep_hash(data_dir / "config.sha256", config)
    except OSError as error:
        log.warning("whether the configuration has changed cannot be told: %s", error)
        return
    if changed is not None:
        subject = "no file" if config is None else str(config)
        await auth.audit.record(_HUB, "read configuration", subject, details=f"sha256 {changed[:16]}")


def _keep_hash(kept: Path, config: Path | None) -> str | None:
    """The hash of a configuration that is another than last time; None for the same. Raises OSError."""
    now = "none" if config is None else hashlib.sha256(config.read_bytes()).hexdigest()
    if kept.exists() and kept.read_text().strip() == now:
        return None
    replace_file(kept, f"{now}\n".encode())
    return now


def make_policy(settings: Settings) -> Policy:
    return Policy(
        is_readable=settings.read == "open",
        needs_accounts=not is_loopback(settings.listen.host) or settings.read == "login",
        commands=settings.commands,
        is_bookable=settings.read == "open" and settings.reservations.without_account,
    )


def make_keeper(settings: Settings, auth: Auth) -> Doorkeeper:
    return Doorkeeper(
        Door(
            find_token=auth.find_token,
            find_session=auth.find_session,
            find_proxied=auth.find_proxied,
            has_accounts=lambda: auth.has_accounts or settings.read == "login",
            is_private=is_loopback(settings.listen.host),
            is_decided=settings.read is not None,
            proxy_header=settings.login.proxy.header,
            prefix=settings.path_prefix,
        )
    )


def grant_by(auth: Auth) -> FindGrant:
    """What reports are taken with: the tokens of agents, and no others."""

    def find_grant(secret: str) -> Grant | None:
        token = auth.tokens.find(secret)
        if token is None or token.role != "agent":
            return None
        auth.tokens.note_use(token)
        return Grant(token.hosts, TokenName(token.id, token.name))

    return find_grant


async def _keep_fresh(
    auth: Auth,
    files: TokenFiles | None,
    load: Callable[[], Awaitable[TokenFiles]],
    copy: TokenCopy,
    *,
    database: DatabaseFile | None,
    retention: RetentionClock,
) -> None:
    """A database that is away is told of once, by whoever needs it; here the next look comes soon."""
    loop = asyncio.get_running_loop()
    trimmed_at = loop.time()
    while True:
        try:
            await copy.keep()
            await asyncio.sleep(REFRESH_SECONDS)
            if database is not None:
                await database.look()
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
