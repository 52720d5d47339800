"""A short form of all hosts, for viewers of a large fleet: names, states, users and health of every GPU, without
metrics, processes and reasons. For the hosts on its screen, a viewer opens a second stream (`?hosts=`) with all fields.
"""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from gpudeck.fleet.columns import AVAILABILITY_WORDS, HEALTH_WORDS, OK, as_json, rows_of
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.table import FleetTable

SUMMARY_TICKS: Final = 10
"""A tenth of the hosts is summarized with each tick."""
_HOST_FIELDS: Final = (
    *("id", "name", "display_name", "status", "via", "last_report_at", "problems"),
    *("maintenance", "note"),
)
_HOST_CHANGES: Final = frozenset((*_HOST_FIELDS, "labels"))
_MODEL_FIELDS: Final = ("name", "display_name", "vendor")
_RARE_FIELDS: Final = (
    "health_reason",
    "health_action",
    "reservation",
    "reservation_conflict",
    "maintenance",
    "allocation",
)
_GPU_CHANGES: Final = frozenset(
    ("uuid", "index", "label", *_MODEL_FIELDS, "availability", "last_seen", "since", "health", "users", *_RARE_FIELDS)
)
_encoder = msgspec.json.Encoder()


def encode_short(table: FleetTable, hosts: Sequence[HostState]) -> list[bytes]:
    """Each host as JSON. `model` has the fields of its first GPU, which apply to all GPUs that do not repeat them.
    Null, empty and `ok` values of a GPU are left out."""
    table.settle()
    gpus, rows = [gpu for host in hosts for gpu in host.gpus.values()], rows_of([host.rows for host in hosts])
    columns = table.gpus
    (memory,) = as_json(columns.values[rows][:, [columns.place["memory_total_bytes"]]], np.array([True]))
    states = (columns.availability, columns.last_seen, columns.since, columns.health)
    shown = iter(zip(gpus, memory, *(column[rows].tolist() for column in states), strict=True))
    encoded = []
    for host in hosts:
        view: dict[str, Any] = {name: getattr(host, name) for name in _HOST_FIELDS}
        view["labels"] = host.facts.labels
        view["gpus"] = short = []
        for at in range(len(host.gpus)):
            gpu, memory_total, availability, last_seen, since, health = next(shown)
            model = {name: getattr(gpu, name) for name in _MODEL_FIELDS} | {"memory_total_bytes": memory_total}
            if at == 0:
                view["model"] = first = model
            own: dict[str, Any] = {"uuid": gpu.uuid, "index": gpu.index, "label": gpu.label}
            if model != first:
                own |= model
            own["availability"], own["since"] = AVAILABILITY_WORDS[availability] or "unknown", since
            if (seen := AVAILABILITY_WORDS[last_seen]) is not None:
                own["last_seen"] = seen
            if gpu.users:
                own["users"] = gpu.users
            if health != OK:
                own["health"] = HEALTH_WORDS[health]
            short.append(own | _find_rare(gpu, health))
        encoded.append(_encoder.encode(view))
    return encoded


def _find_rare(gpu: GpuState, health: int) -> dict[str, Any]:
    judged, mark = None if health == OK else gpu.health, gpu.mark
    found = (judged and judged.reason, judged and judged.action, mark.reservation, mark.conflict)
    values = (*found, gpu.maintenance, gpu.scheduling.allocation)
    return {name: value for name, value in zip(_RARE_FIELDS, values, strict=True) if value is not None}


def encode_short_patch(host: HostState, patch: dict[str, Any]) -> bytes | None:
    """The part of a patch (`HostState.take_changes`) that the short form contains; None if there is none."""
    short = {name: value for name, value in patch.items() if name in _HOST_CHANGES}
    if "status" in short:
        short["last_report_at"] = host.last_report_at
    gpus = [{name: value for name, value in gpu.items() if name in _GPU_CHANGES} for gpu in patch.get("gpus", ())]
    if gpus := [gpu for gpu in gpus if len(gpu) > 1]:
        short["gpus"] = gpus
    return _encoder.encode(short) if len(short) > 1 else None


def encode_summaries(table: FleetTable, tick: int) -> bytes:
    """The mean utilization and highest temperature of some hosts' GPUs, as columns: each host once in SUMMARY_TICKS
    ticks."""
    gpus, end = table.gpus, table.gpus.end
    rows = np.arange(tick % SUMMARY_TICKS, table.hosts.end, SUMMARY_TICKS)
    rows = rows[table.hosts.is_published[rows]]
    of_these = gpus.host[:end] % SUMMARY_TICKS == tick % SUMMARY_TICKS
    own = np.flatnonzero(of_these & (gpus.host[:end] >= 0))
    owners, percent = gpus.host[own], gpus.metric("utilization_percent")[own]
    celsius = gpus.metric("temperature_celsius")[own]
    is_known = ~np.isnan(percent)
    counts = np.bincount(owners[is_known], minlength=table.hosts.end)
    sums = np.bincount(owners[is_known], percent[is_known], minlength=table.hosts.end)
    hottest = np.full(table.hosts.end, np.nan)
    np.fmax.at(hottest, owners, celsius)
    means = np.full(table.hosts.end, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    values = np.stack((np.round(means[rows], 1), hottest[rows]), axis=1)
    utilization, temperature = as_json(values, np.array([True, True]))
    return _encoder.encode(
        {"rows": rows.tolist(), "utilization_percent": utilization, "temperature_celsius": temperature}
    )
