"""Reports that arrive after newer ones of the same host: the backlog of an agent's outbox after the hub was away.

A late report never changes the live fleet. It is applied to a second state of its host, the replay, at its own time and
in order, for the history and the events of that time. The replay starts from the live state before the gap, or from
nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from gpudeck.fleet.host import HostState
from gpudeck.fleet.observers import Observers
from gpudeck.fleet.table import FleetTable
from gpudeck.model.allocation import SchedulerMark
from gpudeck.model.reservation import MaintenanceWindow, ReservationMark
from gpudeck.wire import Envelope, Head

BACKLOG_PAUSE: Final = 10.0
"""A backlog is complete after this many seconds without a late report."""
REPLAY_KEPT: Final = 600.0
"""The replay is kept for this long after that, because a busy hub may have asked the agent to wait."""
MAX_RANGES: Final = 64
_MAX_PAST_MARKS: Final = 8
_FIRST: Final = 1
"""The sequence of an agent's first report."""
_OPEN: Final = 2**53
_OUT_OF_ORDER: Final = 60.0
"""Within this many seconds, reports in a different order belong to the same backlog."""

Run = tuple[str, str]
Replay = TypeVar("Replay", HostState, None)

_NOT_KNOWN_THEN: Final = SchedulerMark(unknown="whether it was allocated then is not known")


class MissingReports:
    """The sequences of a host that have not arrived, as ranges of a run. A report outside all ranges is a repeated one.

    The number of reports of an ended run is unknown, so its range has no end.
    """

    def __init__(self) -> None:
        self.ranges: list[tuple[Run, int, int]] = []

    def add(self, run: Run, first: int, end: int = _OPEN) -> None:
        """All from `first` up to but not including `end` are missing."""
        if first < end:
            self.ranges.append((run, first, end))
            del self.ranges[:-MAX_RANGES]

    def close(self, run: Run, sequence: int) -> bool:
        """Mark the report as arrived; returns whether it was missing. Earlier ones stay missing: they may come through
        another hub."""
        for place, (of, first, end) in enumerate(self.ranges):
            if of == run and first <= sequence < end:
                parts = ((run, first, sequence), (run, sequence + 1, end))
                self.ranges[place : place + 1] = [part for part in parts if part[1] < part[2]]
                del self.ranges[:-MAX_RANGES]
                return True
        return False

    def cut(self, run: Run, end: int) -> None:
        """The run continues at `end`: nothing after that is missing."""
        self.ranges = [
            (of, first, min(last, end) if of == run else last)
            for of, first, last in self.ranges
            if of != run or first < end
        ]

    def knows(self, run: Run) -> bool:
        return any(of == run for of, _, _ in self.ranges)


class PastMarks(Mapping[str, ReservationMark]):
    """Reservations of GPUs at an earlier time: the current ones, and the last few that ended."""

    def __init__(self, marks: Mapping[str, ReservationMark]) -> None:
        self._marks = marks
        self._past: dict[str, list[tuple[ReservationMark, float]]] = {}
        self._at = 0.0

    def move_to(self, at: float) -> None:
        """Later lookups return the marks of that time."""
        self._at = at

    def note_end(self, uuid: str, after: ReservationMark | None, now: float) -> None:
        mark = self._marks.get(uuid)
        if mark is None or mark.reservation is None:
            return
        if after is None or after.reservation is None or after.reservation.id != mark.reservation.id:
            self._past[uuid] = [*self._past.get(uuid, ()), (mark, now)][-_MAX_PAST_MARKS:]

    def __getitem__(self, uuid: str) -> ReservationMark:
        for mark, end in self._past.get(uuid, ()):
            if mark.since <= self._at < end:
                return mark
        mark = self._marks[uuid]
        if mark.since > self._at:
            raise KeyError(uuid)
        return mark

    def __iter__(self) -> Iterator[str]:
        return iter(self._marks)

    def __len__(self) -> int:
        return len(self._marks)


class _Backlog:
    """The backlog of one host. `until` is when it counts as complete unless more arrives; `defers_events`: live events
    wait for it. `earlier` is a second replay, for reports from before the last one of `replay` that another hub
    received."""

    def __init__(self) -> None:
        self.missing = MissingReports()
        self.replay: HostState | None = None
        self.earlier: HostState | None = None
        self.until = 0.0
        self.defers_events = False


