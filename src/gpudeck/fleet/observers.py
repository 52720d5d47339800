"""The observers of the fleet: one list, called in one place, in the event loop that owns the fleet. An observer never
blocks.

An observer that raises affects only itself, and what it missed is not repeated. A failure is logged when it begins and
when it ends, counted (`observer_failures`), and shown as a problem of the hub until `RECOVERED_SECONDS` have passed
without one.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from gpudeck.fleet.host import HostState
from gpudeck.fleet.table import FleetTable, Pending
from gpudeck.model.cpu_budget import Steps, run_in_steps

log = logging.getLogger(__name__)

RECOVERED_SECONDS: Final = 60
"""An observer has recovered after this long without a failure. Hosts that report rarely must not make its problem flap.
"""
TICK_SECONDS: Final = 1.0
SOURCE: Final = "observers"
"""The source name of the observers' problems in the fleet."""


class FleetObserver:
    """An observer of the fleet: override the methods you need. `name` is shown in problems, such as "history"."""

    name = ""

    def on_reports(self, table: FleetTable, reports: Sequence[Pending]) -> None:
        """Reports were evaluated and are shown; at most one per host."""

    def on_host_changed(self, host: HostState, now: float) -> None:
        """The state of a host may have changed in a way that events report (see `HostState.has_changed`): after a
        report, or with time."""

    def on_late_report(self, replay: HostState, observed_at: float) -> None:
        """A late report was taken. `replay` is the host at that time."""

    def on_late_change(self, replay: HostState, observed_at: float) -> None:
        """A late report shows a change that events report."""

    def on_backlog_start(self, host: HostState) -> None:
        """Late reports of this host arrive, or may arrive. Called again for each of them."""

    def on_backlog_end(self, host: HostState, replay: HostState | None) -> None:
        """The backlog of this host is complete. `replay` is the host as of its last late report, if there was one."""

    def on_time(self, now: float) -> None:
        """Once a second, before hosts age."""

    def publish_in_steps(self) -> Steps[None]:
        """Once a second: publish what changed. Other tasks run between its steps."""
        yield from ()

    def on_second(self) -> None:
        """Once a second, after the fleet was published."""

    @property
    def has_unsaved_backlog(self) -> bool:
        return False

    async def save_backlog(self) -> None:
        """Returns when the backlog noted so far is on disk, or cannot be written."""


class Service(FleetObserver):
    """A package's part of a running hub. `app/services.py` calls `open` of all services in order, then `start`, and
    `close` in reverse order. Override the methods you need."""

    async def open(self) -> None:
        """Called before the hub serves. Raises Temporary if the database does not answer, and is then called again."""

    def start(self) -> None:
        """Called when the hub serves."""

    async def close(self) -> None:
        """Called at the end, even if it was never started."""


class EverySecond(FleetObserver):
    """Calls a function once a second, after the fleet was published."""

    def __init__(self, name: str, call: Callable[[], None]) -> None:
        self.name = name
        self._call = call

    def on_second(self) -> None:
        self._call()


_MOMENTS: Final = {
    "on_reports": "a report",
    "on_host_changed": "news of a host",
    "on_late_report": "a late report",
    "on_late_change": "late news of a host",
    "on_backlog_start": "the start of a backlog",
    "on_backlog_end": "the end of a backlog",
    "on_time": "the time",
    "publish_in_steps": "publishing the fleet",
    "on_second": "its work of every second",
    "save_backlog": "saving a backlog",
}
"""The methods that an observer may override, and how a failure in each is described."""


class _Failure(Struct):
    problem: str
    quiet_seconds: int = 0


