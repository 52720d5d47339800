"""Requests for a reservation (named GPUs, GPUs of a host, any that fit), changes of one, and the candidate GPUs."""

import math
from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpudeck.model.availability import Availability
from gpudeck.model.quantity import show_amount, show_count
from gpudeck.model.reservation import BookedGpu, Reservation
from gpudeck.reservations.rules import ReservationRefused, ReservationSpan, check_span, read_span

MOST_GPUS = 1024
"""In one reservation, whoever asks."""
_SEE = "`gpudeck show` has all hosts and GPUs."


class Occupant(Struct, frozen=True):
    """Somebody's process on a GPU; display servers are none. None is what nobody could tell."""

    user: str | None
    started_at: float | None = None


class ObservedGpu(Struct, frozen=True):
    """`model` is all that it is called, `occupants` None where who is on it is not known, as on a silent host."""

    uuid: str
    host: str
    label: str
    index: int
    model: str
    memory_total_bytes: float | None
    availability: Availability
    occupants: tuple[Occupant, ...] | None

    @property
    def booked(self) -> BookedGpu:
        return BookedGpu(self.uuid, self.host, self.label)

    @property
    def is_in_use(self) -> bool:
        return self.availability in {"busy", "held"}

    def users(self) -> list[str]:
        """Those who are known to be on it, each once."""
        return list(dict.fromkeys(one.user for one in self.occupants or () if one.user is not None))


Known = Mapping[str, ObservedGpu]
"""All GPUs of the fleet, by UUID."""


class ReservationRequest(Struct, frozen=True, kw_only=True):
    """`gpus` are UUIDs; `host` is a name and `labels` are numbers of its GPUs, none: all; `count` asks for any so many
    with at least `memory_bytes` whose model contains `model`."""

    gpus: tuple[str, ...] = ()
    host: str | None = None
    labels: tuple[str, ...] = ()
    count: int | None = None
    memory_bytes: int | None = None
    model: str | None = None
    same_host: bool = False


def find_named(wish: ReservationRequest, known: Known) -> list[BookedGpu]:
    """The GPUs that a wish names one by one or by their host. Raises ReservationRefused for those that are unknown."""
    found = _of_host(wish, known) if wish.host is not None else _by_uuid(wish.gpus, known)
    if not found:
        raise ReservationRefused("bad_request", "no GPU is named.", "Name GPUs, a host, or how many of any.")
    if len(found) > MOST_GPUS:
        raise ReservationRefused("limit", f"{len(found)} GPUs are more than one reservation can have, {MOST_GPUS}.")
    return [gpu.booked for gpu in found]


def find_fitting(
    wish: ReservationRequest, known: Known, *, is_near: bool, booked: Iterable[str]
) -> list[list[BookedGpu]]:
    """All GPUs that could be chosen, in tiers: those with the least memory that is enough, then these and those with
    the next more, at last all. Who needs 40 GiB takes no 80 from others while there is less.

    Where it begins soon (`is_near`), none that somebody is on without a booking (`booked` are those with one): nobody
    knows when they will leave.
    """
    if not 1 <= (wish.count or 0) <= MOST_GPUS:
        raise ReservationRefused("bad_request", f"how many GPUs has to be a number from 1 to {MOST_GPUS}.")
    fitting = [gpu for gpu in known.values() if _fits(gpu, wish)]
    if len(fitting) < (wish.count or 0):
        raise ReservationRefused(
            "unknown_gpu",
            f"the fleet has {show_count(len(fitting), 'GPU')}{_describe(wish)}, and {wish.count} are wanted.",
            _SEE,
        )
    leaving = set(booked)
    free = [
        gpu
        for gpu in fitting
        if gpu.availability != "unknown" and not (is_near and gpu.is_in_use and gpu.uuid not in leaving)
    ]
    free.sort(key=lambda gpu: gpu.memory_total_bytes or 0)
    sizes = sorted({gpu.memory_total_bytes or 0 for gpu in free}) or [0]
    return [[gpu.booked for gpu in free if (gpu.memory_total_bytes or 0) <= size] for size in sizes]


def _fits(gpu: ObservedGpu, wish: ReservationRequest) -> bool:
    has_memory = wish.memory_bytes is None or (gpu.memory_total_bytes or 0) >= wish.memory_bytes
    has_model = wish.model is None or wish.model.lower() in gpu.model.lower()
    return has_memory and has_model and (wish.host is None or gpu.host == wish.host)


def _describe(wish: ReservationRequest) -> str:
    memory = f" with {show_amount(wish.memory_bytes)}" if wish.memory_bytes else ""
    model = f" called {wish.model[:60]}" if wish.model else ""
    return f"{memory}{model}{f' on {wish.host[:80]}' if wish.host else ''}"


def _by_uuid(uuids: Iterable[str], known: Known) -> list[ObservedGpu]:
    found = []
    for uuid in dict.fromkeys(uuids):
        if uuid not in known:
            raise ReservationRefused("unknown_gpu", f"there is no GPU {uuid[:80]!r}.", _SEE)
        found.append(known[uuid])
    return found


def _of_host(wish: ReservationRequest, known: Known) -> list[ObservedGpu]:
    there = [gpu for gpu in known.values() if gpu.host == wish.host]
    if not there:
        raise ReservationRefused("unknown_gpu", f"there is no host {(wish.host or '')[:80]!r} with GPUs.", _SEE)
    if not wish.labels:
        return there
    found: dict[str, ObservedGpu] = {}
    for label in wish.labels:
        # A board that is cut into instances is all of them.
        named = [gpu for gpu in there if gpu.label == label] or [gpu for gpu in there if str(gpu.index) == label]
        if not named:
            has = ", ".join(gpu.label for gpu in there[:16])
            raise ReservationRefused("unknown_gpu", f"{wish.host} has no GPU {label[:20]!r}.", f"It has {has}.")
        found |= {gpu.uuid: gpu for gpu in named}
    return list(found.values())


class ReservationDraft(Struct, frozen=True, kw_only=True):
    """What is to be booked. None as `start` means now; one of `end` and `length` is given."""

    wish: ReservationRequest
    start: float | None = None
    end: float | None = None
    length: float | None = None
    note: str = ""


class Change(Struct, frozen=True, kw_only=True):
    """What is to be another; None stays. With a `start` and neither `end` nor `length` it moves as it is.

    `version` is the one that whoever asks has seen; None: whatever it is now.
    """

    version: int | None = None
    wish: ReservationRequest | None = None
    start: float | None = None
    end: float | None = None
    length: float | None = None
    note: str | None = None
    user: str | None = None


class Edit(Struct, frozen=True):
    """A reservation before and after, for the audit log."""

    before: Reservation
    after: Reservation


def changed_span(before: Reservation, change: Change, now: float) -> ReservationSpan:
    """Raises ReservationRefused. The beginning of one that runs is past, and stays."""
    is_running = before.start <= now
    start = before.start if change.start is None else float(math.floor(change.start))
    if is_running and start != before.start:
        raise ReservationRefused("past", "it has begun: its start cannot be changed.", "Change its end.")
    if change.length is not None:
        end = start + math.floor(change.length)
    elif change.end is not None:
        end = float(math.floor(change.end))
    else:
        end = start + (before.end - before.start)
    if start != before.start:
        return read_span(start, end, None, now)
    check_span(ReservationSpan(start, end), now)
    return ReservationSpan(start, end)
