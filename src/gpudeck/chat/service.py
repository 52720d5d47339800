"""The Slack bot of a hub, started with it and started again when it fails."""

import asyncio
import importlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.routes import FindUser
from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.chat.blocks import ChatAnswer, add_link, escape, text_answer
from gpudeck.chat.bot import BotServices
from gpudeck.chat.settings import ChatSettings, SlackSettings
from gpudeck.fleet.observers import Service
from gpudeck.model.cluster import Duty
from gpudeck.model.errors import Temporary
from gpudeck.model.plugins import is_installed

if TYPE_CHECKING:
    from gpudeck.chat.slack import SlackBot

_MAX_LINES: Final = 20
_MAX_LINE: Final = 400
_TITLE: Final = 200
_WATCH: Final = "They are not reserved: `reserve` does that."

Write = Callable[[str, ChatAnswer], Awaitable[None]]
"""To a Slack ID. Raises PluginError."""


class DirectMessageChannel:
    """A channel of the outbox (see alerts.notifiers.outbox.Channel) that writes direct messages. Before `connect`,
    sending fails; `page` is the address of the page."""

    def __init__(self, user_of: FindUser, page: str | None) -> None:
        self._write: Write | None = None
        self._user_of = user_of
        self._page = page

    def connect(self, write: Write) -> None:
        """Messages are written by that bot from now on."""
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
        """Nothing to release."""


def answer_message(message: Message, page: str | None) -> ChatAnswer:
    lines = [escape(line, _MAX_LINE) for line in message.lines[:_MAX_LINES]]
    more = len(message.lines) - _MAX_LINES
    lines += [f"… and {more} more"] if more > 0 else []
    action = _WATCH if message.kind == "watch" else escape(message.action, _MAX_LINE)
    answer = text_answer(f"*{escape(message.title, _TITLE)}*", *lines, *filter(None, [action]))
    return answer if page is None else add_link(answer, "Open the page", f"{page.rstrip('/')}/{message.link}")


log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 3.0


class ChatService(Service):
    """Without a bot in the settings nothing happens, and nothing of Slack is imported."""

    name = "chat"

    def __init__(
        self,
        services: BotServices,
        settings: ChatSettings,
        *,
        direct_messages: DirectMessageChannel | None = None,
        duty: Duty | None = None,
    ) -> None:
        """Of several hubs the one with the `duty` runs the bot. `direct_messages` sends messages to single users while
        the bot runs."""
        self._services = services
        self._settings = settings
        self._direct_messages = direct_messages
        self._duty = duty or Duty("chat")
        self._is_started = False
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._is_started = True
        self.on_second()

    def on_second(self) -> None:
        if not self._is_started or self._duty.is_held == (self._running is not None):
            return
        if self._running is not None:
            self._running.cancel()
            self._running = None
            return
        # A missing extra was reported when the hub started.
        if self._settings.slack is not None and is_installed("slack"):
            self._running = asyncio.get_running_loop().create_task(self._run(self._settings.slack))

    async def close(self) -> None:
        """Takes no longer than a few seconds, whatever Slack does."""
        task, self._running = self._running, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=_STOP_SECONDS)

    async def _run(self, settings: SlackSettings) -> None:
        """A failed bot starts again; the hub is not affected."""
        # In a thread: it takes half a second, which the hub has not.
        slack = await asyncio.to_thread(importlib.import_module, "gpudeck.chat.slack")
        while True:
            try:
                bot: SlackBot = slack.SlackBot(settings, self._services, self._report_problem)
                if self._direct_messages is not None:
                    self._direct_messages.connect(bot.write_to)
                await bot.run()
            except Exception:
                log.exception("the Slack bot failed")
                self._report_problem("the Slack bot failed, and is started again: see the hub's log.")
            await asyncio.sleep(_AGAIN_SECONDS)

    def _report_problem(self, problem: str | None) -> None:
        self._services.hub.fleet.set_problems("chat", [] if problem is None else [problem])
