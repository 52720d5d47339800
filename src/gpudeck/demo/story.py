"""Prices, reservations, maintenance and a queue for the demo, derived from the simulated jobs. The simulator knows
the future: a planned reservation is for a job that will start."""

import math
from collections.abc import Iterator
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.collectors.simulated import SimulatedFleet, SimulatedJob
from gpudeck.collectors.simulated.chance import draw
from gpudeck.history.settings import UsageSettings
from gpudeck.maintenance.service import MaintenanceRequest
from gpudeck.model.gpu_request import GpuRequest
from gpudeck.model.reservation import ReservedGpu

DAY: Final = 86_400.0
MIN_DAYS: Final = 7.0
"""A demo with a shorter past has only the fleet."""
PRICES: Final = {
    "H200": 3.2,
    "H100": 2.6,
    "MI300X": 2.4,
    "A100": 1.4,
    "MIG 3g.40gb": 0.6,
    "MIG 2g.20gb": 0.4,
    "MIG 1g.10gb": 0.2,
    "L40S": 0.95,
    "RTX 6000 Ada": 0.7,
    "RTX A6000": 0.5,
    "RTX 4090": 0.4,
    "V100": 0.3,
}
_AHEAD_DAYS: Final = 7.0
_MAX_HOSTS: Final = 24
_FEW_MINUTES: Final = 300
_SHORTEST: Final = 3 * 3600.0
_CHOSEN: Final = 0.22
_NOTES: Final = ("paper deadline", "ablation sweep", "camera-ready runs", "thesis experiments", "release candidate", "")


def priced(usage: UsageSettings) -> UsageSettings:
    """With prices, unless some are configured."""
    return usage if usage.prices else replace(usage, currency=usage.currency or "EUR", prices=PRICES)


class DemoReservation(Struct, frozen=True):
    """`used_at` is None if it has not begun."""

    user: str
    start: float
    end: float
    note: str
    gpus: tuple[ReservedGpu, ...]
    used_at: float | None


def plan_maintenance(fleet: SimulatedFleet) -> MaintenanceRequest:
    """The last host gets new fans."""
    return MaintenanceRequest(host=fleet.names[-1], length=20 * 3600.0, reason="new fans, back tomorrow")


def plan_reservations(fleet: SimulatedFleet, now: float, days: float) -> list[DemoReservation]:
    """Some trainings on several GPUs, of the last `days` and the next week. No two share a GPU at a time."""
    found: list[DemoReservation] = []
    for host in range(min(len(fleet.names), _MAX_HOSTS)):
        taken_until: dict[str, float] = {}
        for job in _trainings(fleet, host, now - days * DAY, now + _AHEAD_DAYS * DAY):
            start = float(math.floor(job.start / _FEW_MINUTES) * _FEW_MINUTES)
            end = float(math.ceil(job.end / _FEW_MINUTES) * _FEW_MINUTES)
            if any(taken_until.get(gpu, 0.0) > start for gpu in job.gpus):
                continue
            taken_until |= dict.fromkeys(job.gpus, end)
            note = _NOTES[int(draw(job.work.salt, 1) * len(_NOTES))]
            used_at = job.start if job.start <= now else None
            found.append(DemoReservation(job.user, start, end, note, _reserved(fleet, host, job), used_at))
    return found


def plan_queue(fleet: SimulatedFleet, now: float) -> list[tuple[str, GpuRequest]]:
    """Requests in the `wait` queue that are seldom met at once, with their users, who used GPUs in the last day."""
    jobs = (job for host in range(min(len(fleet.names), _MAX_HOSTS)) for job in fleet.runs(host, now - DAY, now))
    users = list(dict.fromkeys(job.user for job in jobs))
    wanted = (
        GpuRequest(gpus=8, model="H200", same_host=True),
        GpuRequest(gpus=4, model="H100", same_host=True),
        GpuRequest(gpus=4, memory_bytes=70 << 30, same_host=True),
    )
    return list(zip(users, wanted, strict=False))


def _trainings(fleet: SimulatedFleet, host: int, start: float, end: float) -> Iterator[SimulatedJob]:
    """Users of a scheduler's hosts reserve nothing."""
    if not fleet.station(host).host.in_slurm:
        for job in fleet.runs(host, start, end):
            is_long = job.kind == "training" and len(job.gpus) > 1 and job.end - job.start >= _SHORTEST
            if is_long and draw(job.work.salt, 2) < _CHOSEN:
                yield job


def _reserved(fleet: SimulatedFleet, host: int, job: SimulatedJob) -> tuple[ReservedGpu, ...]:
    slots = [fleet.station(host).host.slots[number] for number in job.slots]
    return tuple(ReservedGpu(slot.uuid, fleet.names[host], str(slot.index)) for slot in slots)
