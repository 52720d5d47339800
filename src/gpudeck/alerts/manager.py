"""The alerts of a running hub: one background task writes the engine's changes to the database, then queues its
messages. Reports and ticks never wait for it."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.grouping import OutgoingMessage
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.record import AlertRecord, describe
from gpudeck.alerts.store import AlertQuery, AlertStore
from gpudeck.database.background import BackgroundWriter
from gpudeck.model import clock
from gpudeck.model.alert import Alert, AlertState, Mute
from gpudeck.model.clock import RetentionClock
from gpudeck.model.event import SEVERITIES, Event, make_event

log = logging.getLogger(__name__)

_TRIM_SECONDS: Final = 86_400.0
MAX_MUTES: Final = 1000

Send = Callable[[Message], None]
Settle = Callable[[], Awaitable[None]]
"""Until all that was sent is where it is not lost. Raises Temporary."""


class AlertManager:
    """Answers the API, writes changes to the database, and sends messages. `start` and `stop` in the event loop that
    owns it.

    `send` takes messages; it does not block, and what it was given once under a key it sends once. `problem` is what
    keeps alerts from being kept, for everybody who may look at the hub.
    """

    def __init__(
        self,
        engine: AlertEngine,
        store: AlertStore,
        emit: Callable[[Event], None],
        send: Send,
        settle: Settle | None = None,
        *,
        sends_unwritten: bool = True,
        now: clock.Clock = clock.wall,
        retention: RetentionClock | None = None,
    ) -> None:
        """Without `sends_unwritten` nothing is sent that could not be written: another hub may have decided
        otherwise."""
        self._sends_unwritten = sends_unwritten
        self.engine = engine
        self._store = store
        self._emit = emit
        self.send = send
        self.settle = settle
        self._now = now
        self._retention = retention or RetentionClock(now=now)
        self._unnoted: list[OutgoingMessage] = []
        self._writer = BackgroundWriter(
            self._write_and_send,
            failing="alerts are not kept: %s",
            recovered="alerts are kept again",
            every=60.0,
            housekeeping=self._trim,
        )
        self._trim_at = 0.0

    @property
    def problem(self) -> str | None:
        # Without the place: it is shown to everybody who may look.
        return "alerts are not kept: the hub's database does not take them now." if self._writer.failure else None

    async def load(self) -> None:
        """Load the alerts and mutes of before this start. Raises Temporary."""
        now = self._now()
        records = await self._store.load(now)
        mutes = await self._store.load_mutes(now)
        self.engine.mutes.clear()
        self.engine.mutes.update({mute.id: mute for mute in mutes})
        self.engine.load(records, now)

    def begin_anew(self, engine: AlertEngine) -> None:
        """Forget everything, until `load`."""
        self.engine = engine
        self._unnoted = []

    def start(self) -> None:
        self._writer.start()

    async def stop(self) -> None:
        """Write and send what is left; what the database does not take now is lost, and said in the log."""
        if (error := await self._writer.stop()) is not None:
            log.warning("the state of %d alerts is lost: %s", len(self.engine.changed), error)

    def wake(self) -> None:
        """After the engine has looked: there may be something to write."""
        if self.engine.changed or self.engine.outgoing:
            self._writer.wake()

    async def flush(self) -> None:
        """Write what changed, then send, then write that it was sent. Raises Temporary, after it has sent: an alert
        that cannot be written down is sent all the same."""
        await self._writer.flush()

    def active(self, states: Sequence[AlertState]) -> list[Alert]:
        """Those that are not resolved, the worst first."""
        records = [*self.engine.firing(), *self.engine.pending()]
        return [record.show() for record in records if record.state in states]

    async def find_resolved(self, ask: AlertQuery) -> list[Alert]:
        """Resolved ones, the newest first. Raises Temporary."""
        return await self._store.find_resolved(ask)

    async def find_firing(self, at: float) -> list[Alert]:
        """Those that fired at that moment, as they were then, the worst first; mutes of the past are not kept. Raises
        Temporary."""
        shown = [_as_of(record.show(), at) for record in await self._store.find_firing(at)]
        return sorted(shown, key=lambda one: (-SEVERITIES.index(one.severity), -(one.fired_at or 0.0), one.id))

    async def find_between(self, rules: Sequence[str], start: float, end: float) -> list[AlertRecord]:
        """See `AlertStore.find_between`. Raises Temporary."""
        return await self._store.find_between(rules, start, end)

    async def acknowledge(self, alert_id: str, by: str) -> Alert | None:
        """None where no such alert fires. Raises Temporary where it cannot be written down."""
        return (await self.acknowledge_all([alert_id], by)).get(alert_id)

    async def acknowledge_all(self, alert_ids: Iterable[str], by: str) -> dict[str, Alert]:
        """By their id, those that fire, as they are then. Written down at once. Raises Temporary."""
        found = self.engine.find_all(set(alert_ids))
        firing = {alert_id: record for alert_id, record in found.items() if record.is_firing}
        if self.engine.acknowledge_all(firing.values(), by, self._now()):
            await self.flush()
        return {alert_id: record.show() for alert_id, record in firing.items()}

    async def withdraw_all(self, alert_ids: Iterable[str], by: str) -> list[Alert]:
        """Those that `by` had acknowledged and that fire again now. Written down at once. Raises Temporary."""
        own = self.engine.withdraw_all(self.engine.find_all(set(alert_ids)).values(), by, self._now())
        if own:
            await self.flush()
        return [record.show() for record in own]

    def remove_hosts(self, host_ids: Iterable[str]) -> int:
        """These hosts were removed: their alerts are resolved, and messages say so. Returns how many."""
        count = self.engine.remove_hosts(host_ids, self._now())
        self.wake()
        return count

    def mutes(self) -> list[Mute]:
        """Those that count now or later, by their end."""
        now = self._now()
        running = (mute for mute in self.engine.mutes.values() if mute.end > now)
        return sorted(running, key=lambda mute: (mute.end, mute.id))

    async def mute(self, wanted: Mute) -> Mute:
        """`id` and `created_at` are given here. Raises Temporary."""
        now = self._now()
        made = replace(wanted, id=secrets.token_hex(4), created_at=now)
        await self._store.write_mute(made)
        self.engine.mutes[made.id] = made
        self.engine.refresh_mutes(now)
        self._emit(
            make_event(now, "alert_muted", f"{made.created_by} muted {describe(made)}", detail=made.reason, host=None)
        )
        self.wake()
        return made

    async def end_mute(self, mute_id: str, by: str) -> Mute | None:
        """None where there is none. Raises Temporary."""
        if all(mute.id != mute_id for mute in self.mutes()):
            return None
        await self._store.delete_mute(mute_id)
        ended = self.engine.mutes.pop(mute_id, None)
        if ended is not None:
            now = self._now()
            self.engine.refresh_mutes(now)
            self._emit(make_event(now, "alert_mute_ended", f"{by} ended the mute of {describe(ended)}"))
            self.wake()
        return ended

    async def _write_and_send(self) -> None:
        is_written = False
        try:
            await self._write()
            is_written = True
        finally:
            if is_written or self._sends_unwritten:
                self._send_all()
        await self._note_sent()

    async def _trim(self) -> None:
        due = asyncio.get_running_loop().time()
        if due >= self._trim_at and (time := self._retention.deletion_time()) is not None:
            self._trim_at = due + _TRIM_SECONDS
            await self._store.trim(time)

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
                self.send(sent.message)
            except Exception:
                log.exception("a message could not be handed over")
        self._unnoted += waiting

    async def _note_sent(self) -> None:
        if not self._unnoted:
            return
        if self.settle is not None:
            await self.settle()
        noted, self._unnoted = self._unnoted, []
        for sent in noted:
            self.engine.note_sent(sent, self._now())
        await self._write()


def _as_of(alert: Alert, at: float) -> Alert:
    """Without what happened to it later."""
    then = replace(alert, state="acknowledged", resolved_at=None, muted_by=None, note=None)
    if alert.acknowledged_at is not None and alert.acknowledged_at <= at:
        return then
    return replace(then, state="firing", acknowledged_at=None, acknowledged_by=None)
