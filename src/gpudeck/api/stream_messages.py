"""The JSON in the events of GET /api/v1/stream, for the OpenAPI document and the page's types: see docs/api.md, *The
stream*. The hub joins these from parts that are encoded once (fleet.stream), so no object of them is ever made there.

A field that may be left out is UNSET. Changes and columns take their fields from `Gpu`, `Host` and the catalog: a new
one needs no line here.
"""

from typing import Any, get_type_hints

from msgspec import UNSET, Struct, UnsetType, defstruct

from gpudeck.model.alert import Alert, AlertCounts
from gpudeck.model.allocation import Allocation
from gpudeck.model.availability import Availability
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric, Value
from gpudeck.model.event import Event
from gpudeck.model.health import HealthLevel
from gpudeck.model.maintenance import Maintenance
from gpudeck.model.reservation import GpuReservation
from gpudeck.model.view import Fleet, Gpu, Host, HostNote, HostStatus, Totals

HostRows = tuple[str, int, int]
"""A host's id, its row among hosts, and the row of its first GPU among GPUs."""


class ChangedValues(Struct):
    """Values at some positions `at` among the rows."""

    at: list[int]
    to: list[Value]


Values = list[Value] | ChangedValues
"""One value for each row, or only those that changed."""


def _optional(name: str, text: str, required: dict[str, Any], fields: dict[str, Any]) -> Any:
    """A struct in which `fields` may be left out."""
    told: list[Any] = [*required.items(), *((field, kind | UnsetType, UNSET) for field, kind in fields.items())]
    module = {"__doc__": text, "__module__": __name__}
    return defstruct(name, told, namespace=module, kw_only=True)


def _list_of(kind: Any) -> Any:
    return list[kind]


def _words(view: type[Struct], key: str, metrics: dict[str, Metric], *others: str) -> dict[str, Any]:
    """The fields of a view that are no metrics."""
    left_out = {key, *metrics, *others}
    return {name: kind for name, kind in get_type_hints(view).items() if name not in left_out}


def _live(metrics: dict[str, Metric]) -> dict[str, Any]:
    return {name: Values for name, metric in metrics.items() if metric.live}


GpuChange = _optional(
    "GpuChange",
    "The changed fields of a GPU except its metrics. Lists and `reasons` come whole.",
    {"uuid": str},
    _words(Gpu, "uuid", GPU_METRICS),
)
HostChange = _optional(
    "HostChange",
    "The changed fields, except metrics, of a host whose set of GPUs stayed the same.",
    {"id": str},
    _words(Host, "id", HOST_METRICS, "gpus") | {"gpus": _list_of(GpuChange)},
)
_ROWS = {"rows": list[int]}
GpuValues = _optional("GpuValues", "Metrics of the GPUs in `rows`.", _ROWS, _live(GPU_METRICS))
HostValues = _optional(
    "HostValues",
    "Metrics of the hosts in `rows`, which have reported, and when that was.",
    _ROWS,
    _live(HOST_METRICS) | {"last_report_at": Values},
)


class ProcessValues(Struct):
    """The numbers of all processes of each GPU in `rows`, in the order of its `processes`."""

    rows: list[int]
    memory_used_bytes: list[list[Value]]
    utilization_percent: list[list[Value]]


class SummaryValues(Struct):
    """Of the GPUs of each host in `rows`: the mean utilization and the highest temperature."""

    rows: list[int]
    utilization_percent: list[Value]
    temperature_celsius: list[Value]


class GpuModel(Struct):
    """What of the first GPU of a host applies to each that does not say otherwise."""

    name: str
    display_name: str
    vendor: str
    memory_total_bytes: Value


class ShortGpu(Struct, kw_only=True):
    """A GPU of the overview. What is left out is the model's, empty, null or, for `health`, ok."""

    uuid: str
    index: int
    label: str
    availability: Availability
    since: float | None
    name: str | UnsetType = UNSET
    display_name: str | UnsetType = UNSET
    vendor: str | UnsetType = UNSET
    memory_total_bytes: Value | UnsetType = UNSET
    last_seen: Availability | UnsetType = UNSET
    users: list[str] | UnsetType = UNSET
    health: HealthLevel | UnsetType = UNSET
    health_reason: str | UnsetType = UNSET
    health_action: str | UnsetType = UNSET
    reservation: GpuReservation | UnsetType = UNSET
    reservation_conflict: str | UnsetType = UNSET
    maintenance: Maintenance | UnsetType = UNSET
    allocation: Allocation | UnsetType = UNSET


class ShortHost(Struct, kw_only=True):
    """A host of the overview. One without GPUs has no `model`."""

    id: str
    name: str
    display_name: str
    status: HostStatus
    via: str
    labels: dict[str, str]
    problems: list[str]
    last_report_at: float | None
    maintenance: Maintenance | None
    note: HostNote | None
    model: GpuModel | UnsetType = UNSET
    gpus: list[ShortGpu]


class StreamSnapshot(Fleet, kw_only=True):
    """The first event: the fleet with the rows of its hosts."""

    rows: list[HostRows]


class OverviewSnapshot(StreamSnapshot, kw_only=True):
    """The first event with `shape=overview`."""

    hosts: list[ShortHost]  # type: ignore[assignment]


_FACTS: dict[str, Any] = {
    "problems": list[str],
    "alerts": list[Alert],
    "alert_counts": AlertCounts,
    "reservations": int,
    "events": list[Event],
    "removed": list[str],
    "rows": list[HostRows],
    "changes": _list_of(HostChange),
    "gpus": GpuValues,
}
_BEAT: dict[str, Any] = {"time": float, "totals": Totals}
StreamDelta = _optional(
    "StreamDelta",
    "What changed since the event before, to be applied in the order of docs/api.md. `hosts` are whole: new ones, and "
    "those whose set of GPUs changed; `rows` are theirs. `problems`, `alerts` and `alert_counts` are whole. "
    "`reservations` is another number whenever a reservation was created, changed or released.",
    _BEAT,
    _FACTS | {"hosts": list[Host], "reports": HostValues, "processes": ProcessValues},
)
OverviewDelta = _optional(
    "OverviewDelta",
    "The same with `shape=overview`. `changes` has the fields of the overview alone, `gpus` only `memory_total_bytes`.",
    _BEAT | {"summaries": SummaryValues},
    _FACTS | {"hosts": list[ShortHost]},
)
SNAPSHOTS = (StreamSnapshot, OverviewSnapshot)
DELTAS = (StreamDelta, OverviewDelta)
