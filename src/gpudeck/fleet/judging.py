"""Availability and health of many GPUs at once.

These are the rules of model.availability and model.health as column operations: those say what is meant, for one GPU
at a time, and tests hold these to them. A comparison with NaN is false: what is unknown is asked for by name.
"""

from typing import Final

import numpy as np

from gpudeck.fleet.columns import (
    BOOKED,
    BUSY,
    CRITICAL,
    FREE,
    HELD,
    NAN,
    NONE,
    OK,
    UNKNOWN,
    UNREAD,
    WARNING,
    Codes,
    Floats,
    GpuColumns,
    Rows,
)
from gpudeck.model.availability import AvailabilitySettings
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.fleet_settings import FleetSettings
from gpudeck.model.health import HealthSettings

_PLACE: Final = {name: place for place, name in enumerate(GPU_METRICS)}
_UTILIZATION: Final = _PLACE["utilization_percent"]
_MEMORY: Final = _PLACE["memory_used_bytes"]
_TEMPERATURE: Final = _PLACE["temperature_celsius"]
_ROWS_PENDING: Final = _PLACE["remapped_rows_pending"]
_UNCORRECTED: Final = _PLACE["ecc_uncorrected_count"]
_LINKS_DOWN: Final = _PLACE["nvlink_inactive_count"]

BY_ITSELF, NO_DATA, BLIND, ORPHANED, NO_USE, MISSING, SILENT, NO_RESERVATIONS = range(8)
"""Why a GPU is in its state. BY_ITSELF: the word explains itself. MISSING and SILENT have sentences of their own, those
of the GPU and of its host."""
WHY_AVAILABLE: Final = {
    NO_DATA: "neither its processes nor its memory could be read",
    BLIND: "somebody is on it; whether work happens cannot be read",
    ORPHANED: "memory is held, but no process is on it",
    NO_USE: "neither its processes nor its utilization could be read",
    NO_RESERVATIONS: "whether it is reserved is not known",
}
WELL, HEAT, NO_HEAT, WORN, FAULT, LOST, UNHEARD = range(7)
"""Why a GPU has its health."""

# The cases of `judge_availability` in the order in which the first that is true counts, the last for all others.
_STATES: Final = np.array((UNKNOWN, BUSY, UNKNOWN, BUSY, HELD, BUSY, UNKNOWN, BOOKED, UNKNOWN, FREE), np.uint8)
_REASONS: Final = np.array((MISSING, 0, NO_DATA, BLIND, 0, 0, NO_USE, 0, NO_RESERVATIONS, 0), np.uint8)
_HELD_CASE, _BUSY_CASE, _FREE_CASE = 4, 5, 9


def judge(gpus: GpuColumns, rows: Rows, now: Floats, collected_at: Floats, settings: FleetSettings) -> Rows:
    """Judge GPUs whose values have just been put into their rows; returns the rows whose health is another.

    `now` is the moment of each reading on the hub's clock, `collected_at` the same on its host's.
    """
    availability, why = _judge_availability(gpus, rows, now, collected_at, settings.availability)
    health, cause, number = _judge_health(gpus, rows, settings.health)
    is_ill = (health != gpus.health[rows]) | (cause != gpus.why_healthy[rows]) | (number != gpus.health_number[rows])
    is_other = (
        is_ill
        | (availability != gpus.availability[rows])
        | (why != gpus.why_available[rows])
        | (gpus.last_seen[rows] != NONE)
    )
    gpus.availability[rows], gpus.why_available[rows], gpus.last_seen[rows] = availability, why, NONE
    gpus.is_new[rows] = False
    if is_ill.any():
        gpus.health[rows], gpus.why_healthy[rows], gpus.health_number[rows] = health, cause, number
    if is_other.any():
        gpus.is_state_changed[rows[is_other]] = True
    ill: Rows = rows[is_ill]
    return ill


def silence(gpus: GpuColumns, rows: slice, now: float) -> None:
    """Their host is silent, or cannot read them: the last values stay to be read, but nothing is claimed any more."""
    before, last = gpus.availability[rows], gpus.last_seen[rows]
    gpus.last_seen[rows] = np.where(last == NONE, before, last)
    gpus.since[rows] = np.where(before == UNKNOWN, gpus.since[rows], round(now, 3))
    gpus.availability[rows], gpus.why_available[rows] = UNKNOWN, SILENT
    gpus.health[rows], gpus.why_healthy[rows], gpus.health_number[rows] = UNREAD, UNHEARD, 0.0
    gpus.is_state_changed[rows] = True


