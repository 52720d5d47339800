"""The live fleet: GET /api/v1/fleet (everything), /totals (counts), /gpus (filtered), /users, and /sd: the agents that
the hub pulls, as Prometheus' http_sd reads them.

With `?shape=columns` the fleet is one array for each field over all hosts, and over all GPUs: a tenth of the size, and
quick to write and to read, as numbers are never objects in between and each set of reasons stands there once.
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from math import isnan
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
from litestar import Response, get
from litestar.exceptions import ValidationException
from litestar.params import QueryParameter
from msgspec import Struct

from gpudeck.api.access import TheVisibility, access
from gpudeck.api.answers import HubRequest, TheHub, answer_in_parts, answer_json, answer_json_parts
from gpudeck.api.history import TheHistory, keep_past
from gpudeck.api.parameters import TIME, TIME_SCHEMA, HostName, Limit, Offset, OnlyName, page_of, read_amount, read_time
from gpudeck.api.past_fleet import encode_past, read_context, read_metrics
from gpudeck.api.services import TheServices
from gpudeck.fleet.columns import (
    AVAILABILITY_CODES,
    AVAILABILITY_WORDS,
    HEALTH_WORDS,
    OK,
    Columns,
    Floats,
    Rows,
    as_json,
    rows_of,
)
from gpudeck.fleet.gpu import GpuState, encode_gpus
from gpudeck.fleet.host import HostFacts, HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.table import FleetTable
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import MomentQuery
from gpudeck.model.exposition import label_name
from gpudeck.model.gpu_request import GpuRequest, MemoryBound, has_model
from gpudeck.model.gpu_state import Availability
from gpudeck.model.target import Target
from gpudeck.model.text import AMOUNT
from gpudeck.model.view import Fleet, FleetColumns, GpuList, PastFleet, Totals
from gpudeck.server.admission import checkpoint
from gpudeck.views.users import Users, describe_users

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
    """The sets of reasons for unknown values; each distinct set has a number."""

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
    facts = fleet.facts(hub.stream.time)
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
    """Values that few GPUs have; None for all others."""
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


_REPORT = "/api/v1/report"
SETTLED_SECONDS = 300
"""After so long hardly any report of a moment is still on its way: its answer may be cached."""


@get("/api/v1/fleet", opt=access("read"))
async def read_fleet(
    *,
    hub: TheHub,
    visibility: TheVisibility,
    history: TheHistory,
    services: TheServices,
    request: HubRequest,
    shape: Annotated[
        Literal["objects", "columns"],
        QueryParameter(description="columns: a list for each field over all GPUs, without processes"),
    ] = "objects",
    at: Annotated[
        str | None, QueryParameter(max_length=64, description=f"A moment of the past: {TIME}", schema_extra=TIME_SCHEMA)
    ] = None,
    wanted: Annotated[
        str | None,
        QueryParameter(
            name="metrics",
            max_length=2048,
            description="With `at`: only these, with commas; those of hosts as host_cpu_percent",
        ),
    ] = None,
) -> Response[Fleet | FleetColumns | PastFleet]:
    """Everything now: hosts, GPUs, processes, totals. With `at`, the fleet as it was recorded then."""
    if at is not None:
        history.check_kept()
        if shape == "columns":
            raise ValidationException("shape: the fleet of a past moment is not available as columns")
        now = history.now()
        ask = MomentQuery(read_time("at", at, now), read_metrics(wanted), hub.fleet.settings.forget_after)
        context = await read_context(services, ask.at, now)
        parts = await history.ask(lambda store: encode_past(store, hub, ask, visibility, context))
        is_over = ask.at < now - SETTLED_SECONDS
        return keep_past(await answer_json_parts(request, parts), is_over=is_over)

    async def make() -> Iterable[bytes]:
        if shape == "columns":
            return await encode_columns(hub)
        return hub.fleet.encode_in_parts(hub.stream.time, visibility=visibility)

    return await answer_in_parts(request, make, hub.stream.kept_parts(visibility), ("fleet", shape))


@get("/api/v1/totals", opt=access("read"))
async def read_totals(hub: TheHub) -> Totals:
    """How many GPUs are free, busy, idle, reserved and unknown; hosts, users and power."""
    return hub.fleet.totals()


_encoder = msgspec.json.Encoder()
GPUS_AT_ONCE = 256


@get("/api/v1/gpus", opt=access("read"))
async def list_gpus(
    *,
    hub: TheHub,
    visibility: TheVisibility,
    request: HubRequest,
    availability: Annotated[
        list[Availability] | None, QueryParameter(description="Only these states; may be given several times")
    ] = None,
    min_memory: Annotated[
        str | None,
        QueryParameter(description="At least this much memory, in GiB: 40G", schema_extra={"pattern": AMOUNT}),
    ] = None,
    model: OnlyName = None,
    user: OnlyName = None,
    host: HostName = None,
    limit: Limit = None,
    offset: Offset = 0,
) -> Response[GpuList]:
    """GPUs across hosts. `model` is any part of the model's name, `user` an exact name, `host` a name in any case."""
    wanted = GpuRequest(memory_bytes=read_amount("min_memory", min_memory), model=model, host=host)

    async def make() -> Iterable[bytes]:
        hosts = (
            hub.fleet.ordered()
            if host is None
            else [one for one in hub.fleet.hosts.values() if wanted.is_on(one.name, one.id)]
        )
        await checkpoint()
        found = _find_gpus(hub.fleet.table, hosts, wanted, availability or (), user)
        rows = found[page_of(limit, offset)].tolist()
        gpus = [gpu for row in rows if (gpu := hub.fleet.table.gpu_at[row]) is not None]
        return _encode_gpus(hub.fleet.table, gpus, len(found), visibility)

    return await answer_in_parts(request, make, {})


