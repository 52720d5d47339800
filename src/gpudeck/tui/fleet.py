"""The fleet as top holds it: the hub's own objects, changed in place by the events of its stream."""

from copy import copy
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.model.alert import Alert
from gpudeck.model.view import Fleet, Gpu, Host, Totals
from gpudeck.views.choice import count
from gpudeck.views.people import natural

Fields = dict[str, Any]
"""What changed of a host or a GPU, by the names of its fields; each value is of its field's type."""


def _partial(kind: type[Struct], **others: Any) -> type[Struct]:
    """The same fields, none of which has to be there."""
    return msgspec.defstruct(kind.__name__, [(*field, None) for field in (get_type_hints(kind) | others).items()])


_HOST_CHANGE = _partial(Host, gpus=list[Fields])
_GPU_CHANGE = _partial(Gpu)


class Delta(Struct):
    """What changed in a second. It holds values, not differences: taken twice it does no harm. `hosts` are new ones or
    have other GPUs than before; a change has the `id` of its host, and in `gpus` those GPUs that changed. None is as
    before."""

    time: float
    totals: Totals
    removed: list[str] = field(default_factory=list)
    hosts: list[Host] = field(default_factory=list)
    changes: list[Fields] = field(default_factory=list)
    problems: list[str] | None = None
    alerts: list[Alert] | None = None


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

    def load(self, snapshot: Fleet) -> None:
        """Take a snapshot, which replaces everything."""
        self.fleet = snapshot
        self._by_id, self._gpus = {}, {}
        self._put(snapshot.hosts)
        self._rank()

    def apply(self, delta: Delta) -> None:
        for host_id in delta.removed:
            self._by_id.pop(host_id, None)
        self._put(delta.hosts)
        for change in delta.changes:
            self._change(change)
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

    def _rank(self) -> None:
        self.fleet.hosts = sorted(self._by_id.values(), key=lambda host: natural(host.display_name))


def copy_rows(fleet: Fleet) -> Fleet:
    """A fleet that stands still while the live one is changed in place. What is in a row is replaced, never changed,
    so that both may share it."""
    return replace(fleet, hosts=[replace(host, gpus=[copy(gpu) for gpu in host.gpus]) for host in fleet.hosts])


def _set(row: Host | Gpu, fields: Fields) -> None:
    for name, value in fields.items():
        setattr(row, name, value)
