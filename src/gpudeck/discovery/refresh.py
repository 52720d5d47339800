"""Asks one provider again and again: keeps its last good answer, tells what changed and what is wrong."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence

from gpudeck.discovery.base import Provider
from gpudeck.model.errors import PluginError, Temporary, Wrong
from gpudeck.model.target import Target

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
FIRST_PAUSE = 1.0
SHORTEST_PAUSE = 0.5
"""Between two answers of a provider that waits for changes by itself: one that does not really wait costs no more."""
CONFIRM_PAUSE = 5.0
"""After which a list that has become empty is looked at again before it is believed."""
DEADLINE = 60.0
"""For one look at a provider that does not wait for changes."""

OnChange = Callable[[list[Target]], None]
OnTrouble = Callable[[str, str | None], None]
Sleep = Callable[[float], Awaitable[None]]


def name_trouble(origin: str, trouble: str) -> str:
    """What is wrong, with who has it; many begin with their file or address by themselves."""
    if trouble.startswith(origin):
        return trouble
    kind, _, place = origin.rpartition(" ")
    return f"{kind} {trouble}" if kind and trouble.startswith(place) else f"{origin}: {trouble}"


class Refresh:
    """One provider, asked as long as it runs. `start` and `stop` in the event loop; `stop` closes the provider.

    `on_change` gets the whole list: the first one even if it is empty, then each that differs from the last in its
    targets or in the provider's problems. A list that has become empty counts only when a second look says so too: more
    often a list was lost than a whole fleet. `on_trouble` gets the provider's origin with what is wrong whenever that
    changes, and with None when it is over; meanwhile the last list counts.
    """

    def __init__(
        self,
        provider: Provider,
        on_change: OnChange,
        on_trouble: OnTrouble,
        *,
        sleep: Sleep = asyncio.sleep,
        rng: random.Random | None = None,
    ) -> None:
        self._provider = provider
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._sleep = sleep
        self._rng = rng or random.Random()  # noqa: S311
        self._last: tuple[list[Target], list[str]] | None = None
        self._is_doubted = False
        self._trouble: str | None = None
        self._failures = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"discovery {self._provider.origin}")

    async def stop(self) -> None:
        """May be called twice, and without a start."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._provider.close()

    async def _run(self) -> None:
        while True:
            await self._sleep(await self._look())

    async def _look(self) -> float:
        """Ask once; returns how long to pause."""
        try:
            return self._succeed(await self._find())
        except PluginError as error:
            return self._fail(error)
        except Exception as error:  # noqa: BLE001 - whatever one provider does, the others go on
            return self._fail(Wrong(f"the list of hosts failed: {type(error).__name__}: {error}."), error)

    async def _find(self) -> list[Target]:
        if not self._provider.pause:
            return await self._provider.find()
        try:
            return await asyncio.wait_for(self._provider.find(), DEADLINE)
        except TimeoutError as error:
            raise Temporary(f"it did not answer within {DEADLINE:g} s.") from error

    def _succeed(self, targets: list[Target]) -> float:
        """A provider that waits for changes looks again by itself; others are asked again soon where there is doubt."""
        self._is_doubted = not targets and self._last is not None and bool(self._last[0]) and not self._is_doubted
        if not self._is_doubted:
            self._tell(targets, list(self._provider.problems))
        self._failures = 0
        if self._trouble is not None:
            log.info("%s: works again", self._provider.origin)
            self._trouble = None
            self._on_trouble(self._provider.origin, None)
        if self._is_doubted and self._provider.pause:
            return CONFIRM_PAUSE
        return max(self._provider.pause, SHORTEST_PAUSE)

    def _tell(self, targets: list[Target], problems: list[str]) -> None:
        if (targets, problems) == self._last:
            return
        before: Sequence[str] = self._last[1] if self._last else ()
        for problem in problems:
            if problem not in before:
                log.warning("%s", problem)
        self._on_change(targets)
        self._last = (targets, problems)

    def _fail(self, error: PluginError, bug: Exception | None = None) -> float:
        self._failures += 1
        if self._trouble is None:
            trace = bug or (error if isinstance(error, Wrong) else None)
            log.warning("%s", name_trouble(self._provider.origin, str(error)), exc_info=trace)
        if self._trouble != str(error):
            self._trouble = str(error)
            self._on_trouble(self._provider.origin, self._trouble)
        limit = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(self._failures - 1, 10))
        return limit * self._rng.uniform(0.5, 1.0)
