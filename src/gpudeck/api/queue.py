"""/api/v1/queue (GET, POST) and /api/v1/queue/{id} (GET, DELETE): the queue for GPUs. /api/v1/watches (GET, POST) and
/api/v1/watches/{id} (DELETE): a notification when GPUs are free."""

from time import monotonic
from typing import Annotated

from litestar import delete, get, post
from litestar.di import NamedDependency
from litestar.params import JSONBody, PathParameter, QueryParameter
from msgspec import Meta

from gpudeck.alerts.watches import LONGEST, USUAL, Watches
from gpudeck.api.access import TheCaller, access
from gpudeck.api.answers import RequestRefused
from gpudeck.api.login import Done, TheAuth
from gpudeck.api.services import ApiServices, TheServices
from gpudeck.auth.auth import Auth
from gpudeck.auth.caller import Caller
from gpudeck.model.gpu_request import GpuRequest, QueueList, QueuePosition, Watch, WatchList, WatchView
from gpudeck.model.text import clean
from gpudeck.queueing.queue import MAX_POLL, WaitQueue
from gpudeck.server.admission import exclude_wait

TheQueue = NamedDependency[WaitQueue]


class NewRequest(GpuRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`key` is chosen by the waiter: a second request with the same key is the same request. `user` is the login of the
    waiter, used if no account identifies them."""

    key: Annotated[str, Meta(min_length=8, max_length=64, pattern=r"^[ -~]+$")]
    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


_Number = Annotated[int, PathParameter(description="The request's number", ge=1, le=2**53)]


@get("/api/v1/queue", opt=access("read"))
async def list_queue(queue: TheQueue) -> QueueList:
    """The requests in the queue, in order."""
    return QueueList(queue.list(), queue.claimed)


@post("/api/v1/queue", opt=access("user"))
async def join_queue(caller: TheCaller, data: JSONBody[NewRequest], auth: TheAuth, queue: TheQueue) -> QueuePosition:
    """Queue for GPUs. Ask for the request from time to time: it is removed when its client does not."""
    wanted = GpuRequest(**{name: getattr(data, name) for name in GpuRequest.__struct_fields__})
    place = await queue.join(data.key, _user_of(caller, data.user), _account_of(caller), wanted)
    await auth.audit.record(caller, "join queue", f"{place.id} {place.user}", details=wanted.describe())
    return place


@get("/api/v1/queue/{number:int}", opt=access("user"))
async def read_queue_position(
    caller: TheCaller,
    number: _Number,
    queue: TheQueue,
    wait: Annotated[float, QueryParameter(ge=0, le=MAX_POLL, description="Seconds to wait for news")] = 0.0,
    seen: Annotated[str, QueryParameter(max_length=200, description="The `version` that is no news")] = "",
) -> QueuePosition:
    """One request, and that its client is still there. Answers as soon as its version is another than `seen`."""
    _check_owner(caller, number, queue)
    asked = monotonic()
    place = await queue.ask(number, wait, seen)
    # Fifty who wait on one machine have one address: their waiting costs the hub nothing.
    exclude_wait(monotonic() - asked)
    if place is None:
        raise _unknown_request(number)
    return place


@delete("/api/v1/queue/{number:int}", status_code=200, opt=access("user"))
async def leave_queue(caller: TheCaller, number: _Number, auth: TheAuth, queue: TheQueue) -> Done:
    """Leave the line, or give back what was granted."""
    _check_owner(caller, number, queue)
    if not await queue.leave(number):
        raise _unknown_request(number)
    await auth.audit.record(caller, "leave queue", str(number))
    return Done()


def _account_of(caller: Caller) -> str | None:
    return None if caller.account_id is None else caller.name


def _user_of(caller: Caller, told: str | None) -> str:
    """The account's own name, whatever was sent; without an account the login that was sent."""
    return caller.name if caller.account_id is not None or told is None else clean(told)


def _check_owner(caller: Caller, number: int, queue: WaitQueue) -> None:
    """Raises RequestRefused for another user's place. A caller without an account is identified by the token alone,
    which others may share."""
    one = queue.find(number)
    if one is None:
        raise _unknown_request(number)
    if one.account != _account_of(caller) and not caller.is_at_least("admin"):
        raise RequestRefused(403, "forbidden", f"place {number} in the queue is {one.user}'s.")


def _unknown_request(number: int) -> RequestRefused:
    return RequestRefused(404, "unknown_request", f"the queue has no request {number}.", "Queue again.")


TheWatches = NamedDependency[Watches]


class NewWatch(GpuRequest, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`expire_seconds` is how long it counts. `user` is a login on the hosts, and counts where an admin asks whom no
    account names."""

    expire_seconds: Annotated[float, Meta(ge=60, le=LONGEST)] = USUAL
    user: Annotated[str, Meta(min_length=1, max_length=64)] | None = None


@get("/api/v1/watches", opt=access("user"))
async def list_watches(
    caller: TheCaller,
    watches: TheWatches,
    services: TheServices,
    mine: Annotated[bool, QueryParameter(description="Of an admin: not those of others")] = False,
) -> WatchList:
    """Your watches. Admins see those of all."""
    sees_all = caller.is_at_least("admin") and not mine
    return WatchList([_show(one, services) for one in watches.list_of() if sees_all or _is_of(one, caller)])


@post("/api/v1/watches", opt=access("user"))
async def add_watch(
    caller: TheCaller, data: JSONBody[NewWatch], auth: TheAuth, watches: TheWatches, services: TheServices
) -> WatchView:
    """Get one notification when such GPUs are free. This does not reserve them."""
    names = (name for name in GpuRequest.__struct_fields__ if name != "near")
    wanted = GpuRequest(**{name: getattr(data, name) for name in names})
    user, account = _who(caller, data.user, auth)
    made = await watches.add(user, account, wanted, data.expire_seconds)
    await auth.audit.record(caller, "add watch", f"{made.id} {user}", details=wanted.describe())
    return _show(made, services)


@delete("/api/v1/watches/{number:int}", status_code=200, opt=access("user"))
async def remove_watch(
    caller: TheCaller,
    number: Annotated[int, PathParameter(description="The watch's number", ge=1, le=2**53)],
    auth: TheAuth,
    watches: TheWatches,
) -> Done:
    """Remove a watch of yours; admins may remove any."""
    one = watches.find(number)
    if one is None:
        raise _unknown_watch(number)
    if not _is_of(one, caller) and not caller.is_at_least("admin"):
        raise RequestRefused(403, "forbidden", f"watch {number} is {one.user}'s.")
    if not await watches.remove(number):
        raise _unknown_watch(number)
    await auth.audit.record(caller, "remove watch", str(number))
    return Done()


def _show(one: Watch, services: ApiServices) -> WatchView:
    fields = {name: getattr(one, name) for name in WatchView.__struct_fields__ if hasattr(one, name)}
    return WatchView(**fields, description=one.wanted.describe(), is_sent=services.reaches(one.account))


def _who(caller: Caller, told: str | None, auth: Auth) -> tuple[str, str | None]:
    """The name, and the account that is notified. No one watches as another user; an admin without an account, as
    at the machine of the hub, watches as the login that they have there."""
    if caller.account_id is not None:
        return caller.name, caller.name
    if told is None or not caller.is_at_least("admin"):
        return caller.name, None
    login = clean(told)
    return login, auth.users.account_of(login)


def _is_of(one: Watch, caller: Caller) -> bool:
    """A caller without an account is identified by the token alone."""
    return one.user == caller.name


def _unknown_watch(number: int) -> RequestRefused:
    return RequestRefused(404, "unknown_watch", f"there is no watch {number}.", "`gpudeck watch list` shows yours.")
