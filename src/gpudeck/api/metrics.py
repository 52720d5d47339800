"""GET /metrics: the fleet and the hub itself, as Prometheus reads it.

Unknown values are left out, and so is whatever a host last said before it fell silent: a series that says 0, or what
was true an hour ago, is worse than none. Process ids, commands and jobs are never labels: each new one would be a new
series for ever.
"""

import asyncio
import gzip
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from litestar import Response, get
from litestar.di import NamedDependency

from gpudeck import __version__
from gpudeck.alerts.keeper import Alerts
from gpudeck.alerts.notifiers.outbox import MessageOutbox
from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest
from gpudeck.hub.fleet import PARTS
from gpudeck.hub.host import HostState
from gpudeck.hub.hub import Hub
from gpudeck.model.availability import AVAILABILITIES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE
from gpudeck.model.exposition import (
    CONTENT_TYPE,
    OPENMETRICS_TYPE,
    Exposed,
    Sample,
    expose,
    to_openmetrics,
    wants_openmetrics,
    write_family,
    write_head,
    write_labels,
)
from gpudeck.model.report import Number
from gpudeck.model.view import HostStatus
from gpudeck.server.admission import KINDS

_STATUSES: tuple[HostStatus, ...] = ("up", "late", "down", "never")
_COUNTERS = {
    "reports_taken": "Reports that were taken",
    "reports_late": "Reports among them that came after newer ones of their host",
    "reports_outdated": "Reports that were seen before",
    "reports_second_way": "Reports of hosts that report on a better way too",
    "values_rejected": "Values in reports that cannot be",
    "poll_failures": "Times that a host could not be read",
    "observer_failures": "Failures of what follows the fleet, such as history and events",
}
_REFUSED = "refused_"
_GPU_SERIES = [(metric, expose(metric)) for metric in GPU_METRICS.values()]
_HOST_SERIES = [(metric, expose(metric)) for metric in HOST_METRICS.values()]
_Named = tuple[str, HostState]
_Line = tuple[str, Number | None]
"""Labels, written, and a value."""
_GpuKey = tuple[str, str, int, str]


class MetricsPage:
    """Made once for all who ask within the same second. One event loop owns it."""

    def __init__(
        self,
        hub: Hub,
        hits: Mapping[str, int] | None = None,
        outbox: MessageOutbox | None = None,
        alerts: Alerts | None = None,
    ) -> None:
        """`hits` counts what limits have refused."""
        self._hub = hub
        self._alerts = alerts
        self._outbox = outbox
        self._hits = Counter() if hits is None else hits
        self._made_for: float | None = None
        self._page: asyncio.Task[bytes] | None = None
        self._labels: dict[_GpuKey, str] = {}

    async def read(self) -> bytes:
        if self._page is None or self._made_for != self._hub.stream.time:
            self._made_for = self._hub.stream.time
            self._page = asyncio.create_task(self._write())
        # Whoever goes away while it is being made must not take it from the others.
        return await asyncio.shield(self._page)

    async def _write(self) -> bytes:
        blocks = [_join(self._write_hub())]
        hosts = _name(self._hub.fleet.ordered())
        for lines in _write_hosts(hosts, self._hub.stream.time):
            blocks.append(_join(lines))
            await asyncio.sleep(0)
        waiting = await self._write_gpus(hosts)
        while waiting:
            # One after the other is let go of: to free all lines at once would take as long as to write some.
            blocks.append(_join(waiting.pop(0)))
            await asyncio.sleep(0)
        return b"".join(blocks)

    def _write_hub(self) -> Iterator[str]:
        stream, fleet = self._hub.stream, self._hub.fleet
        totals, statuses = fleet.totals(), Counter(host.status for host in fleet.hosts.values())
        availabilities = [({"availability": word}, getattr(totals, word)) for word in AVAILABILITIES]
        yield from write_family("gpudeck_info", "gauge", "The hub that says this", [({"version": __version__}, 1)])
        yield from write_family("gpudeck_demo", "gauge", "1: all hosts are simulated", [({}, int(stream.demo))])
        yield from write_family("gpudeck_gpus", "gauge", "GPUs by what they are doing", availabilities)
        yield from write_family(
            "gpudeck_hosts", "gauge", "Hosts by status", [({"status": word}, statuses[word]) for word in _STATUSES]
        )
        yield from write_family("gpudeck_viewers", "gauge", "Live views that are open", [({}, stream.viewers)])
        yield from write_family(
            "gpudeck_tick_age_seconds", "gauge", "Time since the fleet was published", [({}, stream.tick_age())]
        )
        parts: list[Sample] = [({"part": part}, 0 if fleet.said(part) else 1) for part in PARTS]
        yield from write_family("gpudeck_hub_part_up", "gauge", "1: that part of the hub works", parts)
        if self._alerts is not None:
            yield from _write_alerts(self._alerts)
        yield from self._write_counters()

    def _write_counters(self) -> Iterator[str]:
        counted = self._hub.fleet.counters
        for name, about in _COUNTERS.items():
            yield from write_family(f"gpudeck_{name}_total", "counter", about, [({}, counted[name])])
        refused: list[Sample] = [
            ({"code": name.removeprefix(_REFUSED)}, number)
            for name, number in sorted(counted.items())
            if name.startswith(_REFUSED)
        ]
        yield from write_family("gpudeck_reports_refused_total", "counter", "Reports refused, by code", refused)
        hits: list[Sample] = [({"limit": kind}, self._hits.get(kind, 0)) for kind in KINDS]
        yield from write_family("gpudeck_limit_hits_total", "counter", "What limits have refused", hits)
        if self._outbox is not None and self._outbox.waiting:
            yield from _write_messages(self._outbox)

    async def _write_gpus(self, hosts: Sequence[_Named]) -> list[list[str]]:
        """The lines of each metric, those of one that is known of no GPU left out."""
        columns = [(exposed, _begin(metric, exposed)) for metric, exposed in _GPU_SERIES]
        states = [*write_head("gpudeck_gpu_state", "gauge", "1: is in that state")]
        users = [*write_head("gpudeck_gpu_users", "gauge", "1: that user is on it")]
        labels: dict[_GpuKey, str] = {}
        for at, (host_name, host) in enumerate(hosts):
            if at % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            for gpu in host.current_gpus() if host.status == "up" else ():
                key = (host_name, gpu.uuid, gpu.index, gpu.name)
                shown = labels[key] = self._labels.get(key) or _gpu_labels(*key)
                for (exposed, lines), value in zip(columns, gpu.numbers(), strict=True):
                    if value is not None:
                        lines.append(f"{exposed.name}{shown} {exposed.scale(value)!r}")
                states.append(f"gpudeck_gpu_state{_with(shown, 'state', gpu.availability)} 1")
                users += [f"gpudeck_gpu_users{_with(shown, 'user', user)} 1" for user in gpu.users]
        self._labels = labels
        return [lines for lines in (*(lines for _, lines in columns), states, users) if len(lines) > 2]


