"""/api/v1/reservations (GET, POST), /reservations/{id} (GET, PATCH, DELETE), /reservations/preview, /reservations/next,
/reservations.ics.

Everyone who may read sees all of them. Users reserve, change and release their own, admins everyone's; with
`reservations.without_account` anyone reserves by a name, and changes what was reserved so.
"""

import asyncio
from collections.abc import Iterable, Set
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, patch, post
from litestar.di import NamedDependency
from litestar.exceptions import NotAuthorizedException, PermissionDeniedException, ValidationException
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct, field
from msgspec.structs import asdict, replace

from gpudeck.api.access import UNKNOWN_TOKEN, TheCaller, ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, RequestRefused, answer_json
from gpudeck.api.login import AuthRequest, TheAuth
from gpudeck.api.parameters import (
    GpuUuid,
    HostName,
    Length,
    MaybeTime,
    Moment,
    OnlyName,
    read_amount,
    read_length,
    read_moment,
    read_time,
)
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller
from gpudeck.fleet.hub import Hub
from gpudeck.model.gpu_request import MAX_GPUS, GpuRequest
from gpudeck.model.gpu_state import Availability
from gpudeck.model.reservation import (
    GpuReservation,
    Reservation,
    ReservationList,
    ShownReservation,
    ShownSlot,
)
from gpudeck.model.text import AMOUNT, show_span
from gpudeck.reservations.calendar import ReservationCalendar, show_at_gpu
from gpudeck.reservations.conflicts import Conflict
from gpudeck.reservations.ics import CONTENT_TYPE, write_calendar
from gpudeck.reservations.requests import (
    FURTHEST,
    Change,
    ObservedGpu,
    Requester,
    ReservationChanged,
    ReservationDraft,
    ReservationRefused,
    ReservationRequest,
    describe,
)
from gpudeck.reservations.service import observe
from gpudeck.reservations.store import MAX_LISTED, USER_LENGTH, ReservationQuery, normalize
from gpudeck.server.addresses import count_as
from gpudeck.server.asgi import ErrorDetail
from gpudeck.server.rate_limits import RateLimiter

_STATUSES = (
    {"forbidden": 403}
    | dict.fromkeys(("not_found", "unknown_gpu"), 404)
    | dict.fromkeys(("conflict", "in_use", "maintenance", "changed", "over", "read_only"), 409)
)


_ONE_OF = "give one of gpus, host (with indexes) and any"
ANONYMOUS_BURST = 20
ANONYMOUS_PER_SECOND = 1 / 60
"""How much is reserved, changed and given back from one address without an account."""
_Uuids = Annotated[list[Annotated[str, Meta(min_length=1, max_length=256)]], Meta(min_length=1, max_length=MAX_GPUS)]
_Indexes = Annotated[
    list[Annotated[int, Meta(ge=0, le=9999)] | Annotated[str, Meta(pattern=r"^[0-9]{1,4}(\.[0-9]{1,4})?$")]],
    Meta(min_length=1, max_length=MAX_GPUS),
]
_Host = Annotated[str, Meta(min_length=1, max_length=256)]
_Note = Annotated[str, Meta(max_length=1000)]
_User = Annotated[str, Meta(min_length=1, max_length=160, pattern=r"\S")]
_SPAN = "^[1-9][0-9]{0,2}[hd]$"
"""For the API's document: one way to write a length."""
_Number = Annotated[int, PathParameter(ge=1, le=2**53 - 1, description="The reservation's number")]
MAX_NEARBY = 50
"""How many other reservations a preview lists."""
KEPT_SECONDS = 31 * 86_400.0
"""How far back a calendar goes."""
_FEED = ResponseSpec(
    str, description="The reservations (RFC 5545)", generate_examples=False, media_type="text/calendar"
)


class RefusedReservation(Struct, frozen=True, omit_defaults=True):
    """`conflicts` are those in the way, and `next_free` is when there are none; null: no such time is known. With the
    code `changed`, `reservation` is what it is now."""

    error: ErrorDetail
    conflicts: list[ShownReservation] | None = None
    next_free: ShownSlot | msgspec.UnsetType | None = msgspec.UNSET
    reservation: ShownReservation | None = None


