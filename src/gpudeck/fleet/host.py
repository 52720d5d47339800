"""One host of the live fleet: the order of its reports, its status, and its text fields. Its numbers and those of its
GPUs are rows in the fleet's table."""

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from itertools import islice
from math import isnan
from typing import Any, Final

import msgspec
import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.fleet.baseline import DUPLICATE_FLAGS, HostBaseline
from gpudeck.fleet.columns import (
    AVAILABILITY_WORDS,
    FREE,
    NAN,
    NO_REPORTS,
    NO_ROWS,
    NONE,
    RESERVED,
    SILENT,
    STATUS_CODES,
    UNKNOWN,
    UNREAD,
    Floats,
    mark_stale,
    rows_of,
)
from gpudeck.fleet.gpu import NO_REASONS, NOTHING_CHANGED, GpuState, encode_gpus, show_gpus
from gpudeck.fleet.table import (
    NO_PROCESSES,
    Description,
    FleetTable,
    Pending,
    ProcessNumbers,
    find_layout,
    names_of,
    refuse_undescribed,
)
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.allocation import SchedulerMark, mark_pods
from gpudeck.model.catalog import HOST_METRICS, HostIdentity, Value
from gpudeck.model.gpu_request import CandidateGpu, candidate_of
from gpudeck.model.gpu_state import RETURN_SECONDS, Availability
from gpudeck.model.report import Disk, GpuReading, JobCgroup, Report
from gpudeck.model.reservation import Maintenance
from gpudeck.model.text import Names, read_release
from gpudeck.model.view import Gpu, Host, HostNote, HostStatus
from gpudeck.wire import Envelope, Head, ShortReport

LATE_INTERVALS: Final = 3.0
BACKLOG_SECONDS: Final = 5.0
"""A report that is older than this on arrival is part of a backlog."""
SKEW_SECONDS: Final = 5.0
"""A larger clock skew is shown as a problem."""
SKEW_STEP: Final = 0.15
"""Smaller changes of the skew are ignored: they come from varying network delays."""
ENCODED_AT_ONCE: Final = 32
"""Hosts encoded together. Larger batches are not faster."""
_REMEMBERED_RUNS: Final = 16
_MAY_BE_ABSENT: Final = ("clock_skew_seconds", "driver_version", "os")
_IN_REASONS: Final = {"unknown", "gpus_reason", *_MAY_BE_ABSENT}
_NEVER: Final = "this host has not reported yet"
_UNREAD: Final = "the GPUs of this host could not be read"
_UNKNOWN: Final = (None,) * len(HOST_METRICS)
_NO_LAYOUT: Final = find_layout(((),))
_encoder = msgspec.json.Encoder()
_NO_METRICS: Final = _encoder.encode(dict.fromkeys(HOST_METRICS))[1:-1]
_METRICS_BEGIN: Final = f',"{next(iter(HOST_METRICS))}":'.encode()
_METRICS_END: Final = b',"status":'
_TIME_BEGIN, _TIME_END = b',"last_report_at":', b',"interval_seconds":'


Sender = tuple[int, str, str, str, str | None, int | None]
"""Key of the last sender: register version, host name, host id, source, the token's name restriction, and the token id.
"""


class ReportOrder:
    """The order of a host's reports: decides whether a report is new. `run` is the agent run that is shown, `sequence`
    the number of its newest report (-1: none yet)."""

    __slots__ = ("_ended", "run", "sequence")

    def __init__(self) -> None:
        self.run: tuple[str, str] = ("", "")
        self.sequence = -1
        self._ended: dict[tuple[str, str], int] = {}

    @property
    def boot_id(self) -> str:
        return self.run[0]

    def is_newer(self, envelope: Head, *, is_up: bool) -> bool:
        """Whether the report is new and not from a replaced agent run. A replaced run counts again once its successor
        has stopped and the host is not up."""
        run = (envelope.boot_id, envelope.run_id)
        if run == self.run:
            return envelope.sequence > self.sequence
        ended_at = self._ended.get(run)
        return ended_at is None or (not is_up and envelope.sequence > ended_at)

    def is_of_run(self, envelope: Head) -> bool:
        return (envelope.boot_id, envelope.run_id) == self.run

    def is_next(self, envelope: Head) -> bool:
        return envelope.sequence == self.sequence + 1 and self.is_of_run(envelope)

    def has_missed(self, envelope: Head) -> bool:
        return envelope.sequence > self.sequence + 1 and self.is_of_run(envelope)

    def advance(self, envelope: Head) -> bool:
        """Make this the newest report. Returns whether it is the first one of its run."""
        run = (envelope.boot_id, envelope.run_id)
        is_new = run != self.run
        if is_new:
            if self.sequence >= 0:
                self._ended[self.run] = self.sequence
            while len(self._ended) > _REMEMBERED_RUNS:
                del self._ended[next(iter(self._ended))]
            self._ended.pop(run, None)
            self.run = run
        self.sequence = envelope.sequence
        return is_new

    def fork(self) -> "ReportOrder":
        other = ReportOrder()
        other.run, other.sequence, other._ended = self.run, self.sequence, dict(self._ended)
        return other