def _write_alerts(alerts: Alerts) -> Iterator[str]:
    """Those that fire, also where somebody looks after them. A rule that does not fire has no series."""
    counts = Counter((life.rule, life.severity) for life in alerts.engine.firing())
    samples: list[Sample] = [
        ({"rule": rule, "severity": word}, count) for (rule, word), count in sorted(counts.items())
    ]
    yield from write_family("gpudeck_alerts_firing", "gauge", "Alerts that fire", samples)


def _write_messages(outbox: MessageOutbox) -> Iterator[str]:
    """By channel, whose names are the operator's and few."""
    counted = outbox.counters.items()
    for family, word, about in (
        ("gpudeck_messages_sent_total", "sent", "Messages that arrived"),
        ("gpudeck_messages_failed_total", "failed", "Tries to send a message that failed"),
        ("gpudeck_messages_given_up_total", "given_up", "Messages that are not tried any more"),
    ):
        samples: list[Sample] = [({"channel": name}, counters[word]) for name, counters in counted]
        yield from write_family(family, "counter", about, samples)
    waiting: list[Sample] = [({"channel": name}, count) for name, count in outbox.waiting.items()]
    yield from write_family("gpudeck_messages_waiting", "gauge", "Messages that are still to be sent", waiting)


def _name(hosts: Iterable[HostState]) -> list[_Named]:
    """Hosts with names of which each is one host's: Prometheus takes no series twice."""
    hosts = list(hosts)
    times = Counter(host.name for host in hosts)
    return [(host.name if times[host.name] == 1 else f"{host.name}/{host.id}", host) for host in hosts]


def _write_hosts(hosts: Sequence[_Named], now: float) -> Iterator[list[str]]:
    """The lines of each metric in turn, some of them perhaps none."""
    shown = [(write_labels({"host": name}), host) for name, host in hosts]
    up: list[_Line] = [(labels, int(host.status == "up")) for labels, host in shown]
    yield _write_lines("gpudeck_host_up", "gauge", "1: reports as it should", up)
    ages: list[_Line] = [
        (labels, round(max(0.0, now - host.observed_at), 3)) for labels, host in shown if host.status != "never"
    ]
    yield _write_lines("gpudeck_host_report_age_seconds", "gauge", "Time since the last report", ages)
    current = [(labels, host) for labels, host in shown if host.status == "up"]
    for metric, exposed in _HOST_SERIES:
        told = [(labels, host.value(metric.name)) for labels, host in current]
        values: list[_Line] = [(labels, exposed.scale(value)) for labels, value in told if value is not None]
        yield _write_lines(exposed.name, exposed.kind, metric.label, values)


def _write_lines(name: str, kind: str, about: str, values: Iterable[_Line]) -> list[str]:
    """Like write_family, of labels that are written already; what is None is left out."""
    lines = [f"{name}{labels} {value!r}" for labels, value in values if value is not None]
    return [*write_head(name, kind, about), *lines] if lines else []


def _gpu_labels(host: str, uuid: str, index: int, model: str) -> str:
    return write_labels({"host": host, "gpu": uuid, "index": str(index), "model": model})


def _with(labels: str, name: str, value: str) -> str:
    return f"{labels[:-1]},{write_labels({name: value})[1:]}"


def _begin(metric: Metric, exposed: Exposed) -> list[str]:
    return [*write_head(exposed.name, exposed.kind, metric.label)]


def _join(lines: Iterable[str]) -> bytes:
    text = "\n".join(lines)
    return f"{text}\n".encode() if text else b""


@get("/metrics", opt=access("read"), media_type="text/plain")
async def read_metrics(metrics: NamedDependency[MetricsPage], request: HubRequest) -> Response[bytes]:
    """The fleet and the hub itself for Prometheus, in OpenMetrics for those who ask for it."""
    body, media_type = await metrics.read(), CONTENT_TYPE.rpartition(";")[0]
    if wants_openmetrics(request.headers.get("accept", "")):
        body, media_type = to_openmetrics(body), OPENMETRICS_TYPE
    headers = {"Cache-Control": "no-store", "Vary": "Accept, Accept-Encoding"}
    if len(body) > 2_048 and "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"] = "gzip"
        body = await asyncio.to_thread(gzip.compress, body, 1)
    # The framework adds the charset by itself where the type is one of text.
    return Response(body, media_type=media_type, headers=headers)


ROUTES = [read_metrics]
