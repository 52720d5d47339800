"""One host of the live fleet: the order of its reports, its status, its view, and what of it is not published yet."""

from collections.abc import Iterable, Mapping
from copy import copy

from fakes.scalar.gpu import GpuState
from fakes.scalar.metrics import View, bounds_of, note, note_metrics
from gpudeck.fleet.baseline import DUPLICATE_FLAGS, HostBaseline
from gpudeck.model.allocation import SchedulerMark
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.gpu_state import AVAILABILITIES, RETURN_SECONDS, Availability, FleetSettings
from gpudeck.model.report import GpuReading
from gpudeck.model.reservation import Maintenance, MaintenanceSchedule, ReservationMark
from gpudeck.model.text import Names
from gpudeck.model.view import Host, HostStatus
from gpudeck.wire import Envelope

LATE_INTERVALS = 3.0
SKEW_SECONDS = 5.0
"""A clock that is off by more than this is a problem worth showing."""
_REMEMBERED_RUNS = 16
_BOUNDS = bounds_of(HOST_METRICS)
_FACTS = tuple(name for name in Host.__struct_fields__ if name not in {*HOST_METRICS, "gpus", "reasons"})
_BLANK: View = dict.fromkeys((*_FACTS, "reasons", *HOST_METRICS, "gpus"))
"""What a host is comes before what is measured on it."""
_MAY_BE_ABSENT = ("clock_skew_seconds", "driver_version", "os")
_NEVER = "this host has not reported yet"


