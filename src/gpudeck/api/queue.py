"""/api/v1/queue (GET, POST) and /api/v1/queue/{id} (GET, DELETE): standing in line for GPUs."""

from time import monotonic
from typing import Annotated, Any

from litestar import Request, Response, delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta, Struct

from gpudeck.api.access import access, caller_of
from gpudeck.api.answers import allow, documented
from gpudeck.api.errors import respond
from gpudeck.api.login import AuthRequest, Done, TheAuth
from gpudeck.auth.caller import Caller
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.printable import clean
from gpudeck.model.wanted import Wanted
from gpudeck.queueing.queue import LONGEST_POLL, QueueFull, WaitQueue
from gpudeck.queueing.scheduler import QueuePosition
from gpudeck.server.admission import exclude_wait
from gpudeck.server.asgi import ErrorBody


class QueueDesk:
    """The way to the queue; `queue` is None where there is none, as before the hub has started."""

    def __init__(self, queue: WaitQueue | None) -> None:
        self._queue = queue

    @property
    def queue(self) -> WaitQueue:
        """Raises Temporary."""
        if self._queue is None:
            raise Temporary("this hub has no queue.", "Ask again when it has started.")
        if not self._queue.is_loaded:
            raise Temporary("who waits is not known: the hub's database does not answer.", "Try again later.")
        return self._queue


TheLine = NamedDependency[QueueDesk]
"""As a route's parameter `line`."""


class QueueRefused(GpudeckError):
    """With the HTTP answer it deserves, and a word for programs."""

    def __init__(self, status: int, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.status = status
        self.code = code


class NewRequest(Wanted, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`key` is made up by the waiter: a second request with it is the same place in line. `user` is the login of the
    waiter, and counts where no account says who it is."""

    key: Annotated[str, Meta(min_length=8, max_length=64, pattern=r"^[ -~]+$")]
    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


class QueueList(Struct, frozen=True):
    """What was granted and has not started yet first, then the line in its order. `kept` are the free GPUs that wait
    for the first in line, by UUID: the id of the request."""

    requests: list[QueuePosition]
    kept: dict[str, int]


_Number = Annotated[int, PathParameter(description="The request's number", ge=1, le=2**53)]


@get("/api/v1/queue", opt=access("read"))
async def list_queue(line: TheLine) -> QueueList:
    """Who waits for what, in order."""
    return QueueList(line.queue.list(), line.queue.kept)


@post(
    "/api/v1/queue",
    opt=access("user"),
    responses={
        201: documented(QueuePosition, "The place in line; `granted` as soon as its turn has come"),
        400: documented(ErrorBody, "A request that makes no sense"),
        409: documented(ErrorBody, "Too many wait already"),
    },
)
async def join_queue(request: AuthRequest, data: JSONBody[NewRequest], auth: TheAuth, line: TheLine) -> QueuePosition:
    """Stand in line for GPUs. Ask for the place from time to time: who is not heard of loses it."""
    caller = caller_of(request)
    wanted = Wanted(**{name: getattr(data, name) for name in Wanted.__struct_fields__})
    try:
        place = await line.queue.join(data.key, _user_of(caller, data.user), _account_of(caller), wanted)
    except QueueFull as error:
        raise QueueRefused(409, "full", error.message, error.hint) from error
    await auth.audit.record(caller, "join queue", f"{place.id} {place.user}", details=wanted.describe())
    return place


@get(
    "/api/v1/queue/{number:int}",
    opt=access("user"),
    responses={
        200: documented(QueuePosition, "The place in line"),
        404: documented(ErrorBody, "No such place: ask anew"),
    },
)
async def ask_queue(
    request: AuthRequest,
    number: _Number,
    line: TheLine,
    wait: Annotated[float, QueryParameter(ge=0, le=LONGEST_POLL, description="Seconds to wait for news")] = 0.0,
    seen: Annotated[str, QueryParameter(max_length=200, description="The `version` that is no news")] = "",
) -> QueuePosition:
    """One place in line, and that whoever has it is still there. Answers as soon as it is another than `seen`."""
    _check_owner(caller_of(request), number, line)
    asked = monotonic()
    place = await line.queue.ask(number, wait, seen)
    # Fifty who wait on one machine have one address: what they are kept waiting for costs the hub nothing.
    exclude_wait(monotonic() - asked)
    if place is None:
        raise _unknown(number)
    return place


@delete(
    "/api/v1/queue/{number:int}",
    status_code=200,
    opt=access("user"),
    responses={
        200: documented(Done, "The place, or what was granted, is given up"),
        404: documented(ErrorBody, "None"),
    },
)
async def leave_queue(request: AuthRequest, number: _Number, auth: TheAuth, line: TheLine) -> Done:
    """Leave the line, or give back what was granted."""
    _check_owner(caller_of(request), number, line)
    if not await line.queue.leave(number):
        raise _unknown(number)
    await auth.audit.record(caller_of(request), "leave queue", str(number))
    return Done()


allow_queue = allow("/api/v1/queue", "GET", "POST")
allow_queue_place = allow("/api/v1/queue/{number:int}", "GET", "DELETE")


def on_queue_refused(_: Request[Any, Any, Any], error: QueueRefused) -> Response[bytes]:
    return respond(error.status, error.code, error.message, error.hint)


def _account_of(caller: Caller) -> str | None:
    return None if caller.account_id is None else caller.name


def _user_of(caller: Caller, told: str | None) -> str:
    """An account's own name, whatever is told; on a hub that knows no accounts the waiter's login."""
    return caller.name if caller.account_id is not None or told is None else clean(told)


def _check_owner(caller: Caller, number: int, line: QueueDesk) -> None:
    """Raises QueueRefused for a place that is somebody else's. Who has no account is known by the token alone, which
    others may share."""
    one = line.queue.find(number)
    if one is None:
        raise _unknown(number)
    if one.account != _account_of(caller) and not caller.is_at_least("admin"):
        raise QueueRefused(403, "forbidden", f"place {number} in the queue is {one.user}'s.")


def _unknown(number: int) -> QueueRefused:
    return QueueRefused(404, "unknown_request", f"nobody waits under the number {number}.", "Ask for a new place.")


ROUTES = [allow_queue, allow_queue_place, list_queue, join_queue, ask_queue, leave_queue]
