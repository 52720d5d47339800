"""The bot in Slack: connected, answering, and connected again. Nothing here holds up the hub.

What Slack's parts cost to import is paid by hubs that have a bot: this module is imported when one starts.

It listens to mentions, direct messages, its own channel, slash commands and buttons, over Socket Mode: Slack sends
envelopes, each is acknowledged at once and then worked on. A socket of Slack's ends every few hours. It is announced,
and a new one is opened while the old one still delivers.
"""

import asyncio
import contextlib
import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from slack_sdk.errors import SlackApiError, SlackClientError

from gpudeck.chat.blocks import ChatAnswer
from gpudeck.chat.bot import Bot, BotServices, Question
from gpudeck.chat.settings import SlackSettings
from gpudeck.chat.web import Delivery, MessageOrigin, call, make_web, mask, read_token
from gpudeck.model.clock import Backoff
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import PluginError, Refused, Temporary
from gpudeck.model.settings import is_loopback

log = logging.getLogger(__name__)
HELLO_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 15.0
"""A line over which nothing comes back for this long is dead."""
LEAVING_SECONDS: Final = 30.0
"""How long an old socket is listened to after Slack has asked for a new one."""
CLOSE_SECONDS: Final = 1.0
_MAX_BYTES: Final = 2**18
Envelope = dict[str, Any]
Handle = Callable[[Envelope], Awaitable[None]]
_SUBTYPES: Final = {None, "file_share", "thread_broadcast"}
"""Of messages that a person has written: others tell of edits, joins and the like."""
FIRST_PAUSE: Final = 1.0
MAX_PAUSES: Final = 60
REFUSED_PAUSES: Final = 30
"""So many times the first: after a refusal a person has to act."""
STEADY_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 60.0
AT_ONCE: Final = 4
_GOODBYE_SECONDS: Final = 1.0
MAX_WAITING: Final = 64
MOST_OF_ONE: Final = 4
_SEEN_KEPT: Final = 2000
Work = Callable[[Bot, Delivery], Awaitable[None]]


class Socket:
    """One socket: `open` it, then `wait` until another is needed; `close` at the end."""

    def __init__(self, session: aiohttp.ClientSession, url: str, handle: Handle, proxy: str | None = None) -> None:
        self._session = session
        self._url = url
        self._handle = handle
        self._proxy = proxy
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_greeted = False
        self._first = asyncio.Event()
        self._over = asyncio.Event()
        self._reason = ""

    async def open(self) -> None:
        """Raises Temporary when Slack does not say hello in time."""
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                self._socket = await self._session.ws_connect(
                    self._url,
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=_MAX_BYTES,
                    proxy=self._proxy,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                )
                self._reading = asyncio.create_task(self._read(self._socket))
                await self._first.wait()
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            await self.close()
            reason = mask(str(error)) or "it says no hello"
            raise Temporary(f"the socket to Slack cannot be opened: {reason}.") from None
        if not self._is_greeted:
            await self.close()
            raise self._explain()

    async def wait(self) -> None:
        """Until Slack asks for a new socket, or the line is gone. Raises Refused when Socket Mode was switched off."""
        await self._over.wait()
        if self._reason == "link_disabled":
            raise self._explain()

    async def leave(self) -> None:
        """Go on for a while, for what is still under way, then close."""
        try:
            if self._reading is not None:
                await asyncio.wait([self._reading], timeout=LEAVING_SECONDS)
        finally:
            await self.close()

    async def close(self) -> None:
        await cancel_tasks(self._reading)
        if self._socket is not None:
            await self._socket.close()

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        try:
            async for message in socket:
                if message.type == aiohttp.WSMsgType.TEXT:
                    await self._take(socket, message.data)
        except (aiohttp.ClientError, OSError) as error:
            log.debug("the socket to Slack broke: %s", mask(str(error)))
        finally:
            self._end()

    async def _take(self, socket: aiohttp.ClientWebSocketResponse, text: str) -> None:
        try:
            envelope = msgspec.json.decode(text, type=Envelope)
        except msgspec.DecodeError:
            log.debug("Slack sent what is no envelope")
            return
        kind = envelope.get("type")
        if kind == "hello":
            self._is_greeted = True
            self._first.set()
        elif kind == "disconnect":
            self._reason = str(envelope.get("reason", ""))
            self._end()
        elif isinstance(number := envelope.get("envelope_id"), str):
            # Before any work: Slack sends again what is not acknowledged within three seconds.
            await socket.send_str(msgspec.json.encode({"envelope_id": number}).decode())
            await self._handle(envelope)

    def _end(self) -> None:
        self._first.set()
        self._over.set()

    def _explain(self) -> Refused | Temporary:
        if self._reason == "link_disabled":
            return Refused("Socket Mode is switched off for the bot's app.", "Switch it on in the app's settings.")
        return Temporary("Slack closed the bot's socket before it said hello.")


