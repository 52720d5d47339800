"""Requests to make or change a reservation, the limits that apply to them, and the errors that refuse them. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

from msgspec import Struct

from gpudeck.model.errors import GpudeckError
from gpudeck.model.gpu_request import MAX_GPUS, GpuRequest, explain_impossible, is_unusable, matches, memory_order
from gpudeck.model.gpu_state import Availability, HealthLevel
from gpudeck.model.reservation import Reservation, ReservedGpu
from gpudeck.model.text import show_count, show_exactly, show_length
from gpudeck.model.times import show_utc
from gpudeck.reservations.settings import DAY, ReservationSettings

LATE_SECONDS = 120.0
"""A start that is past by no more than this means now: clocks differ, and filling in a form takes a while."""
SHORTEST = 60.0
FURTHEST = 3660 * DAY
"""No reservation, not even an admin's, ends more than ten years ahead: that would be a typing mistake."""


class ReservationRefused(GpudeckError):
    """A request that makes no sense, or is not allowed. `code` is for programs: `unknown_gpu`, `past`, `limit`, …"""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.code = code


class NoSuchReservation(ReservationRefused):
    """There is no reservation with that id."""

    def __init__(self, number: int) -> None:
        super().__init__("not_found", f"there is no reservation {number}.", "`gpudeck reservations` lists them.")


class ReservationChanged(ReservationRefused):
    """The reservation was changed meanwhile. `newer` is its current version."""

    def __init__(self, newer: Reservation) -> None:
        message = f"reservation {newer.id} was changed meanwhile: it has version {newer.version} now."
        super().__init__("changed", message, "Look at it again.")
        self.newer = newer


def name_gpus(gpus: Sequence[ReservedGpu]) -> str:
    """GPUs 0, 1 of gpu07; GPU 3 of gpu08."""
    hosts = {gpu.host: [other.label for other in gpus if other.host == gpu.host] for gpu in gpus}
    named = [
        f"{'GPU' if len(labels) == 1 else 'GPUs'} {', '.join(labels[:16])} of {host}" for host, labels in hosts.items()
    ]
    return "; ".join([*named[:8], "…"] if len(named) > 8 else named)


class Requester(Struct, frozen=True):
    """The caller. `name` is for the audit log and owns new reservations; `logins` are those on the hosts."""

    name: str
    is_admin: bool = False
    logins: frozenset[str] = frozenset()

    def may_change(self, reservation: Reservation) -> bool:
        """Callers without an account have no name, and share the reservations that were made without an account."""
        is_anybodys = not self.name and not reservation.created_by
        return self.is_admin or is_anybodys or (bool(self.name) and reservation.user == self.name)


class ReservationSpan(Struct, frozen=True):
    start: float
    end: float

    @property
    def length(self) -> float:
        return self.end - self.start


def read_span(start: float | None, end: float | None, length: float | None, now: float) -> ReservationSpan:
    """From `start`, or now, until `end` or for `length` seconds, in whole seconds. Raises ReservationRefused."""
    if (end is None) == (length is None):
        raise ReservationRefused("bad_request", "a reservation needs either an end or a length.", "Such as 4h.")
    for moment in (start, end, length):
        if moment is not None and not math.isfinite(moment):
            raise ReservationRefused("bad_request", "a time has to be a number.")
    begins = now if start is None else start
    if begins < now - LATE_SECONDS:
        raise ReservationRefused("past", f"the start is {show_length(now - begins)} ago.", "Begin now or later.")
    begins = math.floor(max(begins, now))
    ends = math.floor(end) if end is not None else begins + math.floor(length or 0.0)
    check_span(ReservationSpan(begins, ends), now)
    return ReservationSpan(begins, ends)


def check_span(span: ReservationSpan, now: float) -> None:
    """Raises ReservationRefused."""
    if span.end <= now:
        raise ReservationRefused("past", "the end is in the past.", "End later than now.")
    if span.length <= 0:
        raise ReservationRefused("bad_request", "it would end before it begins.", "Give a later end.")
    if span.length < SHORTEST:
        raise ReservationRefused("bad_request", f"it would last {span.length:g} s.", "The shortest is a minute.")
    if span.end > now + FURTHEST:
        raise ReservationRefused("bad_request", "the end is more than ten years away.", "Give an earlier one.")


