"""How long anything may keep others from their turn: a hub has one event loop, and Python one thread at work."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import TypeVar

HOSTS_AT_ONCE = 6
"""Whatever looks at all hosts lets others have a turn after so many of them."""
THREAD_SECONDS = 0.0005
"""After which Python takes the turn from a thread while the event loop waits for it. Its own 5 ms would pass at each
turn of the loop while a thread seals an hour or answers a question about the past."""
_STRETCH_SECONDS = 0.001
_LONGEST_BREATH = 0.1

T = TypeVar("T")


class Pace:
    """Holds threads to a share of one processor, in small steps, once they have had so many seconds of it in a row.

    A thread that works in Python takes the event loop's turns, whatever the system says of priorities: the loop then
    waits at each of the many places where it hands its turn over. Threads keep the pace one after the other, not two at
    once, and only where they `breathe`.
    """

    def __init__(
        self,
        share: float,
        seconds: float,
        *,
        now: Callable[[], float] = time.monotonic,
        worked: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._share = share
        self._most = self._left = seconds
        self._now = now
        self._worked = worked
        self._sleep = sleep
        self._seen = now()
        self._told = 0.0

    def keep(self) -> None:
        """What runs in this thread, or in this context of it, keeps the pace from here on."""
        _pace.set(self)
        self._told = self._worked()

    def breathe(self) -> None:
        worked = self._worked() - self._told
        if worked < _STRETCH_SECONDS:
            return
        now = self._now()
        self._left = min(self._most, self._left + (now - self._seen) * self._share) - worked
        self._seen = now
        self._told += worked
        if self._left < 0:
            self._sleep(min(-self._left / self._share, _LONGEST_BREATH))


_pace: ContextVar[Pace] = ContextVar("pace")


def breathe() -> None:
    """Called wherever long work can be interrupted: costs nothing where nobody has to keep a pace."""
    pace = _pace.get(None)
    if pace is not None:
        pace.breathe()


def paced(things: Iterable[T]) -> Iterator[T]:
    """The same things; whoever works through them breathes before each."""
    for thing in things:
        breathe()
        yield thing
