"""GET /api/v1/events: what happened, the newest first. GET /api/v1/reliability: GPUs and hosts by their faults, from
events and alerts; the database counts, and only what is shown is read."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final, Literal

from litestar import Response, get
from litestar.di import NamedDependency
from litestar.params import QueryParameter

from gpudeck.alerts.record import AlertRecord
from gpudeck.alerts.service import AlertManager
from gpudeck.alerts.store import KEEP as ALERTS_KEPT
from gpudeck.alerts.store import MAX_FIRING
from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, answer_csv, answer_json
from gpudeck.api.parameters import (
    GpuUuid,
    HostName,
    MaybeTime,
    OnlyName,
    Time,
    read_past,
    read_time,
    read_words,
    word_list,
)
from gpudeck.api.services import TheServices
from gpudeck.events.service import EventLog
from gpudeck.events.store import MAX_EVENTS, EventQuery, FaultCount, LostTime
from gpudeck.fleet.state import FleetState
from gpudeck.model import clock
from gpudeck.model.event import SEVERITIES, EventList, FaultEvidence, RankedBy, Reliability, ReliabilityRow
from gpudeck.views.csv import write_events

_Words = Annotated[
    str | None, QueryParameter(max_length=512, description="One word, or several with commas: any of them fits")
]


@get("/api/v1/events", opt=access("read"))
async def list_events(
    *,
    request: HubRequest,
    events: NamedDependency[EventLog],
    start: MaybeTime = None,
    end: MaybeTime = None,
    host: HostName = None,
    gpu: GpuUuid = None,
    user: OnlyName = None,
    kind: _Words = None,
    severity: Annotated[str | None, word_list(SEVERITIES)] = None,
    q: Annotated[str | None, QueryParameter(max_length=256, description="In title, detail, host or user")] = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_EVENTS, description="At most so many")] = 100,
    before: Annotated[str | None, QueryParameter(max_length=32, description="Only events older than this id")] = None,
    format: Annotated[Literal["json", "csv"], QueryParameter(description="JSON, or CSV for spreadsheets")] = "json",  # noqa: A002
) -> Response[EventList]:
    """Hosts down and up, GPUs lost and found, faults, bad health, and what the hub itself met: the newest first."""
    now = clock.wall()
    found = await events.find(
        EventQuery(
            start=None if start is None else read_time("start", start, now),
            end=None if end is None else read_time("end", end, now),
            host=host,
            gpu=gpu,
            user=user,
            kinds=_split(kind),
            severities=read_words("severity", severity, SEVERITIES),
            text=q,
            limit=limit,
            before=before,
        )
    )
    if format == "csv":
        return answer_csv(write_events(found), "events.csv")
    page = EventList(found, found[-1].id if len(found) == limit else None)
    return await answer_json(request, page)


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(word.strip() for word in (text or "").split(",") if word.strip())


_THROTTLED: Final = "gpu_throttled"
_RULES: Final = {
    _THROTTLED: "thermal throttling or hardware slowdown",
    "ecc": "uncorrected ECC errors, or a row remap pending",
    "driver_not_answering": "the driver did not answer",
    "row_remaps": "memory rows replaced",
    "ecc_rate": "many corrected ECC errors",
    "nvlink_errors": "NVLink errors",
    "gpu_slow": "slower than others of its model",
    "pcie_degraded": "PCIe link below its best",
    "thermal_headroom": "close to thermal throttling",
}
_TITLES: Final = {
    "xid": "driver error",
    "gpu_lost": "GPU lost",
    "health_raised": "bad health",
    "host_down": "host down",
    "host_rebooted": "reboot",
    "flapping": "flapping",
}
_UNCOUNTED: Final = ("host_rebooted",)


class ReliabilityRanking:
    """Gathers evidence by GPU or by host; `end` is when the period ends, `only` the one GPU that was asked for."""

    def __init__(self, by: RankedBy, start: float, end: float, only: str | None = None) -> None:
        self._by: RankedBy = by
        self.start = start
        self.end = end
        self.only = only
        self._rows: dict[str, ReliabilityRow] = {}

    def add_faults(self, faults: Iterable[FaultCount]) -> None:
        for fault in faults:
            row = self._find(fault.host, fault.host_id, fault.gpu, fault.label)
            if row is None:
                continue
            # A fault of a program says nothing about the GPU.
            is_incident = fault.kind not in _UNCOUNTED and not (fault.kind == "xid" and fault.severity == "info")
            title = fault.title or _TITLES[fault.kind]
            evidence = FaultEvidence(fault.kind, title, fault.times, is_incident, fault.last_at)
            evidence.rate(f"xid_{fault.severity}" if fault.kind == "xid" else fault.kind)
            row.evidence.append(evidence)
            row.incidents += fault.times if is_incident else 0

    def add_lost(self, losses: Iterable[LostTime]) -> None:
        """Of a host the time that it was down: lost GPUs are among its evidence."""
        for loss in losses:
            row = self._find(loss.host, loss.host_id, loss.gpu, loss.label)
            if row is None:
                continue
            row.lost_seconds += loss.seconds if self._by == "gpu" or loss.gpu is None else 0.0
            kind = "host_down" if loss.gpu is None else "gpu_lost"
            # One that began before the period has no evidence yet.
            found = _find_evidence(row, kind, _TITLES[kind], loss.last_at, is_incident=True)
            found.seconds = (found.seconds or 0.0) + loss.seconds
            found.rate(kind)

    def add_alerts(self, records: Iterable[AlertRecord]) -> None:
        for record in records:
            row = self._find(record.host or record.host_id, record.host_id, record.gpu or None, record.label)
            fired = record.fired_at
            if row is None or fired is None:
                continue
            seconds = max(0.0, min(record.resolved_at or self.end, self.end) - max(fired, self.start))
            row.throttled_seconds += seconds if record.rule == _THROTTLED else 0.0
            is_incident = record.rule == "driver_not_answering"
            row.incidents += is_incident
            found = _find_evidence(row, record.rule, _RULES[record.rule], fired, is_incident=is_incident)
            found.count += 1
            found.last_at = max(found.last_at, fired)
            found.seconds = (found.seconds or 0.0) + seconds
            found.rate(record.rule)

    def add_known(self, fleet: FleetState, gpu: str) -> None:
        """A GPU of the fleet has a row also without faults."""
        for host in fleet.hosts.values():
            if gpu in host.gpus:
                self._find(host.name, host.id, gpu, host.gpus[gpu].label)

    def finish(self, fleet: FleetState, limit: int, problems: Sequence[str]) -> Reliability:
        """With today's names of what is still there."""
        for row in self._rows.values() if self._by == "gpu" else ():
            row.score = max(0.0, round(100.0 - sum(one.points for one in row.evidence), 1))
        found = [row for row in self._rows.values() if self.only is not None or _has_faults(row)]
        found.sort(key=_rank)
        for row in found[:limit]:
            row.evidence.sort(key=lambda one: (not one.is_incident, -one.count, one.kind))
            host = fleet.hosts.get(row.host_id)
            if host is not None:
                row.host = host.name
                gpu = host.gpus.get(row.gpu or "")
                row.label, row.model = (row.label, None) if gpu is None else (gpu.label, gpu.display_name)
        return Reliability(self._by, self.start, self.end, len(found), found[:limit], list(problems))

    def _find(self, host: str, host_id: str, gpu: str | None, label: str | None) -> ReliabilityRow | None:
        """None for what belongs to no row: what happened to a host in a ranking of GPUs."""
        key = host_id if self._by == "host" else gpu
        if not key or (self.only is not None and gpu != self.only):
            return None
        if key not in self._rows:
            own = (gpu, label) if self._by == "gpu" else (None, None)
            self._rows[key] = ReliabilityRow(host, host_id, 0, 0.0, 0.0, *own)
        return self._rows[key]


