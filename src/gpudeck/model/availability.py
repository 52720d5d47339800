"""What free, busy, held, booked and unknown mean. Pure functions: facts in, one word and its reason out.

free     nobody is on it and it is not booked now
busy     work is happening, or happened less than `held_after` ago
held     a process sits there or memory is held, but no work for `held_after`
booked   nobody is on it, but it is reserved now
unknown  stale, missing or unreadable; never guessed, never free
"""

from typing import Annotated, Literal, get_args

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration, Size

Availability = Literal["free", "busy", "held", "booked", "unknown"]
AVAILABILITIES: tuple[Availability, ...] = get_args(Availability)

Verdict = tuple[Availability, str | None]
"""The availability and, where the word alone does not explain itself, the reason."""


class AvailabilitySettings(Struct, frozen=True):
    """Where the lines between the states are drawn."""

    held_after: Annotated[Duration, Meta(ge=0)] = 600.0
    """An occupied GPU without work for this long counts as held."""
    work_percent: Annotated[float, Meta(gt=0, le=100)] = 5.0
    """Utilization from which on a GPU counts as working."""
    empty_bytes: Annotated[Size, Meta(ge=0)] = 512 * 1024 * 1024
    """Memory in use without any known process up to which a GPU still counts as empty."""


def is_working(utilization_percent: float | None, settings: AvailabilitySettings) -> bool | None:
    """Whether work is happening; None when the utilization is unknown."""
    return None if utilization_percent is None else utilization_percent >= settings.work_percent


def is_occupied(processes: int | None, memory_used_bytes: float | None, settings: AvailabilitySettings) -> bool | None:
    """Whether somebody is on the GPU; None when neither its processes nor its memory are known."""
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
    booked: bool,
    settings: AvailabilitySettings,
) -> Verdict:
    """The availability of a GPU whose reading is fresh.

    `processes` counts those that matter, `memory_used_bytes` is theirs: display servers are left out of both by the
    caller. `idle_seconds` is how long no work has been seen. A MIG instance has no utilization of its own: a known,
    empty process list is then proof enough that it is free.
    """
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
    return ("booked", None) if booked else ("free", None)


def _judge_occupied(
    working: bool | None, processes: int | None, idle_seconds: float, settings: AvailabilitySettings
) -> Verdict:
    if working is None:
        return "busy", "somebody is on it; whether work happens cannot be read"
    orphaned = None if processes is None or processes else "memory is held, but no process is on it"
    return ("held" if idle_seconds >= settings.held_after else "busy"), orphaned