class Observers:
    """The observers of one fleet. Changes made during a call apply from the next call on."""

    def __init__(self, say: Callable[[str, list[str]], None], counters: Counter[str]) -> None:
        self._say = say
        self._counters = counters
        self._all: tuple[FleetObserver, ...] = ()
        self._following: dict[str, tuple[FleetObserver, ...]] = dict.fromkeys(_MOMENTS, ())
        self._failing: dict[FleetObserver, _Failure] = {}

    def add(self, observer: FleetObserver) -> None:
        """Add an observer after the existing ones. Adding one twice has no effect."""
        if observer not in self._all:
            self._arrange((*self._all, observer))

    def remove(self, observer: FleetObserver) -> None:
        """Remove an observer and its problem. Removing one twice has no effect."""
        self._arrange(tuple(one for one in self._all if one is not observer))

    def replace(self, before: FleetObserver | None, after: FleetObserver) -> None:
        """Replace `before` by `after` in its place; if `before` is None or not there, `after` is added."""
        if before not in self._all:
            self.add(after)
        else:
            self._arrange(tuple(after if one is before else one for one in self._all))

    def on_reports(self, table: FleetTable, reports: Sequence[Pending]) -> None:
        self._call("on_reports", table, reports)

    def on_host_changed(self, host: HostState, now: float) -> None:
        if self._following["on_host_changed"]:
            host.has_changed = False
            self._call("on_host_changed", host, now)

    def on_late_report(self, replay: HostState, observed_at: float) -> None:
        self._call("on_late_report", replay, observed_at)
        if replay.has_changed and self._following["on_late_change"]:
            replay.has_changed = False
            self._call("on_late_change", replay, observed_at)

    def on_backlog_start(self, host: HostState) -> None:
        self._call("on_backlog_start", host)

    def on_backlog_end(self, host: HostState, replay: HostState | None) -> None:
        self._call("on_backlog_end", host, replay)

    def on_time(self, now: float) -> None:
        self._call("on_time", now)
        if self._failing:
            self._note_quiet()

    def publish_in_steps(self) -> Steps[bool]:
        """Returns whether no observer failed."""
        failures = 0
        for observer in self._following["publish_in_steps"]:
            try:
                yield from observer.publish_in_steps()
            except Exception as error:  # noqa: BLE001 - reported
                self._note_failure(observer, "publish_in_steps", error)
                failures += 1
        return not failures

    def on_second(self) -> None:
        self._call("on_second")

    @property
    def has_unsaved_backlog(self) -> bool:
        return any(observer.has_unsaved_backlog for observer in self._following["save_backlog"])

    async def save_backlog(self) -> None:
        """Returns when no observer has an unsaved backlog: only then may its sender delete it."""
        for observer in self._following["save_backlog"]:
            try:
                if observer.has_unsaved_backlog:
                    await observer.save_backlog()
            except Exception as error:  # noqa: BLE001 - reported
                self._note_failure(observer, "save_backlog", error)

    def _call(self, moment: str, *arguments: Any) -> None:
        for observer in self._following[moment]:
            try:
                getattr(observer, moment)(*arguments)
            except Exception as error:  # noqa: BLE001 - reported
                self._note_failure(observer, moment, error)

    def _arrange(self, observers: tuple[FleetObserver, ...]) -> None:
        self._all = observers
        # An observer that does not override a method costs nothing there.
        self._following = {
            moment: tuple(one for one in observers if getattr(type(one), moment) is not getattr(FleetObserver, moment))
            for moment in _MOMENTS
        }
        self._failing = {one: failure for one, failure in self._failing.items() if one in observers}
        self._show()

    def _note_failure(self, observer: FleetObserver, moment: str, error: Exception) -> None:
        self._counters["observer_failures"] += 1
        known = self._failing.get(observer)
        if known is not None:
            known.quiet_seconds = 0
            log.debug("%s failed again in %s", observer.name, moment, exc_info=error)
            return
        what = f"{observer.name} failed with {_MOMENTS[moment]} ({type(error).__name__})"
        log.error("%s; reports are taken, and the other parts of the hub go on", what, exc_info=error)
        self._failing[observer] = _Failure(f"{what}: its data may be incomplete. See the hub's log.")
        self._show()

    def _note_quiet(self) -> None:
        for observer, failure in list(self._failing.items()):
            failure.quiet_seconds += 1
            if failure.quiet_seconds > RECOVERED_SECONDS:
                log.info("%s works again: it has not failed for %d s", observer.name, RECOVERED_SECONDS)
                del self._failing[observer]
        self._show()

    def _show(self) -> None:
        self._say(SOURCE, [self._failing[one].problem for one in self._all if one in self._failing])


async def tick_forever(observers: Observers, when_done: Callable[[], None] = lambda: None) -> None:
    """Publish the fleet once a second and run other work that is due. `when_done` is called after each second in which
    it could be published."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    while True:
        if await run_in_steps(observers.publish_in_steps()):
            when_done()
        await asyncio.sleep(0)
        observers.on_second()
        due = max(due + TICK_SECONDS, loop.time())
        await asyncio.sleep(due - loop.time())
