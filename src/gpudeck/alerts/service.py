"""The alerts of a hub: the rules are evaluated on the live fleet once a second, in slices, so that reports never wait;
one background task writes the changes to the database, then queues the messages."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpudeck import __version__
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.grouping import OutgoingMessage
from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX, Message
from gpudeck.alerts.record import describe
from gpudeck.alerts.rule import FleetContext, GoneGpu
from gpudeck.alerts.rules import RULES
from gpudeck.alerts.selection import GpuTrends, HostSelector
from gpudeck.alerts.settings import DEFAULTS, AlertSettings
from gpudeck.alerts.store import AlertStore
from gpudeck.auth.auth import Auth
from gpudeck.database.background import BackgroundWriter, trim_regularly
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.service import EventLog
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model import clock
from gpudeck.model.alert import Alert, AlertCounts, AlertState, Mute
from gpudeck.model.clock import Clock, RetentionClock
from gpudeck.model.cluster import Duty
from gpudeck.model.cpu_budget import LoopBudget, cancel_tasks, run_in_steps
from gpudeck.model.errors import Temporary
from gpudeck.model.event import SEVERITIES, Event, make_event
from gpudeck.model.history import HistoryTrouble
from gpudeck.model.reservation import Reservation

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
        self.store = store
        self._emit = emit
        self.send = send
        self.settle = settle
        self._now = now
        self._unnoted: list[OutgoingMessage] = []
        self._writer = BackgroundWriter(
            self._write_and_send,
            failing="alerts are not kept: %s",
            recovered="alerts are kept again",
            every=60.0,
            housekeeping=trim_regularly(store.trim, retention or RetentionClock(now=now), _TRIM_SECONDS),
        )

    @property
    def problem(self) -> str | None:
        # Without the place: it is shown to everybody who may look.
        return "alerts are not kept: the hub's database does not take them now." if self._writer.failure else None

    async def load(self) -> None:
        """Load the alerts and mutes of before this start. Raises Temporary."""
        now = self._now()
        records = await self.store.load(now)
        mutes = await self.store.load_mutes(now)
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

    async def find_firing(self, at: float) -> list[Alert]:
        """Those that fired at that moment, as they were then, the worst first; mutes of the past are not kept. Raises
        Temporary."""
        shown = [_as_of(record.show(), at) for record in await self.store.find_firing(at)]
        return sorted(shown, key=lambda one: (-SEVERITIES.index(one.severity), -(one.fired_at or 0.0), one.id))

    async def acknowledge_all(self, alert_ids: Iterable[str], by: str) -> dict[str, Alert]:
        """Those that fire, by id, as they are then. They are written at once. Raises Temporary."""
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
        await self.store.write_mute(made)
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
        await self.store.delete_mute(mute_id)
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

    async def _write(self) -> None:
        taken = self.engine.take_changed()
        if not taken:
            return
        try:
            await self.store.write(taken.values())
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


MAX_SHOWN: Final = 200
HOSTS_A_SECOND: Final = 1000
MAX_SECONDS: Final = 10
"""After a look at more hosts than that, the next one comes as many times later, but within these seconds."""
_NOW_AND_THEN: Final = 60.0

Late = Callable[[], list[tuple[Reservation, float]]]
History = Callable[[], HistoryTrouble | None]


class ShownAlerts(Struct, frozen=True):
    """What every viewer of the fleet sees of its alerts."""

    alerts: list[Alert]
    counts: AlertCounts


class AlertService(Service):
    """`alerts` is what the API asks."""

    name = "alerts"

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        settings: AlertSettings,
        events: EventLog,
        *,
        send: Send,
        settle: Settle | None = None,
        late_reservations: Late = list,
        history: History = lambda: None,
        fleet: str = REAL,
        now: Clock = clock.wall,
        duty: Duty | None = None,
        database: Database | None = None,
        share: Callable[[ShownAlerts], None] | None = None,
    ) -> None:
        """`fleet` is the name under which a demo's alerts are kept apart; their titles say so. Of several hubs the one
        with the `duty` evaluates them, keeps them in `database` and shares what fires with the others."""
        self._duty = duty or Duty("alerts")
        self._has_duty = duty is None
        self._share = share
        self._prefix = "" if fleet == REAL else DEMO_PREFIX
        self._hub = hub
        self._auth = auth
        self._settings = settings
        self._events = events
        self._late_reservations = late_reservations
        self._history = history
        self._now = now
        self._selector = HostSelector(hub.fleet)
        self._power_limits: dict[str, float] = {}
        self._trends = GpuTrends()
        self._cared_at = float("-inf")
        self._shown = -1
        self._pause = 0
        self.task: asyncio.Task[None] | None = None
        # Of one hub not in a database elsewhere: an alert and its message never wait for that.
        store = AlertStore(database or auth.local, fleet)
        self.alerts = AlertManager(
            self.make_engine(self._prefix),
            store,
            events.add,
            send,
            settle,
            sends_unwritten=duty is None,
            now=now,
            retention=hub.retention,
        )

    async def open(self) -> None:
        """Raises Temporary when the database does not answer, and is called again then."""
        if self._has_duty:
            await self._load()

    async def _load(self) -> None:
        await self.alerts.load()
        self._expect_lost()
        # A GPU that a host of before no longer has is missed.
        self._selector.remember(self._now())

    def start(self) -> None:
        self.alerts.start()

    def on_second(self) -> None:
        """Start a look of the rules, unless the last one is still going on, or had to see thousands of hosts just
        now: while all of a large fleet is away, the reports of those that return come first."""
        problem = self.alerts.problem
        self._hub.fleet.set_problems("alerts", [] if problem is None else [problem])
        if not self._duty.is_held:
            self._has_duty = False
            return
        self._pause -= 1
        if self._pause <= 0 and (self.task is None or self.task.done()):
            self.task = asyncio.get_running_loop().create_task(self._look())

    def find_engine(self) -> AlertEngine | None:
        """The engine that evaluates alerts here; None while another hub does."""
        return self.alerts.engine if self._has_duty and self._duty.is_held else None

    async def settled(self) -> None:
        """Until the look that has begun is complete."""
        if self.task is not None:
            await self.task

    async def change(self, settings: AlertSettings) -> None:
        """Other limits, from the next look on."""
        await self.settled()
        self._settings = settings
        self.alerts.engine.change(settings)

    async def close(self) -> None:
        await cancel_tasks(self.task)
        await self.alerts.stop()

    async def _look(self) -> None:
        try:
            if not self._has_duty:
                await self._take_over()
            await self._evaluate_all()
        except Temporary as error:
            log.warning("alerts cannot be taken over: %s", error)
        except Exception:
            log.exception("alerts could not be looked for")

    async def _take_over(self) -> None:
        """Go on with what the hub that had the duty before has kept. This one has followed the fleet since it started.
        Raises Temporary."""
        self.alerts.begin_anew(self.make_engine(self._prefix))
        self._selector = HostSelector(self._hub.fleet)
        await self._load()
        self._has_duty, self._shown = True, -1

    async def _evaluate_all(self) -> None:
        engine, fleet, now = self.alerts.engine, self._hub.fleet, self._now()
        fleet.settle()
        self._care(now)
        engine.begin(self._make_context(now))
        chosen = self._selector.choose(engine.preselect(fleet.table), engine.active_hosts(), now)
        self._pause = min(len(chosen) // HOSTS_A_SECOND, MAX_SECONDS)
        budget = LoopBudget()
        for host_id, uuids in chosen.items():
            await budget.checkpoint()
            # One may have been removed while others had their turn.
            host = fleet.hosts.get(host_id)
            if host is not None:
                engine.evaluate(self._selector.snapshot(host, now, uuids))
        await run_in_steps(engine.finish_in_steps(fleet.hosts))
        await asyncio.sleep(0)
        self._show()
        self.alerts.wake()

    def _show(self) -> None:
        """Firing alerts are part of the fleet that viewers see; set only when they changed."""
        engine = self.alerts.engine
        if engine.version != self._shown:
            self._shown = engine.version
            firing = engine.firing()
            waiting = [record.severity for record in firing if record.needs_attention]
            counts = AlertCounts(len(firing), len(waiting), waiting.count("critical"))
            shown = ShownAlerts([record.show() for record in firing[:MAX_SHOWN]], counts)
            self._hub.fleet.show_alerts(shown.alerts, shown.counts)
            if self._share is not None:
                self._share(shown)

    def _care(self, now: float) -> None:
        if not 0 <= now - self._cared_at < _NOW_AND_THEN:
            self._cared_at = now
            self._selector.forget()
            self._power_limits = self._selector.power_limits()
            self._trends.look(self._hub.fleet.table, now)

    def _make_context(self, now: float) -> FleetContext:
        totals = self._hub.fleet.totals()
        return FleetContext(
            now=now,
            version=__version__,
            critical_celsius=self._hub.fleet.settings.health.critical_celsius,
            power_limits=self._power_limits,
            usual_clocks=self._trends.usual_clocks,
            growth=self._trends.growth,
            late_reservations=self._late_reservations(),
            history=self._history(),
            free=totals.free,
            known=totals.gpus - totals.unknown,
            drained=self._hub.fleet.drained(),
        )

    def make_engine(self, prefix: str) -> AlertEngine:
        health = self._hub.fleet.settings.health
        defaults = DEFAULTS | {rule.name: rule.limits_from(health) for rule in RULES if rule.limits_from is not None}
        account_of = self._auth.users.account_of
        started_at = self._hub.started_at
        return AlertEngine(
            self._settings, self._events.add, account_of, defaults=defaults, prefix=prefix, started_at=started_at
        )

    def _expect_lost(self) -> None:
        now, seeing = self._now(), {rule.name for rule in RULES if rule.sees_gone}
        for record in self.alerts.engine.firing():
            if record.rule in seeing:
                self._selector.expect(record.host_id, GoneGpu(record.gpu, record.label or "", record.model or ""), now)
