"""The newest report of this host in the forms that the agent's HTTP server returns: health, report and metrics.

A host is read at its interval: many hubs cost no more than one. For Prometheus unknown values are left out. Process
ids, commands and jobs are never labels: each new one would be a new series for ever.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cached_property

import msgspec
from msgspec import Struct

from gpudeck import __version__
from gpudeck.agent.outbox import EncodedReport, ReportTime
from gpudeck.model import clock, exposition
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.report import GpuReading, Number
from gpudeck.wire import Envelope, decode_own

STALE_BEATS = 3
STALE_SECONDS = 10.0


def write_metrics(envelope: Envelope, now: float) -> str:
    """The report in Prometheus' text format. What was read too long ago is left out but for its age."""
    host = {"host": envelope.host}
    about = host | {"version": envelope.agent_version, "simulated": str(envelope.simulated).lower()}
    age = round(max(0.0, now - envelope.collected_at), 3)
    lines = [
        *exposition.write_family("gpudeck_agent_info", "gauge", "The agent that says this", [(about, 1)]),
        *exposition.write_family(
            "gpudeck_report_age_seconds", "gauge", "How long ago this host was read", [(host, age)]
        ),
    ]
    if age <= max(STALE_BEATS * envelope.interval_seconds, STALE_SECONDS):
        lines += _write_values(envelope, host)
    return "\n".join(lines) + "\n"


def _write_values(envelope: Envelope, host: dict[str, str]) -> list[str]:
    report = envelope.report
    gpus = [(host | _label(gpu), gpu) for gpu in report.gpus or ()]
    lines = []
    for metric in HOST_METRICS.values():
        lines += _write_metric(metric, [(host, report.metrics.get(metric.name))])
    for metric in GPU_METRICS.values():
        lines += _write_metric(metric, [(labels, gpu.metrics.get(metric.name)) for labels, gpu in gpus])
    missing = [(labels, int(gpu.missing is not None)) for labels, gpu in gpus]
    users = [sample for labels, gpu in gpus for sample in _memory_by_user(labels, gpu)]
    infos = [(labels | {"vendor": gpu.vendor}, 1) for labels, gpu in gpus]
    return [
        *lines,
        *exposition.write_family(exposition.GPU_INFO, "gauge", "1: which GPU a UUID is", infos),
        *exposition.write_family("gpudeck_gpu_missing", "gauge", "1: belongs here and cannot be read at all", missing),
        *exposition.write_family(exposition.USER_MEMORY, "gauge", "Memory used by a user's processes", users),
    ]


def _label(gpu: GpuReading) -> dict[str, str]:
    label = str(gpu.index) if gpu.instance is None else f"{gpu.index}.{gpu.instance}"
    return {"gpu": label, "uuid": gpu.uuid, "model": gpu.name}


def _write_metric(metric: Metric, samples: Iterable[tuple[dict[str, str], Number | None]]) -> list[str]:
    exposed = exposition.expose(metric)
    believed = [
        (labels, exposed.scale(value))
        for labels, value in samples
        if value is not None and metric.low <= value <= metric.high
    ]
    return exposition.write_family(exposed.name, exposed.kind, metric.label, believed)


def _memory_by_user(labels: dict[str, str], gpu: GpuReading) -> list[exposition.Sample]:
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


class HttpAnswer(Struct, frozen=True):
    status: int
    body: bytes
    headers: Mapping[str, str]


def answer_error(status: int, code: str, message: str, hint: str = "", **headers: str) -> HttpAnswer:
    """The one shape of every error, as the hub's API has it. Names of headers are written with underscores."""
    body = msgspec.json.encode({"error": {"code": code, "message": message, "hint": hint}})
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return HttpAnswer(status, body, {"Content-Type": "application/json", **given})


class LatestReport:
    def __init__(self, now: clock.Clock = clock.wall, boottime: clock.Clock = clock.boottime) -> None:
        self._now = now
        self._boottime = boottime
        self._newest: _ReportForms | None = None

    def put(self, report: EncodedReport) -> None:
        self._newest = _ReportForms(report.body, report.made)

    @property
    def newest(self) -> Envelope | None:
        return None if self._newest is None else self._newest.envelope

    def health(self) -> HttpAnswer:
        return HttpAnswer(200, msgspec.json.encode({"status": "ok", "version": __version__}), _JSON)

    def report(self, accept: str = "", accept_encoding: str | None = None) -> HttpAnswer:
        """The newest report: msgpack in zstd, or JSON where the caller asks for that, or cannot unpack zstd."""
        newest = self._newest
        if newest is None:
            return _NOT_READ_YET
        can_unpack = accept_encoding is None or exposition.read_weights(accept_encoding).get("zstd", 0.0) > 0.0
        is_json = _prefers_json(accept) or not can_unpack
        headers = {
            "Content-Type": "application/json" if is_json else "application/msgpack",
            "Gpudeck-Sent-At": repr(newest.made.sent_at(self._now(), self._boottime())),
            "Vary": "Accept, Accept-Encoding",
        }
        if is_json:
            return HttpAnswer(200, newest.json, headers)
        return HttpAnswer(200, newest.packed, headers | {"Content-Encoding": "zstd"})

    def metrics(self, accept: str = "") -> HttpAnswer:
        newest = self._newest
        if newest is None:
            return _NOT_READ_YET
        page = write_metrics(newest.envelope, newest.made.sent_at(self._now(), self._boottime())).encode()
        if exposition.wants_openmetrics(accept):
            return HttpAnswer(
                200, exposition.to_openmetrics(page), {"Content-Type": exposition.OPENMETRICS_TYPE, "Vary": "Accept"}
            )
        return HttpAnswer(200, page, {"Content-Type": exposition.CONTENT_TYPE, "Vary": "Accept"})


_JSON = {"Content-Type": "application/json"}
_NOT_READ_YET = answer_error(
    503, "unavailable", "this host has not been read yet", "Ask again in a second.", Retry_After="1"
)


class _ReportForms:
    """One report in all its forms, each made when it is first asked for. Two threads may make the same one twice."""

    def __init__(self, packed: bytes, made: ReportTime) -> None:
        self.packed = packed
        self.made = made

    @cached_property
    def envelope(self) -> Envelope:
        return decode_own(self.packed)

    @cached_property
    def json(self) -> bytes:
        return msgspec.json.encode(self.envelope)


def _prefers_json(accept: str) -> bool:
    """Whether JSON is asked for before msgpack; browsers, which ask for text, get what they can show."""
    wanted = exposition.read_weights(accept)
    asked = max(wanted.get("application/json", 0.0), wanted.get("text/html", 0.0))
    return asked > max(wanted.get("application/msgpack", 0.0), wanted.get("application/x-msgpack", 0.0))