def _find_evidence(row: ReliabilityRow, kind: str, title: str, at: float, *, is_incident: bool) -> FaultEvidence:
    """The evidence of that kind; new if there is none."""
    found = next((one for one in row.evidence if one.kind == kind), None)
    if found is None:
        found = FaultEvidence(kind, title, 0, is_incident, at)
        row.evidence.append(found)
    return found


def _has_faults(row: ReliabilityRow) -> bool:
    is_rated = row.score is not None and row.score < 100.0
    return bool(row.incidents or row.lost_seconds or row.throttled_seconds or is_rated)


def _rank(row: ReliabilityRow) -> tuple[float, float, float, float, str, str]:
    faults = (-row.incidents, -row.lost_seconds, -row.throttled_seconds)
    return (row.score or 0.0, *faults, row.host, row.gpu or "")


@get("/api/v1/reliability", opt=access("read"))
async def read_reliability(
    *,
    request: HubRequest,
    services: TheServices,
    by: Annotated[RankedBy, QueryParameter(description="Rank GPUs or hosts")] = "gpu",
    gpu: Annotated[
        str | None, QueryParameter(max_length=128, description="Only this GPU, by its UUID, also without faults")
    ] = None,
    start: Time = "-30d",
    end: Time = "now",
    limit: Annotated[int, QueryParameter(ge=1, le=500, description="At most so many rows")] = 50,
) -> Response[Reliability]:
    """The flakiest GPUs or hosts: faults, lost time and throttling, counted from events and alerts. The worst first."""
    now = clock.wall()
    begin, until = read_past(start, end, now)
    ranking = ReliabilityRanking(by, begin, until, gpu)
    found = await rank_reliability(ranking, services.events, services.alerts, services.hub.fleet, limit)
    return await answer_json(request, found)


async def rank_reliability(
    ranking: ReliabilityRanking, events: EventLog, known: AlertManager, fleet: FleetState, limit: int
) -> Reliability:
    """The worst first. Raises Temporary."""
    begin, until, gpu = ranking.start, ranking.end, ranking.only
    ranking.add_faults(await events.ask(lambda store: store.count_faults(begin, until, gpu)))
    ranking.add_lost(await events.ask(lambda store: store.lost_times(begin, until, gpu)))
    if gpu is not None:
        ranking.add_known(fleet, gpu)
    alerts = await known.store.find_between(tuple(_RULES), begin, until)
    ranking.add_alerts(alerts)
    problems = ["The time range ends before it begins."] if until <= begin else []
    now = clock.wall()
    if begin < now - ALERTS_KEPT:
        problems.append("Throttling and ECC alerts are included only if they were resolved within the last 90 days.")
    if begin < now - events.kept_seconds:
        problems.append("Events of the beginning of this time range are no longer kept.")
    if len(alerts) >= MAX_FIRING:
        problems.append(f"Only {MAX_FIRING:,} alerts are included.")
    return ranking.finish(fleet, limit, problems)
