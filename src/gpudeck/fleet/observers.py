"""The observers of the fleet: one list, called in one place, in the event loop that owns the fleet. An observer never
blocks.

One that raises costs itself only: it does not get again what it missed. The failure is logged when it begins and when
it ends, counted (`observer_failures`), and shown as a problem of the hub until `RECOVERED_SECONDS` without one.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec import Struct

from gpudeck.fleet.host import HostState
from gpudeck.fleet.table import FleetTable, Pending
from gpudeck.model.cpu_budget import Steps

log = logging.getLogger(__name__)

RECOVERED_SECONDS: Final = 60
"""So long after its last failure an observer counts as working again: hosts that report rarely must not make its
problem come and go."""
SOURCE: Final = "observers"
"""Under this name the fleet has the problems of its observers."""


class FleetObserver:
    """Something that follows the fleet: override what it needs. `name` is what its users call it, such as history."""

    name = ""

    def on_reports(self, table: FleetTable, reports: Sequence[Pending]) -> None:
        """Reports were taken and are shown, of each host at most one."""

    def on_host_changed(self, host: HostState, now: float) -> None:
        """Something may have happened to a host (see `HostState.has_changed`): after its report, or as time passed."""

    def on_late_report(self, replay: HostState, observed_at: float) -> None:
        """A report of before the one that is shown was taken. `replay` is the host as it was then."""

    def on_late_change(self, replay: HostState, observed_at: float) -> None:
        """A late report shows that something may have happened then."""

    def on_backlog_start(self, host: HostState) -> None:
        """Late reports of that host come in, or may. Called again for each of them."""

    def on_backlog_end(self, host: HostState, replay: HostState | None) -> None:
        """No more late reports of that host are awaited. `replay` is the host as of the last of them, if any came."""

    def on_time(self, now: float) -> None:
        """Once a second, before hosts age."""

    def publish_in_steps(self) -> Steps[None]:
        """Once a second: tell those outside what changed. Others are served between its steps."""
        yield from ()

    def on_second(self) -> None:
        """Once a second, after the fleet was published."""

    @property
    def has_unsaved_backlog(self) -> bool:
        return False

    async def save_backlog(self) -> None:
        """Until all of the backlog that was noted by now is on the disk, or cannot be written."""


class Service(FleetObserver):
    """A package's part of a running hub. `app/services.py` calls `open` of all services in their order, then `start`,
    and `close` in the reverse order. Override what it needs."""

    async def open(self) -> None:
        """Before the hub serves. Raises Temporary while a database does not answer, and is called again then."""

    def start(self) -> None:
        """When the hub serves."""

    async def close(self) -> None:
        """At the end, also where it was never started."""


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
"""What an observer may override, and in words what it failed with."""


class _Failure(Struct):
    problem: str
    quiet_seconds: int = 0


class Observers:
    """The observers of one fleet. What is added or removed while they are called counts from the next moment on."""

    def __init__(self, say: Callable[[str, list[str]], None], counters: Counter[str]) -> None:
        self._say = say
        self._counters = counters
        self._all: tuple[FleetObserver, ...] = ()
        self._following: dict[str, tuple[FleetObserver, ...]] = dict.fromkeys(_MOMENTS, ())
        self._failing: dict[FleetObserver, _Failure] = {}

    def add(self, observer: FleetObserver) -> None:
        """It is called after those that were added before. One that is there already stays where it is."""
        if observer not in self._all:
            self._arrange((*self._all, observer))

    def remove(self, observer: FleetObserver) -> None:
        """Once more does no harm. Its problem goes with it."""
        self._arrange(tuple(one for one in self._all if one is not observer))

    def replace(self, before: FleetObserver | None, after: FleetObserver) -> None:
        """`after` takes the place of `before`, without a moment in between; without one, it is added."""
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
        """Returns whether all could."""
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
        """Until no observer has a backlog that is not on the disk: only then may its sender forget it."""
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
        # Most observers need few moments: one that does not override a moment costs nothing there.
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
