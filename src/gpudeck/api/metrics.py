"""GET /metrics: the fleet and the hub itself, as Prometheus reads it.

Unknown values are left out, and so is the last report of a host that stopped reporting: a series that says 0, or what
was true an hour ago, is worse than none. Process ids, commands and jobs are never labels: each new one would be a new
series for ever.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain, compress
from typing import NamedTuple

import msgspec
import numpy as np
from litestar import Response, get
from litestar.di import NamedDependency

from gpudeck import __version__
from gpudeck.alerts.notifiers.outbox import MessageOutbox
from gpudeck.alerts.service import AlertManager
from gpudeck.api.access import access
from gpudeck.api.answers import HubRequest, answer_in_parts
from gpudeck.fleet.columns import AVAILABILITY_WORDS, NEVER_SEEN, NONE, STATUS_CODES, UP, Floats, as_json, rows_of
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.state import PARTS
from gpudeck.fleet.stream import SharedParts
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric, Value
from gpudeck.model.cluster import Cluster
from gpudeck.model.exposition import (
    CONTENT_TYPE,
    GPU_INFO,
    OPENMETRICS_END,
    OPENMETRICS_TYPE,
    ExposedMetric,
    Sample,
    expose,
    name_host_labels,
    rewrite_heads,
    wants_openmetrics,
    write_family,
    write_head,
    write_labels,
)
from gpudeck.model.gpu_state import AVAILABILITIES
from gpudeck.model.view import HostStatus
from gpudeck.server.admission import KINDS, checkpoint

_STATUSES: tuple[HostStatus, ...] = ("up", "late", "down", "never_seen")
_COUNTERS = {
    "reports_taken": "Reports that were taken",
    "reports_late": "Reports among them that came after newer ones of their host",
    "reports_outdated": "Reports that were seen before",
    "reports_other_source": "Reports of hosts that also report over a better source",
    "values_rejected": "Values in reports that cannot be",
    "poll_failures": "Times that a host could not be read",
    "observer_failures": "Failures of what follows the fleet, such as history and events",
}
_REFUSED = "refused_"
_GPU_SERIES = [(metric, expose(metric)) for metric in GPU_METRICS.values()]
_HOST_SERIES = [(metric, expose(metric)) for metric in HOST_METRICS.values()]
_HOSTS_AT_ONCE = 128
_STATES = [f',state="{word}"}} 1'.encode() for word in AVAILABILITY_WORDS]
_encode = msgspec.json.Encoder().encode
_Texts = tuple[Sequence[bytes], Sequence[bytes]]
"""Labels, written, and what follows each of them: a value, or more labels and a value."""
_Family = tuple[str, str, str, list[Sample]]
"""Name, kind and help of a metric, and its samples."""
_Numbers = tuple[Sequence[bytes], Floats]
"""Labels, written, and metrics of their rows."""


class _ExposedLabels(NamedTuple):
    """The labels of a host and of its GPUs in order, cached until a name among them changes. `infos` ends the samples
    that describe each GPU."""

    name: str
    labels: dict[str, str]
    version: int
    own: bytes
    gpus: list[bytes]
    infos: list[bytes]


class _MetricsBlock(NamedTuple):
    """Some hosts and their GPUs as they were at one moment: values of those that are up alone."""

    up: _Texts
    ages: _Texts
    hosts: _Numbers
    gpus: _Numbers
    states: _Texts
    users: _Texts
    infos: _Texts


class MetricsPage:
    """One event loop owns it."""

    def __init__(
        self,
        hub: Hub,
        hits: Mapping[str, int] | None = None,
        outbox: MessageOutbox | None = None,
        alerts: AlertManager | None = None,
        cluster: Callable[[], Cluster] | None = None,
    ) -> None:
        """`hits` counts what limits have refused. `cluster` describes the hubs where there are several."""
        self._cluster = cluster
        self._hub = hub
        self._alerts = alerts
        self._outbox = outbox
        self._hits = Counter() if hits is None else hits
        self._labels: dict[str, _ExposedLabels] = {}

    async def open(self, *, is_openmetrics: bool = False) -> Iterable[bytes]:
        """The page in parts. The fleet is read before this returns, and written while the parts are taken: a reader
        that is slow gets the values of then."""
        blocks = await self._read_fleet()
        parts = chain((self._write_hub(),), _write_fleet(blocks))
        return chain(map(rewrite_heads, parts), (OPENMETRICS_END,)) if is_openmetrics else parts

    @property
    def kept_parts(self) -> dict[Hashable, SharedParts]:
        """Pages that were made since the last tick."""
        return self._hub.stream.kept_parts()

    async def _read_fleet(self) -> list[_MetricsBlock]:
        """All hosts by name. Others are served in between, and a host that leaves meanwhile is left out."""
        fleet, labels, blocks = self._hub.fleet, dict[str, _ExposedLabels](), list[_MetricsBlock]()
        hosts = fleet.ordered()
        for start in range(0, len(hosts), _HOSTS_AT_ONCE):
            await checkpoint()
            there = [host for host in hosts[start : start + _HOSTS_AT_ONCE] if fleet.hosts.get(host.id) is host]
            labels |= {host.id: self._label(host) for host in there}
            blocks.append(self._read_hosts(there, labels))
        self._labels = labels
        return blocks

    def _read_hosts(self, hosts: Sequence[HostState], labels: Mapping[str, _ExposedLabels]) -> _MetricsBlock:
        table, now = self._hub.fleet.table, self._hub.stream.time
        table.settle()
        own = [labels[host.id].own for host in hosts]
        status = np.array([STATUS_CODES[host.status] for host in hosts])
        is_up, is_seen = status == UP, (status != NEVER_SEEN).tolist()
        ages = _show(round(max(0.0, now - host.observed_at), 3) for host in compress(hosts, is_seen))
        up = list(compress(hosts, is_up))
        rows = rows_of([host.rows for host in up]) if up else np.empty(0, np.int64)
        is_current = table.gpus.last_seen[rows] == NONE
        gpus = list(compress((gpu for host in up for gpu in host.gpus.values()), is_current))
        shown = list(compress((label for host in up for label in labels[host.id].gpus), is_current))
        infos = list(compress((info for host in up for info in labels[host.id].infos), is_current))
        rows, open_labels = rows[is_current], [label[:-2] for label in shown]
        users = [(label, user) for label, gpu in zip(open_labels, gpus, strict=True) for user in gpu.users]
        return _MetricsBlock(
            up=(own, _show(is_up.astype(int).tolist())),
            ages=(list(compress(own, is_seen)), ages),
            hosts=(list(compress(own, is_up)), table.hosts.values[[host.row for host in up]]),
            gpus=(shown, table.gpus.values[rows]),
            states=(open_labels, [_STATES[code] for code in table.gpus.availability[rows].tolist()]),
            users=([label for label, _ in users], [_write_user(user) for _, user in users]),
            infos=(open_labels, infos),
        )

    def _label(self, host: HostState) -> _ExposedLabels:
        """Labels with a unique host name: Prometheus refuses duplicate series."""
        name = host.name if len(self._hub.fleet.called(host.name)) == 1 else f"{host.name}/{host.id}"
        site = host.facts.labels
        version, kept = int(self._hub.fleet.table.hosts.devices_version[host.row]), self._labels.get(host.id)
        if kept is not None and kept.name == name and kept.version == version and kept.labels == site:
            return kept
        own = {"host": name, **name_host_labels(site)}
        gpus = list(host.gpus.values())
        written = [write_labels(own | {"gpu": gpu.label, "uuid": gpu.uuid, "model": gpu.name}) for gpu in gpus]
        infos = [{"vendor": gpu.vendor, "pci_address": gpu.pci_address or ""} for gpu in gpus]
        return _ExposedLabels(
            name,
            dict(site),
            version,
            f"{write_labels(own)} ".encode(),
            [f"{labels} ".encode() for labels in written],
            [_write_more({name: value for name, value in info.items() if value}) for info in infos],
        )

    def _write_hub(self) -> bytes:
        lines = (line for family in self._hub_families() for line in write_family(*family))
        return "".join(f"{line}\n" for line in lines).encode()

    def _hub_families(self) -> Iterator[_Family]:
        stream, fleet = self._hub.stream, self._hub.fleet
        totals, statuses = fleet.totals(), Counter(host.status for host in fleet.hosts.values())
        yield "gpudeck_info", "gauge", "The hub that says this", [({"version": __version__}, 1)]
        yield "gpudeck_demo", "gauge", "1: all hosts are simulated", [({}, int(stream.fleet.is_simulated))]
        availabilities: list[Sample] = [({"availability": word}, getattr(totals, word)) for word in AVAILABILITIES]
        yield "gpudeck_gpus", "gauge", "GPUs by what they are doing", availabilities
        yield "gpudeck_hosts", "gauge", "Hosts by status", [({"status": word}, statuses[word]) for word in _STATUSES]
        yield "gpudeck_viewers", "gauge", "Live views that are open", [({}, stream.viewers)]
        yield "gpudeck_tick_age_seconds", "gauge", "Time since the fleet was published", [({}, stream.tick_age())]
        parts: list[Sample] = [({"part": part}, 0 if fleet.problems_of(part) else 1) for part in PARTS]
        yield "gpudeck_hub_part_up", "gauge", "1: that part of the hub works", parts
        if self._alerts is not None:
            yield _alert_family(self._alerts)
        if self._cluster is not None:
            yield from _cluster_families(self._cluster())
        for name, about in _COUNTERS.items():
            yield f"gpudeck_{name}_total", "counter", about, [({}, fleet.counters[name])]
        refused: list[Sample] = [
            ({"code": name.removeprefix(_REFUSED)}, number)
            for name, number in sorted(fleet.counters.items())
            if name.startswith(_REFUSED)
        ]
        yield "gpudeck_reports_refused_total", "counter", "Reports refused, by code", refused
        hits: list[Sample] = [({"limit": kind}, self._hits.get(kind, 0)) for kind in KINDS]
        yield "gpudeck_limit_hits_total", "counter", "What limits have refused", hits
        if self._outbox is not None and self._outbox.waiting:
            yield from _message_families(self._outbox)


def _alert_family(alerts: AlertManager) -> _Family:
    """Alerts that fire, including acknowledged ones. A rule that does not fire has no series."""
    counts = Counter((record.rule, record.severity) for record in alerts.engine.firing())
    samples: list[Sample] = [
        ({"rule": rule, "severity": word}, count) for (rule, word), count in sorted(counts.items())
    ]
    return "gpudeck_alerts_firing", "gauge", "Alerts that fire", samples


def _cluster_families(cluster: Cluster) -> Iterator[_Family]:
    this = next((hub for hub in cluster.hubs if hub.is_this), None)
    yield "gpudeck_cluster_up", "gauge", "1: up to date with all hubs", [({}, int(cluster.state == "ok"))]
    alive = sum(hub.is_alive for hub in cluster.hubs)
    yield "gpudeck_cluster_hubs_alive", "gauge", "Hubs that are there", [({}, alive)]
    held: list[Sample] = [
        ({"duty": duty.name}, int(this is not None and duty.owner == this.name)) for duty in cluster.duties
    ]
    yield "gpudeck_cluster_duty_held", "gauge", "1: this hub has the duty", held
    if this is not None and this.lag_seconds is not None:
        about = "How long messages of this hub take through the bus"
        yield "gpudeck_cluster_lag_seconds", "gauge", about, [({}, this.lag_seconds)]
    for name, about, count in (
        ("forwarded", "Reports that this hub took and published", cluster.reports_forwarded),
        ("received", "Reports that other hubs took", cluster.reports_received),
        ("duplicate", "Reports of other hubs that were known already", cluster.duplicates),
    ):
        yield f"gpudeck_cluster_reports_{name}_total", "counter", about, [({}, count)]


def _message_families(outbox: MessageOutbox) -> Iterator[_Family]:
    """By channel, whose names are the operator's and few."""
    for name, word, about in (
        ("gpudeck_messages_sent_total", "sent", "Messages that arrived"),
        ("gpudeck_messages_failed_total", "failed", "Tries to send a message that failed"),
        ("gpudeck_messages_given_up_total", "given_up", "Messages that are not tried any more"),
    ):
        samples: list[Sample] = [
            ({"channel": channel}, counters[word]) for channel, counters in outbox.counters.items()
        ]
        yield name, "counter", about, samples
    waiting: list[Sample] = [({"channel": channel}, count) for channel, count in outbox.waiting.items()]
    yield "gpudeck_messages_waiting", "gauge", "Messages that are still to be sent", waiting


