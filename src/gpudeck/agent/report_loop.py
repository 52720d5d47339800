"""The report loop: at each host's time within the interval, collects its report, puts it into an envelope, and passes
it to the outbox, to the HTTP server, or to both.

One agent usually reports one host; a simulated fleet is many hosts in one loop, each at its own moment, as a real fleet
would be.
"""

import heapq
import logging
import secrets
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from msgspec import Struct, field

from gpudeck import __version__
from gpudeck.agent.spool import EncodedReport, ReportTime
from gpudeck.collectors.base import Collector
from gpudeck.model import clock
from gpudeck.model.errors import PluginError
from gpudeck.model.report import JobCgroup, Report
from gpudeck.wire import SHORT_VERSION, VERSION, Envelope, ShortReport, describe, encode, pack_numbers

log = logging.getLogger(__name__)


class Reporter(Struct, eq=False):
    """Makes the envelopes of one host. `boot_id` is asked for every report: a simulated host may be rebooted."""

    host: str
    host_id: str
    boot_id: Callable[[float], str]
    collector: Collector
    simulated: bool = False
    boottime: clock.Clock = clock.boottime
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))
    _sequence: int = 0
    _failing: str | None = None
    _cgroups: list[JobCgroup] = field(default_factory=list)

    def report(self, now: float, interval: float) -> EncodedReport | None:
        """The host's report at this moment, encoded; None when there is nothing to say (a simulated host that is off).

        A bug in a collector costs the GPUs' values, never the agent: the host still says that it is there.
        """
        made = ReportTime(now, self.boottime())
        try:
            report = self.collector.collect(now)
        except PluginError as error:
            self._note_failure(str(error))
            return None
        except Exception:  # noqa: BLE001 - the agent never dies because something else did
            self._note_failure("a bug in its collector", trace=True)
            report = Report(gpus_reason="the agent failed while reading them; its log has the details")
        else:
            if self._failing is not None and not self.simulated:
                log.info("%s can be read again", self.host)
            self._failing = None
        return self._seal(report, made, now, interval)

    def prepare(self, now: float) -> None:
        """Read the host once, so that its collectors start their children. Rates need two readings, too."""
        self.collector.collect(now)

    def close(self) -> None:
        self.collector.close()

    def _seal(self, report: Report, made: ReportTime, now: float, interval: float) -> EncodedReport:
        self._sequence += 1
        numbers = pack_numbers(report)
        description = "" if numbers is None else describe(report)
        head: dict[str, Any] = {
            "host": self.host,
            "host_id": self.host_id,
            "boot_id": self.boot_id(now),
            "run_id": self.run_id,
            "sequence": self._sequence,
            "collected_at": now,
            "interval_seconds": interval,
            "agent_version": __version__,
            "simulated": self.simulated,
        }
        whole = encode(Envelope(version=VERSION, report=report, description=description, **head))
        if numbers is None:
            return EncodedReport(self.host, whole, made)
        # The collector makes a new list when it has read them.
        cgroups, self._cgroups = self._cgroups, report.job_cgroups
        head["job_cgroups"] = [] if cgroups is self._cgroups else self._cgroups
        short = encode(ShortReport(version=SHORT_VERSION, description=description, numbers=numbers, **head))
        return EncodedReport(self.host, whole, made, description, short)

    def _note_failure(self, failure: str, *, trace: bool = False) -> None:
        if failure != self._failing:
            level = logging.DEBUG if self.simulated else logging.WARNING
            log.log(level, "%s cannot be read: %s", self.host, failure, exc_info=trace)
        self._failing = failure


class ReportReceiver(Protocol):
    """Where reports go. `put` never blocks: the report loop waits for it."""

    def put(self, report: EncodedReport) -> None: ...


class ReportLoop(Struct, eq=False):
    """Runs the reporters in the calling thread until `stop` is set. A reporter that is behind skips reports.

    `now` dates the reports, `timer` says when the next is due: a clock that is set neither floods nor stalls. `pulse`
    is called after every report, and while the report loop waits for longer than `pulse_pause` seconds.
    """

    reporters: Sequence[Reporter]
    takers: Sequence[ReportReceiver]
    interval: float
    now: clock.Clock = clock.wall
    timer: clock.Clock = clock.boottime
    pulse: Callable[[], None] = lambda: None
    pulse_pause: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Every reporter at once first, so that the hub shows something; then each at its own moment."""
        for reporter in self.reporters:
            self._send(reporter)
            if stop.is_set():
                return
        start, step = self.timer(), self.interval / len(self.reporters)
        due = [(start + (at + 1) * step, at) for at in range(len(self.reporters))]
        while not self._wait(stop, due[0][0]):
            moment, at = due[0]
            self._send(self.reporters[at])
            heapq.heapreplace(due, (self.next_due(moment), at))

    def _wait(self, stop: threading.Event, moment: float) -> bool:
        """Until the moment. True: until `stop` was set."""
        while self.pulse_pause is not None and moment - self.timer() > self.pulse_pause:
            if stop.wait(self.pulse_pause):
                return True
            self.pulse()
        return stop.wait(max(0.0, moment - self.timer()))

    def _send(self, reporter: Reporter) -> None:
        report = reporter.report(self.now(), self.interval)
        if report is not None:
            for taker in self.takers:
                taker.put(report)
        self.pulse()

    def next_due(self, moment: float) -> float:
        """The next moment of the same rhythm; after a sleep, the next one from now on."""
        now, following = self.timer(), moment + self.interval
        return following if now - self.interval <= following else now + self.interval
