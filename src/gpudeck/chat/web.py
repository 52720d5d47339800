"""Slack's Web API as the bot calls it: its tokens, its client, and what went wrong in words."""

import asyncio
import logging
from collections.abc import Awaitable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.http_retry.builtin_async_handlers import (
    AsyncConnectionErrorRetryHandler,
    AsyncRateLimitErrorRetryHandler,
)
from slack_sdk.web.async_client import AsyncWebClient

from gpudeck.chat.blocks import Answer
from gpudeck.chat.delivery import Delivery
from gpudeck.chat.failures import refuse, unreachable
from gpudeck.chat.settings import SlackSettings, is_token, where_to_find
from gpudeck.model.errors import Refused
from gpudeck.model.settings import is_loopback

_theirs = logging.getLogger(f"{__name__}.sdk")
_theirs.setLevel(logging.CRITICAL)
"""Slack's parts write addresses with tickets into their logs: what matters of it we say ourselves."""

CALL_SECONDS: Final = 10
_Answered = TypeVar("_Answered")


async def write_once(settings: SlackSettings, user: str, answer: Answer) -> None:
    """Into somebody's direct messages, by a bot that need not run. Raises PluginError."""
    web = make_web(settings, read_token(settings, "bot_token"))
    await call(settings, Delivery(web).write_to(user, answer), "bot_token")


def make_web(settings: SlackSettings, token: str) -> AsyncWebClient:
    # Each waits as long as Slack tells it to, twice; then whoever asked has to ask again.
    again = [
        AsyncConnectionErrorRetryHandler(max_retry_count=1),
        AsyncRateLimitErrorRetryHandler(max_retry_count=2),
    ]
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
    """Read again for every connection: whoever writes another into the file need not start the hub again. Raises
    Refused."""
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