@lru_cache(4096)
def _write_user(user: str) -> bytes:
    return _write_more({"user": user})


def _write_more(labels: Mapping[str, str]) -> bytes:
    """The end of a sample of 1: labels after those of the GPU."""
    return f",{write_labels(labels)[1:]} 1".encode() if labels else b"} 1"


def _write_fleet(blocks: Sequence[_MetricsBlock]) -> Iterator[bytes]:
    """One family after the other, in parts; those without a sample are left out."""
    yield from _write("gpudeck_host_up", "gauge", "1: reports as it should", (block.up for block in blocks))
    ages = (block.ages for block in blocks)
    yield from _write("gpudeck_host_report_age_seconds", "gauge", "Time since the last report", ages)
    for place, (metric, exposed) in enumerate(_HOST_SERIES):
        columns = (
            _known(labels, values[:, place], metric, exposed) for labels, values in (block.hosts for block in blocks)
        )
        yield from _write(exposed.name, exposed.kind, metric.label, columns)
    yield from _write(GPU_INFO, "gauge", "1: which GPU a UUID is", (block.infos for block in blocks))
    for place, (metric, exposed) in enumerate(_GPU_SERIES):
        columns = (
            _known(labels, values[:, place], metric, exposed) for labels, values in (block.gpus for block in blocks)
        )
        yield from _write(exposed.name, exposed.kind, metric.label, columns)
    yield from _write("gpudeck_gpu_state", "gauge", "1: is in that state", (block.states for block in blocks))
    yield from _write("gpudeck_gpu_users", "gauge", "1: that user is on it", (block.users for block in blocks))


