"""/api/v1/reservations (GET, POST), /api/v1/reservations/{id} (GET, PATCH, DELETE), /api/v1/reservations/next.

Whoever may look sees all of them. Users book, change and give back their own, admins everybody's; with
`reservations.without_account` anybody books by a name, and changes what was booked so.
"""

from typing import Annotated

import msgspec
from litestar import Response, delete, get, patch, post
from litestar.exceptions import PermissionDeniedException, ValidationException
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct, field

from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import HubRequest, allow, answer_json, documented
from gpudeck.api.booking_desk import BookingDesk, RefusedReservation, TheBookings
from gpudeck.api.login import AuthRequest
from gpudeck.api.moments import Length, Moment, read_amount, read_length, read_moment
from gpudeck.api.questions import TIME, TIME_SCHEMA, check_names, read_time
from gpudeck.auth.caller import Caller
from gpudeck.model.quantity import AMOUNT
from gpudeck.model.reservation import ReservationList, ShownReservation, ShownSlot
from gpudeck.reservations.requests import MOST_GPUS, Change, ReservationDraft, ReservationRequest
from gpudeck.reservations.rules import FURTHEST
from gpudeck.reservations.store import MOST_LISTED, USER_LENGTH, ReservationAsk, tidy
from gpudeck.server.addresses import count_as
from gpudeck.server.asgi import ErrorBody

_ASK = ("start", "end", "host", "gpu", "user", "limit")
_ASK_NEXT = ("gpus", "memory", "model", "for", "same_host", "host", "start")
_Time = Annotated[str | None, QueryParameter(max_length=64, description=TIME, schema_extra=TIME_SCHEMA)]
_Name = Annotated[str | None, QueryParameter(max_length=256)]
_Uuids = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(min_length=1, max_length=MOST_GPUS)]
_Indexes = Annotated[
    list[Annotated[int, Meta(ge=0, le=9999)] | Annotated[str, Meta(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4})?$")]],
    Meta(min_length=1, max_length=MOST_GPUS),
]
_Host = Annotated[str, Meta(min_length=1, max_length=256)]
_Note = Annotated[str, Meta(max_length=1000)]
_User = Annotated[str, Meta(min_length=1, max_length=160, pattern=r"\S")]
_SPAN = "^[1-9][0-9]{0,2}[hd]$"
"""For the API's document: one way to write a length."""
_Number = Annotated[int, PathParameter(ge=1, le=2**53 - 1, description="The reservation's number")]


class AnyGpus(Struct, frozen=True, forbid_unknown_fields=True):
    """So many GPUs, whichever: chosen when they are booked. `model` is any part of its name."""

    gpus: Annotated[int, Meta(ge=1, le=MOST_GPUS)] = 1
    memory: Annotated[str, Meta(pattern=AMOUNT)] | None = None
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    host: _Host | None = None
    same_host: bool = False


class NewReservation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of `gpus` (UUIDs), `host` (all of its GPUs, or those with `indexes`) and `any`; from `start`, or now, until
    `end` or for a length. `user` is for admins: whose it is; and for who books without an account: who that is."""

    gpus: _Uuids | None = None
    host: _Host | None = None
    indexes: _Indexes | None = None
    any: AnyGpus | None = None
    start: Moment | None = None
    end: Moment | None = None
    length: Length | None = field(default=None, name="for")
    note: _Note = ""
    user: _User | None = None


class ReservationChange(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is left out stays. A new `start` alone moves it. `version` is the one that was seen: where it is another by
    now, nothing is changed."""

    version: Annotated[int, Meta(ge=1)] | None = None
    gpus: _Uuids | None = None
    host: _Host | None = None
    indexes: _Indexes | None = None
    start: Moment | None = None
    end: Moment | None = None
    length: Length | None = field(default=None, name="for")
    note: _Note | None = None
    user: _User | None = None


class NextFree(Struct, frozen=True):
    """`next_free` is null where no such time is known: what fits is in use by people who booked no end."""

    next_free: ShownSlot | None
    time: float


_REFUSED = {
    400: documented(ErrorBody, "What cannot be: its code says why, a limit its name"),
    404: documented(ErrorBody, "No such GPU, or no such reservation"),
    409: documented(RefusedReservation, "Others have them then, or somebody changed it meanwhile"),
}
_MISSING = {404: documented(ErrorBody, "No such reservation")}


@get(
    "/api/v1/reservations",
    opt=access("read"),
    responses={
        200: documented(ReservationList, "Those that count at any time of the range, by their start"),
        400: documented(ErrorBody, "A question that makes no sense"),
    },
)
async def list_reservations(
    *,
    request: HubRequest,
    bookings: TheBookings,
    start: _Time = None,
    end: _Time = None,
    host: Annotated[str | None, QueryParameter(max_length=256, description="A host's name")] = None,
    gpu: Annotated[str | None, QueryParameter(max_length=256, description="A GPU's uuid")] = None,
    user: _Name = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MOST_LISTED, description="At most so many")] = MOST_LISTED,
) -> Response[bytes]:
    """Who has which GPUs when. Without a range, from now on."""
    check_names(request, _ASK)
    now = bookings.now()
    ask = ReservationAsk(
        start=now if start is None else read_time("start", start, now),
        end=None if end is None else read_time("end", end, now),
        host=host,
        gpu=gpu,
        user=user,
        limit=limit,
    )
    found = bookings.show_all(await bookings.search(ask))
    return await answer_json(request, msgspec.json.encode(ReservationList(found, now, len(found) == limit)))


