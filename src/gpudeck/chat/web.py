"""Slack's Web API as the bot calls it: its tokens and its client, answers on their way into a channel or to one person,
and what went wrong, in words for the hub's admins and never with a secret.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
from msgspec import Struct
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.http_retry.builtin_async_handlers import (
    AsyncConnectionErrorRetryHandler,
    AsyncRateLimitErrorRetryHandler,
)
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.webhook.async_client import AsyncWebhookClient

from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.chat.blocks import SECTION, Block, ChatAnswer, Snippet, add_note, code, escape, shorten_for_slack
from gpudeck.chat.settings import SlackSettings, is_token, where_to_find
from gpudeck.history.base import HistoryRefused
from gpudeck.history.time_range import load_zone
from gpudeck.model.errors import PluginError, Refused, Temporary
from gpudeck.model.settings import is_loopback

_SECRETS: Final = re.compile(r"x(?:ox[a-z]|app)-[\w-]+|wss?://\S+|[?&](?:ticket|token)=\S+")
_TOKEN_CODES: Final = frozenset(
    (
        *("invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"),
        *("not_allowed_token_type", "access_denied", "org_login_required"),
    )
)
_PERSON_CODES: Final = frozenset(
    ("user_not_found", "user_not_visible", "user_disabled", "cannot_dm_bot", "channel_not_found", "is_archived")
)
_SETTINGS_CODES: Final = frozenset(("no_permission", "missing_scope", "forbidden_team", "team_access_not_granted"))
log = logging.getLogger(__name__)
_ZONES_KEPT: Final = 1000
_WIDEST: Final = 200
_APART: Final = "The list is in our direct messages."
_theirs = logging.getLogger(f"{__name__}.sdk")
_theirs.setLevel(logging.CRITICAL)
"""Slack's parts write addresses with tickets into their logs: what matters of it we say ourselves."""
CALL_SECONDS: Final = 10
_Answered = TypeVar("_Answered")


def mask(text: str) -> str:
    """Without tokens, and without the addresses of sockets, which carry a ticket."""
    return _SECRETS.sub("…", text)


def refuse(code: str, needed: str, token: str) -> PluginError:
    """What Slack's error `code` means for a call that was made with that `token` (`app_token` or `bot_token`).

    `needed` are the scopes that Slack names as missing, if any.
    """
    if code in _TOKEN_CODES:
        return Refused(
            f"Slack refuses the bot's {token} ({code}).", f"Put a valid one into chat.slack: {where_to_find(token)}."
        )
    if code in _SETTINGS_CODES:
        scopes = f" {mask(needed)[:200]}" if needed else ""
        return Refused(
            f"Slack says that the bot lacks a permission ({code}{scopes}).",
            "Add it in the app's settings, and install the app again.",
        )
    if code in _PERSON_CODES:
        return Unreached(f"Slack does not let the bot write to this user ({code}).", "Check their ID in `users`.")
    return Temporary(f"Slack answers {mask(code)[:60]}.", "It is tried again.")


def unreachable(error: Exception, host: str) -> Temporary:
    reason = mask(str(error))[:200] or type(error).__name__
    return Temporary(f"Slack cannot be reached at {host}: {reason}.", "It is tried again.")


class MessageOrigin(Struct, frozen=True, kw_only=True):
    """Where a question was asked. `response_url` is Slack's own way back to a slash command or a button: only the
    asker sees what is sent there. `is_direct` is a direct message."""

    user: str
    channel: str = ""
    thread: str | None = None
    response_url: str | None = None
    is_direct: bool = False


