"""Makes, changes and releases reservations. A request is checked and written in one transaction, so that no two users
get the same GPU. The reservations of about now are kept in memory, for the fleet to look up.
"""

import math
from collections.abc import Callable, Sequence, Set
from typing import Final

from msgspec.structs import replace

from gpudeck.model import clock
from gpudeck.model.gpu_request import CandidateGpu, GpuRequest
from gpudeck.model.reservation import (
    GpuReservation,
    MaintenanceWindow,
    Reservation,
    ReservationKind,
    ReservedGpu,
    ShownSlot,
)
from gpudeck.reservations.conflicts import (
    NOTHING_DRAINED,
    Drained,
    check_drained,
    check_free,
    check_in_use,
    describe_too_few,
    drained_gpus,
    first_slot,
)
from gpudeck.reservations.requests import (
    LATE_SECONDS,
    Change,
    Known,
    NoSuchReservation,
    Requester,
    ReservationChanged,
    ReservationDraft,
    ReservationEdit,
    ReservationPlan,
    ReservationRefused,
    ReservationRequest,
    ReservationSpan,
    changed_span,
    check_limits,
    find_matching,
    find_named,
    read_span,
)
from gpudeck.reservations.settings import DAY, ReservationSettings
from gpudeck.reservations.store import (
    NOTE_LENGTH,
    ReservationQuery,
    ReservationStore,
    ReservationTransaction,
    end_claims,
    new_row,
    normalize,
    write_change,
    write_release,
)

KEPT_BEFORE: Final = DAY
"""How long a reservation stays in memory after its end: its user may still use the GPU."""
KEPT_AHEAD: Final = DAY
RELOAD_SECONDS: Final = 600.0
SHARED_RELOAD_SECONDS: Final = 1.0
"""Where other hubs write to the same tables."""
NO_SHOW: Final = "nobody used it"


