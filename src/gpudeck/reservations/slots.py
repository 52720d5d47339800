"""When are so many GPUs free for so long? Pure: GPUs and the times at which each is taken in, a time and GPUs out."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from gpudeck.model.reservation import BookedGpu, Reservation

Taken = Mapping[str, Sequence[tuple[float, float]]]
"""By UUID: from when until when. Never two at once, by their start."""


class FreeSlot(Struct, frozen=True):
    """A time at which these GPUs are free."""

    start: float
    end: float
    gpus: list[BookedGpu]


def taken_by(reservations: Iterable[Reservation]) -> Taken:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in reservations:
        for gpu in one.gpus:
            found[gpu.uuid].append((one.start, one.end))
    for spans in found.values():
        spans.sort()
    return found


def find_slot(
    gpus: Sequence[BookedGpu],
    taken: Taken,
    *,
    count: int,
    length: float,
    earliest: float,
    same_host: bool = False,
) -> FreeSlot | None:
    """The first time, from `earliest` on, from which `count` of the GPUs are free for `length` seconds.

    Nothing becomes free but where something ends: only those moments are tried. Of several choices the one that leaves
    the fewest GPUs of its host over is taken, so that whole hosts stay whole for those who need one.
    """
    if count > len(gpus):
        return None
    ends = {end for gpu in gpus for _, end in taken.get(gpu.uuid, ()) if end > earliest}
    for start in (earliest, *sorted(ends)):
        free = [gpu for gpu in gpus if is_free(taken.get(gpu.uuid, ()), start, start + length)]
        chosen = choose(free, count, same_host=same_host)
        if chosen is not None:
            return FreeSlot(start, start + length, chosen)
    return None


def is_free(spans: Sequence[tuple[float, float]], start: float, end: float) -> bool:
    """Whether none of the spans reaches into that time. What ends when it starts does not."""
    before = bisect_left(spans, (end,))
    return before == 0 or spans[before - 1][1] <= start


def choose(free: Sequence[BookedGpu], count: int, *, same_host: bool) -> list[BookedGpu] | None:
    """So many of them: of one host if any has enough, else of as few hosts as will do; None where there are not enough,
    or not on one host."""
    hosts: dict[str, list[BookedGpu]] = defaultdict(list)
    for gpu in free:
        hosts[gpu.host].append(gpu)
    enough = [found for found in hosts.values() if len(found) >= count]
    if enough:
        return min(enough, key=len)[:count]
    if same_host or len(free) < count:
        return None
    largest_first = sorted(hosts.values(), key=len, reverse=True)
    return [gpu for found in largest_first for gpu in found][:count]


def peak(reservations: Iterable[Reservation]) -> int:
    """The most GPUs that these have at one time."""
    steps = [step for one in reservations for step in ((one.start, len(one.gpus)), (one.end, -len(one.gpus)))]
    most = now = 0
    # What ends at a moment ends before what begins then.
    for _, change in sorted(steps):
        now += change
        most = max(most, now)
    return most
