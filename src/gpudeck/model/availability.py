"""What free, busy, idle, allocated, reserved, drained and unknown mean, and the settings that draw the lines. Facts in,
one word and its reason out.

free      not in use, not allocated, not reserved now and not drained
busy      work is happening, or happened less than `idle_after` ago
idle      a process or memory is on it, but no work for `idle_after`
allocated not in use, but a scheduler has given it to a job; wins over drained and reserved
reserved  not in use, but reserved now
drained   not in use, but drained for maintenance, or closed by its scheduler; wins over reserved
unknown   stale, missing or unreadable; never guessed, never free
"""

from typing import Annotated, Final, Literal, get_args

from msgspec import Meta, Struct, field

from gpudeck.model.health import HealthSettings
from gpudeck.model.settings import Duration, Memory

Availability = Literal["free", "busy", "idle", "allocated", "reserved", "drained", "unknown"]
AVAILABILITIES: tuple[Availability, ...] = get_args(Availability)
UNUSED: frozenset[Availability] = frozenset(("free", "allocated", "reserved", "drained"))
"""Not in use."""
RARE: frozenset[Availability] = frozenset(("allocated", "drained"))
"""Many sites have no such GPUs: where states are counted, a zero of these is left out."""

Verdict = tuple[Availability, str | None]
"""The availability and, where the word alone does not explain itself, the reason."""
STUCK_SECONDS: Final = 20.0
"""Where a second took longer than this, it was the hub that was away, and all that it believes to know is old."""
RETURN_SECONDS: Final = 120.0
"""Seconds after a start, and after a hub that was away goes on, in which agents return: they try again after pauses of
up to a minute. No host is said to have stopped reporting before that."""


class AvailabilitySettings(Struct, frozen=True):
    """Where the lines between the states are drawn."""

    idle_after: Annotated[Duration, Meta(ge=0)] = 600.0
    """An occupied GPU without work for this long is idle."""
    work_percent: Annotated[float, Meta(gt=0, le=100)] = 5.0
    """Utilization from which on a GPU counts as working."""
    empty_bytes: Annotated[Memory, Meta(ge=0)] = 512 * 1024 * 1024
    """Memory in use without any known process up to which a GPU still counts as empty."""


def is_working(utilization_percent: float | None, settings: AvailabilitySettings) -> bool | None:
    return None if utilization_percent is None else utilization_percent >= settings.work_percent


def is_occupied(processes: int | None, memory_used_bytes: float | None, settings: AvailabilitySettings) -> bool | None:
    if processes:
        return True
    if memory_used_bytes is not None:
        return memory_used_bytes > settings.empty_bytes
    return None if processes is None else False


def judge(
    *,
    processes: int | None,
    memory_used_bytes: float | None,
    utilization_percent: float | None,
    idle_seconds: float,
    reserved: bool,
    drained: bool = False,
    allocated: bool = False,
    settings: AvailabilitySettings,
) -> Verdict:
    """The availability of a GPU whose reading is fresh. Display servers are left out of `processes` and
    `memory_used_bytes`. A MIG instance has no utilization of its own: a known, empty process list is then proof enough
    that it is free."""
    working = is_working(utilization_percent, settings)
    if working:
        return "busy", None
    occupied = is_occupied(processes, memory_used_bytes, settings)
    if occupied is None:
        return "unknown", "neither its processes nor its memory could be read"
    if occupied:
        return _judge_occupied(working, processes, idle_seconds, settings)
    if working is None and processes is None:
        return "unknown", "neither its processes nor its utilization could be read"
    if allocated:
        return "allocated", None
    return ("drained" if drained else "reserved" if reserved else "free"), None


def _judge_occupied(
    working: bool | None, processes: int | None, idle_seconds: float, settings: AvailabilitySettings
) -> Verdict:
    if working is None:
        return "busy", "it is in use; its utilization cannot be read"
    orphaned = None if processes is None or processes else "memory is in use, but no process is on it"
    return ("idle" if idle_seconds >= settings.idle_after else "busy"), orphaned


class FleetSettings(Struct, frozen=True):
    """When a host counts as gone, and where the lines between GPU states are drawn."""

    down_after: Annotated[Duration, Meta(gt=0)] = 60.0
    """A host that has not reported for this long is down. It is late after three missed beats."""
    forget_after: Annotated[Duration, Meta(gt=0)] = 30 * 86_400.0
    """A host that has not reported for this long is removed from the fleet."""
    max_hosts: Annotated[int, Meta(ge=1)] = 20_000
    """Reports of further hosts are refused."""
    max_hosts_per_token: Annotated[int, Meta(ge=1)] = 2_000
    """Reports of further hosts with the same agent token are refused: a stolen token cannot fill the fleet. A fleet of
    more hosts that share one token needs a higher number."""
    availability: AvailabilitySettings = field(default_factory=AvailabilitySettings)
    health: HealthSettings = field(default_factory=HealthSettings)
