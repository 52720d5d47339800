"""Alerts of a running hub: the engine's changes go into the database first, then its messages out, in one task, off the
way of reports and of the tick."""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from gpudeck.alerts.engine import Engine
from gpudeck.alerts.grouping import Outgoing
from gpudeck.alerts.life import Life
from gpudeck.alerts.message import Message
from gpudeck.alerts.silences import describe
from gpudeck.alerts.store import AlertAsk, AlertStore
from gpudeck.model import clock
from gpudeck.model.alert import Alert, AlertState, Silence
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event, make_event
from gpudeck.model.retention import RetentionClock

log = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 5.0
_TRIM_SECONDS: Final = 86_400.0
MOST_SILENCES: Final = 1000

Send = Callable[[Message], None]
Settle = Callable[[], Awaitable[None]]
"""Until all that was sent is where it is not lost. Raises Temporary."""


class Alerts:
    """What the API asks, and what writes and sends. `start` and `stop` in the event loop that owns it.

    `send` takes messages; it does not block, and what it was given once under a key it sends once. `problem` is what
    keeps alerts from being kept, for everybody who may look at the hub.
    """

    def __init__(
        self,
        engine: Engine,
        store: AlertStore,
        tell: Callable[[Event], None],
        send: Send,
        settle: Settle | None = None,
        *,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
    ) -> None:
        self.engine = engine
        self._store = store
        self._tell = tell
        self._send = send
        self._settle = settle
        self._now = now
        self._retention = retention or RetentionClock(now=now)
        self._unnoted: list[Outgoing] = []
        self._wake = asyncio.Event()
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self.problem: str | None = None

    async def load(self) -> None:
        """What was kept before this start. Raises Temporary."""
        now = self._now()
        lives = await self._store.load(now)
        self.engine.silences.load(await self._store.load_silences(now))
        self.engine.load(lives, now)

    def start(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_forever())

    async def stop(self) -> None:
        """Write and send what is left; what the database does not take now is lost, and said in the log."""
        task, self._writing = self._writing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await self.flush()
        except Temporary as error:
            log.warning("the state of %d alerts is lost: %s", len(self.engine.changed), error)

    def wake(self) -> None:
        """After the engine has looked: there may be something to write."""
        if self.engine.changed or self.engine.outgoing:
            self._wake.set()

    async def flush(self) -> None:
        """Write what changed, then send, then write that it was sent. Raises Temporary, after it has sent: an alert
        that cannot be written down is told all the same."""
        async with self._lock:
            try:
                await self._write()
            finally:
                self._send_all()
            await self._note_sent()

    def active(self, states: Sequence[AlertState]) -> list[Alert]:
        """Those that are not over, the worst first."""
        lives = [*self.engine.firing(), *self.engine.pending()]
        return [life.show() for life in lives if life.state in states]

    async def find_resolved(self, ask: AlertAsk) -> list[Alert]:
        """Those that are over, the newest first. Raises Temporary."""
        return await self._store.find_resolved(ask)

    def find(self, alert_id: str) -> Life | None:
        """One that is not over."""
        return self.engine.find(alert_id)

    async def acknowledge(self, alert_id: str, by: str) -> Alert | None:
        """None where no such alert fires. Raises Temporary where it cannot be written down."""
        life = self.engine.find(alert_id)
        if life is None or not life.is_firing:
            return None
        if self.engine.acknowledge(life, by, self._now()):
            await self.flush()
        return life.show()

    def remove_hosts(self, host_ids: Iterable[str]) -> int:
        """Somebody removed these hosts: their alerts are over, and who was told of them is told that. How many."""
        count = self.engine.remove_hosts(host_ids, self._now())
        self.wake()
        return count

    def silences(self) -> list[Silence]:
        """Those that count now or later, by their end."""
        now = self._now()
        return [silence for silence in self.engine.silences.all() if silence.end > now]

    async def silence(self, wanted: Silence) -> Silence:
        """`id` and `created_at` are given here. Raises Temporary."""
        now = self._now()
        made = _name(wanted, now)
        await self._store.write_silence(made)
        self.engine.silences.put(made)
        self.engine.refresh_silences(now)
        self._tell(
            make_event(
                now, "alert_silenced", f"{made.created_by} silenced {describe(made)}", detail=made.reason, host=None
            )
        )
        self.wake()
        return made

    async def end_silence(self, silence_id: str, by: str) -> Silence | None:
        """None where there is none. Raises Temporary."""
        if all(silence.id != silence_id for silence in self.silences()):
            return None
        await self._store.delete_silence(silence_id)
        ended = self.engine.silences.remove(silence_id)
        if ended is not None:
            now = self._now()
            self.engine.refresh_silences(now)
            self._tell(make_event(now, "alert_silence_ended", f"{by} ended the silence of {describe(ended)}"))
            self.wake()
        return ended

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        trim_at = loop.time()
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), 60.0)
            self._wake.clear()
            try:
                await self.flush()
                if loop.time() >= trim_at and (time := self._retention.deletion_time()) is not None:
                    trim_at = loop.time() + _TRIM_SECONDS
                    await self._store.trim(time)
                self._note_success()
            except Temporary as error:
                self._note_failure(error)
                await asyncio.sleep(_AGAIN_SECONDS)
                self._wake.set()
            except Exception:
                log.exception("alerts could not be written")
                await asyncio.sleep(_AGAIN_SECONDS)

    async def _write(self) -> None:
        taken = self.engine.take_changed()
        if not taken:
            return
        try:
            await self._store.write(taken.values())
        except BaseException:
            self.engine.put_back(taken)
            raise

    def _send_all(self) -> None:
        waiting = self.engine.take_outgoing()
        for sent in waiting:
            try:
                self._send(sent.message)
            except Exception:
                log.exception("a message could not be handed over")
        self._unnoted += waiting

    async def _note_sent(self) -> None:
        if not self._unnoted:
            return
        if self._settle is not None:
            await self._settle()
        noted, self._unnoted = self._unnoted, []
        for sent in noted:
            self.engine.note_sent(sent, self._now())
        await self._write()

    def _note_failure(self, error: Temporary) -> None:
        if self.problem is None:
            log.warning("alerts are not kept: %s", error)
        # Without the place: it is shown to everybody who may look.
        self.problem = "alerts are not kept: the hub's database does not take them now."

    def _note_success(self) -> None:
        if self.problem is not None:
            log.info("alerts are kept again")
        self.problem = None


def _name(wanted: Silence, now: float) -> Silence:
    return Silence(
        id=secrets.token_hex(4),
        start=wanted.start,
        end=wanted.end,
        created_at=now,
        created_by=wanted.created_by,
        reason=wanted.reason,
        host=wanted.host,
        rule=wanted.rule,
        labels=wanted.labels,
    )