def _find_gpus(
    table: FleetTable,
    hosts: Sequence[HostState],
    wanted: GpuRequest,
    availability: Sequence[Availability],
    user: str | None,
) -> Rows:
    """Their rows, in the order of the hosts."""
    table.settle()
    gpus = table.gpus
    rows = rows_of([host.rows for host in hosts]) if hosts else np.empty(0, np.int64)
    if availability:
        rows = rows[np.isin(gpus.availability[rows], [AVAILABILITY_CODES[word] for word in availability])]
    if wanted.model:
        kinds = [
            code for name, code in gpus.models.items() if has_model(wanted.model, name, table.names.of_model(name))
        ]
        rows = rows[np.isin(gpus.model[rows], kinds)]
    if wanted.memory_bytes:
        amounts, at = np.unique(gpus.metric("memory_total_bytes")[rows], return_inverse=True)
        bound = MemoryBound(">=", wanted.memory_bytes)
        fits = [bound.fits(None if isnan(amount) else amount) for amount in amounts.tolist()]
        rows = rows[np.array(fits, np.bool_)[at]]
    if user is not None:
        shared = [gpu.row for gpu in table.shared if user in gpu.users]
        rows = rows[(gpus.user[rows] == table.find_user(user)) | np.isin(rows, shared)]
    return rows


def _encode_gpus(table: FleetTable, gpus: Sequence[GpuState], total: int, visibility: Visibility) -> Iterator[bytes]:
    """Some at a time; those that leave meanwhile are left out."""
    yield b'{"total":%d,"gpus":[' % total
    before = b""
    for start in range(0, len(gpus), GPUS_AT_ONCE):
        table.settle()
        there = [gpu for gpu in gpus[start : start + GPUS_AT_ONCE] if table.gpu_at[gpu.row] is gpu]
        rows = np.array([gpu.row for gpu in there], np.int64)
        owners = [table.host_at[row] for row in table.gpus.host[rows].tolist()]
        heads = [
            _encoder.encode({"host": host.name, "host_id": host.id})[:-1] + b"," for host in owners if host is not None
        ]
        encoded = encode_gpus(table, there, rows, visibility) if there else ()
        items = [b"".join((own, head[1:], *rest)) for own, (_, head, *rest) in zip(heads, encoded, strict=True)]
        if items:
            yield before + b",".join(items)
            before = b","
    yield b"]}"


@get("/api/v1/users", opt=access("read"))
async def read_users(hub: TheHub, visibility: TheVisibility, request: HubRequest) -> Response[Users]:
    """Who is on which GPUs now: memory, processes, and where."""
    return await answer_json(request, await hub.stream.answer(visibility, _encode_users))


def _encode_users(fleet: Fleet) -> bytes:
    return msgspec.json.encode(describe_users(fleet))


class TargetGroup(Struct, frozen=True):
    """One agent: `targets` has one place. Labels begin with two underscores, so that none of them stands in the way of
    those on the agent's page; a rule of Prometheus' relabel_configs keeps the ones that a site wants."""

    targets: list[str]
    labels: dict[str, str]


def list_targets(fleet: FleetState, port: int) -> list[TargetGroup]:
    """The agents that the hub pulls, by name. Of an agent that pushes it is not known whether it listens. `port` is
    where agents listen that say none of their own. No tokens: Prometheus has them in a file."""
    return [_describe_agent(target, port) for target in fleet.targets if target.via == "pull"]


def _describe_agent(target: Target, port: int) -> TargetGroup:
    host = f"[{target.host}]" if ":" in target.host else target.host
    # Behind a proxy an agent's paths may all begin with one of its own.
    path = (target.path or _REPORT).removesuffix(_REPORT) if (target.path or _REPORT).endswith(_REPORT) else ""
    own = {"__scheme__": target.scheme, "__metrics_path__": f"{path}/metrics", "__meta_gpudeck_host": target.name}
    return TargetGroup([f"{host}:{target.port or port}"], {**_name_labels(target.labels), **own})


def _name_labels(labels: dict[str, str]) -> dict[str, str]:
    return {f"__meta_gpudeck_label_{label_name(name)}": value for name, value in sorted(labels.items())}


@get("/api/v1/sd", opt=access("read"))
async def list_agents(hub: TheHub, services: TheServices) -> list[TargetGroup]:
    """The agents that the hub asks, for Prometheus' http_sd_configs. /metrics has all GPUs, however they come in."""
    return list_targets(hub.fleet, services.agent_port())
