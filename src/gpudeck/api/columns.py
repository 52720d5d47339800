"""The fleet as columns (`?shape=columns`): one array for each field over all hosts, and over all GPUs.

It is a tenth of the size of the document with an object for each GPU, and quick to write and to read: numbers are never
objects in between, and reasons, which most GPUs of a kind share, stand there once.
"""

from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from gpudeck.fleet.columns import AVAILABILITY_WORDS, HEALTH_WORDS, OK, Columns, Floats, as_json, rows_of
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostFacts, HostState
from gpudeck.fleet.hub import Hub
from gpudeck.server.admission import checkpoint

_HOSTS_AT_ONCE: Final = 128
_HOST_FIELDS: Final = (
    *("id", "name", "display_name", "status", "via", "last_report_at", "problems"),
    *("maintenance", "note"),
)
_FACTS: Final = tuple(
    name for name in HostFacts.__struct_fields__ if name not in _HOST_FIELDS and name not in {"unknown", "gpus_reason"}
)
_GPU_FIELDS: Final = ("uuid", "index", "label", "name", "display_name", "vendor", "parent", "pci_address", "users")
_encode = msgspec.json.Encoder().encode


class _RowBlock(NamedTuple):
    """Some rows: fields other than metrics, and the metrics, [row, metric]."""

    fields: dict[str, list[Any]]
    values: Floats


class _Reasons:
    """Why values are unknown, each set of reasons once, and the number that stands for it."""

    def __init__(self) -> None:
        self.all: list[dict[str, str]] = []
        self._codes: dict[Hashable, int] = {}
        self._quick: dict[Hashable, tuple[int, object]] = {}

    def code(self, reasons: dict[str, str]) -> int:
        key = tuple(reasons.items())
        if key not in self._codes:
            self._codes[key] = len(self.all)
            self.all.append(reasons)
        return self._codes[key]

    def code_of(self, gpu: GpuState, unknown: tuple[str, ...]) -> int:
        if gpu.rejected or gpu.missing is not None or not gpu.has_processes:
            return self.code(gpu.reasons(unknown))
        # GPUs whose agents report the same share one object, which is kept here for as long as its id counts.
        key = (unknown, id(gpu.unknown))
        if key not in self._quick:
            self._quick[key] = self.code(gpu.reasons(unknown)), gpu.unknown
        return self._quick[key][0]


async def encode_columns(hub: Hub) -> Iterator[bytes]:
    """The document in parts. The fleet is read before this returns, and written while the parts are taken."""
    fleet, reasons = hub.fleet, _Reasons()
    facts = fleet.facts(hub.stream.time, demo=hub.stream.demo)
    hosts, gpus, count = list[_RowBlock](), list[_RowBlock](), 0
    everybody = fleet.ordered()
    for start in range(0, len(everybody), _HOSTS_AT_ONCE):
        await checkpoint()
        there = [host for host in everybody[start : start + _HOSTS_AT_ONCE] if fleet.hosts.get(host.id) is host]
        if there:
            fleet.settle()
            hosts.append(_read_hosts(there, fleet.table.hosts, reasons))
            gpus.append(_read_gpus(there, count, fleet.table.gpus, reasons))
            count += len(there)
    return _write(facts, hosts, gpus, fleet.table.hosts, fleet.table.gpus, reasons.all)


def _read_hosts(hosts: Sequence[HostState], table: Columns, reasons: _Reasons) -> _RowBlock:
    rows = np.array([host.row for host in hosts])
    unknown = table.unknown(rows)
    fields: dict[str, list[Any]] = {name: [getattr(host, name) for host in hosts] for name in _HOST_FIELDS}
    fields |= {name: [getattr(host.facts, name) for host in hosts] for name in _FACTS}
    fields["reasons"] = [reasons.code(host.reasons(names)) for host, names in zip(hosts, unknown, strict=True)]
    return _RowBlock(fields, table.values[rows])


def _read_gpus(hosts: Sequence[HostState], first_host: int, table: Any, reasons: _Reasons) -> _RowBlock:
    rows, gpus = rows_of([host.rows for host in hosts]), [gpu for host in hosts for gpu in host.gpus.values()]
    fields: dict[str, list[Any]] = {"host": [at for at, host in enumerate(hosts, first_host) for _ in host.gpus]}
    fields |= {name: [getattr(gpu, name) for gpu in gpus] for name in _GPU_FIELDS}
    fields["availability"] = [AVAILABILITY_WORDS[code] or "unknown" for code in table.availability[rows].tolist()]
    fields["availability_reason"] = _some(gpus, table.why_available[rows] != 0, lambda gpu: gpu.availability_reason)
    fields["last_seen"] = [AVAILABILITY_WORDS[code] for code in table.last_seen[rows].tolist()]
    fields["since"] = table.since[rows].tolist()
    fields["health"] = [HEALTH_WORDS[code] for code in table.health[rows].tolist()]
    is_ill = table.health[rows] != OK
    fields["health_reason"] = _some(gpus, is_ill, lambda gpu: gpu.health.reason)
    fields["health_action"] = _some(gpus, is_ill, lambda gpu: gpu.health.action)
    fields["reservation"] = _some(gpus, table.is_reserved[rows], lambda gpu: gpu.mark.reservation)
    fields["reservation_conflict"] = _some(gpus, table.has_conflict[rows], lambda gpu: gpu.mark.conflict)
    fields["maintenance"] = _some(gpus, table.is_drained[rows], lambda gpu: gpu.maintenance)
    fields["allocation"] = _some(gpus, table.is_allocated[rows], lambda gpu: gpu.scheduling.allocation)
    unknown = table.unknown(rows)
    fields["reasons"] = [reasons.code_of(gpu, names) for gpu, names in zip(gpus, unknown, strict=True)]
    return _RowBlock(fields, table.values[rows])


def _some(gpus: Sequence[GpuState], is_told: Any, tell: Any) -> list[Any]:
    """What few GPUs have, None for all others."""
    told: list[Any] = [None] * len(gpus)
    for at in np.flatnonzero(is_told).tolist():
        told[at] = tell(gpus[at])
    return told


def _write(  # noqa: PLR0917 - the parts of the document
    facts: dict[str, Any],
    hosts: Sequence[_RowBlock],
    gpus: Sequence[_RowBlock],
    host_table: Columns,
    gpu_table: Columns,
    reasons: list[dict[str, str]],
) -> Iterator[bytes]:
    yield _encode(facts)[:-1] + b',"hosts":{'
    yield from _write_columns(hosts, host_table)
    yield b'},"gpus":{'
    yield from _write_columns(gpus, gpu_table)
    yield b'},"reasons":' + _encode(reasons) + b"}"


def _write_columns(blocks: Sequence[_RowBlock], table: Columns) -> Iterator[bytes]:
    comma = b'"'
    for name in blocks[0].fields if blocks else ():
        yield from _write_column(comma + name.encode(), (block.fields[name] for block in blocks))
        comma = b',"'
    for place, name in enumerate(table.names if blocks else ()):
        is_whole = table.is_whole[place : place + 1]
        columns = (as_json(block.values[:, place : place + 1], is_whole)[0] for block in blocks)
        yield from _write_column(comma + name.encode(), columns)


def _write_column(name: bytes, blocks: Iterator[list[Any]]) -> Iterator[bytes]:
    yield name + b'":['
    comma = b""
    for block in blocks:
        if block:
            yield comma + _encode(block)[1:-1]
            comma = b","
    yield b"]"