class HostFacts(Struct, frozen=True):
    """The text fields of a host's last report, named as in its view. `unknown` has the reasons for unknown metrics,
    `gpus_reason` the reason why there are no GPUs."""

    name: str
    via: str
    interval_seconds: float | None = None
    clock_skew_seconds: float | None = None
    agent_version: str = ""
    driver_version: str | None = None
    os: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    disks: list[Disk] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    unknown: dict[str, str] = field(default_factory=dict)
    gpus_reason: str | None = None

    def differences(self, before: "HostFacts") -> set[str]:
        names = {name for name in HostFacts.__struct_fields__ if getattr(self, name) != getattr(before, name)}
        if names & _IN_REASONS:
            names = (names | {"reasons"}) - {"unknown", "gpus_reason"}
        return names | {"display_name"} if "name" in names else names


class HostState:
    """A host as the hub knows it.

    `row` is its row in the table (-1: none yet), `rows` are the rows of its GPUs. `is_pending`: its newest report has
    not been evaluated yet. `is_forwarded`: that report came through another hub. `changed` has the fields that viewers
    have not been sent. `target` is its configured name. `token` is the id of the agent token of its last report.
    `sender` is the key of its last sender; None forces a new lookup in the register. `baseline` is the state that
    events were last derived from. `observed_at` is the time of the newest report on the hub's clock, `reported_at` the
    arrival of the last report, `run_began_at` the time of the first report of the run that is shown.
    """

    __slots__ = (
        "__weakref__",
        "_description",
        "_flags",
        "_layout",
        "_reported_problems",
        "_reported_uptime",
        "_restored_until",
        "_synced",
        "_table",
        "_target_labels",
        "_text",
        "_view",
        "baseline",
        "changed",
        "facts",
        "gpus",
        "has_changed",
        "id",
        "interfaces",
        "interval",
        "is_forwarded",
        "is_pending",
        "job_cgroups",
        "last_report_at",
        "name",
        "observed_at",
        "order",
        "pod_marks",
        "rejected",
        "reported_at",
        "row",
        "rows",
        "run_began_at",
        "sampled_slot",
        "sender",
        "slurm_gpus",
        "status",
        "target",
        "token",
        "via",
    )

    def __init__(self, host_id: str, via: str, table: FleetTable) -> None:
        self.id = host_id
        self.via = via
        self.name = host_id
        self.status: HostStatus = "never_seen"
        self.observed_at = self.reported_at = self.run_began_at = 0.0
        self.interval = 0.0
        self.gpus: dict[str, GpuState] = {}
        self.row = -1
        self.rows = NO_ROWS
        self.is_pending = self.is_forwarded = False
        self.changed: frozenset[str] = NOTHING_CHANGED
        self.target: str | None = None
        self.token: int | None = None
        self.sender: Sender | None = None
        self.sampled_slot = -1.0
        self.order = ReportOrder()
        self.baseline: HostBaseline | None = None
        self.has_changed = True
        self.last_report_at: float | None = None
        self.facts = HostFacts(host_id, via)
        self.interfaces: dict[str, str] = {}
        self.slurm_gpus: list[str] = []
        self.job_cgroups: list[JobCgroup] = []
        self.pod_marks: dict[str, SchedulerMark] = {}
        self.rejected: dict[str, str] = NO_REASONS
        self._target_labels: dict[str, str] = {}
        self._restored_until: float | None = None
        self._flags: dict[str, str] = {}
        self._reported_problems: list[str] = []
        self._table = table
        self._reported_uptime = float("-inf")
        self._text: tuple[bytes, bytes, bytes] | None = None
        self._view: Host | None = None
        self._synced: tuple[int, float, HostStatus, bool] | None = None
        self._layout = _NO_LAYOUT
        self._description: Description | None = None

    def is_other_machine(self, envelope: Head) -> bool:
        """Whether the report is from another machine with the same machine id: this one is up at the same time."""
        return self.status == "up" and envelope.host != self.name and envelope.boot_id != self.order.boot_id

    def has_gpu_of(self, envelope: Envelope | ShortReport) -> bool:
        """Whether the report contains one of this host's GPUs. Then it is the same machine, whatever the source."""
        if isinstance(envelope, ShortReport):
            return self._is_described_by(envelope)
        return any(gpu.uuid in self.gpus for gpu in envelope.report.gpus or ())

    def description_of(self, envelope: ShortReport) -> Description:
        """The whole report that a short one refers to. Raises ReportRefused if this host has no such report from the
        same run."""
        if self._description is None or not self._is_described_by(envelope):
            raise refuse_undescribed(envelope)
        return self._description

    def _is_described_by(self, envelope: ShortReport) -> bool:
        known = self._description
        return known is not None and known.id == envelope.description and self.order.is_of_run(envelope)

    @property
    def late_after(self) -> float:
        """Seconds after which its newest values are out of date."""
        return LATE_INTERVALS * self.interval

    @property
    def silent_since(self) -> float:
        return max(self.observed_at, self.reported_at)

    @property
    def is_restored(self) -> bool:
        return self._restored_until is not None

    @property
    def failure(self) -> str | None:
        """Why the hub cannot read it, or why it will never report by itself; None if neither is known."""
        return self._flags.get("read")

    @property
    def problems(self) -> list[str]:
        return [*self._reported_problems, *self._flags.values()] if self._flags else self._reported_problems

    @property
    def display_name(self) -> str:
        return self._table.names.of_host(self.name)

    def current_gpus(self) -> list[GpuState]:
        """The GPUs with current values: without those of a silent host, and those that could not be read this time."""
        self._table.settle()
        last_seen = self._table.gpus.last_seen[self.rows]
        return [gpu for gpu, seen in zip(self.gpus.values(), last_seen.tolist(), strict=True) if seen == NONE]

    def counts(self) -> dict[Availability, int]:
        self._table.settle()
        numbers = np.bincount(self._table.gpus.availability[self.rows], minlength=len(AVAILABILITY_WORDS)).tolist()
        return {word: numbers[code] for code, word in enumerate(AVAILABILITY_WORDS) if word is not None}

    def duplicates(self) -> dict[str, str]:
        return {kind: self._flags[kind] for kind in DUPLICATE_FLAGS if kind in self._flags}

    def flag(self, kind: str, problem: str | None) -> None:
        """Show a problem that the hub found, in addition to those that the host reports; None removes it. The kind
        `rival` lasts until the host's next report."""
        if self._flags.get(kind) == problem:
            return
        if problem is None:
            del self._flags[kind]
        else:
            self._flags[kind] = problem
        self.has_changed |= kind in DUPLICATE_FLAGS
        self._change("problems")

    def expect(self, target: str | None, via: str, labels: dict[str, str]) -> None:
        """Mark it as configured under the name `target`, with these labels; None: no longer configured. A host without
        a report is shown as never seen."""
        self.target, self._target_labels = target, labels
        if self.status == "never_seen":
            self.via = via
            self.facts = HostFacts(self.name, via, labels=labels)
            self._place()
            self._change("via", "labels", "status", "reasons")
        elif labels.items() - self.facts.labels.items():
            self.facts = replace(self.facts, labels={**self.facts.labels, **labels})
            self._table.hosts.is_regrouped[self.row] = True
            self._change("labels")

    def restore(self, envelope: Envelope, gpus: Sequence[GpuReading], last_report_at: float, *, until: float) -> None:
        """Restore the host as known before the hub's restart. Its GPUs are unknown until it reports. It is late until
        `until` and down after that; 0.0: it was down before."""
        self._describe(envelope, envelope.report, last_report_at, None, last_report_at)
        self._restored_until = until
        self.status = "late" if until else "down"
        self._place_gpus([GpuState(self._table, -1, reading) for reading in gpus])
        columns, rows = self._table.gpus, self.rows
        for reading, gpu in zip(gpus, self.gpus.values(), strict=True):
            gpu.restore(reading, f"the host is {self.status}: it has not reported since the hub was started")
        columns.availability[rows] = columns.last_seen[rows] = UNKNOWN
        columns.since[rows], columns.last_work_at[rows] = round(last_report_at, 3), last_report_at
        columns.why_available[rows], columns.health[rows], columns.why_healthy[rows] = SILENT, UNREAD, NO_REPORTS
        columns.is_new[rows] = False
        self._sync()

    def release_gpu(self, uuid: str) -> None:
        self._table.settle()
        self._place_gpus([gpu for gpu in self.gpus.values() if gpu.uuid != uuid])
        self.has_changed = True
        self._change()

    def release(self) -> None:
        self._table.settle()
        self._place_gpus([])
        if self.row >= 0:
            self._table.host_at[self.row] = None
            self._table.hosts.give_back(slice(self.row, self.row + 1))
            self.row = -1

    def rename_id(self, host_id: str) -> None:
        self.id, self._text = host_id, None
        self._note_regrouped()

    def note_report(self, now: float, uptime: float | None = None) -> None:
        """Record that a report has arrived, new or not: the host is not down. `uptime` is a monotonic clock."""
        self.reported_at, self._reported_uptime = now, now if uptime is None else uptime
        self._sync()

    def take(
        self,
        envelope: Envelope | ShortReport,
        observed_at: float,
        skew: float | None,
        now: float,
        uptime: float | None = None,
    ) -> None:
        """Apply a report that arrived at `now`, as of its own time `observed_at`. It is evaluated with others
        (FleetTable.settle). `uptime` is a monotonic clock. For a short report, the description must be known."""
        if self.is_pending:
            self._table.settle()
        skew = self._smooth_skew(skew)
        self.reported_at, self._reported_uptime = now, now if uptime is None else uptime
        if isinstance(envelope, ShortReport):
            known = self.description_of(envelope)
            report = known.report
            self._describe(envelope, report, observed_at, skew, now)
            self.job_cgroups = envelope.job_cgroups or self.job_cgroups
            numbers = self._layout.read_short(envelope.numbers)
            processes = known.read_processes(envelope.numbers)
        else:
            report = envelope.report
            self._describe(envelope, report, observed_at, skew, now)
            self.job_cgroups = report.job_cgroups
            if (names := names_of(report)) != self._layout.names:
                self._layout = find_layout(names)
            numbers, processes = self._layout.read(report), NO_PROCESSES
            self._description = None
            if envelope.description:
                rows = [self.gpus[gpu.uuid].process_rows for gpu in report.gpus or ()]
                self._description = Description(envelope.description, report, self._layout, rows)
        self._put(envelope, numbers, processes, observed_at, now, has_gpus=report.gpus is not None)

    def take_next(
        self, envelope: ShortReport, observed_at: float, skew: float | None, now: float, uptime: float
    ) -> None:
        """`take` for a short report that follows the last one. Fast path: usually only numbers have changed."""
        known, facts, numbers = self._description, self.facts, envelope.numbers
        if (
            known is None
            or self.is_pending
            or self.status != "up"
            or self._flags
            or self.is_restored
            or facts.clock_skew_seconds != self._smooth_skew(skew)
            or facts.interval_seconds != envelope.interval_seconds
            or facts.agent_version != envelope.agent_version
            or not known.changes_only_numbers(numbers)
            or self.observed_at > now
        ):
            self.take(envelope, observed_at, skew, now, uptime)
            return
        self.reported_at, self._reported_uptime = now, uptime
        self.order.advance(envelope)
        if envelope.job_cgroups:
            self.job_cgroups = envelope.job_cgroups
        if observed_at > self.observed_at:
            self.observed_at = observed_at
            self.last_report_at = round(observed_at, 3)
        hosts, row = self._table.hosts, self.row
        hosts.observed_at[row], hosts.reported_uptime[row] = self.observed_at, uptime
        self._put(envelope, self._layout.read_short(numbers), known.read_processes(numbers), observed_at, now)

    def _smooth_skew(self, skew: float | None) -> float | None:
        """The clock skew, without the jitter of network delays."""
        known = self.facts.clock_skew_seconds
        return skew if known is None or skew is None or abs(skew - known) > SKEW_STEP else known

    def _put(
        self,
        envelope: Head,
        numbers: Floats,
        processes: ProcessNumbers,
        observed_at: float,
        now: float,
        *,
        has_gpus: bool = True,
    ) -> None:
        self.is_pending = True
        is_backlog = now - observed_at > BACKLOG_SECONDS
        self._table.put(
            Pending(
                self,
                numbers,
                processes,
                self._layout,
                has_gpus,
                self.observed_at,
                envelope.collected_at,
                now,
                is_backlog,
            )
        )

    def fork(self, table: FleetTable) -> "HostState":
        self._table.settle()
        other = copy(self)
        other._table, other.row, other.changed, other._synced = table, -1, NOTHING_CHANGED, None
        other._description = None
        other._place()
        table.hosts.copy(other.row, self.row, self._table.hosts)
        other.rows = table.gpus.take(len(self.gpus))
        other.gpus = {
            uuid: gpu.fork(table, row)
            for (uuid, gpu), row in zip(self.gpus.items(), range(other.rows.start, other.rows.stop), strict=True)
        }
        other._own_rows()
        other._flags, other.order = dict(self._flags), self.order.fork()
        other._text = other._view = None
        return other

    def make_empty(self, table: FleetTable) -> "HostState":
        """A new state of the same host in another table, without any report."""
        return HostState(self.id, self.via, table)

    def age(self, now: float, uptime: float | None = None, *, may_be_down: bool = True) -> bool:
        status = self._status_at(now, now if uptime is None else uptime)
        if status == "down" and not may_be_down and (self.status != "down" or self.is_restored):
            status = "late"
        if status == self.status:
            return False
        self.has_changed |= "down" in {status, self.status}
        self.status = status
        if status != "up":
            self._mark_gpus_stale(f"the host is {status}: it has stopped reporting", now)
        self._sync()
        self._change("status")
        return True

    def rename(self, names: Names) -> None:
        for gpu in self.gpus.values():
            gpu.rename(names)
        self._change("display_name")

    def update_marks(self, uuids: Iterable[str], now: float, *fields: str) -> None:
        self._table.settle()
        for uuid in uuids:
            self.gpus[uuid].update_marks(now)
        self._change(*fields)

    @property
    def maintenance(self) -> Maintenance | None:
        return self._table.maintenance.find(self.id, self.name)

    @property
    def note(self) -> HostNote | None:
        return self._table.notes.get(self.id)

    def note_changed(self) -> None:
        self._change("note")

    def value(self, metric: str) -> Value:
        hosts = self._table.hosts
        return hosts.number(self.row, hosts.place[metric]) if self.row >= 0 else None

    def numbers(self) -> list[Value]:
        return self._table.hosts.numbers(self.row)

    def why(self, name: str) -> str:
        if self.status == "never_seen":
            return _NEVER
        return self.rejected.get(name) or self.facts.unknown.get(name, "not reported")

    def view(self) -> Host:
        return _show_hosts(self._table, [self])[0]

    def cached_view(self) -> Host:
        """The view, cached until something changes. Read-only."""
        self._table.settle()
        if self._view is None:
            self._view = self.view()
        return self._view

    def own_view(self) -> Host:
        self._table.settle()
        return Host(**self.describe())

    def candidates(self, *, only_open: bool = False) -> Iterator[CandidateGpu]:
        """Its GPUs as candidates for requests; with `only_open`, only the unused ones, so that GPUs in use cost
        nothing."""
        self._table.settle()
        own = HostIdentity(id=self.id, name=self.name, display_name=self.display_name)
        states = self._table.gpus.availability[self.rows].tolist()
        gpus = [
            gpu
            for gpu, state in zip(self.gpus.values(), states, strict=True)
            if not only_open or state in {FREE, RESERVED}
        ]
        for view in self.show(gpus):
            yield candidate_of(own, view)

    def show(self, gpus: Sequence[GpuState]) -> list[Gpu]:
        return show_gpus(self._table, gpus, np.array([gpu.row for gpu in gpus])) if gpus else []

    def encoded(self, visibility: Visibility = EVERYTHING) -> bytes:
        return encode_hosts(self._table, [self], visibility)[0]

    def own_text(self, metrics: bytes) -> tuple[bytes, ...]:
        if self._text is None:
            text = _encoder.encode(self.own_view())
            begin, end, time = (text.index(mark) for mark in (_METRICS_BEGIN, _METRICS_END, _TIME_BEGIN))
            after = text.index(_TIME_END)
            self._text = text[: begin + 1], text[end : time + len(_TIME_BEGIN)], text[after:-2]
        head, middle, tail = self._text
        return head, metrics if self.row >= 0 else _NO_METRICS, middle, _encoder.encode(self.last_report_at), tail

    def note_settled(self) -> None:
        """Called when its report has been evaluated: the cached view is outdated."""
        self.is_pending, self._view = False, None

    def take_changes(self) -> dict[str, object] | None:
        """The changes since the last call except metrics, with those of its GPUs under `gpus`; None if the host must be
        sent whole. A patch with only `id` means that nothing changed."""
        table, rows = self._table, self.rows
        names, self.changed = self.changed, NOTHING_CHANGED
        is_other = (table.gpus.is_state_changed[rows] | table.gpus.is_text_changed[rows]).tolist()
        other = [gpu for gpu, is_changed in zip(self.gpus.values(), is_other, strict=True) if is_changed]
        table.hosts.is_text_changed[self.row] = table.gpus.is_text_changed[rows] = False
        if not table.hosts.is_published[self.row]:
            table.hosts.is_published[self.row] = True
            for gpu in other:
                gpu.take_changes()
            return None
        patch: dict[str, object] = {"id": self.id}
        if names:
            view = self.describe()
            patch |= {name: view[name] for name in names}
        if other:
            views = self.show(other)
            patch["gpus"] = [
                {"uuid": gpu.uuid, **{name: getattr(view, name) for name in gpu.take_changes()}}
                for gpu, view in zip(other, views, strict=True)
            ]
        return patch

    def _describe(
        self, envelope: Envelope | ShortReport, report: Report, observed_at: float, skew: float | None, now: float
    ) -> None:
        """Apply the text of a report and advance the order. A short report has no text: it repeats that of its
        description."""
        after_gap = observed_at - self.observed_at > self.late_after and self.order.has_missed(envelope)
        was_restored = self.is_restored
        self._restored_until = None
        # Where the hub's clock was set back, the times from before are worth nothing.
        self.observed_at = observed_at if self.observed_at > now else max(self.observed_at, observed_at)
        self.last_report_at = round(self.observed_at, 3)
        self.has_changed |= self.status == "down"
        if self.status != "up":
            self.status = "up"
            self.note_change("status", "reasons")
        self._place()
        disks = report.disks
        if isinstance(envelope, ShortReport):
            disks = self._take_numbers(envelope, after_gap=after_gap)
        self._take_facts(envelope, report, disks, skew)
        if report.gpus is None:
            self._mark_gpus_stale(self.facts.gpus_reason or "", self.observed_at)
        elif isinstance(envelope, Envelope):
            self._take_gpus(report.gpus, envelope.collected_at, after_gap=after_gap, is_new=was_restored)
        if self.order.advance(envelope):
            self.run_began_at = self.observed_at
            self.has_changed = True
        self._sync()
        self._view = None

    def _take_numbers(self, envelope: ShortReport, *, after_gap: bool) -> list[Disk]:
        """Apply the numbers of a short report that are not metrics, and time-dependent text. Returns the disks."""
        known, numbers, gpus = self.description_of(envelope), envelope.numbers, list(self.gpus.values())
        disks = known.take_disks(numbers)
        for at, reading in known.faulty:
            if gpus[at].take_events(reading, envelope.collected_at):
                self.has_changed = True
        if after_gap and known.report.gpus is not None:
            for gpu, idle in zip(gpus, known.idle_seconds(numbers), strict=True):
                if not isnan(idle):
                    gpu.note_work(self.observed_at - idle)
        return disks

    def _take_facts(self, envelope: Head, report: Report, disks: list[Disk], skew: float | None) -> None:
        self.name, self.interval = envelope.host, envelope.interval_seconds
        facts = HostFacts(
            name=envelope.host,
            via=self.via,
            interval_seconds=envelope.interval_seconds,
            clock_skew_seconds=skew,
            agent_version=envelope.agent_version,
            driver_version=report.driver_version,
            os=report.os,
            labels={**report.labels, **self._target_labels} if self._target_labels else report.labels,
            disks=disks,
            addresses=report.addresses,
            unknown=report.unknown,
            gpus_reason=None if report.gpus is not None else report.gpus_reason or _UNREAD,
        )
        if facts != self.facts:
            changed = facts.differences(self.facts)
            self.has_changed |= not changed.isdisjoint(("driver_version", "agent_version"))
            self._table.hosts.is_regrouped[self.row] |= not changed.isdisjoint(("name", "labels"))
            self.note_change(*changed)
            self.facts = facts
            self._sync_facts()
        before = self.problems
        self._flags.pop("rival", None)
        self._flags.pop("read", None)
        _note_skew(self._flags, skew)
        self._reported_problems = report.problems
        self.interfaces, self.slurm_gpus = report.interfaces, report.slurm_gpus
        if isinstance(envelope, Envelope):
            self.pod_marks = mark_pods(report)
        if before != self.problems:
            self.note_change("problems")

    def describe(self) -> dict[str, Any]:
        numbers = self.numbers() if self.row >= 0 else _UNKNOWN
        metrics, facts = dict(zip(HOST_METRICS, numbers, strict=True)), self.facts
        return {
            "id": self.id,
            "name": self.name,
            "display_name": self.display_name,
            "status": self.status,
            "via": self.via,
            "last_report_at": self.last_report_at,
            "interval_seconds": facts.interval_seconds,
            "clock_skew_seconds": facts.clock_skew_seconds,
            "agent_version": facts.agent_version,
            "driver_version": facts.driver_version,
            "os": facts.os,
            "labels": facts.labels,
            "disks": facts.disks,
            "addresses": facts.addresses,
            "problems": self.problems,
            "maintenance": self.maintenance,
            "note": self.note,
            "reasons": self.reasons(name for name, value in metrics.items() if value is None),
            **metrics,
        }

    def reasons(self, unknown: Iterable[str]) -> dict[str, str]:
        facts, is_known = self.facts, self.status != "never_seen"
        absent = _MAY_BE_ABSENT if is_known else (*_MAY_BE_ABSENT, "interval_seconds")
        reasons = {name: self.why(name) for name in unknown}
        reasons |= {name: self.why(name) for name in absent if getattr(facts, name) is None}
        if facts.gpus_reason is not None or not is_known:
            reasons["gpus"] = facts.gpus_reason or _NEVER
        if self.last_report_at is None:
            reasons["last_report_at"] = _NEVER
        return reasons

    def _place(self) -> None:
        if self.row < 0:
            table = self._table
            self.row = table.hosts.take(1).start
            table.host_at.extend([None] * (table.hosts.end - len(table.host_at)))
            table.host_at[self.row] = self
            self._sync()

    def _sync(self) -> None:
        """Copy to the columns what its status depends on."""
        if self.row < 0:
            return
        hosts, row = self._table.hosts, self.row
        hosts.observed_at[row], hosts.reported_uptime[row] = self.observed_at, self._reported_uptime
        rest = (row, self.interval, self.status, self.is_restored)
        if rest != self._synced:
            self._synced = rest
            hosts.late_after[row], hosts.down_after[row] = self.late_after, self._down_after
            hosts.status[row], hosts.is_restored[row] = STATUS_CODES[self.status], self.is_restored

    def _sync_facts(self) -> None:
        """Copy to the columns what alert rules read."""
        hosts, row, facts = self._table.hosts, self.row, self.facts
        skew, release = facts.clock_skew_seconds, read_release(facts.agent_version)
        shares = (100.0 * disk.used_bytes / disk.total_bytes for disk in facts.disks if disk.total_bytes > 0)
        hosts.clock_skew[row] = NAN if skew is None else skew
        hosts.disk_percent[row] = max(shares, default=NAN)
        hosts.agent_release[row] = -1 if release is None else release
        hosts.has_no_gpus[row] = facts.gpus_reason is not None

    @property
    def _down_after(self) -> float:
        return max(self._table.settings.down_after, self.late_after + self.interval)

    def _status_at(self, now: float, uptime: float) -> HostStatus:
        """Down: no reports, by the monotonic clock. Late: no reports, or only old values. `FleetTable.find_aged` is the
        vectorised version."""
        if self.status == "never_seen":
            return "never_seen"
        self.observed_at, self._reported_uptime = min(self.observed_at, now), min(self._reported_uptime, uptime)
        if self._restored_until is not None:
            is_overdue = now - self.observed_at > self._down_after
            is_awaited = not is_overdue or 0 < self._restored_until - now <= RETURN_SECONDS
            return "late" if self._restored_until and is_awaited else "down"
        silent = uptime - self._reported_uptime
        if silent > self._down_after:
            return "down"
        return "late" if max(silent, now - self.observed_at) > self.late_after else "up"

    def _take_gpus(self, readings: list[GpuReading], collected_at: float, *, after_gap: bool, is_new: bool) -> None:
        """Apply the text of all GPUs. If the set of GPUs changed, the host is sent whole. `is_new`: the known GPUs were
        restored after a restart and have no state."""
        known, now = {} if is_new else self.gpus, self.observed_at
        if is_new or [reading.uuid for reading in readings] != list(known):
            before = set(known)
            self._place_gpus([known.get(reading.uuid) or GpuState(self._table, -1, reading) for reading in readings])
            for reading in readings:
                if reading.uuid not in before:
                    self.gpus[reading.uuid].begin(reading, now)
            self.has_changed = True
        for reading in readings:
            if self.gpus[reading.uuid].describe(reading, collected_at, now, after_gap=after_gap):
                self.has_changed = True

    def _place_gpus(self, gpus: list[GpuState]) -> None:
        """Replace its GPUs. They get new rows; the state of those that stay is copied."""
        columns, before = self._table.gpus, self.rows
        self._description = None
        self.rows = columns.take(len(gpus))
        for row, gpu in enumerate(gpus, self.rows.start):
            if gpu.row >= 0:
                columns.copy(row, gpu.row)
            gpu.place(row)
        for gpu in self.gpus.values():
            if gpu not in gpus:
                gpu.release()
        self.gpus = {gpu.uuid: gpu for gpu in gpus}
        self._table.gpu_at[before] = [None] * (before.stop - before.start)
        columns.give_back(before)
        self._own_rows()
        self._note_regrouped()

    def _note_regrouped(self) -> None:
        """Viewers must be sent the host whole, and alerts must re-evaluate all of it."""
        self._table.note_regrouped()
        if self.row >= 0:
            self._table.hosts.is_published[self.row] = False
            self._table.hosts.is_regrouped[self.row] = True

    def _own_rows(self) -> None:
        table = self._table
        table.gpu_at.extend([None] * (table.gpus.end - len(table.gpu_at)))
        table.gpu_at[self.rows] = self.gpus.values()
        table.gpus.host[self.rows] = self.row
        table.note_devices(self.row)
        table.gpus.model[self.rows] = [table.gpus.model_code(gpu.name) for gpu in self.gpus.values()]

    def _mark_gpus_stale(self, reason: str, now: float) -> None:
        """A failed reading is not an empty host: its GPUs stay, as unknown."""
        if self.is_pending:
            self._table.settle()
        mark_stale(self._table.gpus, self.rows, now)
        for gpu in self.gpus.values():
            gpu.silent_reason = reason

    def note_change(self, *fields: str) -> None:
        self.changed, self._text = self.changed.union(fields), None
        if self.row >= 0:
            self._table.hosts.is_text_changed[self.row] = True

    def _change(self, *fields: str) -> None:
        self.note_change(*fields)
        self._view = None


