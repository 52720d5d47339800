"""Conflicts of a request with reservations, maintenance and processes, and the next time at which enough GPUs are free.
Pure."""

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from gpudeck.model.gpu_request import GpuRequest
from gpudeck.model.reservation import MaintenanceSchedule, MaintenanceWindow, Reservation, ReservedGpu, ShownSlot
from gpudeck.model.text import show_count
from gpudeck.model.times import show_utc
from gpudeck.reservations.requests import Known, ReservationRefused, ReservationSpan, name_gpus

Taken = Mapping[str, Sequence[tuple[float, float]]]
"""By UUID: the times at which a GPU is taken, in order and without overlaps."""
Drained = Mapping[str, Sequence[MaintenanceWindow]]
"""By UUID: the maintenance windows of a GPU, also those that have ended."""
NOTHING_DRAINED: Drained = {}


def drained_gpus(windows: Sequence[MaintenanceWindow], known: Known) -> Drained:
    found: dict[str, list[MaintenanceWindow]] = defaultdict(list)
    if not windows:
        return found
    schedule = MaintenanceSchedule()
    schedule.change(windows, 0.0, frozenset(gpu.host_id for gpu in known.values()))
    hosts: dict[tuple[str, str], list[MaintenanceWindow]] = {}
    for gpu in known.values():
        place = (gpu.host_id, gpu.host)
        if place not in hosts:
            hosts[place] = [one for one in windows if one.gpu is None and schedule.is_of(one, *place)]
        own = [one for one in windows if one.gpu is not None and one.gpu in {gpu.uuid, gpu.parent}]
        if own or hosts[place]:
            found[gpu.uuid] = [*hosts[place], *own]
    return found


def taken_by(reservations: Sequence[Reservation], drained: Drained) -> Taken:
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for one in reservations:
        for gpu in one.gpus:
            found[gpu.uuid].append((one.start, one.end))
    for uuid, windows in drained.items():
        found[uuid] += [(one.start, one.last_moment) for one in windows]
    return {uuid: _merge(spans) for uuid, spans in found.items()}


