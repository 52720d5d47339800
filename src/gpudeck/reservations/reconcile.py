"""Reservations against observed use: GPUs in use by their owner or by another user, and unused reservations.

Pure rules with a memory: what is known of the fleet goes in with the time, what follows from it comes out. What is not
known proves nothing: a GPU that cannot be read is neither unused nor used by others.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct, field

from gpudeck.model.event import Event, make_event
from gpudeck.model.reservation import Reservation, ReservationMark, ReservedGpu
from gpudeck.model.text import show_length
from gpudeck.reservations.calendar import show_at_gpu
from gpudeck.reservations.requests import ObservedGpu, Occupant, name_gpus
from gpudeck.reservations.settings import DAY, ReservationSettings

OVERRUN_SECONDS: Final = DAY
"""For how long after the end a user who stays is reported."""

LoginsOf = Callable[[str], frozenset[str] | None]
"""The logins of a reservation's owner on the hosts; None where they are unknown: then any user may be the owner."""


class ReconcileResult(Struct, frozen=True):
    """`marks` is what is shown at GPUs, by UUID. `used` are those whose owners were seen for the first time, `unused`
    those that are to be released as unused, `late` those that soon are, with the time."""

    marks: dict[str, ReservationMark] = field(default_factory=dict)
    used: list[Reservation] = field(default_factory=list)
    unused: list[Reservation] = field(default_factory=list)
    late: list[tuple[Reservation, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)


class Reconciler:
    """`reconcile` every few seconds. Each event is reported once. After a restart of the hub the unused time is counted
    anew: a reservation is released late rather than early."""

    def __init__(self, settings: ReservationSettings, logins_of: LoginsOf) -> None:
        self._settings = settings
        self._logins_of = logins_of
        self._unused_since: dict[int, float] = {}
        self._warned: set[int] = set()
        self._told: set[tuple[int, str, str]] = set()

    def reconcile(self, near: Sequence[Reservation], seen: Mapping[str, ObservedGpu], now: float) -> ReconcileResult:
        """`near` are the reservations of about now, `seen` their GPUs as far as the fleet has them."""
        found = ReconcileResult()
        running = [one for one in near if one.counts_at(now)]
        for one in running:
            self._look_at(one, seen, now, found)
        for one, gpu in _latest_ended(near, now):
            if gpu.uuid not in found.marks:
                self._look_after(one, gpu, seen.get(gpu.uuid), found)
        # What is over is not kept in mind.
        known, counting = {one.id for one in near}, {one.id for one in running}
        self._told = {key for key in self._told if key[0] in known}
        self._warned &= counting
        self._unused_since = {number: at for number, at in self._unused_since.items() if number in counting}
        return found

    def _look_at(self, one: Reservation, seen: Mapping[str, ObservedGpu], now: float, found: ReconcileResult) -> None:
        logins = self._logins_of(one.user)
        for gpu in one.gpus:
            strangers = _other_users(seen.get(gpu.uuid), logins)
            found.marks[gpu.uuid] = ReservationMark(show_at_gpu(one), _describe_conflict(one, strangers), one.start)
            for stranger in strangers:
                self._emit_conflict(one, gpu, stranger, now, found)
        if one.used_at is None and any(_has_owner(seen.get(gpu.uuid), logins) for gpu in one.gpus):
            found.used.append(one)
        elif one.used_at is None and one.kind == "reservation":
            self._look_for_owner(one, seen, now, found)

    def _look_for_owner(
        self, one: Reservation, seen: Mapping[str, ObservedGpu], now: float, found: ReconcileResult
    ) -> None:
        no_show = self._settings.no_show
        if no_show == "off":
            return
        if not all(_is_empty(seen.get(gpu.uuid)) for gpu in one.gpus):
            # An owner who cannot use the GPUs, or may be on them unseen, is not late.
            self._unused_since.pop(one.id, None)
            return
        deadline = self._unused_since.setdefault(one.id, now) + no_show
        if now >= deadline:
            found.unused.append(one)
        elif deadline < one.end and now >= deadline - self._settings.warn_before:
            found.late.append((one, deadline))
            if one.id not in self._warned:
                self._warned.add(one.id)
                what, left = f"{one.user}'s reservation of {name_gpus(one.gpus)}", show_length(deadline - now)
                title = f"{what} is released in {left} if nobody uses it"
                found.events.append(_event(now, "reservation_unused", title, one, user=one.user))

    def _look_after(self, one: Reservation, gpu: ReservedGpu, seen: ObservedGpu | None, found: ReconcileResult) -> None:
        """Users who stay after the end of their reservation."""
        logins = self._logins_of(one.user) or frozenset()
        staying = [
            process.user
            for process in (seen.occupants if seen is not None else None) or ()
            if process.user in logins and _was_there(process, one)
        ]
        if not staying or staying[0] is None:
            return
        found.marks[gpu.uuid] = ReservationMark(
            None, f"{staying[0]} is still on it: {one.user}'s reservation has ended"
        )
        if self._is_new(one, gpu, ""):
            title = f"{staying[0]} is still on GPU {gpu.label} of {gpu.host}: {one.user}'s reservation has ended"
            found.events.append(_event(one.end, "reservation_overrun", title, one, gpu=gpu, user=staying[0]))

    def _emit_conflict(
        self, one: Reservation, gpu: ReservedGpu, stranger: Occupant, now: float, found: ReconcileResult
    ) -> None:
        user = stranger.user or ""
        if not self._is_new(one, gpu, user):
            return
        began = now if stranger.started_at is None else max(one.start, min(now, stranger.started_at))
        what = "is claimed for" if one.kind == "claim" else "is reserved by"
        title = f"{user} is on GPU {gpu.label} of {gpu.host}, which {what} {one.user}"
        found.events.append(_event(began, "reservation_conflict", title, one, gpu=gpu, user=user))

    def _is_new(self, one: Reservation, gpu: ReservedGpu, user: str) -> bool:
        key = (one.id, gpu.uuid, user)
        is_new = key not in self._told
        self._told.add(key)
        return is_new


def release_event(one: Reservation, now: float) -> Event:
    """The event that an unused reservation was released."""
    title = f"{one.user}'s reservation of {name_gpus(one.gpus)} was released: nobody used it"
    return _event(now, "reservation_released", title, one, user=one.user)


def _event(at: float, kind: str, title: str, one: Reservation, *, user: str, gpu: ReservedGpu | None = None) -> Event:
    """Of several GPUs none is named: an event has room for one."""
    place = gpu or (one.gpus[0] if len(one.gpus) == 1 else None)
    return make_event(
        at,
        kind,
        title,
        severity="info" if kind == "reservation_released" else "warning",
        host=None if place is None else place.host,
        gpu=None if place is None else place.uuid,
        label=None if place is None else place.label,
        user=user,
        detail=f"Reservation {one.id} of {one.user}{f': {one.note}' if one.note else ''}.",
    )


def _other_users(seen: ObservedGpu | None, logins: frozenset[str] | None) -> list[Occupant]:
    """Those who are known to be on a GPU and are not its reservation's owner, each once."""
    if seen is None or logins is None:
        return []
    others = {one.user: one for one in seen.occupants or () if one.user is not None and one.user not in logins}
    return list(others.values())


def _describe_conflict(one: Reservation, strangers: Sequence[Occupant]) -> str | None:
    if not strangers:
        return None
    names = " and ".join(stranger.user or "" for stranger in strangers[:3])
    what = "claimed for" if one.kind == "claim" else "reserved by"
    return f"{names} {'is' if len(strangers) == 1 else 'are'} on it, though it is {what} {one.user}"


def _has_owner(seen: ObservedGpu | None, logins: frozenset[str] | None) -> bool:
    there = (seen.occupants if seen is not None else None) or ()
    return any(logins is None or process.user in logins for process in there)


def _is_empty(seen: ObservedGpu | None) -> bool:
    """Known to be: one that cannot be read is not."""
    return seen is not None and seen.availability in {"free", "reserved"} and not seen.occupants


def _was_there(process: Occupant, one: Reservation) -> bool:
    """Whether a process began before the end of the reservation. Its start may be unknown: then its owner may be
    back."""
    return one.used_at is not None if process.started_at is None else process.started_at < one.end


def _latest_ended(near: Sequence[Reservation], now: float) -> Iterator[tuple[Reservation, ReservedGpu]]:
    """Of each GPU the reservation that was the last to run out."""
    latest: dict[str, tuple[Reservation, ReservedGpu]] = {}
    for one in sorted(near, key=lambda one: one.end):
        if one.kind == "reservation" and one.state_at(now) == "ended" and now - one.end < OVERRUN_SECONDS:
            latest |= {gpu.uuid: (one, gpu) for gpu in one.gpus}
    yield from latest.values()
