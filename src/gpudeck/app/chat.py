"""The bot of this hub: its rooms put together, started and stopped. Wiring of chat."""

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from gpudeck.alerts.watches import Watches
from gpudeck.api.access import Policy
from gpudeck.api.booking_desk import BookingDesk
from gpudeck.api.questions import Questions
from gpudeck.auth.parts import Auth
from gpudeck.chat.bot import Askers, BotServices
from gpudeck.chat.post import BotPost
from gpudeck.chat.settings import ChatSettings, SlackSettings
from gpudeck.history.base import Store
from gpudeck.hub.hub import Hub
from gpudeck.queueing.queue import WaitQueue
from gpudeck.reservations.calendar import Reservations

if TYPE_CHECKING:
    from gpudeck.chat.slack import SlackBot

log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 3.0


class Chat:
    """`start` when the hub serves, `stop` before it ends, in the event loop that owns the hub. Without a bot in the
    settings nothing happens, and nothing of Slack is imported."""

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        policy: Policy,
        settings: ChatSettings,
        *,
        reservations: Reservations,
        waiting: WaitQueue | None = None,
        history: Store | None = None,
        watches: Watches | None = None,
        reaches: Callable[[str | None], bool] = lambda _: False,
        post: BotPost | None = None,
        address: str = "",
    ) -> None:
        """`address` is where people find the hub. `reaches` says whether an account can be told by itself. `post` is
        what messages to people go through, while the bot runs."""
        self._hub = hub
        self._settings = settings
        read = None if settings.slack is None else settings.slack.read
        self._place = BotServices(
            hub=hub,
            policy=policy,
            askers=Askers(auth, policy, read),
            desk=BookingDesk(hub, auth, reservations),
            audit=auth.audit,
            questions=Questions(history),
            waiting=waiting,
            watches=watches,
            reaches=reaches,
            keywords={} if settings.slack is None else settings.slack.keywords,
            address=address,
        )
        self._post = post
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._settings.slack is not None:
            self._running = asyncio.get_running_loop().create_task(self._run(self._settings.slack))

    async def stop(self) -> None:
        """Takes no longer than a few seconds, whatever Slack does."""
        task, self._running = self._running, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task], timeout=_STOP_SECONDS)

    async def _run(self, settings: SlackSettings) -> None:
        """A bug of the bot's is the bot's: it starts again, and the hub goes on."""
        try:
            kind = await asyncio.to_thread(_import_bot)
        except ImportError as error:
            self._tell(f"the Slack bot needs {error.name}: install gpudeck[hub] again.")
            return
        while True:
            try:
                bot = kind(settings, self._place, self._tell)
                if self._post is not None:
                    self._post.connect(bot.write_to)
                await bot.run()
            except Exception:
                log.exception("the Slack bot failed")
                self._tell("the Slack bot failed, and is started again: see the hub's log.")
            await asyncio.sleep(_AGAIN_SECONDS)

    def _tell(self, problem: str | None) -> None:
        self._hub.fleet.say("chat", [] if problem is None else [problem])


def _import_bot() -> "type[SlackBot]":
    """In a thread: it takes half a second, which the hub has not."""
    from gpudeck.chat.slack import SlackBot  # noqa: PLC0415 - only a hub with a bot needs it

    return SlackBot
