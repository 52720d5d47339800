"""The bot in Slack: connected, answering, and connected again. Nothing here holds up the hub.

What Slack's parts cost to import is paid by hubs that have a bot: this module is imported when one starts.

It listens to mentions, direct messages, its own channel and slash commands, over Socket Mode: Slack sends envelopes,
each is acknowledged at once and then worked on. A socket of Slack's ends every few hours, and a new one is opened: what
comes in between Slack sends again. Answers go through Slack's Web API; what goes wrong is explained in
words for the hub's admins, never with a secret.
"""

import asyncio
import contextlib
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, tzinfo
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct
from slack_sdk.errors import SlackApiError, SlackClientError
from slack_sdk.http_retry.builtin_async_handlers import (
    AsyncConnectionErrorRetryHandler,
    AsyncRateLimitErrorRetryHandler,
)
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.webhook.async_client import AsyncWebhookClient

from gpudeck.alerts.notifiers.sender_process import Unreached
from gpudeck.chat.blocks import Block, ChatAnswer, Snippet, add_note, escape
from gpudeck.chat.bot import Bot, BotServices, Question
from gpudeck.chat.settings import SlackSettings, is_token, where_to_find
from gpudeck.history.base import HistoryRefused
from gpudeck.history.time_range import load_zone
from gpudeck.model.backoff import Backoff
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import PluginError, Refused, Temporary
from gpudeck.model.settings import is_loopback

log = logging.getLogger(__name__)
HELLO_SECONDS: Final = 15.0
HEARTBEAT_SECONDS: Final = 15.0
"""A line over which nothing comes back for this long is dead."""
CLOSE_SECONDS: Final = 1.0
_MAX_BYTES: Final = 2**18
Envelope = dict[str, Any]
_SUBTYPES: Final = {None, "file_share", "thread_broadcast"}
"""Of messages that a person has written: others tell of edits, joins and the like."""
FIRST_PAUSE: Final = 1.0
MAX_PAUSES: Final = 60
STEADY_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 60.0
AT_ONCE: Final = 4
_GOODBYE_SECONDS: Final = 1.0
MAX_WAITING: Final = 64
MOST_OF_ONE: Final = 4
_SEEN_KEPT: Final = 2000
_SECRETS: Final = re.compile(r"x(?:ox[a-z]|app)-[\w-]+|wss?://\S+|[?&](?:ticket|token)=\S+")
_REFUSED_CODES: Final = frozenset(
    (
        *("invalid_auth", "not_authed", "account_inactive", "token_revoked", "token_expired"),
        *("not_allowed_token_type", "access_denied", "org_login_required"),
        *("no_permission", "missing_scope", "forbidden_team", "team_access_not_granted"),
    )
)
_PERSON_CODES: Final = frozenset(
    ("user_not_found", "user_not_visible", "user_disabled", "cannot_dm_bot", "channel_not_found", "is_archived")
)
_SWITCH_ON: Final = "Switch it on in the app's settings."
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
    if code in _REFUSED_CODES:
        scopes = f", it needs {mask(needed)[:200]}" if needed else ""
        hint = f"Check it and its scopes, then install the app again: {where_to_find(token)}."
        return Refused(f"Slack refuses the bot's {token} ({code}{scopes}).", hint)
    if code in _PERSON_CODES:
        return Unreached(f"Slack does not let the bot write to this user ({code}).", "Check their ID in `users`.")
    return Temporary(f"Slack answers {mask(code)[:60]}.", "It is tried again.")


def unreachable(error: Exception, host: str) -> Temporary:
    reason = mask(str(error))[:200] or type(error).__name__
    return Temporary(f"Slack cannot be reached at {host}: {reason}.", "It is tried again.")


class MessageOrigin(Struct, frozen=True, kw_only=True):
    """The place of a question. `response_url` is Slack's own way back to a slash command: only the user who asked
    sees what is sent there. `is_direct` is a direct message."""

    user: str
    channel: str = ""
    thread: str | None = None
    response_url: str | None = None
    is_direct: bool = False


