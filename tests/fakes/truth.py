"""Who really used what in a simulated fleet: worked out from its jobs, and from none of their readings.

The rules are those of the accounts (`history.accounting`): a job on four GPUs counts on four; jobs that share a GPU
share its time, its work and its power by their memory; a GPU is used idle from ten minutes after its last work on.
"""

from collections.abc import Iterable, Iterator
from functools import lru_cache

from gpudeck.collectors.simulated import SimulatedFleet, SimulatedJob
from gpudeck.collectors.simulated.chance import draw
from gpudeck.collectors.simulated.inventory import GpuSlot, HostSpec
from gpudeck.collectors.simulated.jobs import Tenure
from gpudeck.collectors.simulated.physics import LoadSegment, memory_mib, power_watts, segment_at, utilization
from gpudeck.collectors.simulated.work import Work
from gpudeck.history.base import UsageAmounts
from gpudeck.model.gpu_state import AvailabilitySettings

Truth = dict[str | None, UsageAmounts]
"""By user; None is for memory that nobody holds."""

MIB = 1 << 20
_HELD_AFTER = AvailabilitySettings().idle_after
_RAMP_STEP = 5.0
_MOMENTS = tuple(41.7 * number for number in range(200))


def true_use(fleet: SimulatedFleet, hosts: Iterable[int], start: float, end: float) -> Truth:
    """What each person used of those hosts from `start` until `end`."""
    truth: Truth = {}
    for number in hosts:
        host = host_of(fleet, number)
        runs = fleet.runs(number, start, end)
        guests = [run.guest for run in runs if run.guest is not None]
        for run in runs:
            if run not in guests:
                _add_run(truth, host, run, start, end)
        for slot in host.slots:
            if slot.fault == "orphaned":
                _add_orphan(truth, slot, end - start)
    return truth


def true_idle_spans(
    fleet: SimulatedFleet, hosts: Iterable[int], start: float, end: float
) -> list[tuple[frozenset[str], float, float]]:
    """When each GPU idled, with its users: from ten minutes after the last work until the next, the end of the run, or
    until somebody came or went."""
    found: list[tuple[frozenset[str], float, float]] = []
    for number in hosts:
        runs = fleet.runs(number, start, end)
        guests = [run.guest for run in runs if run.guest is not None]
        for run in runs:
            for slot in run.slots if run not in guests else ():
                found += _idle_spans(run, slot, start, end)
    return found


def _idle_spans(run: SimulatedJob, slot: int, start: float, end: float) -> list[tuple[frozenset[str], float, float]]:
    tenure, found = Tenure(run.start, run.end, run, run.start), list[tuple[frozenset[str], float, float]]()
    t, last = max(run.start, start), min(run.end, end)
    while t < last:
        stretch = segment_at(tenure, slot, t)
        until, users = min(stretch.end, last), frozenset(one.user for one, _ in stretch.parts)
        begin = until if stretch.idle_since is None else max(t, stretch.idle_since + _HELD_AFTER)
        if begin < until:
            is_next = found and found[-1][0] == users and found[-1][2] == begin
            found[-1:] = [(users, found[-1][1], until)] if is_next else [*found[-1:], (users, begin, until)]
        t = until
    return found


def true_total(truth: Truth) -> UsageAmounts:
    """The sum over everybody."""
    total = UsageAmounts()
    for use in truth.values():
        total.add(use)
    return total


def gpu_seconds(fleet: SimulatedFleet, hosts: Iterable[int], start: float, end: float) -> float:
    """For how many GPU-seconds there was a GPU that could be read, on hosts that never die."""
    slots = [slot for number in hosts for slot in host_of(fleet, number).slots if slot.fault != "missing"]
    return len(slots) * (end - start)


def host_of(fleet: SimulatedFleet, number: int) -> HostSpec:
    """What stands there: its GPUs and their faults."""
    return fleet.simulator(number).host


def _add_run(truth: Truth, host: HostSpec, run: SimulatedJob, start: float, end: float) -> None:
    for number in run.slots:
        tenure = Tenure(run.start, run.end, run, run.start)
        t, last = max(run.start, start), min(run.end, end)
        while t < last:
            stretch = segment_at(tenure, number, t)
            until = min(stretch.end, last)
            for piece_start, piece_end in _pieces(stretch, t, until):
                _add_piece(truth, host.slots[number], stretch, piece_start, piece_end)
            t = until


def _pieces(stretch: LoadSegment, start: float, end: float) -> Iterator[tuple[float, float]]:
    """Short ones while somebody's memory grows beside somebody else's, then the rest."""
    growing_until = max(run.start + run.work.ramp_s for run, _ in stretch.parts) if len(stretch.parts) > 1 else start
    while start < min(end, growing_until):
        yield start, min(end, start + _RAMP_STEP)
        start += _RAMP_STEP
    if start < end:
        yield start, end


def _add_piece(truth: Truth, slot: GpuSlot, stretch: LoadSegment, start: float, end: float) -> None:
    middle = (start + end) / 2
    used = [memory_mib(run.work, slot.memory_mib, middle - run.start) for run, _ in stretch.parts]
    loads = [_mean_load(run.work, level) for run, level in stretch.parts]
    effort = min(1.0, sum(load * run.work.intensity for load, (run, _) in zip(loads, stretch.parts, strict=True)))
    watts = power_watts(slot.model, effort, is_taken=True, noise=0.0)
    # A MIG instance tells neither its utilization nor its power, and so nobody knows whether it idles.
    is_told = slot.parent is None
    peaks = _peaks(slot, stretch, end)
    for (run, _), memory in zip(stretch.parts, used, strict=True):
        seconds = (end - start) * memory / sum(used)
        told = seconds * is_told
        use = UsageAmounts(
            used=seconds,
            active=told * min(1.0, sum(loads)),
            idle=told * _idle_share(stretch, start, end),
            measured=told,
            metered=told,
            joules=told * watts,
            peak=peaks[run.user],
        )
        truth.setdefault(run.user, UsageAmounts()).add(use)


def _peaks(slot: GpuSlot, stretch: LoadSegment, end: float) -> dict[str, float]:
    """What each person on the GPU holds there at the end of the piece, which is never less than before."""
    peaks: dict[str, float] = {}
    for run, _ in stretch.parts:
        peaks[run.user] = peaks.get(run.user, 0.0) + memory_mib(run.work, slot.memory_mib, end - run.start) * MIB
    return peaks


def _idle_share(stretch: LoadSegment, start: float, end: float) -> float:
    if stretch.idle_since is None:
        return 0.0
    return max(0.0, end - max(start, stretch.idle_since + _HELD_AFTER)) / (end - start)


def _add_orphan(truth: Truth, slot: GpuSlot, seconds: float) -> None:
    """Memory that nobody holds: the GPU idles, and is used by whom nobody can name."""
    joules = seconds * slot.model.idle_watts
    peak = int(slot.memory_mib * (0.25 + 0.4 * draw(slot.salt, 0))) * MIB
    truth.setdefault(None, UsageAmounts()).add(UsageAmounts(seconds, 0.0, seconds, seconds, seconds, joules, peak))


def _mean_load(work: Work, level: float) -> float:
    """What the job makes of a GPU on average, 0–1: its level, unless the noise about it reaches a limit."""
    percent = 100 * level
    if not level or (percent - work.swing >= 6.0 and percent + work.swing <= 100.0):
        return level
    return _mean_of_noisy(work, level)


@lru_cache(maxsize=100_000)
def _mean_of_noisy(work: Work, level: float) -> float:
    return sum(utilization(work, level, 0, moment) for moment in _MOMENTS) / len(_MOMENTS) / 100
