"""The fleet at a moment of the past: the last sample of each host until then, in the shape of the live fleet.

Where samples are no longer kept, the quarter hour has the moment: means of its metrics, the state that each GPU was in
for most of it, and the runs that touched it. Names, labels, sources and vendors are not recorded: they are today's, of
hosts and GPUs that are still there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import repeat
from operator import attrgetter, is_, itemgetter
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from msgspec import Struct, defstruct, field

from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.history.base import HistoryRefused, KnownGpu, KnownHost, KnownRun, MomentQuery, PastHost
from gpudeck.history.hour import ABSENT, QUARTER, UNKNOWN, HourMoment, RunMoment
from gpudeck.history.rollup import COUNT, Quarters, Roll
from gpudeck.history.sample import (
    ALL_NAMES,
    GPU_NAMES,
    HOST_NAMES,
    HOST_PREFIX,
    NOTHING,
    STATES,
    GpuSample,
    HostSample,
    ProcessSample,
    Values,
)
from gpudeck.model.alert import Alert, AlertCounts
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, GpuIdentity, Metric
from gpudeck.model.cpu_budget import checkpointed
from gpudeck.model.gpu_state import (
    AVAILABILITIES,
    WEAR,
    Availability,
    FleetSettings,
    Health,
    judge_faults,
    judge_health,
    judge_wear,
)
from gpudeck.model.report import GpuEvent
from gpudeck.model.reservation import GpuReservation
from gpudeck.model.times import show_utc
from gpudeck.model.view import Gpu, Host, HostStatus, PastFleet, ShownEvent, ShownProcess, Totals

if TYPE_CHECKING:
    from gpudeck.history.embedded.view import HistoryView

_AHEAD: Final = 60.0
"""Seconds by which the clock of a viewer may be ahead."""
_HOSTS_AT_ONCE: Final = 64


def check_moment(at: float, oldest: float | None, now: float) -> None:
    """Raises HistoryRefused for moments in the future and from before the first record."""
    if at > now + _AHEAD:
        raise HistoryRefused("in_future", f"{show_utc(at)} has not come yet", "Ask for a moment in the past.")
    if oldest is None:
        raise HistoryRefused("before_history", "nothing has been recorded yet", "Ask again after the first reports.")
    if at < oldest:
        message = f"nothing was recorded at {show_utc(at)}: the history begins at {show_utc(oldest)}"
        raise HistoryRefused("before_history", message, "Ask for a later moment.")


def find_hosts(view: "HistoryView", query: MomentQuery, now: float) -> Iterator[PastHost]:
    """Each host that had reported by then, in no particular order. Raises HistoryRefused before the first host, never
    later."""
    hosts = view.hosts().values()
    check_moment(query.at, min((host.first for host in hosts), default=None), now)
    there = [
        host for host in hosts if host.first <= query.at and query.at - min(host.last, query.at) <= query.forget_after
    ]
    there.sort(key=attrgetter("key"))
    finder = _HostFinder(view, query)
    for first in checkpointed(range(0, len(there), _HOSTS_AT_ONCE)):
        yield from finder.find(there[first : first + _HOSTS_AT_ONCE])


class _HostFinder:
    def __init__(self, view: "HistoryView", query: MomentQuery) -> None:
        self._view = view
        self._ask = query
        self._gpus = view.gpus()

    def find(self, hosts: Sequence[KnownHost]) -> Iterator[PastHost]:
        last = self._view.moments([host.key for host in hosts], self._ask.at, self._ask.metrics)
        found = [self._or_quarter(host, last.get(host.key)) for host in hosts]
        keys = {run.run for moment, _ in found if moment is not None for run in moment.runs}
        runs = {run.key: run for run in self._view.runs_of(keys)}
        for host, (moment, is_rolled) in zip(hosts, found, strict=True):
            if moment is None:
                yield self._make_blank(host)
            else:
                yield self._make_host(host, moment, runs, is_rolled=is_rolled)

    def _or_quarter(self, host: KnownHost, found: HourMoment | None) -> tuple[HourMoment | None, bool]:
        """Returns `found`, the last sample of the host, or the quarter hour of the moment if that is newer, and whether
        it is a quarter hour."""
        at, metrics = self._ask.at, self._ask.metrics
        if found is not None and at - found.at <= QUARTER:
            return found, False
        for quarters in self._view.quarters(host.key, at, at + 1, ALL_NAMES if metrics is None else metrics):
            rolled = _from_quarter(quarters, at)
            kept_since = self._view.raw_since([host.key])
            # Where samples are kept, a quarter hour has nothing to add: the host was silent at that moment.
            if rolled is not None and (found is None or rolled.at > found.at) and not 0 < kept_since <= at:
                there = self._runs_by_host.get(host.key, ())
                rows = ((run, row) for run in there for row, gpu in enumerate(rolled.gpus) if gpu in run.gpus)
                rolled.runs = [RunMoment(run.key, row, None, None) for run, row in rows]
                return rolled, True
        return found, False

    @cached_property
    def _runs_by_host(self) -> dict[int, list[KnownRun]]:
        begin = self._ask.at // QUARTER * QUARTER
        found: dict[int, list[KnownRun]] = {}
        for run in checkpointed(self._view.runs_between(begin, begin + QUARTER)):
            found.setdefault(run.host, []).append(run)
        return found

    @cached_property
    def _gpus_by_host(self) -> dict[int, list[KnownGpu]]:
        found: dict[int, list[KnownGpu]] = {}
        for gpu in self._gpus.values():
            found.setdefault(gpu.host, []).append(gpu)
        return found

    def _make_blank(self, host: KnownHost) -> PastHost:
        """A host of which only roll-ups of other times are known."""
        known = [gpu for gpu in self._gpus_by_host.get(host.key, ()) if gpu.first <= self._ask.at]
        silent = tuple(GpuSample(gpu.uuid, gpu.label, gpu.model, UNKNOWN, NOTHING, None) for gpu in known)
        blank = HostSample(host.host_id, host.name, host.first, 0.0, (None,) * len(HOST_NAMES), silent)
        return PastHost(blank, [None] * len(silent), is_recorded=False)

    def _make_host(
        self, host: KnownHost, found: HourMoment, runs: Mapping[int, KnownRun], *, is_rolled: bool
    ) -> PastHost:
        there: list[list[ProcessSample]] = [[] for _ in found.gpus]
        for moment in found.runs:
            if moment.run in runs:
                there[moment.gpu].append(_make_process(runs[moment.run], moment))
        samples, begun = list[GpuSample](), list[float | None]()
        rows = zip(found.gpus, found.states, found.since, found.values, there, strict=True)
        for key, state, since, values, processes in rows:
            gpu = self._gpus.get(key)
            if gpu is not None and state != ABSENT:
                known = None if state == UNKNOWN else tuple(processes)
                samples.append(GpuSample(gpu.uuid, gpu.label, gpu.model, state, values, known))
                begun.append(since)
        sample = HostSample(host.host_id, host.name, found.at, found.covered, found.own, tuple(samples))
        return PastHost(sample, begun, is_rolled=is_rolled)


def _make_process(run: KnownRun, moment: RunMoment) -> ProcessSample:
    used = None if moment.memory is None else int(moment.memory)
    texts = run.user, run.command, run.container, run.job
    return ProcessSample(run.pid, run.started_at, *texts, used, moment.utilization)


def _from_quarter(quarters: Quarters, at: float) -> HourMoment | None:
    place = int(at - quarters.start) // QUARTER
    if not 0 <= place < COUNT:
        return None
    seconds = quarters.states[:, :, place]
    if not seconds.any():
        return None
    states = seconds.argmax(axis=0)
    # A state of a few minutes says nothing about the rest, which nobody recorded.
    is_short = (states > UNKNOWN) & (seconds[UNKNOWN + 1 :].sum(axis=0) < QUARTER / 2)
    return HourMoment(
        float(quarters.start + place * QUARTER),
        float(QUARTER),
        quarters.gpus,
        np.where(is_short, UNKNOWN, states).tolist(),
        [None] * len(quarters.gpus),
        _means(quarters.metrics, GPU_METRICS, place, len(quarters.gpus)),
        _means(quarters.host, HOST_METRICS, place, 1)[0],
        [],
    )


def _means(rolls: Mapping[str, Roll], catalog: Mapping[str, Metric], place: int, rows: int) -> list[Values]:
    nothing: list[float | None] = [None] * rows
    columns = (_mean(rolls[name], metric, place) if name in rolls else nothing for name, metric in catalog.items())
    return list(zip(*columns, strict=True))


def _mean(roll: Roll, metric: Metric, place: int) -> list[float | None]:
    both = zip(roll.sum[:, place].tolist(), roll.seconds[:, place].tolist(), strict=True)
    return [metric.round(total / seconds) if seconds > 0 else None for total, seconds in both]


_ROLLED: Final = "samples of that time are no longer kept: this is the mean of the quarter hour"
_HARDLY_RECORDED: Final = "less than half of the quarter hour was recorded"
_UNREAD: Final = "its state could not be read at that moment"
_NOT_RECORDED: Final = "not recorded"
_OF_PROCESS: Final = ("user", "command", "memory_used_bytes", "utilization_percent", "started_at")
_MAX_ALERTS: Final = 200
_LATE_INTERVALS: Final = 3
_WATTS: Final = GPU_NAMES.index("power_watts")
_FOR_HEALTH: Final = ("temperature_celsius", *WEAR)
_pick_health: Final = itemgetter(*map(GPU_NAMES.index, _FOR_HEALTH))
_FIELDS: Final = (
    *("uuid", "index", "label", "name", "display_name", "vendor", "parent", "pci_address", *GPU_NAMES),
    *("availability", "availability_reason", "last_seen", "since", "health", "health_reason", "health_action"),
    *("users", "processes", "events", "reservation", "reasons"),
)
# By position a GPU is made in a fifth of the time.
_make = cast("Callable[..., Gpu]", defstruct("PastGpu", [(name, Any) for name in _FIELDS], bases=(Gpu,)))
_AVAILABILITIES: Final = {STATES.index(word): word for word in AVAILABILITIES if word != "unknown"}


class PastContext(Struct):
    """What else is known of a moment: reservations that counted and driver errors of the day before it by the GPU's
    UUID, and alerts that fired, the worst first. `problems` are sentences about what is not known."""

    reservations: dict[str, GpuReservation] = field(default_factory=dict)
    faults: dict[str, list[ShownEvent]] = field(default_factory=dict)
    alerts: list[Alert] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class PastFleetBuilder:
    """Takes the hosts one by one and counts. `find_host` finds a host of the live fleet by id. `metrics` are the
    requested names (None: all); other metrics are None without a reason."""

    def __init__(
        self,
        at: float,
        settings: FleetSettings,
        find_host: Callable[[str], HostState | None],
        metrics: frozenset[str] | None = None,
        context: PastContext | None = None,
    ) -> None:
        self._at = at
        self._settings = settings
        self._find_host = find_host
        self._context = context or PastContext()
        self._gpu_names = [name for name in GPU_NAMES if metrics is None or name in metrics]
        self._host_names = [name for name in HOST_NAMES if metrics is None or HOST_PREFIX + name in metrics]
        self._counts: dict[Availability, int] = dict.fromkeys(AVAILABILITIES, 0)
        self._hosts = self._hosts_up = self._recorded = 0
        self._users: set[str] = set()
        self._reasons: dict[tuple[tuple[bool, ...], str, bool], dict[str, str]] = {}
        self._healths: dict[tuple[Values, str | None], Health] = {}
        self._watts: list[float] = []
        self._newest: float | None = None
        self._is_rolled = False

    def add(self, past: PastHost) -> Host:
        sample = past.sample
        status, reason = self._judge(past)
        known = self._find_host(sample.host_id)
        gpus = [
            self._make_gpu(gpu, since, None if known is None else known.gpus.get(gpu.uuid), reason, past)
            for gpu, since in zip(sample.gpus, past.since, strict=True)
        ]
        self._hosts += 1
        self._hosts_up += status == "up"
        self._is_rolled |= past.is_rolled
        if past.is_recorded:
            self._newest = max(sample.at, self._newest or sample.at)
        is_current = reason is None
        numbers: dict[str, Any] = dict(zip(HOST_NAMES, sample.values, strict=True)) if is_current else {}
        facts = None if known is None else known.facts
        return Host(
            id=sample.host_id,
            name=sample.name,
            display_name=sample.name if known is None else known.display_name,
            status=status,
            via="history" if facts is None else facts.via,
            last_report_at=sample.at if past.is_recorded else None,
            interval_seconds=None,
            labels={} if facts is None else facts.labels,
            addresses=[] if facts is None else facts.addresses,
            os=None if facts is None else facts.os,
            driver_version=None if facts is None else facts.driver_version,
            reasons={name: reason or _NOT_RECORDED for name in self._host_names if numbers.get(name) is None},
            gpus=gpus,
            **numbers,
        )

    def finish(self, *, demo: bool, version: str) -> PastFleet:
        """The fleet without its hosts, which `add` has returned one by one."""
        gpus, alerts = sum(self._counts.values()), self._context.alerts
        unnoticed = [alert for alert in alerts if alert.state == "firing" and alert.severity != "info"]
        problems = []
        if self._hosts and not self._recorded:
            seen = "" if self._newest is None else f"; the last report before it is from {show_utc(self._newest)}"
            problems = [f"Nothing was recorded at {show_utc(self._at)}{seen}."]
        return PastFleet(
            demo=demo,
            time=self._at,
            version=version,
            totals=Totals(
                gpus=gpus,
                **self._counts,
                hosts=self._hosts,
                hosts_up=self._hosts_up,
                users=len(self._users),
                power_watts=round(sum(self._watts), 1) if self._watts else None,
            ),
            problems=[*problems, *self._context.problems],
            alerts=alerts[:_MAX_ALERTS],
            alert_counts=AlertCounts(
                len(alerts), len(unnoticed), sum(alert.severity == "critical" for alert in unnoticed)
            ),
            hosts=[],
            as_of=self._at,
            coverage=round(self._recorded / gpus, 4) if gpus else None,
            resolution="quarter_hour" if self._is_rolled else "raw",
        )

    def _judge(self, past: PastHost) -> tuple[HostStatus, str | None]:
        """The status of the host, and why its values are unknown, if they are."""
        sample = past.sample
        if not past.is_recorded:
            return "down", "nothing was recorded of this host at that moment"
        if self._is_blank(sample):
            return "down", "nothing of this host could be read at that moment"
        silent, late_after = self._at - sample.at, _LATE_INTERVALS * sample.interval
        if past.is_rolled or silent <= late_after:
            return "up", None
        is_down = silent > max(self._settings.down_after, late_after + sample.interval)
        return "down" if is_down else "late", f"no report since {show_utc(sample.at)}"

    def _is_blank(self, sample: HostSample) -> bool:
        """Whether nothing could be read: a host that reports has some values of its own."""
        return (
            bool(self._host_names)
            and not any(value is not None for value in sample.values)
            and all(gpu.state == UNKNOWN and gpu.processes is None for gpu in sample.gpus)
        )

    def _make_gpu(
        self, sample: GpuSample, since: float | None, known: GpuState | None, silent: str | None, past: PastHost
    ) -> Gpu:
        availability: Availability = "unknown" if silent else _AVAILABILITIES.get(sample.state, "unknown")
        self._counts[availability] += 1
        is_hardly_recorded = past.is_rolled and availability == "unknown"
        self._recorded += silent is None and not is_hardly_recorded
        # What was last read of a host that is silent may be anything by now.
        values = sample.values if silent is None else NOTHING
        processes: list[ShownProcess] | None = None
        users = list[str]()
        if silent is None and sample.processes is not None:
            processes = [_show(one) for one in sample.processes]
            users = sorted({one.user for one in processes if one.user is not None}) if processes else users
        faults = self._context.faults.get(sample.uuid, [])
        health = self._judge_health(_pick_health(values), silent, faults)
        if availability != "unknown":
            self._users.update(users)
            if (watts := values[_WATTS]) is not None:
                self._watts.append(watts)
            if since is None and processes and availability in {"busy", "idle"}:
                since = min((one.started_at for one in processes if one.started_at is not None), default=None)
        identity = known or _guess_identity(sample)
        return _make(
            sample.uuid,
            identity.index,
            sample.label,
            sample.model,
            identity.display_name,
            identity.vendor,
            identity.parent,
            identity.pci_address,
            *values,
            availability,
            silent
            or (_HARDLY_RECORDED if is_hardly_recorded else _ROLLED if past.is_rolled else None)
            or (_UNREAD if availability == "unknown" else None),
            _AVAILABILITIES.get(sample.state) if silent and past.is_recorded else None,
            since,
            health.level,
            health.reason,
            health.action,
            users,
            processes,
            faults,
            self._context.reservations.get(sample.uuid),
            self._explain(values, silent or _NOT_RECORDED, has_processes=processes is not None),
        )

    def _judge_health(self, values: Values, silent: str | None, faults: list[ShownEvent]) -> Health:
        """`values` are those of `_FOR_HEALTH`. Thousands of GPUs share one."""
        key = values, silent
        if not faults and key in self._healths:
            return self._healths[key]
        events = [GpuEvent(at=one.at, code=one.code) for one in faults]
        wear = judge_wear(dict(zip(_FOR_HEALTH, values, strict=True)))
        health = judge_health(None, values[0], self._settings.health, judge_faults(events), silent, wear=wear)
        if not faults:
            self._healths[key] = health
        return health

    def _explain(self, values: Values, why: str, *, has_processes: bool) -> dict[str, str]:
        """The reasons for all unknown values of a GPU. Many GPUs share one dict, which must not be changed."""
        key = tuple(map(is_, values, repeat(None))), why, has_processes
        found = self._reasons.get(key)
        if found is None:
            unknown = {name for name, value in zip(GPU_NAMES, values, strict=True) if value is None}
            missing = [name for name in self._gpu_names if name in unknown]
            found = self._reasons[key] = dict.fromkeys(missing if has_processes else [*missing, "processes"], why)
        return found


def _guess_identity(sample: GpuSample) -> GpuIdentity:
    model, index = sample.model, sample.label.partition(".")[0]
    return GpuIdentity(
        uuid=sample.uuid,
        index=int(index) if index.isascii() and index.isdigit() else 0,
        label=sample.label,
        name=model,
        display_name=model,
        vendor=_guess_vendor(model),
    )


@lru_cache(256)
def _guess_vendor(model: str) -> str:
    return next((name for name in ("nvidia", "amd", "intel") if model.lower().startswith(name)), "unknown")


def _show(process: ProcessSample) -> ShownProcess:
    known = process.user, process.command, process.memory_bytes, process.utilization_percent, process.started_at
    return ShownProcess(
        process.pid,
        process.user,
        process.command,
        process.memory_bytes,
        process.started_at,
        process.utilization_percent,
        process.container,
        process.job,
        reasons={name: _NOT_RECORDED for name, value in zip(_OF_PROCESS, known, strict=True) if value is None}
        if None in known
        else {},
    )
