"""Answers on their way into Slack: into a channel, to one person in it, into a direct message, or as a snippet."""

import logging
from datetime import UTC, tzinfo
from typing import Any, Final

from msgspec import Struct
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.webhook.async_client import AsyncWebhookClient

from gpudeck.chat.blocks import SECTION, Answer, Block, Snippet, add_note, code, shorten_for_slack
from gpudeck.chat.escape import escape
from gpudeck.chat.failures import mask
from gpudeck.history.base import HistoryRefused
from gpudeck.history.period import load_zone

log = logging.getLogger(__name__)

_ZONES_KEPT: Final = 1000
_WIDEST: Final = 200
_APART: Final = "The list is in our direct messages."


class Where(Struct, frozen=True, kw_only=True):
    """Where a question was asked. `response_url` is Slack's own way back to a slash command or a button: what is sent
    there is seen by whoever asked alone. `is_direct` is a direct message."""

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

    async def send(self, answer: Answer, where: Where, *, replace: bool = False) -> None:
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
            await self._post(answer, [_beginning(answer.snippet)], where)

    async def write_to(self, user: str, answer: Answer) -> None:
        """Into somebody's direct messages, though they did not ask just now."""
        channel = await self._open_direct(user)
        await self.send(answer, Where(user=user, channel=channel, is_direct=True))

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

    async def _post(self, answer: Answer, blocks: list[Block], where: Where, *, replace: bool = False) -> None:
        if where.response_url is not None:
            await self._respond(where.response_url, answer, blocks, replace=replace)
            return
        place: dict[str, Any] = {"channel": where.channel, "thread_ts": where.thread}
        if answer.is_private and not where.is_direct:
            await self._web.chat_postEphemeral(user=where.user, text=answer.text, blocks=blocks, **place)
        else:
            # Names that look like addresses stay text, and no page is fetched for a preview.
            await self._web.chat_postMessage(
                text=answer.text, blocks=blocks, unfurl_links=False, unfurl_media=False, **place
            )

    async def _respond(self, url: str, answer: Answer, blocks: list[Block], *, replace: bool) -> None:
        hook = AsyncWebhookClient(url, timeout=self._web.timeout, proxy=self._web.proxy, logger=self._web.logger)
        kind = None if replace else "ephemeral"
        sent = await hook.send(text=answer.text, blocks=blocks, response_type=kind, replace_original=replace)
        if sent.status_code != 200:
            raise SlackClientError(f"Slack takes no answer: status {sent.status_code}")

    async def _upload(self, snippet: Snippet, answer: Answer, where: Where) -> None:
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


def _is_apart(answer: Answer, where: Where) -> bool:
    """Whether a file cannot stand where the question does."""
    return where.response_url is not None or (answer.is_private and not where.is_direct)


def _beginning(snippet: Snippet) -> Block:
    lines = (escape(line, _WIDEST) for line in snippet.text.splitlines())
    return code(shorten_for_slack("\n".join(lines), SECTION - 20))
