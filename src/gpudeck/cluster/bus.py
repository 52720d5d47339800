"""The bus of a cluster: a NATS JetStream stream with all messages of all hubs in one order, kept for a while.

Every hub reads the stream from where it left off, and publishes a message at least once a second. When its newest
message comes back, it has read everything before it. So a hub knows whether it is up to date, and how far it is behind,
without comparing clocks.
"""

import asyncio
import contextlib
import logging
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import AuthorizationError, NoRespondersError, NoServersError
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy, StorageType, StreamConfig
from nats.js.errors import BadRequestError, ServiceUnavailableError

from gpudeck.cluster.settings import ClusterSettings
from gpudeck.model.backoff import Backoff
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary

log = logging.getLogger(__name__)

LOST_SECONDS: Final = 5.0
"""A hub whose own messages have not come back for this long is cut off from the bus."""
MAX_WAITING_BYTES: Final = 128 * 1024 * 1024
"""The limit for messages that wait for the bus: about half an hour of 1,000 hosts."""
_AT_ONCE: Final = 16
"""Messages published before the first of them is acknowledged."""
_ANSWER_SECONDS: Final = 5.0
_FAILURES: Final = 3
"""Failed attempts to publish in a row: the disk of the bus may be full."""
_OVERLAP_SECONDS: Final = 2.0
"""This much is read again after a new subscription; messages that are read twice change nothing."""

Receive = Callable[[bytes, float], Awaitable[None]]
"""Called with a message and the time of the bus when it was published."""
Answer = Callable[[bytes], Awaitable[bytes]]