def _merge(spans: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Overlapping spans as one. Our reservations never overlap, maintenance and those of schedulers may."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


def find_slot(
    gpus: Sequence[ReservedGpu],
    taken: Taken,
    *,
    count: int,
    length: float,
    earliest: float,
    same_host: bool = False,
    in_use: Collection[str] = (),
) -> ShownSlot | None:
    """The first time from `earliest` on at which `count` of the GPUs are free for `length` seconds. `in_use` are those
    that are in use now. Only the ends of the times in `taken` are tried: nothing becomes free in between."""
    if count > len(gpus):
        return None
    ends = {end for gpu in gpus for _, end in taken.get(gpu.uuid, ()) if earliest < end < math.inf}
    for start in (earliest, *sorted(ends)):
        free = [gpu for gpu in gpus if is_free(taken.get(gpu.uuid, ()), start, start + length)]
        chosen = choose(free, count, same_host=same_host, in_use=in_use)
        if chosen is not None:
            return ShownSlot(start, start + length, chosen)
    return None


def is_free(spans: Sequence[tuple[float, float]], start: float, end: float) -> bool:
    """Whether none of the spans overlaps that time."""
    before = bisect_left(spans, (end,))
    return before == 0 or spans[before - 1][1] <= start


def choose(
    free: Sequence[ReservedGpu], count: int, *, same_host: bool, in_use: Collection[str] = ()
) -> list[ReservedGpu] | None:
    """`count` GPUs: of one host if any has enough, else of as few hosts as possible. None if there are not enough, or
    with `same_host` not enough on one host.

    Of several hosts, the one that needs the fewest GPUs that are in use now; then the one with the fewest left over, so
    that whole hosts stay free; then the one with the most unused.
    """
    hosts: dict[str, list[ReservedGpu]] = defaultdict(list)
    for gpu in free:
        hosts[gpu.host].append(gpu)
    unused = {host: sum(gpu.uuid not in in_use for gpu in found) for host, found in hosts.items()}
    enough = [host for host, found in hosts.items() if len(found) >= count]
    if enough:
        best = min(enough, key=lambda host: (-min(count, unused[host]), len(hosts[host]), -unused[host]))
        return hosts[best][:count]
    if same_host or len(free) < count:
        return None
    largest_first = sorted(hosts, key=lambda host: (-len(hosts[host]), -unused[host]))
    return [gpu for host in largest_first for gpu in hosts[host]][:count]


class Conflict(ReservationRefused):
    """Others have those GPUs then, as `conflicts` say, or use them now. `next_free` is the first time at which as many
    are free for as long; None if no such time is known."""

    def __init__(
        self,
        message: str,
        hint: str,
        next_free: ShownSlot | None = None,
        *,
        conflicts: Sequence[Reservation] = (),
        code: str = "conflict",
    ) -> None:
        super().__init__(code, message, hint)
        self.conflicts = list(conflicts)
        self.next_free = next_free


def check_drained(
    gpus: Sequence[ReservedGpu], later: Sequence[Reservation], span: ReservationSpan, drained: Drained
) -> None:
    """Raises Conflict if one of the GPUs is in maintenance at some time within the span."""
    for gpu in gpus:
        for window in drained.get(gpu.uuid, ()):
            if window.overlaps(span.start, span.end):
                when = f"from {show_utc(window.start)} " if window.start > span.start else ""
                until = "without an end yet" if window.end is None else f"until {show_utc(window.end)}"
                message = f"{window.place} is in maintenance {when}{until}: {window.reason[:80]}."
                slot = first_slot([gpus], later, None, span, drained)
                raise Conflict(message, "Choose another time, or other GPUs.", slot, code="maintenance")


def check_free(
    gpus: Sequence[ReservedGpu], later: Sequence[Reservation], span: ReservationSpan, drained: Drained
) -> None:
    """Raises Conflict if one of the reservations from `span.start` on begins before its end."""
    conflicts = [one for one in later if one.start < span.end]
    if not conflicts:
        return
    first, count = conflicts[0], len(conflicts)
    what = f"{'is' if len(first.gpus) == 1 else 'are'} {'claimed' if first.kind == 'claim' else 'reserved'}"
    note = f" ({first.note[:80]})" if first.note else ""
    more = f" and {count - 1} more" if count > 1 else ""
    message = f"{name_gpus(first.gpus)} {what} by {first.user}{note}: {first.title}{more}."
    slot = first_slot([gpus], later, None, span, drained)
    raise Conflict(message, "Begin later, or choose others.", slot, conflicts=conflicts)


def check_in_use(gpus: Sequence[ReservedGpu], logins: frozenset[str], known: Known) -> None:
    """Raises Conflict for a GPU that another user is on now. Its own user can reserve it."""
    for gpu in gpus:
        seen = known[gpu.uuid]
        others = [user for user in seen.users() if user not in logins]
        if others or (seen.is_in_use and not seen.users()):
            how = f"is in use by {' and '.join(others[:3]) or 'an unknown user'}"
            if seen.availability == "allocated":
                how = "is allocated to a job by its scheduler"
            message = f"GPU {gpu.label} of {gpu.host} {how} now."
            raise Conflict(message, "Reserve it from a later time, or ask them.", code="in_use")


def first_slot(
    tiers: Sequence[Sequence[ReservedGpu]],
    taken: Sequence[Reservation],
    request: GpuRequest | None,
    span: ReservationSpan,
    drained: Drained,
    *,
    in_use: Collection[str] = (),
) -> ShownSlot | None:
    """The earliest slot of any tier; of two at one time, that of the first tier. Without a request, for all GPUs of
    a tier."""
    spans = taken_by(taken, drained)
    slots = (
        find_slot(
            gpus,
            spans,
            count=len(gpus) if request is None else request.gpus,
            length=span.length,
            earliest=span.start,
            same_host=request is not None and request.same_host,
            in_use=in_use,
        )
        for gpus in tiers
    )
    return min(filter(None, slots), key=lambda slot: slot.start, default=None)


def describe_too_few(request: GpuRequest, slot: ShownSlot | None) -> Conflict:
    where = " on one host" if request.same_host else ""
    hint = "Begin later." if slot is not None else "Ask for fewer, or for others."
    message = f"{show_count(request.gpus, 'such GPU')}{where} cannot be had for so long at that time."
    return Conflict(message, hint, slot)