def check_limits(
    span: ReservationSpan,
    gpus: Sequence[ReservedGpu],
    others: Sequence[Reservation],
    settings: ReservationSettings,
    now: float,
    *,
    longest_before: float = 0.0,
) -> None:
    """Raises ReservationRefused, which names the limit. `others` are reservations of the same user within that time.

    `longest_before` is the length before a change: a reservation that an admin has made longer can be shortened.
    """
    if span.length > max(settings.longest, longest_before):
        raise _limit(
            "longest", f"{show_exactly(span.length)} is too long: the longest is {show_exactly(settings.longest)}"
        )
    if span.start - now > settings.ahead:
        ahead, most = show_exactly(span.start - now), show_exactly(settings.ahead)
        raise _limit("ahead", f"{ahead} ahead is too early: reservations are made {most} ahead")
    before = peak(others)
    if before + len(gpus) > settings.most_gpus:
        have = f", and {before} are reserved then already" if before else ""
        wanted = f"{show_count(len(gpus), 'GPU')} {'is' if len(gpus) == 1 else 'are'}"
        raise _limit("most_gpus", f"{wanted} too many{have}: the most is {settings.most_gpus}")


def peak(reservations: Iterable[Reservation]) -> int:
    """The most GPUs that these have at one time."""
    steps = [step for one in reservations for step in ((one.start, len(one.gpus)), (one.end, -len(one.gpus)))]
    # At one moment, ends come before starts.
    return max(accumulate((change for _, change in sorted(steps)), initial=0))


def _limit(name: str, message: str) -> ReservationRefused:
    return ReservationRefused(
        "limit", f"{message}.", f"The limit is reservations.{name} of this hub; admins have none."
    )


def describe(one: Reservation) -> str:
    """For the audit log, in UTC."""
    note = f", note {one.note!r}" if one.note else ""
    return f"{one.user}, {name_gpus(one.gpus)}, {show_utc(one.start)} to {show_utc(one.end)}{note}"


_SEE = "`gpudeck show` has all hosts and GPUs."
_SAME_SIZE = 1.1
"""GPUs whose memory differs by less than this factor count as equally large."""


class Occupant(Struct, frozen=True):
    """The user and start of a process on a GPU, display servers excluded. None is unknown."""

    user: str | None
    started_at: float | None = None


class ObservedGpu(Struct, frozen=True):
    """A GPU of the fleet, with what reservations depend on. `occupants` is None if they are unknown, as on a silent
    host. `parent` is the UUID of a MIG instance's board."""

    uuid: str
    host: str
    host_id: str
    label: str
    index: int
    name: str
    display_name: str
    memory_total_bytes: float | None
    availability: Availability
    health: HealthLevel
    occupants: tuple[Occupant, ...] | None
    parent: str | None = None

    @property
    def reserved(self) -> ReservedGpu:
        return ReservedGpu(self.uuid, self.host, self.label)

    @property
    def is_in_use(self) -> bool:
        return self.availability in {"busy", "idle", "allocated"}

    def users(self) -> list[str]:
        """The known users, each once."""
        return list(dict.fromkeys(one.user for one in self.occupants or () if one.user is not None))


Known = Mapping[str, ObservedGpu]
"""All GPUs of the fleet, by UUID."""


class ReservationRequest(Struct, frozen=True, kw_only=True):
    """`gpus` are UUIDs. `host` is a name or an id, and `labels` are numbers of its GPUs, empty for all. `any` asks for
    any GPUs that match."""

    gpus: tuple[str, ...] = ()
    host: str | None = None
    labels: tuple[str, ...] = ()
    any: GpuRequest | None = None


def find_named(wanted: ReservationRequest, known: Known) -> list[ReservedGpu]:
    """The GPUs that are named one by one or by their host. Raises ReservationRefused for unknown ones."""
    found = _of_host(wanted, known) if wanted.host is not None else _by_uuid(wanted.gpus, known)
    if not found:
        raise ReservationRefused("bad_request", "no GPU is named.", "Name GPUs, a host, or how many of any.")
    if len(found) > MAX_GPUS:
        raise ReservationRefused("limit", f"{len(found)} GPUs are more than one reservation can have, {MAX_GPUS}.")
    return [gpu.reserved for gpu in found]