@post(
    "/api/v1/reservations",
    opt=access("book"),
    responses={201: documented(ShownReservation, "The new reservation"), **_REFUSED},
)
async def book(request: AuthRequest, data: JSONBody[NewReservation], bookings: TheBookings) -> ShownReservation:
    """Book GPUs: those that are named, or any that fit."""
    now, caller = bookings.now(), _find_asker(request, bookings)
    user = _read_owner(data.user, caller) if caller.name else await bookings.check_stranger(_tidy(data.user))
    draft = ReservationDraft(
        wish=_read_any(data.any) if data.any is not None else _read_wish(data.gpus, data.host, data.indexes),
        start=read_moment("start", data.start, now),
        end=read_moment("end", data.end, now),
        length=read_length(data.length),
        note=data.note,
    )
    if data.any is not None and (data.gpus or data.host or data.indexes):
        bookings.refuse_both()
    return await bookings.book(draft, caller, user)


@get(
    "/api/v1/reservations/{number:int}",
    opt=access("read"),
    responses={200: documented(ShownReservation, "The reservation, also one that is over"), **_MISSING},
)
async def read_reservation(number: _Number, bookings: TheBookings) -> ShownReservation:
    """One reservation."""
    return await bookings.find(number)


@patch(
    "/api/v1/reservations/{number:int}",
    opt=access("book"),
    responses={200: documented(ShownReservation, "The reservation as it is now"), **_REFUSED},
)
async def change_reservation(
    request: AuthRequest, number: _Number, data: JSONBody[ReservationChange], bookings: TheBookings
) -> ShownReservation:
    """Move, extend, shorten or annotate it: all that is asked, or nothing."""
    now, caller = bookings.now(), _find_asker(request, bookings)
    user = _read_owner(data.user, caller)
    names_gpus = data.gpus is not None or data.host is not None or data.indexes is not None
    change = Change(
        version=data.version,
        wish=_read_wish(data.gpus, data.host, data.indexes) if names_gpus else None,
        start=read_moment("start", data.start, now),
        end=read_moment("end", data.end, now),
        length=read_length(data.length),
        note=data.note,
        user=user,
    )
    return await bookings.change(number, change, caller)