def _write(name: str, kind: str, about: str, columns: Iterable[_Texts]) -> Iterator[bytes]:
    head, line = "\n".join((*write_head(name, kind, about), name)).encode(), f"\n{name}".encode()
    for labels, texts in columns:
        if labels:
            parts = [line] * (3 * len(labels))
            parts[0], parts[1::3], parts[2::3] = head, labels, texts
            parts.append(b"\n")
            head = line[1:]
            yield b"".join(parts)


def _known(labels: Sequence[bytes], values: Floats, metric: Metric, exposed: ExposedMetric) -> _Texts:
    """The values of one metric that are known, as Prometheus has them."""
    is_known = ~np.isnan(values)
    if not is_known.all():
        labels, values = list(compress(labels, is_known.tolist())), values[is_known]
    if exposed.is_scaled:
        return labels, _show((values * exposed.times / exposed.per).tolist())
    return labels, _show(as_json(values[:, None], np.array([metric.precision >= 1]))[0])


def _show(numbers: Iterable[Value]) -> list[bytes]:
    return _encode(list(numbers))[1:-1].split(b",")


@get("/metrics", opt=access("read"), media_type="text/plain")
async def read_metrics(metrics: NamedDependency[MetricsPage], request: HubRequest) -> Response[bytes]:
    """The fleet and the hub itself for Prometheus, in OpenMetrics for those who ask for it."""
    is_openmetrics = wants_openmetrics(request.headers.get("accept", ""))
    headers = {"Content-Type": OPENMETRICS_TYPE if is_openmetrics else CONTENT_TYPE, "Vary": "Accept, Accept-Encoding"}
    make, key = partial(metrics.open, is_openmetrics=is_openmetrics), ("metrics", is_openmetrics)
    return await answer_in_parts(request, make, metrics.kept_parts, key, **headers)