class Delivery:
    """Sends with one token. What Slack refuses is logged, without a secret, and raises SlackClientError or OSError."""

    def __init__(self, web: AsyncWebClient) -> None:
        self._web = web

    async def send(self, answer: ChatAnswer, where: MessageOrigin) -> None:
        # A file can be seen by all of a channel: what is for one person goes into their direct messages.
        is_apart = where.response_url is not None or (answer.is_private and not where.is_direct)
        is_noted = is_apart and answer.snippet is not None
        await self._post(answer, add_note(answer.blocks, _APART) if is_noted else answer.blocks, where)
        if answer.snippet is None:
            return
        try:
            await self._upload(answer.snippet, answer.text, where, is_apart=is_apart)
        except SlackApiError as error:
            code = mask(str(error.response.get("error", "")))
            log.warning("a snippet could not be sent to Slack: %s", code)
            note = f"The list could not be sent here ({escape(code)}): does the bot have the scope files:write?"
            await self._post(answer, add_note((), note), where)

    async def write_to(self, user: str, answer: ChatAnswer) -> None:
        """Into a person's direct messages, without a question."""
        channel = await self._open_direct(user)
        await self.send(answer, MessageOrigin(user=user, channel=channel, is_direct=True))

    async def find_zone(self, user: str) -> tzinfo:
        """As their Slack knows it; UTC where that does not say."""
        try:
            info = await self._web.users_info(user=user)
            return load_zone(str(info["user"].get("tz") or "UTC"))
        except (SlackClientError, HistoryRefused, OSError, TimeoutError, KeyError, AttributeError):
            return UTC

    async def _post(self, answer: ChatAnswer, blocks: Sequence[Block], where: MessageOrigin) -> None:
        if where.response_url is not None:
            hook = AsyncWebhookClient(
                where.response_url, timeout=self._web.timeout, proxy=self._web.proxy, logger=self._web.logger
            )
            sent = await hook.send(text=answer.text, blocks=blocks, response_type="ephemeral", replace_original=False)
            if sent.status_code != 200:
                raise SlackClientError(f"Slack takes no answer: status {sent.status_code}")
            return
        place: dict[str, Any] = {"channel": where.channel, "thread_ts": where.thread, "text": answer.text}
        if answer.is_private and not where.is_direct:
            await self._web.chat_postEphemeral(user=where.user, blocks=blocks, **place)
        else:
            # Names that look like addresses stay text, and no page is fetched for a preview.
            await self._web.chat_postMessage(blocks=blocks, unfurl_links=False, unfurl_media=False, **place)

    async def _upload(self, snippet: Snippet, text: str, where: MessageOrigin, *, is_apart: bool) -> None:
        await self._web.files_upload_v2(
            filename=snippet.name,
            title=snippet.title,
            content=snippet.text,
            snippet_type="text",
            channel=await self._open_direct(where.user) if is_apart else where.channel,
            thread_ts=None if is_apart else where.thread,
            initial_comment=text if is_apart else None,
        )

    async def _open_direct(self, user: str) -> str:
        opened = await self._web.conversations_open(users=user)
        return str(opened["channel"]["id"])


async def write_once(settings: SlackSettings, user: str, answer: ChatAnswer) -> None:
    """Into a person's direct messages, by a bot that need not run. Raises PluginError."""
    web = make_web(settings, read_token(settings, "bot_token"))
    await call(settings, Delivery(web).write_to(user, answer), "bot_token")


