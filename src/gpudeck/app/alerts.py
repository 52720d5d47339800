"""Alerts of this hub: its rules look at the live fleet once a second, in slices, so that reports never wait for them.
Wiring of alerts."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from gpudeck import __version__
from gpudeck.alerts.engine import Engine
from gpudeck.alerts.keeper import Alerts, Send, Settle
from gpudeck.alerts.limits import DEFAULTS
from gpudeck.alerts.message import DEMO_PREFIX
from gpudeck.alerts.settings import AlertSettings
from gpudeck.alerts.snapshot import Around, GoneGpu, LateBooking
from gpudeck.alerts.store import AlertStore
from gpudeck.auth.parts import Auth
from gpudeck.database.schema import name_fleet
from gpudeck.events.log import Events
from gpudeck.hub.hub import Hub
from gpudeck.hub.lookout import Lookout
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import LoopBudget, run_in_steps
from gpudeck.model.history_trouble import HistoryTrouble
from gpudeck.model.reservation import Reservation
from gpudeck.reservations.rules import name_gpus

log = logging.getLogger(__name__)

MOST_SHOWN: Final = 200
_NOW_AND_THEN: Final = 60.0

Late = Callable[[], list[tuple[Reservation, float]]]
History = Callable[[], HistoryTrouble | None]


class Alarm:
    """`alerts` is what the API asks. `open` before the first report, `start` when the hub serves, `tick` once a second,
    `close` at the end, all in the event loop that owns the hub."""

    def __init__(
        self,
        hub: Hub,
        auth: Auth,
        settings: AlertSettings,
        events: Events,
        *,
        send: Send,
        settle: Settle | None = None,
        late_bookings: Late = list,
        history: History = lambda: None,
        demo: int | None = None,
        now: Clock = clock.wall,
    ) -> None:
        """`demo` is how many hosts are simulated, None when none are: their alerts are known as such."""
        self._hub = hub
        self._auth = auth
        self._settings = settings
        self._events = events
        self._late_bookings = late_bookings
        self._history = history
        self._now = now
        self._lookout = Lookout(hub.fleet)
        self._power_limits: dict[str, float] = {}
        self._cared_at = float("-inf")
        self._shown = -1
        self._pass: asyncio.Task[None] | None = None
        engine = self._make_engine("" if demo is None else DEMO_PREFIX)
        # Not in the database of several hubs: an alert and its message never wait for that.
        store = AlertStore(auth.local, name_fleet(demo))
        self.alerts = Alerts(engine, store, events.add, send, settle, now=now, retention=hub.retention)

    async def open(self) -> None:
        """Raises Temporary when the database does not answer, and is called again then."""
        await self.alerts.load()
        self._expect_lost()
        # A GPU that a host of before no longer has is missed.
        self._lookout.remember(self._now())

    def start(self) -> None:
        self.alerts.start()

    def tick(self) -> None:
        """Have the rules look, unless they still do."""
        problem = self.alerts.problem
        self._hub.fleet.say("alerts", [] if problem is None else [problem])
        if self._pass is None or self._pass.done():
            self._pass = asyncio.get_running_loop().create_task(self._look())

    async def settled(self) -> None:
        """Until the look that has begun is complete."""
        if self._pass is not None:
            await self._pass

    async def change(self, settings: AlertSettings) -> None:
        """Other limits, from the next look on."""
        await self.settled()
        self._settings = settings
        self.alerts.engine.change(settings)

    async def close(self) -> None:
        if self._pass is not None:
            self._pass.cancel()
            await asyncio.gather(self._pass, return_exceptions=True)
        await self.alerts.stop()

    async def _look(self) -> None:
        try:
            await self._look_at_all()
        except Exception:
            log.exception("alerts could not be looked for")

    async def _look_at_all(self) -> None:
        engine, fleet, now = self.alerts.engine, self._hub.fleet, self._now()
        fleet.settle()
        self._care(now)
        engine.begin(self._look_around(now))
        chosen = self._lookout.choose(engine.preselect(fleet.table), engine.active_hosts(), now)
        budget = LoopBudget()
        for host_id, uuids in chosen.items():
            await budget.checkpoint()
            # One may have been removed while others had their turn.
            host = fleet.hosts.get(host_id)
            if host is not None:
                engine.look(self._lookout.see(host, now, uuids))
        await run_in_steps(engine.finish_in_steps(fleet.hosts))
        await asyncio.sleep(0)
        self._show()
        self.alerts.wake()

    def _show(self) -> None:
        """What fires goes to everybody who watches, when it is other than before."""
        engine = self.alerts.engine
        if engine.version != self._shown:
            self._shown = engine.version
            self._hub.fleet.show_alerts([life.show() for life in engine.firing()[:MOST_SHOWN]])

    def _care(self, now: float) -> None:
        if not 0 <= now - self._cared_at < _NOW_AND_THEN:
            self._cared_at = now
            self._lookout.forget()
            self._power_limits = self._lookout.power_limits()

    def _look_around(self, now: float) -> Around:
        totals = self._hub.fleet.totals()
        return Around(
            now=now,
            version=__version__,
            critical_celsius=self._hub.fleet.settings.health.critical_celsius,
            power_limits=self._power_limits,
            late_bookings=tuple(_show_late(one, deadline) for one, deadline in self._late_bookings()),
            history=self._history(),
            free=totals.free,
            known=totals.gpus - totals.unknown,
        )

    def _make_engine(self, prefix: str) -> Engine:
        hot = self._hub.fleet.settings.health.hot_celsius
        defaults = DEFAULTS | {"gpu_hot": replace(DEFAULTS["gpu_hot"], above=hot, clear=hot - 5.0)}
        account_of = self._auth.people.account_of
        started_at = self._hub.started_at
        return Engine(
            self._settings, self._events.add, account_of, defaults=defaults, prefix=prefix, started_at=started_at
        )

    def _expect_lost(self) -> None:
        now = self._now()
        for life in self.alerts.engine.firing():
            if life.rule == "gpu_lost":
                self._lookout.expect(life.host_id, GoneGpu(life.gpu, life.label or "", life.model or ""), now)


def _show_late(one: Reservation, deadline: float) -> LateBooking:
    hosts = {gpu.host for gpu in one.gpus}
    host = next(iter(hosts)) if len(hosts) == 1 else None
    return LateBooking(id=one.id, user=one.user, gpus=name_gpus(one.gpus), host=host, deadline=deadline)
