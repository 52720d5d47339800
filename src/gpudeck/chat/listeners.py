"""What the bot listens to in Slack: mentions, direct messages, its own channel, slash commands and buttons."""

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_sdk.web.async_client import AsyncWebClient

from gpudeck.chat.bot import Question
from gpudeck.chat.delivery import Where
from gpudeck.chat.failures import mask

log = logging.getLogger(__name__)

Ask = Callable[[Question, Where], Awaitable[None]]
Press = Callable[[str, str, Where], Awaitable[None]]
Json = dict[str, Any]

_SUBTYPES: Final = {None, "file_share", "thread_broadcast"}
"""Of messages that a person has written: others tell of edits, joins and the like."""


class Me:
    """The bot as Slack knows it. `result` is what Bolt wants to know, which would else ask Slack for it."""

    def __init__(self, told: Any, bot_token: str) -> None:
        self.user = str(told["user_id"])
        self.bot = str(told.get("bot_id") or "")
        self.result = AuthorizeResult(
            enterprise_id=told.get("enterprise_id"),
            team_id=told.get("team_id"),
            bot_user_id=self.user,
            bot_id=self.bot,
            bot_token=bot_token,
        )


def make_app(me: Me, web: AsyncWebClient, own_channel: str | None, ask: Ask, press: Press) -> AsyncApp:
    """An app of Bolt that hands everything meant for the bot to `ask` and `press`."""
    # Of the client it takes the address alone: the token comes with each authorization.
    client = AsyncWebClient(base_url=web.base_url, logger=web.logger)

    async def authorize() -> AuthorizeResult:
        return me.result

    app = AsyncApp(client=client, authorize=authorize, name="gpudeck-slack", logger=web.logger)

    @app.event("app_mention")
    async def on_mention(body: Json, event: Json) -> None:
        if _is_by_a_person(event):
            await ask(_question(body, event, me), _place(event))

    @app.event("message")
    async def on_message(body: Json, event: Json) -> None:
        if not _is_by_a_person(event):
            return
        if event.get("channel_type") == "im":
            await ask(_question(body, event, me, is_private=True), _place(event))
        # A mention in the bot's own channel comes as an event of its own.
        elif event.get("channel") == own_channel and f"<@{me.user}" not in event.get("text", ""):
            await ask(_question(body, event, me, is_addressed=False), _place(event))

    @app.command(re.compile(".*"))
    async def on_command(ack: Any, body: Json) -> None:
        await ack()
        question = Question(
            text=str(body.get("text") or ""), slack_id=str(body["user_id"]), bot=me.user, is_private=True
        )
        where = Where(
            user=str(body["user_id"]),
            channel=str(body.get("channel_id") or ""),
            response_url=str(body["response_url"]),
        )
        await ask(question, where)

    @app.action(re.compile("^gpudeck_"))
    async def on_button(ack: Any, body: Json, action: Json) -> None:
        await ack()
        where = Where(user=str(body["user"]["id"]), response_url=str(body["response_url"]))
        await press(str(action["action_id"]), str(action.get("value", "")), where)

    @app.error
    async def on_error(error: Exception) -> None:
        log.error("an event from Slack could not be worked on: %s", mask(repr(error)))

    return app


def _is_by_a_person(event: Json) -> bool:
    return bool(event.get("user")) and not event.get("bot_id") and event.get("subtype") in _SUBTYPES


def _question(body: Json, event: Json, me: Me, *, is_private: bool = False, is_addressed: bool = True) -> Question:
    return Question(
        text=str(event.get("text") or ""),
        slack_id=str(event["user"]),
        bot=me.user,
        is_private=is_private,
        is_addressed=is_addressed,
        is_shared=bool(body.get("is_ext_shared_channel")),
    )


def _place(event: Json) -> Where:
    return Where(
        user=str(event["user"]),
        channel=str(event["channel"]),
        thread=event.get("thread_ts"),
        is_direct=event.get("channel_type") == "im",
    )
