"""A report as Prometheus reads it: every metric of the catalog that is known, and none that is not.

A series that would say 0 for "could not be read" is worse than none, so unknown values are left out. Process ids,
commands and jobs are never labels: each new one would be a new series for ever.
"""

from collections import defaultdict
from collections.abc import Iterable

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.exposition import USER_MEMORY, Sample, expose, write_family
from gpudeck.model.report import GpuReading, Number
from gpudeck.wire import Envelope

STALE_BEATS = 3
STALE_SECONDS = 10.0


def write_metrics(envelope: Envelope, now: float) -> str:
    """The report in Prometheus' text format. What was read too long ago is left out but for its age."""
    host = {"host": envelope.host}
    about = host | {"version": envelope.agent_version, "simulated": str(envelope.simulated).lower()}
    age = round(max(0.0, now - envelope.collected_at), 3)
    lines = [
        *write_family("gpudeck_agent_info", "gauge", "The agent that says this", [(about, 1)]),
        *write_family("gpudeck_report_age_seconds", "gauge", "How long ago this host was read", [(host, age)]),
    ]
    if age <= max(STALE_BEATS * envelope.interval_seconds, STALE_SECONDS):
        lines += _write_values(envelope, host)
    return "\n".join(lines) + "\n"


def _write_values(envelope: Envelope, host: dict[str, str]) -> list[str]:
    report = envelope.report
    gpus = [(_labels_of(gpu, host), gpu) for gpu in report.gpus or ()]
    lines = []
    for metric in HOST_METRICS.values():
        lines += _write(metric, [(host, report.metrics.get(metric.name))])
    for metric in GPU_METRICS.values():
        lines += _write(metric, [(labels, gpu.metrics.get(metric.name)) for labels, gpu in gpus])
    missing = [(labels, int(gpu.missing is not None)) for labels, gpu in gpus]
    users = [sample for labels, gpu in gpus for sample in _memory_by_user(labels, gpu)]
    return [
        *lines,
        *write_family("gpudeck_gpu_missing", "gauge", "1: belongs here and cannot be read at all", missing),
        *write_family(USER_MEMORY, "gauge", "Memory used by a user's processes", users),
    ]


def _write(metric: Metric, samples: Iterable[tuple[dict[str, str], Number | None]]) -> list[str]:
    exposed = expose(metric)
    believed = [
        (labels, exposed.scale(value))
        for labels, value in samples
        if value is not None and metric.low <= value <= metric.high
    ]
    return write_family(exposed.name, exposed.kind, metric.label, believed)


def _labels_of(gpu: GpuReading, host: dict[str, str]) -> dict[str, str]:
    return host | {"gpu": gpu.uuid, "index": str(gpu.index), "model": gpu.name}


def _memory_by_user(labels: dict[str, str], gpu: GpuReading) -> list[Sample]:
    """A user of whose processes one is unknown in size is left out: the sum of the others would be too small."""
    used: defaultdict[str, int] = defaultdict(int)
    unknown = set()
    for process in gpu.processes or ():
        if process.user is None:
            continue
        if process.memory_used_bytes is None:
            unknown.add(process.user)
        used[process.user] += process.memory_used_bytes or 0
    return [(labels | {"user": user}, size) for user, size in sorted(used.items()) if user not in unknown]