def _show_hosts(table: FleetTable, hosts: Sequence[HostState]) -> list[Host]:
    table.settle()
    gpus = [gpu for host in hosts for gpu in host.gpus.values()]
    views = iter(show_gpus(table, gpus, rows_of([host.rows for host in hosts])) if gpus else ())
    return [Host(gpus=list(islice(views, len(host.gpus))), **host.describe()) for host in hosts]


def encode_hosts(table: FleetTable, hosts: Sequence[HostState], visibility: Visibility) -> list[bytes]:
    table.settle()
    gpus = [gpu for host in hosts for gpu in host.gpus.values()]
    encoded = iter(encode_gpus(table, gpus, rows_of([host.rows for host in hosts]), visibility) if gpus else ())
    metrics = table.hosts.encoded(np.array([host.row for host in hosts], np.int64)) if hosts else ()
    texts = []
    for host, own in zip(hosts, metrics, strict=True):
        # Each GPU begins with a comma; the first comma is dropped.
        of_gpus = [part for of_gpu in islice(encoded, len(host.gpus)) for part in of_gpu][1:]
        texts.append(b"".join((*host.own_text(own), *of_gpus, b"]}")))
    return texts


def _note_skew(flags: dict[str, str], skew: float | None) -> None:
    """In whole seconds, so that the message does not change with every report."""
    if skew is None or abs(skew) <= SKEW_SECONDS:
        flags.pop("skew", None)
    else:
        direction = "ahead of" if skew > 0 else "behind"
        flags["skew"] = f"its clock is {abs(skew):.0f} s {direction} the hub's: check its time service"