class ReservationCalendar:
    """`load` once, then `refresh` once a second. `changed` is called when the reservations in memory have changed;
    `changes` counts all changes of this hub, however far ahead, and those of other hubs about now.

    `of_schedulers` are reservations of schedulers: they are listed and respected, and cannot be changed here.

    Methods that use the database raise Temporary; a request that is refused raises ReservationRefused.
    """

    def __init__(
        self,
        store: ReservationStore,
        settings: ReservationSettings,
        now: clock.Clock = clock.wall,
        *,
        changed: Callable[[], None] = lambda: None,
        maintenance: Callable[[], Sequence[MaintenanceWindow]] = tuple,
        of_schedulers: Callable[[], Sequence[Reservation]] = tuple,
        fenced: ReservationStore | None = None,
    ) -> None:
        """`fenced` is a store that only the hub with the duty can write to."""
        self._maintenance = maintenance
        self.of_schedulers = of_schedulers
        self._seen = of_schedulers()
        self._store = store
        self._fenced = fenced or store
        self.settings = settings
        self.now = now
        self.near: list[Reservation] = []
        self._changed = changed
        self.changes = 0
        self._loaded_at = self._known_at = float("-inf")

    async def load(self) -> None:
        """Read the reservations of about now."""
        now = self.now()
        near = await self._store.search(ReservationQuery(start=now - KEPT_BEFORE, end=now + KEPT_AHEAD))
        self.changes += near != self.near
        self.near = near
        self._loaded_at = self._known_at = now
        self._changed()

    def adopt(self, near: list[Reservation], at: float) -> None:
        """Use the reservations of a copy from `at` until the database can be read."""
        self.near, self._known_at = near, at
        self.changes += 1

    @property
    def is_known(self) -> bool:
        """Whether the reservations in memory include those of now: they were read less than a day ago."""
        return 0 <= self.now() - self._known_at < KEPT_AHEAD

    async def refresh(self) -> None:
        """Read again when it is time: other hubs may have written, and later reservations have come near."""
        pause = SHARED_RELOAD_SECONDS if self._store.is_shared else RELOAD_SECONDS
        if not 0 <= self.now() - self._loaded_at < pause:
            await self.load()

    def see_of_schedulers(self) -> Sequence[Reservation]:
        """The reservations of schedulers; if they have changed, `changes` grows."""
        found = self.of_schedulers()
        self.changes += found is not self._seen
        self._seen = found
        return found

    def current(self) -> dict[str, Reservation]:
        """The reservations that count now, by the UUID of each GPU, without a query."""
        now, known = self.now(), (*self.near, *self.of_schedulers())
        return {gpu.uuid: one for one in known if one.counts_at(now) for gpu in one.gpus}

    async def search(self, ask: ReservationQuery) -> list[Reservation]:
        found = await self._store.search(ask)
        others = [one for one in self.of_schedulers() if ask.matches(one)]
        return _by_start([*found, *others])[: ask.limit] if others else found

    async def find(self, number: int) -> Reservation:
        found = self._find_of_schedulers(number) or await self._store.find(number)
        if found is None:
            raise NoSuchReservation(number)
        return found

    async def reserve(
        self, draft: ReservationDraft, owner: Requester, known: Known, *, by: Requester | None = None
    ) -> Reservation:
        """Make a reservation for `owner`; `by` is the caller if that is another user."""
        by = by or owner
        now = self.now()
        async with self._store.write_transaction() as transaction:
            span, gpus = await self._decide(transaction, draft, owner, known, by)
            ended = await end_claims(transaction, gpus, span, owner.name, now)
            made = await transaction.add(new_row(owner.name, by.name, span, draft.note, now), gpus)
        self._take(*ended, made)
        return made

    async def preview(
        self, draft: ReservationDraft, owner: Requester, known: Known, *, by: Requester | None = None
    ) -> ReservationPlan:
        """The result of `reserve` now, with the same errors. Nothing is written."""
        async with self._store.read_transaction() as transaction:
            span, gpus = await self._decide(transaction, draft, owner, known, by or owner)
            hosts = {gpu.host for gpu in gpus}
            others = await self._overlapping(transaction, None, span.start, span.end)
        nearby = [one for one in others if any(gpu.host in hosts for gpu in one.gpus)]
        return ReservationPlan(span, gpus, nearby)

    async def change(self, number: int, change: Change, by: Requester, known: Known) -> ReservationEdit:
        """All of it or nothing. The past of a running reservation stays as it was. If nothing changes, nothing is
        written, and both sides of the edit are the same object."""
        now = self.now()
        async with self._store.write_transaction() as transaction:
            before = await self._find_open(transaction, number, by, now)
            if change.version is not None and change.version != before.version:
                raise ReservationChanged(before)
            span = changed_span(before, change, now)
            rest = ReservationSpan(max(span.start, float(math.floor(now))), span.end)
            owner = Requester(change.user or before.user, logins=by.logins if before.user == by.name else frozenset())
            gpus = before.gpus
            if change.wanted is not None:
                gpus = await self._settle(
                    transaction, change.wanted, rest, owner, known, but=number, is_admin=by.is_admin
                )
            elif (span.start, span.end) != (before.start, before.end):
                await self._check_free(transaction, gpus, rest, owner.name, but=number, drained=self._drained(known))
            values = {
                "start": span.start,
                "end": span.end,
                "user": owner.name,
                "note": before.note if change.note is None else normalize(change.note, NOTE_LENGTH),
            }
            is_same = {gpu.uuid for gpu in gpus} == {gpu.uuid for gpu in before.gpus}
            if is_same and all(getattr(before, name) == value for name, value in values.items()):
                return ReservationEdit(before, before)
            if not by.is_admin:
                others = await transaction.of_user(owner.name, rest.start, rest.end, but=number)
                check_limits(span, gpus, others, self.settings, now, longest_before=before.end - before.start)
            after = await write_change(transaction, before, values, gpus, now)
        self._take(after)
        return ReservationEdit(before, after)

    async def release(self, number: int, by: Requester, reason: str = "") -> ReservationEdit:
        """A running reservation ends now and its past stays; a planned one never counts."""
        now = self.now()
        async with self._store.write_transaction() as transaction:
            before = await self._find_open(transaction, number, by, now)
            after = await write_release(transaction, before, reason or f"given back by {by.name}", now)
        self._take(after)
        return ReservationEdit(before, after)

    async def release_unused(self, number: int) -> ReservationEdit | None:
        """Release a reservation that was never used; None if it has been used, or is over."""
        now = self.now()
        async with self._fenced.write_transaction() as transaction:
            before = await transaction.find(number)
            if before is None or not before.counts_at(now) or before.used_at is not None:
                return None
            after = await write_release(transaction, before, NO_SHOW, now)
        self._take(after)
        return ReservationEdit(before, after)

    async def note_use(self, reservation: Reservation) -> None:
        """Its owner uses one of its GPUs for the first time."""
        now = self.now()
        await self._fenced.note_use(reservation.id, now)
        self.near = [replace(one, used_at=now) if one.id == reservation.id else one for one in self.near]
        self.changes += 1

    async def claim(self, gpus: Sequence[CandidateGpu], user: str, seconds: float) -> int:
        """Claim GPUs for a user who is about to start a program; returns the id. No limits. Raises Conflict."""
        now, reserved = self.now(), [ReservedGpu(gpu.uuid, gpu.host, gpu.label) for gpu in gpus]
        # Rounded so that the claim lasts at least for the promised time.
        span = ReservationSpan(math.floor(now), math.ceil(now + seconds))
        async with self._store.write_transaction() as transaction:
            await self._check_free(transaction, reserved, span, user, spares="reservation")
            made = await transaction.add(new_row(user, user, span, "starting", now) | {"kind": "claim"}, reserved)
        self._take(made)
        return made.id

    async def extend_claim(self, number: int, until: float) -> bool:
        """False if there is no such claim, or it is over. Raises Conflict if others have one of its GPUs then."""
        now = self.now()
        async with self._store.write_transaction() as transaction:
            if (before := await _find_claim(transaction, number, now)) is None:
                return False
            span = ReservationSpan(math.floor(now), math.ceil(until))
            await self._check_free(transaction, before.gpus, span, before.user, but=number, spares="reservation")
            self._take(await transaction.change(before, {"end": span.end, "changed_at": now}))
        return True

    async def end_claim(self, number: int) -> None:
        now = self.now()
        async with self._store.write_transaction() as transaction:
            if (before := await _find_claim(transaction, number, now)) is not None:
                self._take(await write_release(transaction, before, "started", now))

    async def next_free(
        self, wanted: ReservationRequest, length: float, known: Known, *, start: float | None = None
    ) -> ShownSlot | None:
        """The first time at which the GPUs are free for `length` seconds; None if no such time is known."""
        now = self.now()
        span = read_span(start, None, length, now)
        tiers = [find_named(wanted, known)] if wanted.any is None else self._matching(wanted.any, span, known)
        taken = await self.search(ReservationQuery(start=span.start))
        return first_slot(tiers, taken, wanted.any, span, self._drained(known), in_use=_in_use(known))

    async def _decide(
        self,
        transaction: ReservationTransaction,
        draft: ReservationDraft,
        owner: Requester,
        known: Known,
        by: Requester,
    ) -> tuple[ReservationSpan, list[ReservedGpu]]:
        """The time and the GPUs of a new reservation. Raises ReservationRefused."""
        now = self.now()
        span = read_span(draft.start, draft.end, draft.length, now)
        gpus = await self._settle(transaction, draft.wanted, span, owner, known, is_admin=by.is_admin)
        if not by.is_admin:
            others = await transaction.of_user(owner.name, span.start, span.end)
            check_limits(span, gpus, others, self.settings, now)
        return span, gpus

    def _matching(self, request: GpuRequest, span: ReservationSpan, known: Known) -> list[list[ReservedGpu]]:
        is_near = span.start <= self.now() + LATE_SECONDS
        return find_matching(request, known, is_near=is_near, reserved=self.current())

    async def _settle(
        self,
        transaction: ReservationTransaction,
        wanted: ReservationRequest,
        span: ReservationSpan,
        owner: Requester,
        known: Known,
        *,
        but: int | None = None,
        is_admin: bool = False,
    ) -> list[ReservedGpu]:
        """The GPUs of a request that are free then. Raises Conflict with the next time at which enough are."""
        drained = self._drained(known)
        if wanted.any is None:
            gpus = find_named(wanted, known)
            await self._check_free(transaction, gpus, span, owner.name, but=but, drained=drained)
            if not is_admin and span.start <= self.now():
                check_in_use(gpus, owner.logins, known)
            return gpus
        tiers = self._matching(wanted.any, span, known)
        taken = await self._overlapping(transaction, None, span.start, None, but=but)
        slot = first_slot(tiers, taken, wanted.any, span, drained, in_use=_in_use(known))
        if slot is None or slot.start > span.start:
            raise describe_too_few(wanted.any, slot)
        return slot.gpus

    async def _check_free(
        self,
        transaction: ReservationTransaction,
        gpus: Sequence[ReservedGpu],
        span: ReservationSpan,
        user: str,
        *,
        but: int | None = None,
        spares: ReservationKind = "claim",
        drained: Drained = NOTHING_DRAINED,
    ) -> None:
        """Raises Conflict. Own reservations of the kind `spares` do not conflict: a claim and a reservation of one user
        go together, while two claims are for two processes."""
        later = await self._overlapping(transaction, {gpu.uuid for gpu in gpus}, span.start, None, but=but)
        others = [one for one in later if one.user != user or one.kind != spares or one.scheduler is not None]
        check_drained(gpus, others, span, drained)
        check_free(gpus, others, span, drained)

    async def _overlapping(
        self,
        transaction: ReservationTransaction,
        uuids: Set[str] | None,
        start: float,
        end: float | None,
        *,
        but: int | None = None,
    ) -> list[Reservation]:
        """Reservations within that range, also of schedulers, by their start."""
        found = await transaction.overlapping(uuids, start, end, but=but)
        within = [one for one in self.of_schedulers() if ReservationQuery(start=start, end=end).matches(one)]
        others = [one for one in within if uuids is None or any(gpu.uuid in uuids for gpu in one.gpus)]
        return _by_start([*found, *others]) if others else found

    def _find_of_schedulers(self, number: int) -> Reservation | None:
        return next((one for one in self.of_schedulers() if one.id == number), None)

    def _drained(self, known: Known) -> Drained:
        return drained_gpus(self._maintenance(), known)

    async def _find_open(
        self, transaction: ReservationTransaction, number: int, by: Requester, now: float
    ) -> Reservation:
        if foreign := self._find_of_schedulers(number):
            message = f"{foreign.title} is a reservation of the scheduler: it cannot be changed here."
            raise ReservationRefused("read_only", message, "Change it in the scheduler (Slurm: scontrol).")
        found = await transaction.find(number)
        if found is None:
            raise NoSuchReservation(number)
        if not by.may_change(found):
            raise ReservationRefused(
                "forbidden", f"reservation {number} is {found.user}'s.", "Only its owner and admins can change it."
            )
        if found.state_at(now) not in {"planned", "running"}:
            raise ReservationRefused("over", f"reservation {number} has ended.")
        return found

    def _take(self, *changed: Reservation) -> None:
        now = self.now()
        ids = {one.id for one in changed}
        near = [one for one in changed if not one.is_cancelled and one.start < now + KEPT_AHEAD]
        self.near = [*(one for one in self.near if one.id not in ids), *near]
        self.changes += 1
        self._changed()


async def _find_claim(transaction: ReservationTransaction, number: int, now: float) -> Reservation | None:
    found = await transaction.find(number)
    return found if found is not None and found.kind == "claim" and found.counts_at(now) else None


def _by_start(reservations: list[Reservation]) -> list[Reservation]:
    return sorted(reservations, key=lambda one: (one.start, one.id))


def _in_use(known: Known) -> set[str]:
    return {uuid for uuid, gpu in known.items() if gpu.is_in_use}


def show_at_gpu(reservation: Reservation) -> GpuReservation:
    one = reservation
    return GpuReservation(one.id, one.user, one.end, one.note, one.kind, one.scheduler)
