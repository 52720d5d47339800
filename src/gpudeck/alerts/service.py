"""The alert service of a hub: evaluates the rules on the live fleet once a second, in slices, so that reports never
wait."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec import Struct

from gpudeck import __version__
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.manager import AlertManager, Send, Settle
from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX
from gpudeck.alerts.rule import FleetContext, GoneGpu, LateReservation
from gpudeck.alerts.rules.registry import RULES
from gpudeck.alerts.selection import HostSelector
from gpudeck.alerts.settings import DEFAULTS, AlertSettings
from gpudeck.alerts.store import AlertStore
from gpudeck.alerts.trends import GpuTrends
from gpudeck.auth.auth import Auth
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.events.log import EventLog
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model import clock
from gpudeck.model.alert import Alert, AlertCounts
from gpudeck.model.clock import Clock
from gpudeck.model.cluster import Duty
from gpudeck.model.cpu_budget import LoopBudget, cancel_tasks, run_in_steps
from gpudeck.model.errors import Temporary
from gpudeck.model.history import HistoryTrouble
from gpudeck.model.reservation import Reservation
from gpudeck.reservations.rules import name_gpus

log = logging.getLogger(__name__)

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
            late_reservations=tuple(
                LateReservation(
                    id=one.id,
                    user=one.user,
                    gpus=name_gpus(one.gpus),
                    host=one.gpus[0].host if len({gpu.host for gpu in one.gpus}) == 1 else None,
                    deadline=deadline,
                )
                for one, deadline in self._late_reservations()
            ),
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