class SlackBot:
    """`run` until it is cancelled. `report_problem` gets what is wrong, and None when nothing is any more."""

    def __init__(
        self,
        settings: SlackSettings,
        place: BotServices,
        report_problem: Callable[[str | None], None],
        *,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self._settings = settings
        self._place = place
        self._report_problem = report_problem
        self._first_pause = first_pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._busy: Counter[str] = Counter()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._own_id = ""
        self._bot: Bot | None = None
        self._delivery: Delivery | None = None

    async def run(self) -> None:
        """Each turn a socket: a new one takes over while the old one still delivers."""
        backoff = Backoff(self._first_pause, self._first_pause * MAX_PAUSES, jitter=0.4)
        socket: Socket | None = None
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession() as session:
            try:
                while True:
                    begun, least = loop.time(), 0.0
                    try:
                        old, socket = socket, await self._connect(session)
                        if old is not None:
                            self._spawn(old.leave())
                        await socket.wait()
                    except PluginError as error:
                        said = f"the Slack bot is not connected: {error}"
                        log.warning("%s", said)
                        self._report_problem(said)
                        if isinstance(error, Refused):
                            least = self._first_pause * REFUSED_PAUSES
                    # One that is closed as soon as it is opened is waited for as one that does not open.
                    if loop.time() - begun > STEADY_SECONDS:
                        backoff.succeed()
                    else:
                        await asyncio.sleep(max(least, backoff.fail()))
            finally:
                await self._end(socket)

    async def write_to(self, user: str, answer: ChatAnswer) -> None:
        """Into a person's direct messages. Raises PluginError."""
        if self._delivery is None:
            raise Temporary("the bot is not connected to Slack.")
        await call(self._settings, self._delivery.write_to(user, answer), "bot_token")

    async def _connect(self, session: aiohttp.ClientSession) -> Socket:
        """A socket that Slack has greeted. Raises PluginError."""
        settings = self._settings
        app_token, bot_token = read_token(settings, "app_token"), read_token(settings, "bot_token")
        web = make_web(settings, bot_token)
        told = await call(settings, web.auth_test(), "bot_token")
        self._own_id = str(told["user_id"])
        self._delivery = Delivery(web)
        self._bot = Bot(self._place, self._delivery.find_zone)
        opened = await call(settings, web.apps_connections_open(app_token=app_token), "app_token")
        socket = Socket(session, self._check_url(str(opened.get("url", ""))), self._take, web.proxy)
        await socket.open()
        self._report_problem(None)
        log.info("the bot is connected to Slack")
        return socket

    async def _end(self, socket: Socket | None) -> None:
        """Nothing new is taken, answers that are nearly ready are still given, and no work goes on after this."""
        if socket is not None:
            await socket.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        self._bot = None
        await cancel_tasks(*self._tasks)

    async def _take(self, envelope: Envelope) -> None:
        """Never waits for the work: the socket goes on being read."""
        body = envelope.get("payload")
        if self._bot is None or not isinstance(body, dict) or self._is_repeated(envelope, body):
            return
        if len(self._tasks) >= MAX_WAITING:
            log.warning("the Slack bot is asked more than it can answer: a question was dropped")
            return
        try:
            self._dispatch(str(envelope["type"]), body)
        except (KeyError, TypeError, AttributeError):
            log.exception("an event from Slack could not be read")

    def _dispatch(self, kind: str, body: Envelope) -> None:
        """What is meant for the bot is worked on. Raises KeyError, TypeError or AttributeError for what Slack would
        not send."""
        if kind == "events_api":
            self._take_event(body["event"], is_shared=bool(body.get("is_ext_shared_channel")))
        elif kind == "slash_commands":
            user, channel = str(body["user_id"]), str(body.get("channel_id") or "")
            question = Question(text=str(body.get("text") or ""), slack_id=user, bot=self._own_id, is_private=True)
            self._ask(question, MessageOrigin(user=user, channel=channel, response_url=str(body["response_url"])))
        elif kind == "interactive" and body.get("type") == "block_actions":
            where = MessageOrigin(user=str(body["user"]["id"]), response_url=str(body["response_url"]))
            for action in body["actions"]:
                if str(action["action_id"]).startswith("gpudeck_"):
                    self._press(str(action["action_id"]), str(action.get("value", "")), where)

    def _take_event(self, event: Envelope, *, is_shared: bool) -> None:
        """A mention, a direct message, or a message in the bot's own channel, of a person."""
        is_person = event.get("user") not in {None, "", self._own_id} and not event.get("bot_id")
        if not is_person or event.get("subtype") not in _SUBTYPES:
            return
        is_mention, is_direct = event["type"] == "app_mention", event.get("channel_type") == "im"
        # A mention in the bot's own channel comes as an event of its own.
        is_own = event.get("channel") == self._settings.channel and f"<@{self._own_id}" not in event.get("text", "")
        if not is_mention and not (event["type"] == "message" and (is_direct or is_own)):
            return
        question = Question(
            text=str(event.get("text") or ""),
            slack_id=str(event["user"]),
            bot=self._own_id,
            is_private=is_direct and not is_mention,
            is_addressed=is_mention or is_direct,
            is_shared=is_shared,
        )
        user, channel, thread = str(event["user"]), str(event["channel"]), event.get("thread_ts")
        self._ask(question, MessageOrigin(user=user, channel=channel, thread=thread, is_direct=is_direct))

    def _is_repeated(self, envelope: Envelope, body: Envelope) -> bool:
        """Slack sends an event again that was not acknowledged in time: nothing is to be reserved twice."""
        key = str(body.get("event_id") or envelope["envelope_id"])
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > _SEEN_KEPT:
            self._seen.popitem(last=False)
        return False

    def _ask(self, question: Question, where: MessageOrigin) -> None:
        """Returns at once: what works on it is known here, and ended here."""

        async def answer(bot: Bot, delivery: Delivery) -> None:
            given = await bot.answer(question)
            if given is not None:
                await delivery.send(given, where)

        self._begin(where.user, answer)

    def _press(self, action: str, value: str, where: MessageOrigin) -> None:
        async def answer(bot: Bot, delivery: Delivery) -> None:
            given = await bot.press(action, value, where.user)
            # What was done takes the place of the offer; what was refused stands below it, for that person only.
            await delivery.send(given, where, replace=not given.is_private)

        self._begin(where.user, answer)

    def _begin(self, user: str, answer: Work) -> None:
        """Of one person no more than a few questions wait: the bot has others to answer."""
        bot, delivery = self._bot, self._delivery
        if bot is not None and delivery is not None and self._busy[user] < MOST_OF_ONE:
            self._busy[user] += 1
            self._spawn(self._work(user, lambda: answer(bot, delivery)))

    async def _work(self, user: str, answer: Callable[[], Awaitable[None]]) -> None:
        try:
            async with self._turns, asyncio.timeout(ANSWER_SECONDS):
                await answer()
        except (SlackClientError, aiohttp.ClientError, OSError, TimeoutError) as error:
            said = error.response.get("error") if isinstance(error, SlackApiError) else error
            log.warning("an answer could not be sent to Slack: %s", mask(str(said))[:200] or type(error).__name__)
        except Exception:
            log.exception("a question from Slack could not be answered")
        finally:
            self._busy[user] -= 1
            self._busy += Counter()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _check_url(self, url: str) -> str:
        """Raises Temporary for what is no socket: a proxy may answer in Slack's place."""
        is_here = is_loopback(urlsplit(self._settings.api_url).hostname or "")
        if not url.startswith(("wss://", "ws://") if is_here else "wss://"):
            raise Temporary("Slack names no socket for the bot.", "It is tried again.")
        return url