class PreviewedGpu(Struct, frozen=True, kw_only=True):
    """A GPU that would be reserved, and what is on it now. `users` are those who are known to be on it; null: unknown,
    as on a host that does not report. `reservation` is the one that counts now."""

    uuid: str
    host: str
    label: str
    display_name: str
    memory_total_bytes: float | None
    availability: Availability
    users: list[str] | None
    reservation: GpuReservation | None


class ReservationPreview(Struct, frozen=True, kw_only=True):
    """What would be reserved, in Unix seconds. `reservations` are those on the same hosts within that time, by their
    start; `is_cut`: there are more. `time` is the hub's."""

    start: float
    end: float
    gpus: list[PreviewedGpu]
    reservations: list[ShownReservation]
    is_cut: bool
    time: float


class ReservationHandler:
    """Shows, makes and changes reservations with their audit entries, for the routes and the chat bot."""

    def __init__(self, hub: Hub, auth: Auth, calendar: ReservationCalendar) -> None:
        self._hub = hub
        self._auth = auth
        self.calendar = calendar
        self._anonymous = RateLimiter("reservations without an account", ANONYMOUS_PER_SECOND, ANONYMOUS_BURST)

    def now(self) -> float:
        return self.calendar.now()

    async def find(self, number: int) -> ShownReservation:
        return self.show(await self.calendar.find(number))

    async def next_free(self, wanted: ReservationRequest, length: float, start: float | None) -> ShownSlot | None:
        return await self.calendar.next_free(wanted, length, observe(self._hub.fleet), start=start)

    async def check_anonymous(self, user: str | None) -> str:
        """The name by which a caller without an account reserves. Raises ValidationException where none is given, and
        NotAuthorizedException for that of an account."""
        if user is None:
            raise ValidationException(
                "user: a reservation without an account needs a name: gpudeck reserve --user NAME"
            )
        if await self._auth.accounts.find(user) or await self._auth.accounts.find(user.lower()):
            raise NotAuthorizedException(f"{user} has an account here: log in to reserve by that name")
        return user

    def count_anonymous(self, address: str) -> None:
        """Raises RequestRefused where too much was asked from there without an account."""
        if wait := self._anonymous.take(address, self.now()):
            told = f"without an account this is possible again in {show_span(wait)}"
            raise RequestRefused(429, "too_many", told, retry_after=wait)

    async def reserve(self, draft: ReservationDraft, caller: Caller, user: str | None) -> ShownReservation:
        owner, by = self._owner_of(user, caller), _who(caller)
        made = await self.calendar.reserve(draft, owner, observe(self._hub.fleet), by=by)
        await self._auth.audit.record(caller, "reserve GPUs", _subject(made), details=describe(made))
        return self.show(made)

    async def preview(self, draft: ReservationDraft, caller: Caller, user: str | None) -> ReservationPreview:
        known = observe(self._hub.fleet)
        plan = await self.calendar.preview(draft, self._owner_of(user, caller), known, by=_who(caller))
        current = self.calendar.current()
        return ReservationPreview(
            start=plan.span.start,
            end=plan.span.end,
            gpus=[_show_gpu(known[gpu.uuid], current.get(gpu.uuid)) for gpu in plan.gpus],
            reservations=self.show_all(plan.nearby[:MAX_NEARBY]),
            is_cut=len(plan.nearby) > MAX_NEARBY,
            time=self.now(),
        )

    def _owner_of(self, user: str | None, caller: Caller) -> Requester:
        if user is None or user == caller.name:
            return _who(caller)
        return Requester(user, logins=self._auth.users.logins_of(user))

    async def change(self, number: int, change: Change, caller: Caller) -> ShownReservation:
        edit = await self.calendar.change(number, change, _who(caller), observe(self._hub.fleet))
        if edit.after is edit.before:
            return self.show(edit.after)
        details = f"before: {describe(edit.before)}; after: {describe(edit.after)}"
        await self._auth.audit.record(caller, "change reservation", _subject(edit.after), details=details)
        return self.show(edit.after)

    async def release(self, number: int, caller: Caller) -> ShownReservation:
        edit = await self.calendar.release(number, _who(caller))
        details = f"before: {describe(edit.before)}; after: {edit.after.state_at(self.now())}"
        await self._auth.audit.record(caller, "release reservation", _subject(edit.after), details=details)
        return self.show(edit.after)

    def show(self, one: Reservation) -> ShownReservation:
        return self.show_all([one])[0]

    def show_all(self, reservations: Iterable[Reservation]) -> list[ShownReservation]:
        """GPUs that the fleet no longer has are flagged."""
        there = {uuid for host in self._hub.fleet.hosts.values() for uuid in host.gpus}
        now = self.now()
        return [show_reservation(one, now, there) for one in reservations]

    def answer_refusal(self, _: Request[Any, Any, Any], error: ReservationRefused) -> Response[bytes]:
        """As every error, and with what the caller needs for another try."""
        detail = ErrorDetail(error.code, error.message, error.hint)
        body = RefusedReservation(detail)
        if isinstance(error, Conflict):
            body = RefusedReservation(detail, self.show_all(error.conflicts), error.next_free)
        elif isinstance(error, ReservationChanged):
            body = RefusedReservation(detail, reservation=self.show(error.newer))
        status = _STATUSES.get(error.code, 400)
        return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