class LateReports:
    """The backlogs of all hosts. `uptime` is a monotonic clock. One event loop owns it."""

    def __init__(self, marks: Mapping[str, ReservationMark], table: FleetTable, observers: Observers) -> None:
        self.marks = PastMarks(marks)
        self._live = table
        self._table = FleetTable(table.settings, table.names, self.marks)
        self._observers = observers
        self._backlogs: WeakKeyDictionary[HostState, _Backlog] = WeakKeyDictionary()
        self._open: dict[HostState, _Backlog] = {}

    def drain(self, windows: Iterable[MaintenanceWindow], known: frozenset[str]) -> None:
        """Set the maintenance windows, including ended ones: a late report is evaluated with those of its time."""
        self._table.maintenance.change(windows, 0.0, known)

    def allocate(self, uuids: Iterable[str]) -> None:
        """Set the GPUs of schedulers. Past allocations are unknown, so an empty GPU may have been allocated."""
        self._table.scheduling.clear()
        self._table.scheduling.update(dict.fromkeys(uuids, _NOT_KNOWN_THEN))

    def is_late(self, host: HostState, envelope: Head, observed_at: float, now: float) -> bool:
        """Whether the host already shows something newer. A report of another run is late if it was collected before
        the run that is shown first reported."""
        if host.order.is_of_run(envelope):
            return envelope.sequence < host.order.sequence
        return observed_at < host.run_began_at <= now

    def note_gap(self, host: HostState, envelope: Head, observed_at: float, uptime: float) -> None:
        """The next report to be shown does not follow the last one: the reports in between may arrive later."""
        run, backlog = (envelope.boot_id, envelope.run_id), self._backlogs.setdefault(host, _Backlog())
        missing = backlog.missing
        if host.order.is_of_run(envelope):
            missing.add(run, host.order.sequence + 1, envelope.sequence)
        else:
            if host.order.sequence >= 0:
                missing.add(host.order.run, host.order.sequence + 1)
            if missing.knows(run):
                missing.cut(run, envelope.sequence)
            else:
                missing.add(run, _FIRST, envelope.sequence)
        if observed_at - host.observed_at <= host.late_after or not (missing.knows(run) or host.order.sequence >= 0):
            return
        if not backlog.defers_events and host.order.sequence >= 0 and not host.is_restored:
            self._replay(backlog, host.fork(self._table))
        self._expect_more(host, backlog, uptime)

    def take(
        self, host: HostState, envelope: Envelope, observed_at: float, *, skew: float | None, uptime: float
    ) -> bool:
        """Take a late report; False if it was taken before."""
        run, backlog = (envelope.boot_id, envelope.run_id), self._backlogs.setdefault(host, _Backlog())
        if not backlog.missing.close(run, envelope.sequence):
            if run == host.order.run or backlog.missing.knows(run):
                return False
            backlog.missing.add(run, envelope.sequence + 1)
        replay = backlog.replay
        is_earlier = (
            replay is not None and replay.order.is_of_run(envelope) and envelope.sequence < replay.order.sequence
        )
        if is_earlier:
            replay = self._find_earlier(host, backlog, envelope)
        elif replay is None or observed_at < replay.observed_at - _OUT_OF_ORDER:
            replay = self._replay(backlog, host.make_empty(self._table))
        replay.id, replay.is_forwarded = host.id, host.is_forwarded
        observed_at = min(max(observed_at, replay.observed_at), host.observed_at)
        self.marks.move_to(observed_at)
        self._table.maintenance.move_to(observed_at)
        if envelope.host != host.name:
            envelope = replace(envelope, host=host.name)
        replay.take(envelope, observed_at, skew, observed_at)
        self._table.settle()
        # Later changes were found with the later report.
        replay.has_changed &= not is_earlier
        self._observers.on_late_report(replay, observed_at)
        self._expect_more(host, backlog, uptime)
        if run == host.order.run and not backlog.missing.knows(run):
            backlog.until = uptime
        return True

    def pass_time(self, uptime: float) -> None:
        """Called once a second: completes backlogs without new reports, and releases old replays."""
        for host, backlog in list(self._open.items()):
            if backlog.defers_events and uptime >= backlog.until:
                backlog.defers_events = False
                self._observers.on_backlog_end(host, backlog.replay)
            elif uptime >= backlog.until + REPLAY_KEPT:
                self._replay(backlog, None)
                self._release_earlier(backlog)
                del self._open[host]

    def _find_earlier(self, host: HostState, backlog: _Backlog, envelope: Head) -> HostState:
        known = backlog.earlier
        if known is not None and known.order.is_of_run(envelope) and known.order.sequence < envelope.sequence:
            return known
        self._release_earlier(backlog)
        earlier = backlog.earlier = host.make_empty(self._table)
        return earlier

    def _release_earlier(self, backlog: _Backlog) -> None:
        if backlog.earlier is not None:
            backlog.earlier.release()
            backlog.earlier = None
            self._table.recycle()

    def _replay(self, backlog: _Backlog, replay: Replay) -> Replay:
        """Set the replay and release the one before."""
        if backlog.replay is not None:
            backlog.replay.release()
        backlog.replay = replay
        self._table.rename(self._live.names)
        self._table.recycle()
        return replay

    def _expect_more(self, host: HostState, backlog: _Backlog, uptime: float) -> None:
        backlog.until, backlog.defers_events = uptime + BACKLOG_PAUSE, True
        self._open[host] = backlog
        self._observers.on_backlog_start(host)
