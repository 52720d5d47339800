"""Start the room of accounts and tokens: its database, the files of an older hub, and its refreshing."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from pathlib import Path

from gpudeck.api.access import Policy
from gpudeck.api.callers import Door, Doorkeeper
from gpudeck.api.reports import FindGrant, Grant
from gpudeck.app.settings import Settings
from gpudeck.auth.import_files import TokenFiles, take_over_files
from gpudeck.auth.parts import Auth
from gpudeck.database.engine import open_database
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.settings import is_loopback

log = logging.getLogger(__name__)

REFRESH_SECONDS = 3.0
TRIM_SECONDS = 3600.0
AUDIT_SECONDS = 400 * 86_400.0


@contextlib.asynccontextmanager
async def running_auth(settings: Settings, data_dir: Path, token_file: Path) -> AsyncIterator[Auth]:
    """Accounts, sessions and tokens, as long as the block lasts. Raises UsageError."""
    database = await open_database(settings.database, data_dir)
    try:
        auth = Auth(database, settings.login, settings.people)
        try:
            files = await take_over_files(auth.tokens, data_dir, agent_file=token_file)
            await auth.load()
        except Temporary as error:
            raise UsageError(error.message, error.hint) from error
        refreshing = asyncio.create_task(_keep_fresh(auth, files))
        try:
            yield auth
        finally:
            refreshing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await refreshing
            await auth.tokens.flush(at_once=True)
    finally:
        await database.close()


def make_policy(settings: Settings) -> Policy:
    return Policy(
        is_readable=settings.read == "open",
        needs_accounts=not is_loopback(settings.listen.host) or settings.read == "login",
        commands=settings.commands,
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
        )
    )


def grant_by(auth: Auth) -> FindGrant:
    """What reports are taken with: the tokens of agents, and no others."""

    def find_grant(secret: str) -> Grant | None:
        token = auth.tokens.find(secret)
        if token is None or token.role != "agent":
            return None
        auth.tokens.note_use(token)
        return Grant(token.hosts)

    return find_grant


async def _keep_fresh(auth: Auth, files: TokenFiles) -> None:
    """A database that is away is told of once, by whoever needs it; here the next look comes soon."""
    loop = asyncio.get_running_loop()
    trimmed_at = loop.time()
    while True:
        await asyncio.sleep(REFRESH_SECONDS)
        try:
            await files.follow()
            await auth.refresh()
            if loop.time() - trimmed_at > TRIM_SECONDS:
                trimmed_at = loop.time()
                await auth.sessions.trim()
                await auth.audit.trim(AUDIT_SECONDS)
        except Temporary as error:
            log.debug("accounts and tokens cannot be read: %s", error)
        except Exception:
            log.exception("accounts and tokens could not be refreshed")
