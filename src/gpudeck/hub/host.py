"""One host of the live fleet: the order of its reports, its status, its view, and what of it is not published yet."""

import msgspec

from gpudeck.hub.gpu import GpuState
from gpudeck.hub.metrics import View, bounds_of, note, note_metrics
from gpudeck.model.availability import AVAILABILITIES, Availability
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.report import GpuReading
from gpudeck.model.view import Host, HostStatus
from gpudeck.wire import Envelope

LATE_BEATS = 3.0
_REMEMBERED_RUNS = 16
_BOUNDS = bounds_of(HOST_METRICS)
_BLANK: View = dict.fromkeys(Host.__struct_fields__)
_MAY_BE_ABSENT = ("clock_skew_seconds", "driver_version", "os")
_encoder = msgspec.json.Encoder()


class HostState:
    """A host as the hub knows it. `view` is changed in place; `encoded` is how others get it."""

    def __init__(self, host_id: str, via: str, settings: FleetSettings) -> None:
        self.id = host_id
        self.via = via
        self.name = host_id
        self.status: HostStatus = "never"
        self.observed_at = 0.0
        self.interval = 0.0
        self.view: View = _BLANK | {"gpus": []}
        self.counts: dict[Availability, int] = dict.fromkeys(AVAILABILITIES, 0)
        self.power_watts: float | None = None
        self.users: frozenset[str] = frozenset()
        self._settings = settings
        self._run: tuple[str, str] = ("", "")
        self._ended_runs: dict[tuple[str, str], int] = {}
        self._sequence = -1
        self._gpus: dict[str, GpuState] = {}
        self._encoded: bytes | None = None
        self._host_changes: View = {}
        self._gpu_changes: dict[str, View] = {}
        self._other_gpus = True

    def accepts(self, envelope: Envelope) -> bool:
        """Whether the report is news: not one seen before, and not from an agent that another has replaced.

        A replaced agent is heard again once its successor has fallen silent: somebody tried a second one by hand.
        """
        run = (envelope.boot_id, envelope.run_id)
        if run == self._run:
            return envelope.sequence > self._sequence
        ended_at = self._ended_runs.get(run)
        return ended_at is None or (self.status != "up" and envelope.sequence > ended_at)

    def is_run_of(self, envelope: Envelope) -> bool:
        return (envelope.boot_id, envelope.run_id) == self._run

    def is_other_machine(self, envelope: Envelope) -> bool:
        """Whether the report is of another machine with the same machine id, this one being up all the while."""
        return self.status == "up" and envelope.host != self.name and envelope.boot_id != self._run[0]

    def note_problem(self, problem: str) -> None:
        """Show a problem that the hub found, until the host's next report."""
        if problem not in self.view["problems"]:
            self._show({"problems": [*self.view["problems"], problem]})

    def take(self, envelope: Envelope, observed_at: float, skew: float | None, now: float) -> int:
        """Make the report this host's state; returns how many of its values were not believed."""
        self.name = envelope.host
        self.interval = envelope.interval_seconds
        # Where the hub's clock was set back, the times from before are worth nothing.
        self.observed_at = observed_at if self.observed_at > now else max(self.observed_at, observed_at)
        self.status = "up"
        report = envelope.report
        changes: View = {}
        reasons, rejected = note_metrics(self.view, changes, report.metrics, report.unknown, _BOUNDS)
        facts = self._facts(envelope, skew)
        reasons |= {name: "not reported" for name in _MAY_BE_ABSENT if facts[name] is None}
        if report.gpus is None:
            reasons["gpus"] = report.gpus_reason or "the GPUs of this host could not be read"
            self._silence_gpus(reasons["gpus"], now)
        else:
            self._take_gpus(report.gpus, envelope.collected_at, now)
            rejected += sum(gpu.rejected for gpu in self._gpus.values())
        note(self.view, changes, facts | {"reasons": reasons})
        self._show(changes)
        self._advance(envelope)
        return rejected

    def age(self, now: float) -> bool:
        """Let time pass: up becomes late becomes down. Returns whether anything changed."""
        status = self._status_at(now)
        if status == self.status:
            return False
        self.status = status
        if status != "up":
            self._silence_gpus(f"the host is {status}: it has stopped reporting", now)
        self._show({"status": status})
        return True

    def encoded(self) -> bytes:
        """The view as JSON: made when first asked for, kept until something changes."""
        if self._encoded is None:
            self._encoded = _encoder.encode(self.view)
        return self._encoded

    def take_changes(self) -> View | None:
        """What changed since the last call, its GPUs' changes below `gpus`; None when the whole host has to be sent.

        A patch that holds nothing but `id` says that nothing changed.
        """
        patch = self._host_changes
        patch["id"] = self.id
        if self._gpu_changes:
            patch["gpus"] = list(self._gpu_changes.values())
        whole = self._other_gpus
        self._host_changes, self._gpu_changes, self._other_gpus = {}, {}, False
        return None if whole else patch

    def _advance(self, envelope: Envelope) -> None:
        run = (envelope.boot_id, envelope.run_id)
        if run != self._run:
            if self._sequence >= 0:
                self._ended_runs[self._run] = self._sequence
            while len(self._ended_runs) > _REMEMBERED_RUNS:
                del self._ended_runs[next(iter(self._ended_runs))]
            self._ended_runs.pop(run, None)
            self._run = run
        self._sequence = envelope.sequence

    def _status_at(self, now: float) -> HostStatus:
        self.observed_at = min(self.observed_at, now)
        silent = now - self.observed_at
        late_after = LATE_BEATS * self.interval
        if silent > max(self._settings.down_after, late_after + self.interval):
            return "down"
        return "late" if silent > late_after else "up"

    def _facts(self, envelope: Envelope, skew: float | None) -> View:
        report = envelope.report
        return {
            "id": self.id,
            "name": envelope.host,
            "display_name": envelope.host,
            "status": self.status,
            "via": self.via,
            "last_report_at": round(self.observed_at, 3),
            "interval_seconds": envelope.interval_seconds,
            "clock_skew_seconds": skew,
            "agent_version": envelope.agent_version,
            "driver_version": report.driver_version,
            "os": report.os,
            "labels": report.labels,
            "disks": report.disks,
            "addresses": report.addresses,
            "problems": report.problems,
        }

    def _take_gpus(self, readings: list[GpuReading], collected_at: float, now: float) -> None:
        """Update the GPUs that are known; where the set of them changed, the host is sent whole."""
        states: dict[str, GpuState] = {}
        for reading in readings:
            state = self._gpus.get(reading.uuid)
            if state is None:
                state = GpuState(reading, collected_at, now, self._settings)
            else:
                self._note(reading.uuid, state.update(reading, collected_at, now))
            states[reading.uuid] = state
        if list(states) != list(self._gpus):
            self._other_gpus = True
            self.view["gpus"] = [state.view for state in states.values()]
        self._gpus = states

    def _silence_gpus(self, reason: str, now: float) -> None:
        """A failed reading is no empty host: its GPUs stay, as unknown."""
        for uuid, gpu in self._gpus.items():
            self._note(uuid, gpu.silence(reason, now))

    def _note(self, uuid: str, changes: View) -> None:
        if changes:
            changes["uuid"] = uuid
            waiting = self._gpu_changes.get(uuid)
            if waiting is None:
                self._gpu_changes[uuid] = changes
            else:
                waiting.update(changes)

    def _show(self, changes: View) -> None:
        """Change the host's view, after its GPUs' views have been changed."""
        self._host_changes.update(changes)
        self.view.update(changes)
        self._encoded = None
        self._count()

    def _count(self) -> None:
        """What this host adds to the fleet's totals. A GPU in an unknown state adds no power and no user."""
        counts = dict.fromkeys(AVAILABILITIES, 0)
        power: list[float] = []
        users: set[str] = set()
        for gpu in self.view["gpus"]:
            availability, watts = gpu["availability"], gpu["power_watts"]
            counts[availability] += 1
            if availability != "unknown":
                users.update(gpu["users"])
                if watts is not None:
                    power.append(watts)
        self.counts, self.users = counts, frozenset(users)
        self.power_watts = sum(power) if power else None