TheReservations = NamedDependency[ReservationHandler]


def _subject(one: Reservation) -> str:
    return f"reservation {one.id}"


def _who(caller: Caller) -> Requester:
    return Requester(caller.name, is_admin=caller.is_at_least("admin"), logins=caller.logins)


def show_reservation(one: Reservation, now: float, uuids: Set[str] | None = None) -> ShownReservation:
    """`uuids` are the GPUs of the fleet: one that is gone is flagged."""
    gpus = one.gpus if uuids is None else [replace(gpu, is_there=gpu.uuid in uuids) for gpu in one.gpus]
    fields = asdict(one) | {"gpus": gpus}
    return ShownReservation(**fields, state=one.state_at(now), is_read_only=one.scheduler is not None)


def _show_gpu(gpu: ObservedGpu, reservation: Reservation | None) -> PreviewedGpu:
    return PreviewedGpu(
        uuid=gpu.uuid,
        host=gpu.host,
        label=gpu.label,
        display_name=gpu.display_name,
        memory_total_bytes=gpu.memory_total_bytes,
        availability=gpu.availability,
        users=None if gpu.occupants is None else gpu.users(),
        reservation=None if reservation is None else show_at_gpu(reservation),
    )


class AnyGpus(Struct, frozen=True, forbid_unknown_fields=True):
    """So many GPUs, whichever: chosen when they are reserved. `model` is any part of its name. MIG slices only with
    `mig` (nothing else) or, given `memory`, with `allow_mig`."""

    gpus: Annotated[int, Meta(ge=1, le=MAX_GPUS)] = 1
    memory: Annotated[str, Meta(max_length=64, extra_json_schema={"pattern": AMOUNT})] | None = None
    model: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    host: _Host | None = None
    same_host: bool = False
    mig: bool = False
    allow_mig: bool = False


