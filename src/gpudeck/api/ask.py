"""/api/v1/ask: a user asks the owners of an idle GPU whether they still need it, through the owners' own channels.

The hub sends the message and shows nobody an address. Owners opt out by muting the topic `ask`.
"""

from collections.abc import Sequence
from time import monotonic
from typing import Annotated, Final

import numpy as np
from litestar import post
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import Meta, Struct

from gpudeck.alerts.notifiers.rendering import DEMO_PREFIX, Message
from gpudeck.api.access import TheCaller, access
from gpudeck.api.answers import RequestRefused
from gpudeck.api.login import TheAuth
from gpudeck.api.services import ApiServices, TheServices, find_gpu
from gpudeck.auth.auth import Auth
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.model import clock
from gpudeck.model.text import clean, show_length, show_span
from gpudeck.server.rate_limits import RateLimiter

TOPIC: Final = "ask"
MAX_MESSAGE: Final = 500
_SENDER_BURST: Final = 5
_OWNER_BURST: Final = 5
_PER_SECOND: Final = 1 / 600
_AGAIN_SECONDS: Final = 3600.0
"""The same sender can ask about the same GPU once in this time."""


class AskLimits:
    """How often a user asks, is asked, and asks about the same GPU."""

    def __init__(self) -> None:
        self._by_sender = RateLimiter("questions of a user", _PER_SECOND, _SENDER_BURST)
        self._to_owner = RateLimiter("questions to a user", _PER_SECOND, _OWNER_BURST)
        self._of_gpu = RateLimiter("questions about a GPU", 1 / _AGAIN_SECONDS, 1)

    def take(self, sender: str, uuid: str, accounts: Sequence[str], now: float) -> None:
        """Raises RequestRefused, and takes nothing then."""
        asked = (self._of_gpu, (sender, uuid)), (self._by_sender, sender), *((self._to_owner, one) for one in accounts)
        wait = max(limiter.wait(caller, now) for limiter, caller in asked)
        if wait > 0:
            told = f"too many questions were asked; ask again in {show_span(wait)}"
            raise RequestRefused(429, "too_many", told, retry_after=wait)
        for limiter, caller in asked:
            limiter.take(caller, now)


TheAskLimits = NamedDependency[AskLimits]


class OwnerQuestion(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`host` is a name or an id, `gpu` a number there or a UUID. `message` is added to what the hub writes."""

    host: Annotated[str, Meta(min_length=1, max_length=384, pattern=r"\S")]
    gpu: Annotated[str, Meta(min_length=1, max_length=256, pattern=r"\S")]
    message: Annotated[str, Meta(max_length=MAX_MESSAGE)] = ""


class NotAsked(Struct, frozen=True):
    """An owner who was not asked, by login, and why."""

    user: str
    reason: str


class AskedOwners(Struct, frozen=True):
    """`asked` are the logins of the owners to whom a message is sent."""

    asked: list[str]
    not_asked: list[NotAsked]


@post("/api/v1/ask", status_code=200, opt=access("user"))
async def ask_owner(
    caller: TheCaller,
    data: JSONBody[OwnerQuestion],
    auth: TheAuth,
    services: TheServices,
    ask_limits: TheAskLimits,
) -> AskedOwners:
    """Ask the owners of an idle GPU whether they still need it. Each gets one message, with your name."""
    now = clock.wall()
    host, gpu = find_gpu(services, data.host, data.gpu)
    own = auth.users.logins_of(caller.name)
    owners = [user for user in gpu.users if user not in own]
    place = f"GPU {gpu.label} of {host.name}"
    if gpu.availability != "idle":
        raise RequestRefused(409, "not_idle", f"{place} is {gpu.availability}.", "Only owners of idle GPUs are asked.")
    if not owners:
        why = "you are its only user" if gpu.users else "its user is not known"
        raise RequestRefused(409, "no_owner", f"{place} has nobody to ask: {why}.")
    accounts = {user: _check_owner(user, auth, services) for user in owners}
    reachable = {user: account for user, account in accounts.items() if not isinstance(account, NotAsked)}
    failed = [one for one in accounts.values() if isinstance(one, NotAsked)]
    if not reachable:
        told = "; ".join(f"{one.user} {one.reason}" for one in failed)
        raise RequestRefused(409, "unreachable", f"nobody was asked: {told}.", "Contact them yourself.")
    asked = list(dict.fromkeys(reachable.values()))
    ask_limits.take(caller.name, gpu.uuid, asked, monotonic())
    text = clean(" ".join(data.message.split()))
    for account in asked:
        services.outbox.put(_write(host, gpu, caller.name, account, text, services, now))  # type: ignore[union-attr]
    details = f"asked {', '.join(reachable)}" + (f": {text}" if text else "")
    await auth.audit.record(caller, "ask owner", f"{host.name}:{gpu.label}", details=details)
    return AskedOwners(list(reachable), failed)


def _check_owner(user: str, auth: Auth, services: ApiServices) -> str | NotAsked:
    """The account of an owner who can be asked."""
    account = auth.users.account_of(user)
    if account is None or services.outbox is None or not services.reaches(account):
        return NotAsked(user, "has no channel for messages: see `users` in the hub's settings")
    if TOPIC in auth.users.user_of(account).mute or TOPIC in services.mutes.of(account):
        return NotAsked(user, "does not want to be asked")
    return account


def _write(  # noqa: PLR0917 - what the message says
    host: HostState, gpu: GpuState, sender: str, account: str, text: str, services: ApiServices, now: float
) -> Message:
    columns = services.hub.fleet.table.gpus
    # Nobody has a GPU idle for longer than they are on it.
    since = np.fmax(columns.last_work_at[gpu.row], columns.oldest_start[gpu.row])
    idle = show_length(max(0.0, now - float(since)))
    prefix = DEMO_PREFIX if services.hub.fleet.is_simulated else ""
    return Message(
        key=f"ask {gpu.uuid} {sender} {now:.0f} {account}",
        at=now,
        kind="ask",
        rule=TOPIC,
        severity="info",
        title=f"{prefix}{sender} asks whether you still need GPU {gpu.label} of {host.name}",
        lines=(f"It is in use by you, and idle for {idle}.", *([f"{sender} writes: {text}"] if text else [])),
        action="End your process if you do not need the GPU, or answer them.",
        link=f"#/gpu/{gpu.uuid}",
        labels={"host": host.name},
        accounts=(account,),
        is_personal=True,
    )