class Delivery:
    """Sends with one token. What Slack refuses is logged, without a secret, and raises SlackClientError or OSError."""

    def __init__(self, web: AsyncWebClient) -> None:
        self._web = web
        self._zones: dict[str, tzinfo] = {}

    async def send(self, answer: ChatAnswer, where: MessageOrigin, *, replace: bool = False) -> None:
        """`replace` puts it in the place of the message whose button was pressed."""
        if answer.snippet is None:
            await self._post(answer, list(answer.blocks), where, replace=replace)
            return
        is_apart = _is_apart(answer, where)
        try:
            await self._post(answer, add_note(answer.blocks, _APART) if is_apart else list(answer.blocks), where)
            await self._upload(answer.snippet, answer, where)
        except SlackApiError as error:
            # Without the permission for files there is still a message, which holds the beginning.
            log.warning("a snippet could not be sent to Slack: %s", mask(str(error.response.get("error", ""))))
            lines = "\n".join(escape(line, _WIDEST) for line in answer.snippet.text.splitlines())
            await self._post(answer, [code(shorten_for_slack(lines, SECTION - 20))], where)

    async def write_to(self, user: str, answer: ChatAnswer) -> None:
        """Into a person's direct messages, without a question."""
        channel = await self._open_direct(user)
        await self.send(answer, MessageOrigin(user=user, channel=channel, is_direct=True))

    async def find_zone(self, user: str) -> tzinfo:
        """As their Slack knows it; UTC where that does not say."""
        if user in self._zones:
            return self._zones[user]
        try:
            told = await self._web.users_info(user=user)
            zone = load_zone(str(told["user"].get("tz") or "UTC"))
        except (SlackClientError, HistoryRefused, OSError, TimeoutError, KeyError, AttributeError):
            return UTC
        if len(self._zones) >= _ZONES_KEPT:
            self._zones.clear()
        self._zones[user] = zone
        return zone

    async def _post(
        self, answer: ChatAnswer, blocks: list[Block], where: MessageOrigin, *, replace: bool = False
    ) -> None:
        if where.response_url is not None:
            hook = AsyncWebhookClient(
                where.response_url, timeout=self._web.timeout, proxy=self._web.proxy, logger=self._web.logger
            )
            kind = None if replace else "ephemeral"
            sent = await hook.send(text=answer.text, blocks=blocks, response_type=kind, replace_original=replace)
            if sent.status_code != 200:
                raise SlackClientError(f"Slack takes no answer: status {sent.status_code}")
            return
        place: dict[str, Any] = {"channel": where.channel, "thread_ts": where.thread}
        if answer.is_private and not where.is_direct:
            await self._web.chat_postEphemeral(user=where.user, text=answer.text, blocks=blocks, **place)
        else:
            # Names that look like addresses stay text, and no page is fetched for a preview.
            await self._web.chat_postMessage(
                text=answer.text, blocks=blocks, unfurl_links=False, unfurl_media=False, **place
            )

    async def _upload(self, snippet: Snippet, answer: ChatAnswer, where: MessageOrigin) -> None:
        """A file can be seen by all of a channel: what is for one person goes into their direct messages."""
        is_apart = _is_apart(answer, where)
        channel, thread = where.channel, where.thread
        if is_apart:
            channel, thread = await self._open_direct(where.user), None
        await self._web.files_upload_v2(
            filename=snippet.name,
            title=snippet.title,
            content=snippet.text,
            snippet_type="text",
            channel=channel,
            thread_ts=thread,
            initial_comment=answer.text if is_apart else None,
        )

    async def _open_direct(self, user: str) -> str:
        opened = await self._web.conversations_open(users=user)
        return str(opened["channel"]["id"])


def _is_apart(answer: ChatAnswer, where: MessageOrigin) -> bool:
    """Whether a file cannot stand where the question does."""
    return where.response_url is not None or (answer.is_private and not where.is_direct)


async def write_once(settings: SlackSettings, user: str, answer: ChatAnswer) -> None:
    """Into a person's direct messages, by a bot that need not run. Raises PluginError."""
    web = make_web(settings, read_token(settings, "bot_token"))
    await call(settings, Delivery(web).write_to(user, answer), "bot_token")


def make_web(settings: SlackSettings, token: str) -> AsyncWebClient:
    # Each waits as long as Slack demands, twice; then the person has to ask again.
    again = [AsyncConnectionErrorRetryHandler(max_retry_count=1), AsyncRateLimitErrorRetryHandler(max_retry_count=2)]
    address = settings.api_url
    web = AsyncWebClient(token, base_url=address, timeout=CALL_SECONDS, logger=_theirs, retry_handlers=again)
    if is_loopback(urlsplit(address).hostname or ""):
        # A proxy out of the environment is no way to this machine.
        web.proxy = None
    return web


async def call(settings: SlackSettings, question: Awaitable[_Answered], token: str) -> _Answered:
    """What Slack answers to a question that was asked with that `token` (`app_token` or `bot_token`). Raises
    PluginError."""
    try:
        async with asyncio.timeout(2 * CALL_SECONDS):
            return await question
    except SlackApiError as error:
        told = error.response
        raise refuse(str(told.get("error")), str(told.get("needed") or ""), token) from None
    except (SlackClientError, aiohttp.ClientError, OSError, TimeoutError) as error:
        raise unreachable(error, urlsplit(settings.api_url).hostname or "") from None


def read_token(settings: SlackSettings, name: str) -> str:
    """Read again for every connection: a new token needs no restart. Raises Refused."""
    given: str | None = getattr(settings, name)
    file: str | None = getattr(settings, f"{name}_file")
    if given is None and file is not None:
        try:
            given = Path(file).expanduser().read_text("utf-8").strip()
        except (OSError, UnicodeError, RuntimeError) as error:
            reason = getattr(error, "strerror", None) or type(error).__name__
            raise Refused(f"the file of chat.slack.{name}_file cannot be read: {reason}.") from None
    if given is None or not is_token(name, given):
        raise Refused(f"what chat.slack.{name}_file holds is no such token.", f"{where_to_find(name)}.".capitalize())
    return given