class NewReservation(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One of `gpus` (UUIDs), `host` (all of its GPUs, or those with `indexes`) and `any`; from `start`, or now, until
    `end` or for a length. `user` is for admins: whose it is; and for who reserves without an account: who that is."""

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
    """`next_free` is null where no such time is known: matching GPUs are in use without a reservation that ends."""

    next_free: ShownSlot | None
    time: float


_CONFLICT = {
    409: ResponseSpec(
        RefusedReservation,
        description="Others have reserved them, the reservation was changed meanwhile, or it is a scheduler's",
        generate_examples=False,
    )
}


@get("/api/v1/reservations", opt=access("read"))
async def list_reservations(
    *,
    request: HubRequest,
    reservations: TheReservations,
    start: MaybeTime = None,
    end: MaybeTime = None,
    host: HostName = None,
    gpu: GpuUuid = None,
    user: OnlyName = None,
    limit: Annotated[int, QueryParameter(ge=1, le=MAX_LISTED, description="At most so many")] = MAX_LISTED,
) -> Response[ReservationList]:
    """Who has which GPUs when, by their start. Without a range, from now on."""
    now = reservations.now()
    ask = ReservationQuery(
        start=now if start is None else read_time("start", start, now),
        end=None if end is None else read_time("end", end, now),
        host=host,
        gpu=gpu,
        user=user,
        limit=limit,
    )
    found = reservations.show_all(await reservations.calendar.search(ask))
    return await answer_json(request, ReservationList(found, now, len(found) == limit))


@post("/api/v1/reservations", opt=access("reserve"), responses=_CONFLICT)
async def reserve_gpus(
    request: AuthRequest, data: JSONBody[NewReservation], reservations: TheReservations
) -> ShownReservation:
    """Reserve GPUs: those that are named, or any that fit."""
    caller = _find_asker(request, reservations)
    user = _read_owner(data.user, caller) if caller.name else await reservations.check_anonymous(_normalize(data.user))
    return await reservations.reserve(_read_draft(data, reservations.now()), caller, user)


@post("/api/v1/reservations/preview", status_code=200, opt=access("reserve"), responses=_CONFLICT)
async def preview_reservation(
    caller: TheCaller, data: JSONBody[NewReservation], reservations: TheReservations
) -> ReservationPreview:
    """Which GPUs a new reservation would take, who is on them now, and what else is reserved on their hosts then.

    The same decision as when it is made, and the same refusals. Nothing is reserved, and nothing is set aside.
    """
    user = _read_owner(data.user, caller) if caller.name else _normalize(data.user)
    return await reservations.preview(_read_draft(data, reservations.now()), caller, user)


@get("/api/v1/reservations/{number:int}", opt=access("read"))
async def read_reservation(number: _Number, reservations: TheReservations) -> ShownReservation:
    """One reservation, also one that is over."""
    return await reservations.find(number)


@patch("/api/v1/reservations/{number:int}", opt=access("reserve"), responses=_CONFLICT)
async def change_reservation(
    request: AuthRequest, number: _Number, data: JSONBody[ReservationChange], reservations: TheReservations
) -> ShownReservation:
    """Move, extend, shorten or annotate it: all that is asked, or nothing."""
    now, caller = reservations.now(), _find_asker(request, reservations)
    user = _read_owner(data.user, caller)
    names_gpus = data.gpus is not None or data.host is not None or data.indexes is not None
    change = Change(
        version=data.version,
        wanted=_read_wanted(data.gpus, data.host, data.indexes) if names_gpus else None,
        start=read_moment("start", data.start, now),
        end=read_moment("end", data.end, now),
        length=read_length(data.length),
        note=data.note,
        user=user,
    )
    return await reservations.change(number, change, caller)


@delete("/api/v1/reservations/{number:int}", status_code=200, opt=access("reserve"))
async def release_reservation(request: AuthRequest, number: _Number, reservations: TheReservations) -> ShownReservation:
    """Give it back. One that has begun ends now, and its past stays. Nobody's process is ended."""
    return await reservations.release(number, _find_asker(request, reservations))


@get("/api/v1/reservations/next", opt=access("read"))
async def find_next_free(
    *,
    request: HubRequest,
    reservations: TheReservations,
    span: Annotated[
        str,
        QueryParameter(
            name="for", max_length=64, description="For how long: 4h, 1d 6h", schema_extra={"pattern": _SPAN}
        ),
    ],
    gpus: Annotated[int, QueryParameter(ge=1, le=MAX_GPUS, description="How many")] = 1,
    memory: Annotated[
        str | None,
        QueryParameter(
            description="Each with at least this much memory, in GiB: 40G", schema_extra={"pattern": AMOUNT}
        ),
    ] = None,
    model: Annotated[str | None, QueryParameter(max_length=256, description="Any part of the model's name")] = None,
    host: HostName = None,
    same_host: Annotated[bool, QueryParameter(description="All of them on one host")] = False,
    mig: Annotated[bool, QueryParameter(description="MIG slices only")] = False,
    allow_mig: Annotated[bool, QueryParameter(description="With memory: MIG slices that have that much, too")] = False,
    start: MaybeTime = None,
) -> NextFree:
    """When so many GPUs are free for so long."""
    now = reservations.now()
    kind = _read_kind(AnyGpus(gpus, memory, model, host, same_host, mig, allow_mig))
    # Neither the past nor what is ten years away is searched.
    begin = None if start is None else min(max(read_time("start", start, now), now), now + FURTHEST / 2)
    return NextFree(await reservations.next_free(ReservationRequest(any=kind), read_length(span) or 0.0, begin), now)


def _read_draft(data: NewReservation, now: float) -> ReservationDraft:
    if data.any is not None and (data.gpus or data.host or data.indexes):
        raise ValidationException(_ONE_OF)
    return ReservationDraft(
        wanted=ReservationRequest(any=_read_kind(data.any))
        if data.any is not None
        else _read_wanted(data.gpus, data.host, data.indexes),
        start=read_moment("start", data.start, now),
        end=read_moment("end", data.end, now),
        length=read_length(data.length),
        note=data.note,
    )


def _read_wanted(gpus: list[str] | None, host: str | None, indexes: list[int | str] | None) -> ReservationRequest:
    if gpus is not None and (host is not None or indexes is not None):
        raise ValidationException(_ONE_OF)
    return ReservationRequest(gpus=tuple(gpus or ()), host=host, labels=tuple(map(str, indexes or ())))


def _read_kind(wanted: AnyGpus) -> GpuRequest:
    """Raises ValidationException."""
    given = {name: value for name, value in asdict(wanted).items() if name != "memory"}
    memory_bytes = read_amount("memory", wanted.memory)
    try:
        return GpuRequest(**given, memory_bytes=memory_bytes)
    except ValueError as error:
        raise ValidationException(str(error)) from error


def _find_asker(request: AuthRequest, reservations: ReservationHandler) -> Caller:
    """The caller. Without an account only the address is known, and requests are counted by that."""
    caller = caller_of(request)
    if caller.name:
        return caller
    address = request.client.host if request.client else ""
    reservations.count_anonymous(count_as(address))
    return replace(caller, address=address)


def _normalize(named: str | None) -> str | None:
    user = None if named is None else normalize(named, USER_LENGTH)
    if user == "":
        raise ValidationException("user: a name has to have a character that can be seen")
    return user


def _read_owner(named: str | None, caller: Caller) -> str | None:
    user = _normalize(named)
    if user not in {None, caller.name} and not caller.is_at_least("admin"):
        raise PermissionDeniedException("only admins reserve for others")
    return user


@get("/api/v1/reservations.ics", opt=access("open"), responses={200: _FEED})
async def read_calendar(
    *,
    caller: TheCaller,
    auth: TheAuth,
    policy: ThePolicy,
    reservations: TheReservations,
    user: OnlyName = None,
    host: HostName = None,
    token: Annotated[str | None, QueryParameter(max_length=1024, description="A token with the role calendar")] = None,
) -> Response[bytes]:
    """The reservations as a calendar to subscribe to: all, a user's or a host's; the last month and all to come.

    A hub that shows nothing without a login requires a token with the role `calendar`, here or as a header.
    """
    caller = caller if token is None else _find_token(auth, token)
    if caller.role != "calendar":
        policy.check("read", caller)
    found = await reservations.calendar.search(
        ReservationQuery(start=reservations.now() - KEPT_SECONDS, user=user, host=host)
    )
    name = " ".join(filter(None, ["GPUs", user, host and f"on {host}"]))
    headers = {"Cache-Control": "private, no-store", "Content-Disposition": 'inline; filename="reservations.ics"'}
    # Thousands of reservations take tens of milliseconds, and calendars ask all at the same minute.
    body = await asyncio.to_thread(write_calendar, found, name)
    return Response(body, media_type=CONTENT_TYPE, headers=headers)


def _find_token(auth: Auth, token: str) -> Caller:
    """Addresses stand in logs and histories: what is there may open nothing but this door."""
    caller = auth.find_token(token)
    if caller is None:
        raise NotAuthorizedException(UNKNOWN_TOKEN)
    if caller.role != "calendar":
        raise PermissionDeniedException(f"a token in an address has to have the role calendar, not {caller.role}")
    return caller