def _judge_availability(
    gpus: GpuColumns, rows: Rows, now: Floats, collected_at: Floats, rules: AvailabilitySettings
) -> tuple[Codes, Codes]:
    values = gpus.values[rows]
    utilization, workers, is_missing = values[:, _UTILIZATION], gpus.workers[rows], gpus.is_missing[rows]
    memory = values[:, _MEMORY] - gpus.display_bytes[rows]
    is_blind = np.isnan(utilization)
    is_working = utilization >= rules.work_percent
    is_occupied = (workers > 0) | (memory > rules.empty_bytes)
    is_seen = (workers >= 0) | ~np.isnan(memory)
    # When work was last seen and when somebody came. A clock that was set back starts both anew, and of a GPU that
    # cannot be read nothing is learnt.
    last_work = gpus.last_work_at[rows]
    last_work = np.where((is_blind | is_working | (last_work > now)) & ~is_missing, now, last_work)
    came = gpus.occupied_since[rows]
    # Somebody who was there when the hub first looked may have come at any time before.
    arrived = np.where(np.isnan(came), np.where(gpus.is_new[rows], 0.0, now), came)
    came = np.where(is_missing, came, np.where(is_occupied, arrived, NAN))
    began = now - np.maximum(collected_at - gpus.oldest_start[rows], 0.0)
    # Nobody holds a GPU for longer than they have been on it, however long it was idle before.
    idle = now - np.fmax(last_work, np.where(np.isnan(began), came, began))
    cases = (
        is_missing,
        is_working,
        ~is_seen,
        is_occupied & is_blind,
        is_occupied & (idle >= rules.held_after),
        is_occupied,
        is_blind & (workers < 0),
        gpus.is_reserved[rows],
        gpus.is_reservation_unknown[rows],
    )
    case = np.full(len(rows), _FREE_CASE)
    for number in reversed(range(_FREE_CASE)):
        case[cases[number]] = number
    availability = _STATES[case]
    is_orphaned = ((case == _HELD_CASE) | (case == _BUSY_CASE)) & (workers == 0)
    why = np.where(is_orphaned, np.uint8(ORPHANED), _REASONS[case])
    gpus.last_work_at[rows], gpus.occupied_since[rows] = last_work, came
    before = gpus.availability[rows]
    is_other = availability != before
    if is_other.any():
        # On first sight, and after a silence, the reading itself may know better since when.
        is_first_sight = ((before == NONE) | (before == UNKNOWN)) & (availability != UNKNOWN)
        beginning = np.where(availability == BUSY, began, last_work)
        since = np.where(is_first_sight & ~np.isnan(beginning), np.minimum(now, beginning), now)
        gpus.since[rows[is_other]] = np.round(since[is_other], 3)
    return availability, why


def _judge_health(gpus: GpuColumns, rows: Rows, limits: HealthSettings) -> tuple[Codes, Codes, Floats]:
    """The level, the cause, and the number that the sentence about it tells."""
    values = gpus.values[rows]
    heat, fault, is_missing = values[:, _TEMPERATURE], gpus.fault[rows], gpus.is_missing[rows]
    is_cool = heat < limits.hot_celsius
    wear = values[:, (_ROWS_PENDING, _UNCORRECTED, _LINKS_DOWN)]
    is_worn = (wear > 0).any(axis=1)
    if is_cool.all() and not fault.any() and not is_missing.any() and not is_worn.any():
        return np.full(len(rows), OK, np.uint8), np.full(len(rows), WELL, np.uint8), np.zeros(len(rows))
    is_read = ~np.isnan(heat)
    too_hot = np.where(heat >= limits.critical_celsius, CRITICAL, WARNING)
    hot = np.where(is_read, np.where(is_cool, OK, too_hot), UNREAD)
    worn = np.where(is_worn, WARNING, OK)
    level = np.maximum(np.maximum(fault, worn), hot)
    # Of two that are equally bad a fault is told before the wear behind it, and that before the heat.
    cause = np.select(
        (is_missing, (fault == level) & (fault > OK), (worn == level) & is_worn, ~is_read, ~is_cool),
        (LOST, FAULT, WORN, NO_HEAT, HEAT),
        WELL,
    )
    sign = np.where(wear[:, 0] > 0, 0.0, np.where(wear[:, 1] > 0, wear[:, 1], -wear[:, 2]))
    number = np.select((cause == HEAT, cause == WORN), (np.rint(heat), sign), 0.0)
    level = np.where(is_missing, CRITICAL, level)
    return level.astype(np.uint8), cause.astype(np.uint8), number
