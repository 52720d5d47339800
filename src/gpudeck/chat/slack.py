"""The bot in Slack: connected, answering, and connected again. Nothing here holds up the hub.

What Slack's parts cost to import is paid by hubs that have a bot: this module is imported when one starts.

It listens to mentions, direct messages, its own channel, slash commands and buttons, over Socket Mode: Slack sends
envelopes, each is acknowledged at once and then worked on. A socket of Slack's ends every few hours. It is announced,
and a new one is opened while the old one still delivers.
"""

import asyncio
import contextlib
import logging
import random
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import msgspec
from slack_bolt.async_app import AsyncApp
from slack_bolt.authorization import AuthorizeResult
from slack_bolt.request.async_request import AsyncBoltRequest
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.web.async_client import AsyncWebClient

from gpudeck.chat.blocks import ChatAnswer
from gpudeck.chat.bot import Bot, BotServices, Question
from gpudeck.chat.settings import SlackSettings
from gpudeck.chat.web import Delivery, Where, call, make_web, mask, read_token
from gpudeck.model.errors import PluginError, Refused, Temporary
from gpudeck.model.settings import is_loopback

log = logging.getLogger(__name__)
HELLO_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 15.0
"""A line over which nothing comes back for this long is dead."""
LEAVING_SECONDS: Final = 30.0
"""How long an old socket is listened to after Slack has asked for a new one."""
CLOSE_SECONDS: Final = 1.0
_MOST_BYTES: Final = 2**18
Envelope = dict[str, Any]
Handle = Callable[[Envelope], Awaitable[None]]
Ask = Callable[[Question, Where], Awaitable[None]]
Press = Callable[[str, str, Where], Awaitable[None]]
Json = dict[str, Any]
_SUBTYPES: Final = {None, "file_share", "thread_broadcast"}
"""Of messages that a person has written: others tell of edits, joins and the like."""
FIRST_PAUSE: Final = 1.0
LONGEST_PAUSES: Final = 60
REFUSED_PAUSES: Final = 30
"""So many times the first: after a refusal a person has to act, and asking more often helps nobody."""
STEADY_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 60.0
AT_ONCE: Final = 4
_GOODBYE_SECONDS: Final = 1.0
MOST_WAITING: Final = 64
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
                    max_msg_size=_MOST_BYTES,
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
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
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


class SlackIdentity:
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


def make_app(me: SlackIdentity, web: AsyncWebClient, own_channel: str | None, ask: Ask, press: Press) -> AsyncApp:
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


def _question(
    body: Json, event: Json, me: SlackIdentity, *, is_private: bool = False, is_addressed: bool = True
) -> Question:
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


class SlackBot:
    """`run` until it is cancelled. `tell` hears what is wrong, and None when nothing is any more."""

    def __init__(
        self,
        settings: SlackSettings,
        place: BotServices,
        tell: Callable[[str | None], None],
        *,
        first_pause: float = FIRST_PAUSE,
    ) -> None:
        self._settings = settings
        self._place = place
        self._tell = tell
        self._first_pause = first_pause
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._busy: Counter[str] = Counter()
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._app: AsyncApp | None = None
        self._bot: Bot | None = None
        self._delivery: Delivery | None = None

    async def run(self) -> None:
        """Each turn a socket: a new one takes over while the old one still delivers."""
        pause, socket = self._first_pause, None
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession() as session:
            try:
                while True:
                    begun = loop.time()
                    try:
                        old, socket = socket, await self._connect(session)
                        self._leave(old)
                        await socket.wait()
                    except PluginError as error:
                        self._note(error)
                        if isinstance(error, Refused):
                            pause = max(pause, self._first_pause * REFUSED_PAUSES)
                    # One that is closed as soon as it is opened is waited for as one that does not open.
                    pause = self._first_pause if loop.time() - begun > STEADY_SECONDS else pause
                    if loop.time() - begun < STEADY_SECONDS:
                        await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311
                        pause = min(pause * 2, self._first_pause * LONGEST_PAUSES)
            finally:
                await self._end(socket)

    async def write_to(self, user: str, answer: ChatAnswer) -> None:
        """Into somebody's direct messages. Raises PluginError."""
        if self._delivery is None:
            raise Temporary("the bot is not connected to Slack.")
        await call(self._settings, self._delivery.write_to(user, answer), "bot_token")

    async def _connect(self, session: aiohttp.ClientSession) -> Socket:
        """A socket that Slack has greeted. Raises PluginError."""
        settings = self._settings
        app_token, bot_token = read_token(settings, "app_token"), read_token(settings, "bot_token")
        web = make_web(settings, bot_token)
        me = SlackIdentity(await call(settings, web.auth_test(), "bot_token"), bot_token)
        self._delivery = Delivery(web)
        self._bot = Bot(self._place, self._delivery.find_zone)
        self._app = make_app(me, web, self._settings.channel, self._ask, self._press)
        opened = await call(settings, web.apps_connections_open(app_token=app_token), "app_token")
        socket = Socket(session, self._check_url(str(opened.get("url", ""))), self._take, web.proxy)
        await socket.open()
        self._tell(None)
        log.info("the bot is connected to Slack")
        return socket

    def _leave(self, old: Socket | None) -> None:
        if old is not None:
            self._spawn(old.leave())

    async def _end(self, socket: Socket | None) -> None:
        """Nothing new is taken, answers that are nearly ready are still given, and no work goes on after this."""
        if socket is not None:
            await socket.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        # Bolt has tasks of its own, which may bring a question even now.
        self._app = self._bot = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _take(self, envelope: Envelope) -> None:
        """Never waits for the work: the socket goes on being read."""
        body = envelope.get("payload")
        if self._app is None or not isinstance(body, dict) or self._is_repeated(envelope, body):
            return
        if len(self._tasks) >= MOST_WAITING:
            log.warning("the Slack bot is asked more than it can answer: a question was dropped")
            return
        self._spawn(self._dispatch(self._app, AsyncBoltRequest(mode="socket_mode", body=body)))

    async def _dispatch(self, app: AsyncApp, request: AsyncBoltRequest) -> None:
        try:
            await app.async_dispatch(request)
        except Exception:
            log.exception("an event from Slack could not be read")

    def _is_repeated(self, envelope: Envelope, body: Envelope) -> bool:
        """Slack sends an event again that was not acknowledged in time, and nobody wants to book twice."""
        key = str(body.get("event_id") or envelope["envelope_id"])
        if key in self._seen:
            return True
        self._seen[key] = None
        if len(self._seen) > _SEEN_KEPT:
            self._seen.popitem(last=False)
        return False

    async def _ask(self, question: Question, where: Where) -> None:
        """Returns at once: what works on it is known here, and ended here."""

        async def answer(bot: Bot, delivery: Delivery) -> None:
            given = await bot.answer(question)
            if given is not None:
                await delivery.send(given, where)

        self._begin(where.user, answer)

    async def _press(self, action: str, value: str, where: Where) -> None:
        async def answer(bot: Bot, delivery: Delivery) -> None:
            given = await bot.press(action, value, where.user)
            # What was done takes the place of the offer; what was refused stands below it, for whoever pressed.
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
            log.warning("an answer could not be sent to Slack: %s", _describe(error))
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

    def _note(self, error: PluginError) -> None:
        said = f"the Slack bot is not connected: {error}"
        log.warning("%s", said)
        self._tell(said)


def _describe(error: Exception) -> str:
    if isinstance(error, SlackApiError):
        return mask(str(error.response.get("error")))
    return mask(str(error))[:200] or type(error).__name__