class HostState:
    """A host as the hub knows it. `view` is changed in place; `encoded` is how others get it.

    `target` is the name under which it is configured, None for one that is known by its reports alone. `token` is the
    id of the agent token that last reported it. `sampled_slot` is the recorder's: of which moment it was sampled last.
    `baseline` is what was last looked at for events, and `has_changed` says that it may be another by now.

    `observed_at` is the newest report's own time on the hub's clock, `reported_at` when any report of it last arrived,
    late ones among them, and `run_began_at` the own time of the first report of the run that is shown.
    """

    def __init__(
        self,
        host_id: str,
        via: str,
        settings: FleetSettings,
        names: Names,
        marks: Mapping[str, ReservationMark] | None = None,
        maintenance: MaintenanceSchedule | None = None,
        scheduling: Mapping[str, SchedulerMark] | None = None,
    ) -> None:
        self.id = host_id
        self.via = via
        self.name = host_id
        self.status: HostStatus = "never_seen"
        self.observed_at = self.reported_at = self.run_began_at = 0.0
        self.interval = 0.0
        self.view: View = _BLANK | {"gpus": []}
        self.counts: dict[Availability, int] = dict.fromkeys(AVAILABILITIES, 0)
        self.power_watts: float | None = None
        self.users: frozenset[str] = frozenset()
        self.target: str | None = None
        self.token: int | None = None
        self.sampled_slot = -1.0
        self.baseline: HostBaseline | None = None
        self.has_changed = True
        self._restored_until: float | None = None
        self._target_labels: dict[str, str] = {}
        self._flags: dict[str, str] = {}
        self._said: list[str] = []
        self._settings = settings
        self._names = names
        self._marks = {} if marks is None else marks
        self._maintenance = MaintenanceSchedule() if maintenance is None else maintenance
        self._scheduling = {} if scheduling is None else scheduling
        self._reported_uptime = float("-inf")
        self._run: tuple[str, str] = ("", "")
        self._ended_runs: dict[tuple[str, str], int] = {}
        self._sequence = -1
        self._gpus: dict[str, GpuState] = {}
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

    def is_next(self, envelope: Envelope) -> bool:
        """Whether it is the report that follows the newest one, with none missing between them."""
        return envelope.sequence == self._sequence + 1 and self.is_run_of(envelope)

    def is_other_machine(self, envelope: Envelope) -> bool:
        """Whether the report is of another machine with the same machine id, this one being up all the while."""
        return self.status == "up" and envelope.host != self.name and envelope.boot_id != self._run[0]

    def has_gpu_of(self, envelope: Envelope) -> bool:
        """Whether the report has a GPU that this host has: the same machine then, by whatever way it was read."""
        return any(gpu.uuid in self._gpus for gpu in envelope.report.gpus or ())

    @property
    def boot_id(self) -> str:
        """Of the last report; empty before there was one."""
        return self._run[0]

    @property
    def run(self) -> tuple[str, str]:
        """The boot and the agent's run that are shown."""
        return self._run

    @property
    def sequence(self) -> int:
        """Of the newest report; -1 before there was one."""
        return self._sequence

    @property
    def late_after(self) -> float:
        """Seconds after which its newest values are too old to claim anything."""
        return LATE_INTERVALS * self.interval

    @property
    def silent_since(self) -> float:
        """When something was last heard of it."""
        return max(self.observed_at, self.reported_at)

    @property
    def gpus(self) -> dict[str, GpuState]:
        """By UUID, in the order in which the host tells them."""
        return self._gpus

    @property
    def is_restored(self) -> bool:
        """Whether it is known from before this start of the hub alone: it has not reported since."""
        return self._restored_until is not None

    @property
    def last_report_at(self) -> float:
        """By the hub's clock, as everybody is shown it; only of a host that has reported."""
        return float(self.view["last_report_at"])

    @property
    def failure(self) -> str | None:
        """Why the hub cannot read it, or why it will never report by itself; None where neither is known."""
        return self._flags.get("read")

    def duplicates(self) -> dict[str, str]:
        """The problems that say that it cannot be told from another host, by kind."""
        return {kind: self._flags[kind] for kind in DUPLICATE_FLAGS if kind in self._flags}

    def flag(self, kind: str, problem: str | None) -> bool:
        """Show a problem that the hub found, beside those the host tells; None takes it back. Whether that is new.

        The kind `rival` lasts until the host's next report.
        """
        if self._flags.get(kind) == problem:
            return False
        if problem is None:
            del self._flags[kind]
        else:
            self._flags[kind] = problem
        self.has_changed |= kind in DUPLICATE_FLAGS
        self._show({"problems": self._problems()})
        return True

    def expect(self, target: str | None, via: str, labels: dict[str, str]) -> None:
        """This host is configured as `target`, with these labels; None: it no longer is.

        One that was never seen is shown as such.
        """
        self.target, self._target_labels = target, labels
        if self.status != "never_seen":
            if labels.items() - self.view["labels"].items():
                self._show({"labels": {**self.view["labels"], **labels}})
            return
        self.via = via
        changes: View = {}
        reasons, _ = note_metrics(self.view, changes, {}, {}, _BOUNDS, absent=_NEVER)
        reasons |= dict.fromkeys((*_MAY_BE_ABSENT, "gpus", "last_report_at", "interval_seconds"), _NEVER)
        facts = dict.fromkeys(_FACTS) | {
            "id": self.id,
            "name": self.name,
            "display_name": self._names.of_host(self.name),
            "status": "never_seen",
            "via": via,
            "agent_version": "",
            "labels": labels,
            "disks": [],
            "addresses": [],
            "problems": self._problems(),
        }
        note(self.view, changes, facts | {"reasons": reasons})
        self._show(changes)

    def restore(self, envelope: Envelope, last_report_at: float, *, until: float) -> None:
        """Be the host of before this start of the hub. Its GPUs are unknown, and it is not up before it reports: late
        until then or, after `until`, down. With 0.0 it was down already."""
        self.take(envelope, last_report_at, None, last_report_at)
        self._restored_until = until
        self.status = "late" if until else "down"
        self._mute_gpus(f"the host is {self.status}: it has not reported since the hub was started", last_report_at)
        self._show({"status": self.status})

    def release_gpu(self, uuid: str) -> None:
        """That GPU is in another host now."""
        del self._gpus[uuid]
        self._other_gpus = self.has_changed = True
        self.view["gpus"] = [state.view for state in self._gpus.values()]
        self._show({})

    def rename_id(self, host_id: str) -> None:
        """The same host under another id, now that its machine id is known."""
        self.id = host_id
        self._other_gpus = True

    def note_report(self, now: float, uptime: float | None = None) -> None:
        """Any report of it has arrived: it is not down. `uptime` is a clock that nobody sets."""
        self.reported_at, self._reported_uptime = now, now if uptime is None else uptime

    def take(self, envelope: Envelope, observed_at: float, skew: float | None, now: float) -> int:
        """Make the report this host's state as of its own time; returns how many of its values were not believed."""
        report = envelope.report
        after_gap = observed_at - self.observed_at > self.late_after and self._has_missed(envelope)
        self.name = envelope.host
        self.interval = envelope.interval_seconds
        if self.is_restored and report.gpus is not None:
            # Of GPUs known from before a start only the identity is: the agent knows for how long they are idle.
            self._gpus = {}
        self._restored_until = None
        # Where the hub's clock was set back, the times from before are worth nothing.
        self.observed_at = observed_at if self.observed_at > now else max(self.observed_at, observed_at)
        self.has_changed |= self.status == "down"
        self.status = "up"
        self._flags.pop("rival", None)
        self._flags.pop("read", None)
        _note_skew(self._flags, skew)
        self._said = report.problems
        changes: View = {}
        reasons, rejected = note_metrics(self.view, changes, report.metrics, report.unknown, _BOUNDS)
        facts = self._facts(envelope, skew)
        reasons |= {name: "not reported" for name in _MAY_BE_ABSENT if facts[name] is None}
        if report.gpus is None:
            reasons["gpus"] = report.gpus_reason or "the GPUs of this host could not be read"
            self._mute_gpus(reasons["gpus"], self.observed_at)
        else:
            self._take_gpus(report.gpus, envelope.collected_at, after_gap=after_gap)
            rejected += sum(gpu.rejected for gpu in self._gpus.values())
        note(self.view, changes, facts | {"reasons": reasons})
        self.has_changed |= "driver_version" in changes or "agent_version" in changes
        self._show(changes)
        self._advance(envelope)
        return rejected

    def fork(
        self,
        marks: Mapping[str, ReservationMark],
        maintenance: MaintenanceSchedule,
        scheduling: Mapping[str, SchedulerMark],
    ) -> "HostState":
        """A second state that goes on from this one by itself, with what reservations say to it."""
        other = copy(self)
        other._marks, other._maintenance, other._scheduling = marks, maintenance, scheduling
        other._gpus = {uuid: gpu.fork(marks, other._find_maintenance, scheduling) for uuid, gpu in self._gpus.items()}
        other.view = self.view | {"gpus": [gpu.view for gpu in other._gpus.values()]}
        other._flags, other._ended_runs = dict(self._flags), dict(self._ended_runs)
        other._host_changes, other._gpu_changes = {}, {}
        return other

    def make_empty(self, marks: Mapping[str, ReservationMark]) -> "HostState":
        """The same host as if nothing had been reported of it yet."""
        return HostState(self.id, self.via, self._settings, self._names, marks, self._maintenance, self._scheduling)

    def age(self, now: float, uptime: float | None = None) -> bool:
        """Let time pass: up becomes late becomes down. Returns whether anything changed."""
        status = self._status_at(now, now if uptime is None else uptime)
        if status == self.status:
            return False
        self.has_changed |= "down" in {status, self.status}
        self.status = status
        if status != "up":
            self._mute_gpus(f"the host is {status}: it has stopped reporting", now)
        self._show({"status": status})
        return True

    def rename(self, names: Names) -> None:
        """Hosts and models are called by these names from here on."""
        self._names = names
        for uuid, gpu in self._gpus.items():
            self._note(uuid, gpu.rename(names))
        changes: View = {}
        note(self.view, changes, {"display_name": names.of_host(self.name)})
        self._show(changes)

    def update_marks(self, uuids: Iterable[str], now: float, *_: str) -> None:
        """What reservations say of these GPUs of its has changed."""
        for uuid in uuids:
            self._note(uuid, self._gpus[uuid].update_marks(now))
        self._show({"maintenance": self._maintenance.find(self.id, self.name)})

    def _find_maintenance(self, uuid: str, parent: str | None) -> Maintenance | None:
        return self._maintenance.find_gpu(self.id, self.name, (uuid, parent))

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
            self.run_began_at = self.observed_at
            self.has_changed = True
        self._sequence = envelope.sequence

    def _has_missed(self, envelope: Envelope) -> bool:
        """Whether the same agent has made reports since the last one that was taken."""
        run = (envelope.boot_id, envelope.run_id)
        return run == self._run and envelope.sequence > self._sequence + 1

    def _status_at(self, now: float, uptime: float) -> HostStatus:
        """Down is who is not heard of: by the clock that nobody sets. Late is also who sends nothing but old values."""
        if self.status == "never_seen":
            return "never_seen"
        self.observed_at, self._reported_uptime = min(self.observed_at, now), min(self._reported_uptime, uptime)
        down_after = max(self._settings.down_after, self.late_after + self.interval)
        if self._restored_until is not None:
            is_overdue = now - self.observed_at > down_after
            is_awaited = not is_overdue or 0 < self._restored_until - now <= RETURN_SECONDS
            return "late" if self._restored_until and is_awaited else "down"
        silent = uptime - self._reported_uptime
        if silent > down_after:
            return "down"
        return "late" if max(silent, now - self.observed_at) > self.late_after else "up"

    def _facts(self, envelope: Envelope, skew: float | None) -> View:
        report = envelope.report
        return {
            "id": self.id,
            "name": envelope.host,
            "display_name": self._names.of_host(envelope.host),
            "status": self.status,
            "via": self.via,
            "last_report_at": round(self.observed_at, 3),
            "interval_seconds": envelope.interval_seconds,
            "clock_skew_seconds": skew,
            "agent_version": envelope.agent_version,
            "driver_version": report.driver_version,
            "os": report.os,
            "labels": {**report.labels, **self._target_labels} if self._target_labels else report.labels,
            "disks": report.disks,
            "addresses": report.addresses,
            "problems": self._problems(),
        }

    def _problems(self) -> list[str]:
        return [*self._said, *self._flags.values()] if self._flags else self._said

    def _take_gpus(self, readings: list[GpuReading], collected_at: float, *, after_gap: bool) -> None:
        """Update the GPUs that are known; where the set of them changed, the host is sent whole."""
        states: dict[str, GpuState] = {}
        now = self.observed_at
        for reading in readings:
            state = self._gpus.get(reading.uuid)
            if state is None:
                state = GpuState(
                    reading,
                    collected_at,
                    now,
                    self._settings,
                    self._names,
                    marks=self._marks,
                    find_maintenance=self._find_maintenance,
                    scheduling=self._scheduling,
                )
            else:
                self._note(reading.uuid, state.update(reading, collected_at, now, after_gap=after_gap))
            if state.has_changed:
                self.has_changed, state.has_changed = True, False
            states[reading.uuid] = state
        if list(states) != list(self._gpus):
            self._other_gpus = self.has_changed = True
            self.view["gpus"] = [state.view for state in states.values()]
        self._gpus = states

    def _mute_gpus(self, reason: str, now: float) -> None:
        """A failed reading is no empty host: its GPUs stay, as unknown."""
        for uuid, gpu in self._gpus.items():
            self._note(uuid, gpu.mute(reason, now))

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


def _note_skew(flags: dict[str, str], skew: float | None) -> None:
    """Whole seconds, so that the sentence does not change with every report."""
    if skew is None or abs(skew) <= SKEW_SECONDS:
        flags.pop("skew", None)
    else:
        direction = "ahead of" if skew > 0 else "behind"
        flags["skew"] = f"its clock is {abs(skew):.0f} s {direction} the hub's: check its time service"
