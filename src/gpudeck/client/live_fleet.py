"""The events of a hub's stream, and the fleet that follows them: the hub's own objects, changed in place."""

import gc
from collections.abc import Mapping
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.model.alert import Alert
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.event import Event
from gpudeck.model.text import natural
from gpudeck.model.view import Fleet, Gpu, Host, Totals
from gpudeck.views.filter import count

Fields = dict[str, Any]
"""Changed fields of a host or a GPU by name; each value has its field's type."""


def _partial(kind: type[Struct], **others: Any) -> type[Struct]:
    """The same fields, none of which has to be there."""
    return msgspec.defstruct(kind.__name__, [(*field, None) for field in (get_type_hints(kind) | others).items()])


_HOST_CHANGE = _partial(Host, gpus=list[Fields])
_GPU_CHANGE = _partial(Gpu)
_NUMBERS = {*GPU_METRICS, *HOST_METRICS, "last_report_at"}
Place = tuple[str, int, int]
"""The id of a host, its row, and the row of its first GPU; the others follow."""


class FleetRows(Fleet, kw_only=True):
    """A snapshot of the stream: the fleet, and whose rows are whose."""

    rows: list[Place] = field(default_factory=list)


class _Sparse(Struct):
    """Values `to` of the rows at these places."""

    at: list[int]
    to: list[float | None]


Columns = dict[str, list[float | None] | _Sparse]
"""Numbers that changed: `rows`, and of each metric a value a row, or those of some of them."""


class _Processes(Struct):
    """Of the GPU in each of `rows`, the numbers of its processes."""

    rows: list[int]
    memory_used_bytes: list[list[int | None]]
    utilization_percent: list[list[float | None]]


class Delta(Struct):
    """The changes of a second. It contains values, not differences, so it may be applied twice. `hosts` are new ones or
    have other GPUs than before, `rows` are theirs; a change has the `id` of its host, and in `gpus` those GPUs that
    changed otherwise than in numbers. `reports` are numbers of hosts. None is as before. `events` happened in
    that second."""

    time: float
    totals: Totals
    removed: list[str] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    rows: list[Place] = field(default_factory=list)
    changes: list[Fields] = field(default_factory=list)
    gpus: Columns = field(default_factory=dict)
    reports: Columns = field(default_factory=dict)
    processes: _Processes | None = None
    problems: list[str] | None = None
    alerts: list[Alert] | None = None
    events: list[Event] = field(default_factory=list)


def read_event(kind: str, data: bytes) -> FleetRows | Delta:
    """An event of the stream. Raises msgspec.ValidationError for a value that does not fit."""
    return read_snapshot(data) if kind == "snapshot" else read_delta(data)


def read_snapshot(data: bytes) -> FleetRows:
    """As the hub's stream has it. Raises msgspec.ValidationError for a value that does not fit."""
    # A hundred thousand objects in no cycle: looking through them for garbage would take twice as long as making them.
    gc.disable()
    try:
        return msgspec.json.decode(data, type=FleetRows)
    finally:
        gc.freeze()
        gc.enable()


def read_delta(data: bytes) -> Delta:
    """As the hub's stream has it. Fields that this version does not know are left out. Raises msgspec.ValidationError
    for a value that does not fit."""
    delta = msgspec.json.decode(data, type=Delta)
    delta.changes = [_check(change, _HOST_CHANGE) for change in delta.changes]
    for change in delta.changes:
        change["gpus"] = [_check(gpu, _GPU_CHANGE) for gpu in change.get("gpus", ())]
    return delta


def _check(change: Fields, kind: type[Struct]) -> Fields:
    checked = msgspec.convert(change, kind)
    return {name: getattr(checked, name) for name in change if name in kind.__annotations__}


