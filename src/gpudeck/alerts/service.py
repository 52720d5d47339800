"""The alerts of a hub. Rules are evaluated on the live fleet once a second, in slices, so that reports never wait; a
background task writes the changes to the database, then queues the messages."""

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
"""Waits until all messages are stored. Raises Temporary."""


class AlertManager:
    """Answers the API, writes changes to the database, and sends messages. One event loop owns it.

    `send` takes messages without blocking, and sends each key once. `problem` is why alerts are not stored, for every
    viewer of the hub.
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
        """Without `sends_unwritten` only messages about stored alerts are sent: another hub may have decided
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
        # Without the address of the database: every viewer sees this.
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
        """Forget all alerts, until `load`."""
        self.engine = engine
        self._unnoted = []

    def start(self) -> None:
        self._writer.start()

    async def stop(self) -> None:
        """Write and send the rest. Alerts that the database does not take now are lost, which is logged."""
        if (error := await self._writer.stop()) is not None:
            log.warning("the state of %d alerts is lost: %s", len(self.engine.changed), error)

    def wake(self) -> None:
        """After the engine has finished: there may be something to write."""
        if self.engine.changed or self.engine.outgoing:
            self._writer.wake()

    async def flush(self) -> None:
        """Write what changed, then send, then write that it was sent. Raises Temporary, after sending also what could
        not be written."""
        await self._writer.flush()

    def active(self, states: Sequence[AlertState]) -> list[Alert]:
        """Alerts that are not resolved, by severity."""
        records = [*self.engine.firing(), *self.engine.pending()]
        return [record.show() for record in records if record.state in states]

    async def find_firing(self, at: float) -> list[Alert]:
        """The alerts that fired at that moment, as they were then, by severity. Past mutes are not known. Raises
        Temporary."""
        shown = [_as_of(record.show(), at) for record in await self.store.find_firing(at)]
        return sorted(shown, key=lambda one: (-SEVERITIES.index(one.severity), -(one.fired_at or 0.0), one.id))

    async def acknowledge_all(self, alert_ids: Iterable[str], by: str) -> dict[str, Alert]:
        """The firing ones by id, as they are then. They are written at once. Raises Temporary."""
        found = self.engine.find_all(set(alert_ids))
        firing = {alert_id: record for alert_id, record in found.items() if record.is_firing}
        if self.engine.acknowledge_all(firing.values(), by, self._now()):
            await self.flush()
        return {alert_id: record.show() for alert_id, record in firing.items()}

    async def withdraw_all(self, alert_ids: Iterable[str], by: str) -> list[Alert]:
        """The alerts that fire again, as `by` had acknowledged them. They are written at once. Raises Temporary."""
        own = self.engine.withdraw_all(self.engine.find_all(set(alert_ids)).values(), by, self._now())
        if own:
            await self.flush()
        return [record.show() for record in own]

    def remove_hosts(self, host_ids: Iterable[str]) -> int:
        """Resolve the alerts of removed hosts, with messages. Returns how many."""
        count = self.engine.remove_hosts(host_ids, self._now())
        self.wake()
        return count

    def mutes(self) -> list[Mute]:
        """Mutes that count now or later, by their end."""
        now = self._now()
        running = (mute for mute in self.engine.mutes.values() if mute.end > now)
        return sorted(running, key=lambda mute: (mute.end, mute.id))

    async def mute(self, wanted: Mute) -> Mute:
        """Add a mute; `id` and `created_at` are set here. Raises Temporary."""
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
        """None if there is no such mute. Raises Temporary."""
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
    """Without later changes."""
    then = replace(alert, state="acknowledged", resolved_at=None, muted_by=None, note=None)
    if alert.acknowledged_at is not None and alert.acknowledged_at <= at:
        return then
    return replace(then, state="firing", acknowledged_at=None, acknowledged_by=None)


MAX_SHOWN: Final = 200
HOSTS_A_SECOND: Final = 1000
MAX_SECONDS: Final = 10
"""After an evaluation of more hosts than that, the next one starts as many times later, at most these seconds."""
_NOW_AND_THEN: Final = 60.0

Late = Callable[[], list[tuple[Reservation, float]]]
History = Callable[[], HistoryTrouble | None]


class ShownAlerts(Struct, frozen=True):
    """The alerts that every viewer of the fleet sees."""

    alerts: list[Alert]
    counts: AlertCounts


class AlertService(Service):
    """`alerts` is for the API."""

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
        """`fleet` separates the alerts of a demo from real ones. Of several hubs the one with the `duty` evaluates
        alerts, stores them in `database` and shares those that fire with the others."""
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
        # A single hub stores alerts on its machine: they do not wait for a database server.
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
        """Raises Temporary if the database does not answer, and is called again then."""
        if self._has_duty:
            await self._load()

    async def _load(self) -> None:
        await self.alerts.load()
        self._expect_lost()
        # A GPU that a host has no longer is missing.
        self._selector.remember(self._now())

    def start(self) -> None:
        self.alerts.start()

    def on_second(self) -> None:
        """Start to evaluate the rules, unless the last evaluation still runs, or was about thousands of hosts just
        now: while a large fleet returns, its reports come first."""
        problem = self.alerts.problem
        self._hub.fleet.set_problems("alerts", [] if problem is None else [problem])
        if not self._duty.is_held:
            self._has_duty = False
            return
        self._pause -= 1
        if self._pause <= 0 and (self.task is None or self.task.done()):
            self.task = asyncio.get_running_loop().create_task(self._look())

    def find_engine(self) -> AlertEngine | None:
        """The engine that evaluates alerts; None while another hub does."""
        return self.alerts.engine if self._has_duty and self._duty.is_held else None

    async def settled(self) -> None:
        """Wait for the evaluation that is running."""
        if self.task is not None:
            await self.task

    async def change(self, settings: AlertSettings) -> None:
        """Use other limits from the next evaluation on."""
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
        """Continue with the alerts of the hub that had the duty before. Raises Temporary."""
        self.alerts.begin_anew(self.make_engine(self._prefix))
        self._selector, self._trends = HostSelector(self._hub.fleet), GpuTrends()
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
            # It may have been removed at a checkpoint.
            host = fleet.hosts.get(host_id)
            if host is not None:
                engine.evaluate(self._selector.snapshot(host, now, uuids))
        await run_in_steps(engine.finish_in_steps(fleet.hosts))
        await asyncio.sleep(0)
        self._show()
        self.alerts.wake()

    def _show(self) -> None:
        """Show firing alerts to viewers of the fleet, if they have changed."""
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
            why_uncounted=self._trends.why_uncounted,
            late_reservations=self._late_reservations(),
            history=self._history(),
            free=totals.free,
            known=totals.gpus - totals.unknown,
            drained=self._hub.fleet.drained(),
        )

    def make_engine(self, prefix: str) -> AlertEngine:
        hot = self._hub.fleet.settings.health.hot_celsius
        defaults = DEFAULTS | {"gpu_hot": replace(DEFAULTS["gpu_hot"], above=hot, clear=hot - 5.0)}
        account_of = self._auth.users.account_of
        started_at = self._hub.started_at
        return AlertEngine(
            self._settings, self._events.add, account_of, defaults=defaults, prefix=prefix, started_at=started_at
        )

    def _expect_lost(self) -> None:
        now = self._now()
        for record in self.alerts.engine.firing():
            if record.rule == "gpu_lost":
                self._selector.expect(record.host_id, GoneGpu(record.gpu, record.label or "", record.model or ""), now)