@delete(
    "/api/v1/reservations/{number:int}",
    status_code=200,
    opt=access("book"),
    responses={
        200: documented(ShownReservation, "What is left of it: its past, where it had begun"),
        409: documented(ErrorBody, "It is over"),
        **_MISSING,
    },
)
async def release(request: AuthRequest, number: _Number, bookings: TheBookings) -> ShownReservation:
    """Give it back. One that has begun ends now, and its past stays. Nobody's process is ended."""
    return await bookings.release(number, _find_asker(request, bookings))


@get(
    "/api/v1/reservations/next",
    opt=access("read"),
    responses={
        200: documented(NextFree, "The first time at which that is free"),
        400: documented(ErrorBody, "A question that makes no sense"),
        404: documented(ErrorBody, "The fleet has not so many such GPUs"),
    },
)
async def find_next(
    *,
    request: HubRequest,
    bookings: TheBookings,
    span: Annotated[
        str,
        QueryParameter(
            name="for", max_length=64, description="For how long: 4h, 1d 6h", schema_extra={"pattern": _SPAN}
        ),
    ],
    gpus: Annotated[int, QueryParameter(ge=1, le=MOST_GPUS, description="How many")] = 1,
    memory: Annotated[
        str | None, QueryParameter(description="Each with at least so much: 40GiB", schema_extra={"pattern": AMOUNT})
    ] = None,
    model: Annotated[str | None, QueryParameter(max_length=256, description="Any part of the model's name")] = None,
    host: _Name = None,
    same_host: Annotated[bool, QueryParameter(description="All of them on one host")] = False,
    start: _Time = None,
) -> NextFree:
    """When so many GPUs are free for so long."""
    check_names(request, _ASK_NEXT)
    now = bookings.now()
    wish = ReservationRequest(count=gpus, memory_bytes=read_amount(memory), model=model, host=host, same_host=same_host)
    # What was free in the past is nobody's question, nor what will be in ten years.
    begin = None if start is None else min(max(read_time("start", start, now), now), now + FURTHEST / 2)
    return NextFree(await bookings.next_free(wish, read_length(span) or 0.0, begin), now)


allow_reservations = allow("/api/v1/reservations", "GET", "POST")
allow_reservation = allow("/api/v1/reservations/{number:int}", "GET", "PATCH", "DELETE")


def _read_wish(gpus: list[str] | None, host: str | None, indexes: list[int | str] | None) -> ReservationRequest:
    if gpus is not None and (host is not None or indexes is not None):
        BookingDesk.refuse_both()
    return ReservationRequest(gpus=tuple(gpus or ()), host=host, labels=tuple(map(str, indexes or ())))


def _read_any(wanted: AnyGpus) -> ReservationRequest:
    return ReservationRequest(
        count=wanted.gpus,
        memory_bytes=read_amount(wanted.memory),
        model=wanted.model,
        host=wanted.host,
        same_host=wanted.same_host,
    )


def _find_asker(request: AuthRequest, bookings: BookingDesk) -> Caller:
    """Who asks. Of somebody without an account no more than the address is known, and they are counted by that."""
    caller = caller_of(request)
    if caller.name:
        return caller
    address = request.client.host if request.client else ""
    bookings.count_stranger(count_as(address))
    return msgspec.structs.replace(caller, address=address)


def _tidy(named: str | None) -> str | None:
    user = None if named is None else tidy(named, USER_LENGTH)
    if user == "":
        raise ValidationException("user: a name has to have a character that can be seen")
    return user


def _read_owner(named: str | None, caller: Caller) -> str | None:
    user = _tidy(named)
    if user not in {None, caller.name} and not caller.is_at_least("admin"):
        raise PermissionDeniedException("only admins book for others")
    return user


ROUTES = [
    allow_reservations,
    allow_reservation,
    list_reservations,
    book,
    find_next,
    read_reservation,
    change_reservation,
    release,
]