class LiveFleet:
    """`fleet` is what is shown; its hosts stand in the order of their names, gpu2 before gpu10. Empty until the first
    snapshot."""

    def __init__(self) -> None:
        self.fleet = Fleet(demo=False, time=0.0, version="", totals=count(()), hosts=[])
        self._by_id: dict[str, Host] = {}
        self._gpus: dict[str, dict[str, Gpu]] = {}
        self._places: dict[str, Place] = {}
        self._host_at: dict[int, Host] = {}
        self._gpu_at: dict[int, Gpu] = {}

    def load(self, snapshot: Fleet) -> None:
        """Take a snapshot, which replaces everything."""
        self.fleet = snapshot
        self._by_id, self._gpus = {}, {}
        self._places, self._host_at, self._gpu_at = {}, {}, {}
        self._put(snapshot.hosts)
        self._place(snapshot.rows if isinstance(snapshot, FleetRows) else [])
        self._rank()

    def apply(self, delta: Delta) -> None:
        for host_id in (*delta.removed, *(host_id for host_id, _, _ in delta.rows)):
            self._displace(host_id)
        for host_id in delta.removed:
            self._by_id.pop(host_id, None)
        self._put(delta.hosts)
        self._place(delta.rows)
        for change in delta.changes:
            self._change(change)
        _write(self._host_at, delta.reports)
        _write(self._gpu_at, delta.gpus)
        if delta.processes is not None:
            self._change_processes(delta.processes)
        if delta.hosts or delta.removed:
            self._rank()
        fleet = self.fleet
        fleet.time, fleet.totals = delta.time, delta.totals
        fleet.problems = fleet.problems if delta.problems is None else delta.problems
        fleet.alerts = fleet.alerts if delta.alerts is None else delta.alerts

    def _put(self, hosts: list[Host]) -> None:
        for host in hosts:
            self._by_id[host.id] = host
            self._gpus[host.id] = {gpu.uuid: gpu for gpu in host.gpus}

    def _change(self, change: Fields) -> None:
        host = self._by_id.get(change.get("id", ""))
        if host is None:
            return
        own = self._gpus[host.id]
        for fields in change["gpus"]:
            if (gpu := own.get(fields.get("uuid", ""))) is not None:
                _set(gpu, fields)
        _set(host, {name: value for name, value in change.items() if name != "gpus"})

    def _displace(self, host_id: str) -> None:
        place, host = self._places.pop(host_id, None), self._by_id.get(host_id)
        if place is not None and host is not None:
            self._host_at.pop(place[1], None)
            for row in range(place[2], place[2] + len(host.gpus)):
                self._gpu_at.pop(row, None)

    def _place(self, rows: list[Place]) -> None:
        for place in rows:
            host_id, row, first = place
            host = self._by_id.get(host_id)
            if host is not None:
                self._places[host_id], self._host_at[row] = place, host
                self._gpu_at |= dict(enumerate(host.gpus, first))

    def _change_processes(self, changed: _Processes) -> None:
        """Processes in a row are replaced, never changed: a fleet that stands still may share them."""
        for row, memory, utilization in zip(
            changed.rows, changed.memory_used_bytes, changed.utilization_percent, strict=True
        ):
            gpu = self._gpu_at.get(row)
            if gpu is not None and gpu.processes is not None and len(gpu.processes) == len(memory) == len(utilization):
                gpu.processes = [
                    replace(process, memory_used_bytes=size, utilization_percent=percent)
                    for process, size, percent in zip(gpu.processes, memory, utilization, strict=True)
                ]

    def _rank(self) -> None:
        self.fleet.hosts = sorted(self._by_id.values(), key=lambda host: natural(host.display_name))


def _write(owners: Mapping[int, Host | Gpu], columns: Columns) -> None:
    """Unknown rows and metrics are left out."""
    rows = columns.get("rows", [])
    found = [owners.get(int(row or 0)) for row in rows] if isinstance(rows, list) else []
    for name, values in columns.items():
        if name not in _NUMBERS:
            continue
        for place, value in enumerate(values) if isinstance(values, list) else zip(values.at, values.to, strict=True):
            owner = found[place] if place < len(found) else None
            if owner is not None:
                setattr(owner, name, value)


def _set(row: Host | Gpu, fields: Fields) -> None:
    for name, value in fields.items():
        setattr(row, name, value)
