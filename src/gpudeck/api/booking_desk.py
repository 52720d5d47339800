"""What the routes of reservations share: who asks, what is shown of a reservation, how a refusal is answered, and what
goes into the audit log."""

import math
from collections.abc import Iterable, Set
from datetime import UTC, datetime
from typing import Any, NoReturn

import msgspec
from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.exceptions import NotAuthorizedException, TooManyRequestsException, ValidationException
from msgspec import Struct

from gpudeck.auth.caller import Caller
from gpudeck.auth.parts import Auth
from gpudeck.hub.hub import Hub
from gpudeck.hub.observed import observe
from gpudeck.model.errors import Temporary
from gpudeck.model.quantity import show_span
from gpudeck.model.reservation import BookedGpu, Reservation, ShownReservation, ShownSlot
from gpudeck.reservations.calendar import Reservations
from gpudeck.reservations.requests import Change, ReservationDraft, ReservationRequest
from gpudeck.reservations.rules import Changed, Conflict, ReservationRefused, Who, name_gpus
from gpudeck.reservations.store import ReservationAsk
from gpudeck.server.asgi import ErrorDetail
from gpudeck.server.rate_limits import RateLimiter

_STATUSES = {"conflict": 409, "in_use": 409, "changed": 409, "over": 409, "forbidden": 403} | dict.fromkeys(
    ("not_found", "unknown_gpu"), 404
)


STRANGERS_BURST = 20
STRANGERS_PER_SECOND = 1 / 60
"""How much is booked, changed and given back from one address without an account."""


class RefusedReservation(Struct, frozen=True, omit_defaults=True):
    """`conflicts` are those in the way, and `next_free` is when there are none; null: no such time is known. With the
    code `changed`, `reservation` is what it is now."""

    error: ErrorDetail
    conflicts: list[ShownReservation] | None = None
    next_free: ShownSlot | msgspec.UnsetType | None = msgspec.UNSET
    reservation: ShownReservation | None = None


class BookingDesk:
    """`calendar` is None where a hub keeps none yet: then everything raises Temporary."""

    def __init__(self, hub: Hub, auth: Auth, calendar: Reservations | None) -> None:
        self._hub = hub
        self._auth = auth
        self._kept = calendar
        self._strangers = RateLimiter("bookings without an account", STRANGERS_PER_SECOND, STRANGERS_BURST)

    @property
    def _calendar(self) -> Reservations:
        if self._kept is None:
            raise Temporary("reservations are not kept yet.", "Ask again in a moment.")
        return self._kept

    def now(self) -> float:
        return self._calendar.now()

    async def search(self, ask: ReservationAsk) -> list[Reservation]:
        return await self._calendar.search(ask)

    async def find(self, number: int) -> ShownReservation:
        return self.show(await self._calendar.find(number))

    async def next_free(self, wish: ReservationRequest, length: float, start: float | None) -> ShownSlot | None:
        slot = await self._calendar.next_free(wish, length, observe(self._hub.fleet), start=start)
        return None if slot is None else ShownSlot(slot.start, slot.end, slot.gpus)

    async def check_stranger(self, user: str | None) -> str:
        """The name by which somebody without an account books. Raises ValidationException where none is given, and
        NotAuthorizedException for that of an account."""
        if user is None:
            raise ValidationException(
                "user: a reservation without an account needs a name: gpudeck reserve --user NAME"
            )
        if await self._auth.accounts.find(user) or await self._auth.accounts.find(user.lower()):
            raise NotAuthorizedException(f"{user} has an account here: log in to book by that name")
        return user

    def count_stranger(self, address: str) -> None:
        """Raises TooManyRequestsException where too much was asked from there without an account."""
        wait = self._strangers.take(address, self.now())
        if wait:
            told = f"without an account this is possible again in {show_span(wait)}"
            raise TooManyRequestsException(told, headers={"Retry-After": str(math.ceil(wait))})

    async def book(self, draft: ReservationDraft, caller: Caller, user: str | None) -> ShownReservation:
        by = _who(caller)
        owner = by if user in {None, caller.name} else Who(user or "", logins=self._auth.people.logins_of(user or ""))
        made = await self._calendar.book(draft, owner, observe(self._hub.fleet), by=by)
        await self._auth.audit.record(caller, "book GPUs", _subject(made), details=describe(made))
        return self.show(made)

    async def change(self, number: int, change: Change, caller: Caller) -> ShownReservation:
        edit = await self._calendar.change(number, change, _who(caller), observe(self._hub.fleet))
        if edit.after is edit.before:
            return self.show(edit.after)
        details = f"before: {describe(edit.before)}; after: {describe(edit.after)}"
        await self._auth.audit.record(caller, "change reservation", _subject(edit.after), details=details)
        return self.show(edit.after)

    async def release(self, number: int, caller: Caller) -> ShownReservation:
        edit = await self._calendar.release(number, _who(caller))
        details = f"before: {describe(edit.before)}; after: {edit.after.state_at(self.now())}"
        await self._auth.audit.record(caller, "release reservation", _subject(edit.after), details=details)
        return self.show(edit.after)

    def show(self, one: Reservation) -> ShownReservation:
        return self.show_all([one])[0]

    def show_all(self, reservations: Iterable[Reservation]) -> list[ShownReservation]:
        """With what the fleet says of their GPUs: one that is gone is flagged."""
        there = {uuid for host in self._hub.fleet.hosts.values() for uuid in host.gpus}
        now = self.now()
        return [_show(one, there, now) for one in reservations]

    def answer_refusal(self, _: Request[Any, Any, Any], error: ReservationRefused) -> Response[bytes]:
        """As every error, and with what whoever asked needs for another try."""
        detail = ErrorDetail(error.code, error.message, error.hint)
        body = RefusedReservation(detail)
        if isinstance(error, Conflict):
            slot = error.next_free
            shown = None if slot is None else ShownSlot(slot.start, slot.end, slot.gpus)
            body = RefusedReservation(detail, self.show_all(error.conflicts), shown)
        elif isinstance(error, Changed):
            body = RefusedReservation(detail, reservation=self.show(error.newer))
        status = _STATUSES.get(error.code, 400)
        return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")

    @staticmethod
    def refuse_both() -> NoReturn:
        raise ValidationException("give one of gpus, host (with indexes) and any")


TheBookings = NamedDependency[BookingDesk]
"""As a route's parameter `bookings`."""


def describe(one: Reservation) -> str:
    """For the audit log, in UTC."""
    note = f", note {one.note!r}" if one.note else ""
    return f"{one.user}, {name_gpus(one.gpus)}, {_write(one.start)} to {_write(one.end)}{note}"


def _subject(one: Reservation) -> str:
    return f"reservation {one.id}"


def _write(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _who(caller: Caller) -> Who:
    return Who(caller.name, is_admin=caller.is_at_least("admin"), logins=caller.logins)


def _show(one: Reservation, there: Set[str], now: float) -> ShownReservation:
    """Field by field: a month's timeline has a thousand of them."""
    return ShownReservation(
        id=one.id,
        kind=one.kind,
        user=one.user,
        gpus=[BookedGpu(gpu.uuid, gpu.host, gpu.label, gpu.uuid in there) for gpu in one.gpus],
        start=one.start,
        end=one.end,
        note=one.note,
        version=one.version,
        created_at=one.created_at,
        created_by=one.created_by,
        changed_at=one.changed_at,
        used_at=one.used_at,
        released_at=one.released_at,
        release_reason=one.release_reason,
        state=one.state_at(now),
    )