class Bus:
    """`start` and `close` in the loop that owns it. `receive` is called with every message, including this hub's own,
    in the same order on all hubs. `problem` is why it cannot be used now, in words for every reader; None if it can."""

    def __init__(
        self,
        settings: ClusterSettings,
        receive: Receive,
        answer: Answer,
        *,
        since: float,
        monotonic: Clock = time.monotonic,
    ) -> None:
        """Messages are read from the bus's time `since` on. `answer` is called with requests of other hubs."""
        self._settings = settings
        self._receive = receive
        self._answer = answer
        self._since = since
        self._subject = f"gpudeck.{settings.id}.log"
        self._requests = f"gpudeck.{settings.id}.hub."
        self._stream = f"gpudeck-{settings.id}"
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._wake, self._is_published = asyncio.Event(), asyncio.Event()
        self._client: Client | None = None
        self._publisher: JetStreamContext | None = None
        self._is_lost = asyncio.Event()
        self._next = 0
        self._monotonic = monotonic
        self._read_at = monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self.dropped = 0
        self.problem: str | None = "it has not been reached yet"

    @property
    def position(self) -> float:
        return self._since

    @property
    def idle_seconds(self) -> float:
        """Seconds since the last message. Shorter while there is a backlog to read: then its own messages come back
        late."""
        return self._monotonic() - self._read_at

    @property
    def shown(self) -> str:
        return ",".join(one.rpartition("@")[2].removeprefix("nats://") for one in self._settings.bus.split(","))

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read_forever()), loop.create_task(self._publish_forever())]

    def publish(self, body: bytes) -> None:
        """Send a message as soon as the bus accepts it; if too many wait, the oldest are dropped."""
        self._is_published.clear()
        self._waiting.append(body)
        self._waiting_bytes += len(body)
        while self._waiting_bytes > MAX_WAITING_BYTES:
            self._waiting_bytes -= len(self._waiting.popleft())
            self.dropped += 1
        self._wake.set()

    def note_lost(self) -> None:
        """Messages no longer come back: renew the subscription."""
        self._is_lost.set()

    async def request(self, hub: str, body: bytes, seconds: float) -> bytes:
        if self._client is None:
            raise Temporary("the hubs cannot reach each other: the bus is away.", "Ask again in a moment.")
        try:
            return (await self._client.request(self._requests + hub, body, timeout=seconds)).data
        except (NatsError, OSError, TimeoutError) as error:
            raise Temporary(f"the hub {hub} does not answer.", "Ask again in a moment.") from error

    async def close(self) -> None:
        if self._waiting and self._client is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_published.wait(), 2.0)
        await cancel_tasks(*self._tasks)
        await self._disconnect()

    async def _read_forever(self) -> None:
        backoff = Backoff(0.5, 5.0, jitter=0.5)
        while True:
            self._is_lost.clear()
            try:
                await self._connect()
                backoff.succeed()
                await self._is_lost.wait()
                pause = 0.1
            except (NatsError, OSError, TimeoutError, ValueError) as error:
                reason = _explain(error)
                if reason != self.problem:
                    log.warning("the bus %s cannot be used: %s (%r)", self.shown, reason, error)
                self.problem, pause = reason, backoff.fail()
            except Exception:
                log.exception("the bus failed")
                self.problem, pause = "see the hub's log", 5.0
            await self._disconnect()
            await asyncio.sleep(pause)

    async def _connect(self) -> None:
        settings, client = self._settings, Client()
        await client.connect(
            settings.bus.split(","),
            name=f"gpudeck {settings.hub_name}",
            user_credentials=settings.credentials_file,
            tls=_make_tls(settings),
            allow_reconnect=False,
            max_reconnect_attempts=1,
            connect_timeout=3,
            ping_interval=2,
            max_outstanding_pings=2,
            error_cb=_note_error,
            closed_cb=self._note_closed,
            disconnected_cb=self._note_closed,
        )
        try:
            stream = client.jetstream(timeout=_ANSWER_SECONDS)
            await self._make_stream(stream)
            await client.subscribe(self._requests + settings.hub_name, cb=self._serve)
            self._next = 1
            await stream.subscribe(
                self._subject,
                stream=self._stream,
                cb=self._take,
                manual_ack=True,
                config=ConsumerConfig(
                    deliver_policy=DeliverPolicy.BY_START_TIME,
                    opt_start_time=datetime.fromtimestamp(max(1.0, self._since - _OVERLAP_SECONDS), UTC),
                    ack_policy=AckPolicy.NONE,
                    flow_control=True,
                    idle_heartbeat=2.0,
                    inactive_threshold=30.0,
                    num_replicas=settings.replicas,
                ),
            )
        except BaseException:
            await client.close()
            raise
        self._client, self._publisher, self.problem = client, stream, None
        self._read_at = self._monotonic()
        self._wake.set()
        log.info("connected to the bus %s", self.shown)

    async def _make_stream(self, stream: JetStreamContext) -> None:
        wanted = StreamConfig(
            name=self._stream,
            subjects=[self._subject],
            storage=StorageType.FILE,
            max_age=self._settings.keep,
            num_replicas=self._settings.replicas,
        )
        try:
            await stream.add_stream(wanted)
        except BadRequestError:  # it exists with other settings
            await stream.update_stream(wanted)

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self.problem = self.problem or "the connection was lost"
            with contextlib.suppress(NatsError, OSError, TimeoutError):
                async with asyncio.timeout(2.0):
                    await client.close()

    async def _note_closed(self) -> None:
        self._is_lost.set()

    async def _take(self, message: Msg) -> None:
        found = message.metadata
        if found.sequence.consumer != self._next:
            # Messages of a former subscription, or a gap: read again from the last one on.
            if found.sequence.consumer > self._next:
                self._is_lost.set()
            return
        self._next += 1
        at = found.timestamp.timestamp()
        try:
            await self._receive(message.data, at)
        except Exception:
            log.exception("a message of the bus could not be used")
        self._since, self._read_at = max(self._since, at), self._monotonic()

    async def _serve(self, message: Msg) -> None:
        try:
            body = await self._answer(message.data)
        except Exception:
            log.exception("a request of another hub failed")
            return
        with contextlib.suppress(NatsError):
            await message.respond(body)

    async def _publish_forever(self) -> None:
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            publisher = self._publisher
            try:
                while publisher is not None and self._waiting and self._client is not None:
                    await self._publish_some(publisher)
                    if failures >= _FAILURES and self._client is not None:
                        self.problem = None
                    failures = 0
                if not self._waiting:
                    self._is_published.set()
            except (NatsError, OSError, TimeoutError, Temporary) as error:
                failures += 1
                log.log(
                    logging.WARNING if failures == _FAILURES else logging.DEBUG, "messages wait for the bus: %s", error
                )
                if failures >= _FAILURES:
                    self.problem = "it takes no messages"
                await asyncio.sleep(0.5)
                self._wake.set()

    async def _publish_some(self, stream: JetStreamContext) -> None:
        some = [self._waiting[at] for at in range(min(_AT_ONCE, len(self._waiting)))]
        sent = [await stream.publish_async(self._subject, body, wait_stall=_ANSWER_SECONDS) for body in some]
        done, late = await asyncio.wait(sent, timeout=_ANSWER_SECONDS)
        if late or any(one.exception() is not None for one in done):
            raise Temporary("the bus does not acknowledge messages.")
        for body in some:
            # The oldest may have been dropped meanwhile.
            if self._waiting and self._waiting[0] is body:
                self._waiting.popleft()
                self._waiting_bytes -= len(body)


def _make_tls(settings: ClusterSettings) -> ssl.SSLContext | None:
    """None: TLS as the addresses say, with the system's CAs."""
    if settings.ca_file is None and settings.certificate_file is None:
        return None
    context = ssl.create_default_context(cafile=settings.ca_file)
    if settings.certificate_file is not None:
        context.load_cert_chain(settings.certificate_file, settings.key_file)
    return context


def _explain(error: Exception) -> str:
    """Without an address: every reader can see it."""
    text = f"{error} {getattr(error, 'description', '')}".lower()
    if isinstance(error, AuthorizationError) or "authorization" in text:
        return "it refuses the user or password, or the credentials"
    if isinstance(error, NoRespondersError | ServiceUnavailableError) or "jetstream not enabled" in text:
        return "JetStream is not enabled there (`nats-server -js`)"
    if "replicas" in text or "insufficient" in text or "no suitable peers" in text:
        return "it has fewer servers than cluster.replicas"
    if isinstance(error, ssl.SSLError | FileNotFoundError | PermissionError) or "certificate" in text:
        return "a certificate is not accepted, or a file that `cluster` names cannot be read: see the hub's log"
    if isinstance(error, NoServersError | OSError | TimeoutError):
        return "it does not answer"
    return "see the hub's log"


async def _note_error(error: Exception) -> None:
    log.debug("bus: %s", error)
