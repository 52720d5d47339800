"""One host of the live fleet: the order of its reports, its status, and its view."""

from collections import deque

from gpudeck.hub.gpu import GpuTrack, View, check_metrics, show_gpu, show_silent
from gpudeck.model.availability import AVAILABILITIES, Availability
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.view import HostStatus
from gpudeck.wire import Envelope

LATE_BEATS = 3.0


class HostState:
    """A host as the hub knows it. `view` is its newest face; the stream keeps the one it last published."""

    def __init__(self, host_id: str, via: str) -> None:
        self.id = host_id
        self.via = via
        self.name = host_id
        self.status: HostStatus = "never"
        self.observed_at = 0.0
        self.interval = 0.0
        self.view: View = {}
        self.counts: dict[Availability, int] = dict.fromkeys(AVAILABILITIES, 0)
        self.power_watts: float | None = None
        self.users: frozenset[str] = frozenset()
        self._run: tuple[str, str] = ("", "")
        self._ended_runs: deque[tuple[str, str]] = deque(maxlen=16)
        self._sequence = -1
        self._tracks: dict[str, GpuTrack] = {}

    def accepts(self, envelope: Envelope) -> bool:
        """Whether the report is news: not one seen before, and not from an agent that has since been replaced."""
        run = (envelope.boot_id, envelope.run_id)
        if run == self._run:
            return envelope.sequence > self._sequence
        return run not in self._ended_runs

    def take(
        self, envelope: Envelope, observed_at: float, skew: float | None, now: float, settings: FleetSettings
    ) -> int:
        """Make the report this host's state; returns how many of its values were not believed."""
        self._advance(envelope)
        self.name = envelope.host
        self.interval = envelope.interval_seconds
        self.observed_at = max(self.observed_at, observed_at)
        self.status = "up"
        report = envelope.report
        reasons: dict[str, str] = {}
        view: View = {
            "id": self.id,
            "name": envelope.host,
            "display_name": envelope.host,
            "status": "up",
            "via": self.via,
            "last_report_at": round(self.observed_at, 3),
            "interval_seconds": envelope.interval_seconds,
            "clock_skew_seconds": skew,
            "agent_version": envelope.agent_version or None,
            "driver_version": report.driver_version,
            "os": report.os,
            "labels": report.labels,
            "problems": report.problems,
            "reasons": reasons,
        }
        rejected = check_metrics(report.metrics, report.unknown, HOST_METRICS, view, reasons)
        view["gpus"], rejected_of_gpus = self._show_gpus(envelope, reasons, now, settings)
        self.view = view
        self._count()
        return rejected + rejected_of_gpus

    def age(self, now: float, settings: FleetSettings) -> bool:
        """Let time pass: up becomes late becomes down. Returns whether anything changed."""
        silent = now - self.observed_at
        late_after = LATE_BEATS * self.interval
        if silent > max(settings.down_after, late_after + self.interval):
            status: HostStatus = "down"
        elif silent > late_after:
            status = "late"
        else:
            status = "up"
        if status == self.status:
            return False
        self.status = status
        self.view = self.view | {"status": status}
        if status != "up":
            self._silence(now)
        return True

    def _advance(self, envelope: Envelope) -> None:
        run = (envelope.boot_id, envelope.run_id)
        if run != self._run:
            if self._sequence >= 0:
                self._ended_runs.append(self._run)
            self._run = run
        self._sequence = envelope.sequence

    def _show_gpus(
        self, envelope: Envelope, reasons: dict[str, str], now: float, settings: FleetSettings
    ) -> tuple[list[View], int]:
        """A host whose GPUs could not be read keeps the ones it had, as unknown: a failed reading is no empty host."""
        readings = envelope.report.gpus
        if readings is None:
            reason = envelope.report.gpus_reason or "the GPUs of this host could not be read"
            reasons["gpus"] = reason
            return self._show_silent_gpus(reason, now), 0
        shown = [show_gpu(reading, self._track(reading.uuid, now), now, settings) for reading in readings]
        if len(self._tracks) > len(shown):
            present = {reading.uuid for reading in readings}
            self._tracks = {uuid: track for uuid, track in self._tracks.items() if uuid in present}
        return [view for view, _ in shown], sum(rejected for _, rejected in shown)

    def _silence(self, now: float) -> None:
        reason = f"the host is {self.status}: it has stopped reporting"
        self.view = self.view | {"gpus": self._show_silent_gpus(reason, now)}
        self._count()

    def _show_silent_gpus(self, reason: str, now: float) -> list[View]:
        return [show_silent(gpu, reason, self._track(gpu["uuid"], now), now) for gpu in self.view.get("gpus", ())]

    def _track(self, uuid: str, now: float) -> GpuTrack:
        track = self._tracks.get(uuid)
        if track is None:
            track = self._tracks[uuid] = GpuTrack(now)
        return track

    def _count(self) -> None:
        """What this host adds to the fleet's totals. Silent hosts add to `unknown` alone."""
        counts = dict.fromkeys(AVAILABILITIES, 0)
        power: list[float | None] = []
        users: set[str] = set()
        for gpu in self.view["gpus"]:
            counts[gpu["availability"]] += 1
            if gpu["availability"] != "unknown":
                power.append(gpu["power_watts"])
                users.update(gpu["users"])
        known = [watts for watts in power if watts is not None]
        self.counts, self.users = counts, frozenset(users)
        self.power_watts = sum(known) if known else None