def make_web(settings: SlackSettings, token: str) -> AsyncWebClient:
    # Each waits as long as Slack demands, twice; then the person has to ask again.
    again = [AsyncConnectionErrorRetryHandler(max_retry_count=1), AsyncRateLimitErrorRetryHandler(max_retry_count=2)]
    address = settings.api_url
    web = AsyncWebClient(token, base_url=address, timeout=CALL_SECONDS, logger=_theirs, retry_handlers=again)
    if _is_local(settings):
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
        """Each turn a socket: Slack asks for another every few hours."""
        backoff = Backoff(self._first_pause, self._first_pause * MAX_PAUSES, jitter=0.4)
        loop = asyncio.get_running_loop()
        async with aiohttp.ClientSession() as session:
            try:
                while True:
                    begun = loop.time()
                    try:
                        await self._listen(session)
                    except PluginError as error:
                        said = f"the Slack bot is not connected: {error}"
                        log.warning("%s", said)
                        self._report_problem(said)
                    # One that is closed as soon as it is opened is waited for as one that does not open.
                    if loop.time() - begun > STEADY_SECONDS:
                        backoff.succeed()
                    else:
                        await asyncio.sleep(backoff.fail())
            finally:
                await self._end()

    async def write_to(self, user: str, answer: ChatAnswer) -> None:
        """Into a person's direct messages. Raises PluginError."""
        if self._delivery is None:
            raise Temporary("the bot is not connected to Slack.")
        await call(self._settings, self._delivery.write_to(user, answer), "bot_token")

    async def _listen(self, session: aiohttp.ClientSession) -> None:
        """Until Slack asks for a new socket, or the line is gone. Raises PluginError when there is no socket."""
        url, proxy = await self._connect()
        is_greeted = False
        try:
            async with (
                asyncio.timeout(HELLO_SECONDS) as limit,
                session.ws_connect(
                    url,
                    heartbeat=HEARTBEAT_SECONDS,
                    max_msg_size=_MAX_BYTES,
                    proxy=proxy,
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS),
                ) as socket,
            ):
                async for message in socket:
                    envelope = _read_envelope(message)
                    kind, number = envelope.get("type"), envelope.get("envelope_id")
                    if kind == "hello":
                        limit.reschedule(None)
                        is_greeted = True
                        self._report_problem(None)
                        log.info("the bot is connected to Slack")
                    elif kind == "disconnect":
                        if envelope.get("reason") == "link_disabled":
                            raise Refused("Socket Mode is switched off for the bot's app.", _SWITCH_ON)
                        break
                    elif isinstance(number, str):
                        # Before any work: Slack repeats envelopes that are not acknowledged within three seconds.
                        await socket.send_str(msgspec.json.encode({"envelope_id": number}).decode())
                        self._take(envelope)
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            reason = mask(str(error)) or "it says no hello"
            if not is_greeted:
                raise Temporary(f"the socket to Slack cannot be opened: {reason}.") from None
            log.debug("the socket to Slack broke: %s", reason)
        if not is_greeted:
            raise Temporary("Slack closed the bot's socket before it said hello.")

    async def _connect(self) -> tuple[str, str | None]:
        """The address of a socket, and the proxy on the way. Raises PluginError."""
        settings = self._settings
        app_token, bot_token = read_token(settings, "app_token"), read_token(settings, "bot_token")
        web = make_web(settings, bot_token)
        told = await call(settings, web.auth_test(), "bot_token")
        self._own_id = str(told["user_id"])
        self._delivery = Delivery(web)
        self._bot = Bot(self._place, self._delivery.find_zone, settings.read, settings.keywords)
        opened = await call(settings, web.apps_connections_open(app_token=app_token), "app_token")
        url = str(opened.get("url", ""))
        # A proxy may answer in Slack's place.
        if not url.startswith(("wss://", "ws://") if _is_local(settings) else "wss://"):
            raise Temporary("Slack names no socket for the bot.", "It is tried again.")
        return url, web.proxy

    async def _end(self) -> None:
        """Answers that are nearly ready are still given, and no work goes on after this."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GOODBYE_SECONDS):
                while self._tasks:
                    await asyncio.wait(self._tasks)
        self._bot = None
        await cancel_tasks(*self._tasks)

    def _take(self, envelope: Envelope) -> None:
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
        """Work on messages to the bot. Raises KeyError, TypeError or AttributeError for an invalid envelope."""
        if kind == "events_api":
            self._take_event(body["event"], is_shared=bool(body.get("is_ext_shared_channel")))
        elif kind == "slash_commands":
            user, channel = str(body["user_id"]), str(body.get("channel_id") or "")
            question = Question(text=str(body.get("text") or ""), slack_id=user, bot=self._own_id, is_private=True)
            self._ask(question, MessageOrigin(user=user, channel=channel, response_url=str(body["response_url"])))

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
        """Returns at once: what works on it is known here, and ended here. Of one person no more than a few questions
        wait: the bot has others to answer."""
        bot, delivery = self._bot, self._delivery
        if bot is not None and delivery is not None and self._busy[where.user] < MOST_OF_ONE:
            self._busy[where.user] += 1
            task = asyncio.create_task(self._answer(bot, delivery, question, where))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, bot: Bot, delivery: Delivery, question: Question, where: MessageOrigin) -> None:
        try:
            async with self._turns, asyncio.timeout(ANSWER_SECONDS):
                if (given := await bot.answer(question)) is not None:
                    await delivery.send(given, where)
        except (SlackClientError, aiohttp.ClientError, OSError, TimeoutError) as error:
            said = error.response.get("error") if isinstance(error, SlackApiError) else error
            log.warning("an answer could not be sent to Slack: %s", mask(str(said))[:200] or type(error).__name__)
        except Exception:
            log.exception("a question from Slack could not be answered")
        finally:
            self._busy[where.user] -= 1
            self._busy += Counter()


def _read_envelope(message: aiohttp.WSMessage) -> Envelope:
    """Empty for an invalid message."""
    try:
        return msgspec.json.decode(message.data, type=Envelope) if message.type == aiohttp.WSMsgType.TEXT else {}
    except msgspec.DecodeError:
        log.debug("Slack sent an invalid envelope")
        return {}


def _is_local(settings: SlackSettings) -> bool:
    return is_loopback(urlsplit(settings.api_url).hostname or "")
