"""The beat: at each host's moment of the interval its report is collected, sealed into an envelope and put out: into
the outbox of the sender, onto the desk of those who ask, or both.

One agent usually reports one host; a simulated fleet is many hosts on one beat, each at its own moment, as a real fleet
would be.
"""

import heapq
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpudeck import __version__
from gpudeck.agent.parcel import Moment, Parcel
from gpudeck.collectors.base import Collector
from gpudeck.model import clock
from gpudeck.model.errors import PluginError
from gpudeck.model.report import Report
from gpudeck.wire import SHORT_VERSION, VERSION, Envelope, ShortReport, describe, encode, pack_numbers

log = logging.getLogger(__name__)


class Reporter:
    """Makes the envelopes of one host. `boot_id` is asked on every beat: a simulated host may be rebooted."""

    def __init__(
        self,
        host: str,
        host_id: str,
        boot_id: Callable[[float], str],
        collector: Collector,
        *,
        simulated: bool = False,
        boottime: clock.Clock = clock.boottime,
    ) -> None:
        self.host = host
        self._host_id = host_id
        self._boot_id = boot_id
        self._collector = collector
        self._simulated = simulated
        self._boottime = boottime
        self._run_id = secrets.token_hex(8)
        self._sequence = 0
        self._failing: str | None = None

    def report(self, now: float, interval: float) -> Parcel | None:
        """The host's report at this moment, encoded; None when there is nothing to say (a simulated host that is off).

        A bug in a collector costs the GPUs' values, never the agent: the host still says that it is there.
        """
        made = Moment(now, self._boottime())
        try:
            report = self._collector.collect(now)
        except PluginError as error:
            self._note_failure(str(error))
            return None
        except Exception:  # noqa: BLE001 - the agent never dies because something else did
            self._note_failure("a bug in its collector", trace=True)
            report = Report(gpus_reason="the agent failed while reading them; its log has the details")
        else:
            self._note_recovery()
        return self._seal(report, made, now, interval)

    def close(self) -> None:
        self._collector.close()

    def _seal(self, report: Report, made: Moment, now: float, interval: float) -> Parcel:
        self._sequence += 1
        numbers = pack_numbers(report)
        description = "" if numbers is None else describe(report)
        head: dict[str, Any] = {
            "host": self.host,
            "host_id": self._host_id,
            "boot_id": self._boot_id(now),
            "run_id": self._run_id,
            "sequence": self._sequence,
            "collected_at": now,
            "interval_seconds": interval,
            "agent_version": __version__,
            "simulated": self._simulated,
        }
        whole = encode(Envelope(version=VERSION, report=report, description=description, **head))
        if numbers is None:
            return Parcel(self.host, whole, made)
        short = encode(ShortReport(version=SHORT_VERSION, description=description, numbers=numbers, **head))
        return Parcel(self.host, whole, made, description, short)

    def _note_failure(self, failure: str, *, trace: bool = False) -> None:
        if failure != self._failing:
            level = logging.DEBUG if self._simulated else logging.WARNING
            log.log(level, "%s cannot be read: %s", self.host, failure, exc_info=trace)
        self._failing = failure

    def _note_recovery(self) -> None:
        if self._failing is not None and not self._simulated:
            log.info("%s can be read again", self.host)
        self._failing = None


class Taker(Protocol):
    """Where reports go. `put` never blocks: the beat waits for it."""

    def put(self, parcel: Parcel) -> None: ...


class Beat:
    """Runs the reporters in the calling thread until `stop` is set. A reporter that is behind skips beats."""

    def __init__(
        self,
        reporters: Sequence[Reporter],
        takers: Sequence[Taker],
        interval: float,
        now: clock.Clock = clock.wall,
        *,
        timer: clock.Clock = clock.boottime,
        pulse: Callable[[], None] = lambda: None,
        pulse_pause: float | None = None,
    ) -> None:
        """`now` dates the reports, `timer` says when the next is due: a clock that is set neither floods nor stalls.

        `pulse` is called after every report, and while the beat waits for longer than `pulse_pause` seconds."""
        self._reporters = reporters
        self._takers = takers
        self._interval = interval
        self._now = now
        self._timer = timer
        self._pulse = pulse
        self._pulse_pause = pulse_pause

    def run(self, stop: threading.Event) -> None:
        """Every reporter at once first, so that the hub shows something; then each at its own moment."""
        for reporter in self._reporters:
            self._send(reporter)
            if stop.is_set():
                return
        start, step = self._timer(), self._interval / len(self._reporters)
        due = [(start + (at + 1) * step, at) for at in range(len(self._reporters))]
        while not self._wait(stop, due[0][0]):
            moment, at = due[0]
            self._send(self._reporters[at])
            heapq.heapreplace(due, (self._next(moment), at))

    def _wait(self, stop: threading.Event, moment: float) -> bool:
        """Until the moment. True: until `stop` was set."""
        while self._pulse_pause is not None and moment - self._timer() > self._pulse_pause:
            if stop.wait(self._pulse_pause):
                return True
            self._pulse()
        return stop.wait(max(0.0, moment - self._timer()))

    def _send(self, reporter: Reporter) -> None:
        parcel = reporter.report(self._now(), self._interval)
        if parcel is not None:
            for taker in self._takers:
                taker.put(parcel)
        self._pulse()

    def _next(self, moment: float) -> float:
        """The next moment of the same rhythm; after a sleep, the next one from now on."""
        now, following = self._timer(), moment + self._interval
        return following if now - self._interval <= following else now + self._interval