def find_matching(
    request: GpuRequest, known: Known, *, is_near: bool, reserved: Iterable[str]
) -> list[list[ReservedGpu]]:
    """All GPUs that could be chosen, in tiers by memory: those with the least that is enough, then these and those with
    the next size, and so on. A request for 40 GiB takes no GPU with 80 while a smaller one is free. Sizes that differ
    by less than a tenth are one tier: a free GPU is better than one in use that is slightly smaller.

    If the reservation begins soon (`is_near`), GPUs in use without a reservation (they are not in `reserved`) or by a
    scheduler's job are left out: it is unknown when that use ends.
    """
    if not 1 <= request.gpus <= MAX_GPUS:
        raise ReservationRefused("bad_request", f"how many GPUs has to be a number from 1 to {MAX_GPUS}.")
    matching = [gpu for gpu in known.values() if matches(gpu, request)]
    if why := explain_impossible(request, list(known.values())):
        raise ReservationRefused("unknown_gpu", f"{why}.", _SEE)
    leaving = {uuid for uuid in reserved if uuid in known and known[uuid].availability != "allocated"}
    free = [
        gpu
        for gpu in matching
        if not is_unusable(gpu.availability, gpu.health) and not (is_near and gpu.is_in_use and gpu.uuid not in leaving)
    ]
    # Within a size, GPUs that are not in use now are more likely to be free then.
    free.sort(key=lambda gpu: (memory_order(gpu), gpu.is_in_use))
    sizes: list[float] = []
    for size in sorted(set(map(memory_order, free)), reverse=True):
        if not sizes or size < sizes[-1] / _SAME_SIZE:
            sizes.append(size)
    return [[gpu.reserved for gpu in free if memory_order(gpu) <= size] for size in reversed(sizes or [0.0])]


def _by_uuid(uuids: Iterable[str], known: Known) -> list[ObservedGpu]:
    found = []
    for uuid in dict.fromkeys(uuids):
        if uuid not in known:
            raise ReservationRefused("unknown_gpu", f"there is no GPU {uuid[:80]!r}.", _SEE)
        found.append(known[uuid])
    return found


def _of_host(wanted: ReservationRequest, known: Known) -> list[ObservedGpu]:
    there = [gpu for gpu in known.values() if wanted.host in {gpu.host, gpu.host_id}]
    if not there:
        raise ReservationRefused("unknown_gpu", f"there is no host {(wanted.host or '')[:80]!r} with GPUs.", _SEE)
    if not wanted.labels:
        return there
    found: dict[str, ObservedGpu] = {}
    for label in wanted.labels:
        # The number of a board that is split into MIG instances means all of them.
        named = [gpu for gpu in there if gpu.label == label] or [gpu for gpu in there if str(gpu.index) == label]
        if not named:
            has = ", ".join(gpu.label for gpu in there[:16])
            raise ReservationRefused("unknown_gpu", f"{wanted.host} has no GPU {label[:20]!r}.", f"It has {has}.")
        found |= {gpu.uuid: gpu for gpu in named}
    return list(found.values())


class ReservationDraft(Struct, frozen=True, kw_only=True):
    """A new reservation. None as `start` means now; one of `end` and `length` is given."""

    wanted: ReservationRequest
    start: float | None = None
    end: float | None = None
    length: float | None = None
    note: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """Changes of a reservation; None leaves a field as it is. A `start` without `end` and `length` moves it.

    `version` is the one that the caller has seen, None for the current one.
    """

    version: int | None = None
    wanted: ReservationRequest | None = None
    start: float | None = None
    end: float | None = None
    length: float | None = None
    note: str | None = None
    user: str | None = None


class ReservationEdit(Struct, frozen=True):
    """A reservation before and after, for the audit log."""

    before: Reservation
    after: Reservation


class ReservationPlan(Struct, frozen=True):
    """The time and the GPUs of a new reservation. `nearby` are all reservations on the same hosts within that time, by
    their start."""

    span: ReservationSpan
    gpus: list[ReservedGpu]
    nearby: list[Reservation]


def changed_span(before: Reservation, change: Change, now: float) -> ReservationSpan:
    """Raises ReservationRefused. The start of a running reservation cannot be changed."""
    is_running = before.start <= now
    start = before.start if change.start is None else float(math.floor(change.start))
    if is_running and start != before.start:
        raise ReservationRefused("past", "it has begun: its start cannot be changed.", "Change its end.")
    length = before.end - before.start if change.length is None else math.floor(change.length)
    end = float(math.floor(change.end)) if change.end is not None and change.length is None else start + length
    if start != before.start:
        return read_span(start, end, None, now)
    check_span(ReservationSpan(start, end), now)
    return ReservationSpan(start, end)
