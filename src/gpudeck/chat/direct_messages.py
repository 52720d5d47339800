"""The bot as a channel to one user: messages of the hub as direct messages."""

from collections.abc import Awaitable, Callable
from typing import Final

from gpudeck.alerts.message import Message
from gpudeck.alerts.notifiers.routes import FindUser
from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.chat.blocks import ChatAnswer, escape, link_button, text_answer
from gpudeck.model.errors import Temporary

_MOST_LINES: Final = 20
_MOST_LINE: Final = 400
_TITLE: Final = 200
_WATCH: Final = "They are not reserved: `reserve` does that."

Write = Callable[[str, ChatAnswer], Awaitable[None]]
"""To a Slack ID. Raises PluginError."""


class DirectMessageChannel:
    """What an outbox sends with (see alerts.notifiers.channel.Post). Until `connect` says how the bot that runs
    writes, sending fails; `page` is where people open the page."""

    longest = 30.0

    def __init__(self, user_of: FindUser, page: str | None) -> None:
        self._write: Write | None = None
        self._user_of = user_of
        self._page = page

    def connect(self, write: Write) -> None:
        """From here on that bot writes."""
        self._write = write

    async def send(self, message: Message, account: str | None) -> None:
        """Raises Temporary or Refused, with words for all who may look at the hub."""
        slack_id = None if account is None else self._user_of(account).slack
        if slack_id is None:
            raise Unreached(f"users has no Slack ID of {account} any more.")
        if self._write is None:
            raise Temporary("the bot is not connected to Slack.")
        await self._write(slack_id, answer_message(message, self._page))

    async def release(self) -> None:
        """There is nothing to let go of."""


def answer_message(message: Message, page: str | None) -> ChatAnswer:
    lines = [escape(line, _MOST_LINE) for line in message.lines[:_MOST_LINES]]
    more = len(message.lines) - _MOST_LINES
    lines += [f"… and {more} more"] if more > 0 else []
    action = _WATCH if message.kind == "watch" else escape(message.action, _MOST_LINE)
    said = [f"*{escape(message.title, _TITLE)}*", *lines, *([action] if action else [])]
    return text_answer(
        *said, buttons=() if page is None else [link_button("Open the page", f"{page.rstrip('/')}/{message.link}")]
    )
