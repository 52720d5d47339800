"""Checks the hub's own clock against the agents' clocks and the kernel's time service; in doubt an admin confirms it.

The result goes to the hub's `RetentionClock` and to `clock.json`, which `gpudeck history accept-clock` also writes.
"""

import ctypes
import logging
import os
import statistics
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from gpudeck.agent.token_file import replace_file
from gpudeck.collectors.host import boot_id
from gpudeck.fleet.state import FleetState
from gpudeck.model import clock
from gpudeck.model.clock import AGREES, RetentionClock
from gpudeck.model.event import Event, make_event
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

FILE: Final = "clock.json"
ACCEPT: Final = "gpudeck history accept-clock"
_DATA: Final = ("history.db", "history.db-wal", "gpudeck.db", "gpudeck.db-wal")
_CHECK_SECONDS: Final = 60.0
_SAVE_SECONDS: Final = 600.0
_STEP: Final = 2.0
"""A clock that changes by more than this within a second was set."""
_ASK_AFTER: Final = 300.0
"""Agents need this long to return after a start."""
_DOUBT: Final = 86_400.0
"""A smaller jump needs no confirmation: it only keeps data a little longer."""
_DAY: Final = 86_400
_UNSYNCHRONIZED: Final = 5
"""TIME_ERROR of adjtimex(2)."""


class _Kept(Struct):
    certain: float


class ClockMonitor:
    """`tick` once a second and `close`, in the event loop that owns the hub. Subscribers get its events."""

    def __init__(self, data_dir: Path, now: clock.Clock = clock.wall, monotonic: clock.Clock = time.monotonic) -> None:
        self._file = data_dir / FILE
        self._now = now
        self._monotonic = monotonic
        self._kept = _read(self._file)
        self.retention = RetentionClock(_known(data_dir, self._kept), now, monotonic)
        self._listeners: list[Callable[[Event], None]] = []
        self.problem: str | None = None
        self._boot = boot_id()
        self._started = self._looked = self._saved = monotonic()
        self._offset = now() - monotonic()
        self._seen: dict[str, float] | None = None

    def subscribe(self, listener: Callable[[Event], None]) -> None:
        self._listeners.append(listener)

    def tick(self, fleet: FleetState) -> None:
        moment, offset = self._monotonic(), self._now() - self._monotonic()
        if abs(offset - self._offset) > _STEP:
            log.warning("the hub's clock was set by %+.0f s, to %s", offset - self._offset, show_utc(self._now()))
            self._seen = None  # the agents' skews relate to the clock before
        self._offset = offset
        if moment - self._looked >= _CHECK_SECONDS:
            self._looked = moment
            self._look(fleet)
            fleet.set_problems("clock", [] if self.problem is None else [self.problem])

    def close(self) -> None:
        self._save()

    def _look(self, fleet: FleetState) -> None:
        skews = self._skews(fleet)
        if skews:
            self.retention.confirm(self._now() + statistics.median(skews))
        elif self._is_accepted() or is_synchronized(self._now()):
            self.retention.confirm(self._now())
        self._note(self._find_problem(skews))
        if self._monotonic() - self._saved >= _SAVE_SECONDS:
            self._save()

    def _skews(self, fleet: FleetState) -> list[float]:
        """The clock skew of each agent that reported in the last minute, except this machine's own."""
        seen = {host.id: host.observed_at for host in fleet.hosts.values() if host.status == "up"}
        before, self._seen = self._seen, seen
        if before is None:
            return []
        fresh = (fleet.hosts[host] for host, at in seen.items() if host in before and before[host] != at)
        found = (host.facts.clock_skew_seconds for host in fresh if host.order.boot_id != self._boot)
        return [skew for skew in found if skew is not None]

    def _find_problem(self, skews: list[float]) -> str | None:
        if skews and abs(skew := statistics.median(skews)) > AGREES:
            direction = "behind" if skew > 0 else "ahead of"
            agreeing = sum(abs(one - skew) <= AGREES for one in skews)
            return (
                f"the hub's clock is {_span(skew)} {direction} the clocks of {agreeing} of {len(skews)} agents: "
                "check its time service. Nothing is deleted by a clock that is ahead"
            )
        ahead = self.retention.ahead
        if ahead < _DOUBT or self._monotonic() - self._started < _ASK_AFTER:
            return None
        return (
            f"the hub's clock says {show_utc(self._now())}, {_span(ahead)} after the last time that is certain, and no "
            f"other clock confirms it: old data are not deleted. If it is right, run `{ACCEPT}` on the hub's machine; "
            "if not, set it"
        )

    def _note(self, problem: str | None) -> None:
        """The text may change while it lasts: one event at its beginning and one at its end are enough."""
        before, self.problem = self.problem, problem
        if problem is not None and before is None:
            log.warning("%s", problem)
            title = "The hub's clock may be wrong"
            self._emit(make_event(self._now(), "clock_doubted", title, severity="warning", detail=problem))
        elif problem is None and before is not None:
            log.info("the hub's clock is confirmed")
            self._emit(make_event(self._now(), "clock_confirmed", "The hub's clock is confirmed"))

    def _emit(self, event: Event) -> None:
        for listener in self._listeners:
            listener(event)

    def _is_accepted(self) -> bool:
        written = _read(self._file)
        if written is None or written == self._kept:
            return False
        self._kept = written
        return abs(written - self._now()) <= AGREES

    def _save(self) -> None:
        self._saved, self._kept = self._monotonic(), self.retention.certain
        try:
            write_certain(self._file.parent, self._kept)
        except OSError as error:
            log.warning("%s cannot be written: %s", self._file, error)


def write_certain(data_dir: Path, certain: float) -> None:
    """Record a time that has certainly passed. The file gets the owner of the folder. Raises OSError."""
    file = data_dir / FILE
    replace_file(file, msgspec.json.encode(_Kept(certain)))
    if os.geteuid() == 0:
        owner = data_dir.stat()
        os.chown(file, owner.st_uid, owner.st_gid)


def _read(file: Path) -> float | None:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_Kept).certain
    except (OSError, msgspec.DecodeError):
        return None


def _known(data_dir: Path, kept: float | None) -> float | None:
    """The time that was certain when the last process ended; without a record, the time of the newest file."""
    if kept is not None:
        return kept
    files = [data_dir / name for name in _DATA]
    return max((file.stat().st_mtime for file in files if file.is_file()), default=None)


def is_synchronized(now: float) -> bool:
    """Whether the kernel's clock is synchronized by a time service, and `now` is that clock's time."""
    # struct timex: its size is 208, its time is at offset 72. modes = 0 changes nothing.
    timex = ctypes.create_string_buffer(512)
    try:
        state = int(ctypes.CDLL(None).adjtimex(timex))
    except (OSError, AttributeError):
        return False
    seconds: int = struct.unpack_from("@l", timex, 72)[0]
    return 0 <= state < _UNSYNCHRONIZED and abs(seconds - now) <= _STEP


def _span(seconds: float) -> str:
    days, rest = divmod(int(abs(seconds)), _DAY)
    return f"{days} d {rest // 3600} h" if days else f"{rest // 3600} h {rest % 3600 // 60} min"
