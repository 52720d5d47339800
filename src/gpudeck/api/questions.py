"""Asking the history: in a thread, one question at a time, so that heavy questions never starve the live fleet. Two at
once would not be answered sooner, and would delay the event loop three times as much. Others wait in a fair queue, see
docs/limits.md.
"""

import asyncio
import difflib
import hashlib
from collections.abc import Callable, Collection, Hashable
from contextvars import ContextVar
from datetime import UTC, tzinfo
from functools import partial
from time import monotonic, thread_time
from typing import Any, Final, TypeVar

from litestar import Request, Response
from litestar.di import NamedDependency
from litestar.exceptions import ValidationException

from gpudeck.api.answers import HubRequest, answer_json
from gpudeck.api.errors import respond
from gpudeck.history.base import HistoryRefused, Store
from gpudeck.model import clock
from gpudeck.model.cpu_budget import CpuBudget, checkpoint
from gpudeck.model.times import parse_time
from gpudeck.server.admission import exclude_wait
from gpudeck.server.fair_queue import FairQueue
from gpudeck.server.rate_limits import RateLimiter

MOST_WAITING: Final = 32
SHARE, AT_FULL_SPEED = 0.25, 0.5
"""The part of one processor that questions have when they do not end, and the seconds of work for which they have all
of it: pages with a dozen charts do not notice, and a flood of questions is not noticed by the live fleet."""
FORGOTTEN_PER_SECOND, MAX_DEBT = 0.01, 2.0
"""How much of the work of its questions an asker is forgiven in each second, and for how many seconds of work it comes
after other askers at most."""
KEPT_FOR: Final = 60
"""Seconds for which a client may keep an answer about the past."""
TIME: Final = "Unix seconds, ISO 8601 (2026-01-31T08:30Z), `now`, or `-24h`"
TIME_SCHEMA: Final = {
    "anyOf": [
        {"format": "date-time"},
        {"format": "date"},
        {"pattern": r"^(now|(now)?-([1-9][0-9]{0,5}[smhdwy]){1,4}|(0|[1-9][0-9]{0,14})(\.[0-9]{1,9})?)$"},
    ]
}
"""For the API's document: how a time is written."""
_NOT_FOUND: Final = {"no_history", "unknown_gpu", "unknown_host", "unknown_run"}

T = TypeVar("T")
_asker: ContextVar[Hashable] = ContextVar("asker", default=None)


def note_asker(asker: Hashable) -> None:
    """Whose questions those of this request are."""
    _asker.set(asker)


class Questions:
    """The way to the store. One event loop owns it. `store` is None where the hub keeps no history."""

    def __init__(self, store: Store | None, now: clock.Clock = clock.wall) -> None:
        self._store = store
        self.now = now
        self._usage = RateLimiter(
            "seconds of work", FORGOTTEN_PER_SECOND, 1, max_debt_seconds=MAX_DEBT / FORGOTTEN_PER_SECOND
        )
        self._queue = FairQueue(self._usage, MOST_WAITING)
        self._budget = CpuBudget(SHARE, AT_FULL_SPEED)

    def check_kept(self) -> Store:
        """Raises HistoryRefused where there is no past to ask about."""
        if self._store is None:
            raise HistoryRefused("no_history", "this hub keeps no history", "Its setting history.kind is off.")
        return self._store

    async def ask(self, question: Callable[[Store], T]) -> T:
        """What the store says. Raises HistoryRefused, and Temporary when too many ask at once."""
        store, asker, asked = self.check_kept(), _asker.get(), monotonic()
        await self._queue.acquire(asker)
        # A thread cannot be cancelled: the slot is free when it ends, not when the asker disconnects.
        answer = asyncio.ensure_future(asyncio.to_thread(self._work, question, store))
        answer.add_done_callback(partial(self._end_turn, asker, monotonic()))
        found, seconds = await asyncio.shield(answer)
        # A page asks for a dozen charts at once: the time that each waits for the others costs nothing.
        exclude_wait(monotonic() - asked - seconds)
        return found

    def _end_turn(self, asker: Hashable, began: float, answer: "asyncio.Future[Any]") -> None:
        self._usage.charge(asker, monotonic(), monotonic() - began)
        self._queue.release()
        if not answer.cancelled():
            # Read, so that asyncio does not log an error whose asker has disconnected.
            answer.exception()

    def _work(self, question: Callable[[Store], T], store: Store) -> tuple[T, float]:
        """With the seconds for which a processor was busy with it."""
        began = thread_time()
        self._budget.apply()
        found = question(store)
        # What it did since its last checkpoint counts too.
        checkpoint()
        return found, thread_time() - began


TheQuestions = NamedDependency[Questions]
"""As a route's parameter `questions`."""


def on_refused(_: Request[Any, Any, Any], error: HistoryRefused) -> Response[bytes]:
    """404 where the thing asked for is not there, 400 where the question makes no sense."""
    return respond(404 if error.code in _NOT_FOUND else 400, error.code, error.message, error.hint)


def check_names(request: HubRequest, known: Collection[str]) -> None:
    """A mistyped parameter would otherwise ask for something else."""
    for name in request.query_params:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1) or known
            raise ValidationException(f"there is no parameter {name[:40]!r}; did you mean {' or '.join(near)}?")


def read_time(name: str, text: str, now: float, zone: tzinfo = UTC) -> float:
    """The parameter of that name as Unix seconds; raises ValidationException."""
    try:
        return parse_time(text, now, zone)
    except ValueError as error:
        raise ValidationException(f"{name}: {error}") from error


async def answer_past(request: HubRequest, body: bytes, *, is_over: bool) -> Response[bytes]:
    """`is_over`: the range lies in the past, so that the answer is good for a while."""
    if not is_over:
        return await answer_json(request, body)
    tag = f'W/"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    is_known = tag in [known.strip() for known in request.headers.get("if-none-match", "").split(",")]
    answer = Response(b"", status_code=304) if is_known else await answer_json(request, body)
    answer.headers["Cache-Control"] = f"private, max-age={KEPT_FOR}"
    answer.headers["ETag"] = tag
    # What one may read another may not, in the same browser.
    answer.headers["Vary"] = "Accept-Encoding, Authorization, Cookie"
    return answer
