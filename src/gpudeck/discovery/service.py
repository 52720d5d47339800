"""Polls all providers, and merges their lists into one with unique names.

The last good answer of a provider counts while it fails.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from gpudeck.discovery.base import MAX_HOSTS, Provider
from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.model.backoff import Backoff
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import PluginError, Temporary, Wrong
from gpudeck.model.target import Target

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0
FIRST_PAUSE = 1.0
SHORTEST_PAUSE = 0.5
"""Between two answers of a provider that waits for changes by itself: one that does not really wait costs no more."""
CONFIRM_PAUSE = 5.0
"""After which a list that has become empty is looked at again before it is believed."""
LOOK_DEADLINE = 60.0
"""For one look at a provider that does not wait for changes."""

OnChange = Callable[[list[Target]], None]
OnTrouble = Callable[[str, str | None], None]
Sleep = Callable[[float], Awaitable[None]]
MAX_CLASHES = 100
"""Sentences about hosts that are named twice: more are only counted."""


def name_trouble(origin: str, trouble: str) -> str:
    """What is wrong, with who has it; many begin with their file or address by themselves."""
    if trouble.startswith(origin):
        return trouble
    kind, _, place = origin.rpartition(" ")
    return f"{kind} {trouble}" if kind and trouble.startswith(place) else f"{origin}: {trouble}"


class ProviderRefresh:
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
        random: Callable[[], float] | None = None,
    ) -> None:
        self._provider = provider
        self._on_change = on_change
        self._on_trouble = on_trouble
        self._sleep = sleep
        self._last: tuple[list[Target], list[str]] | None = None
        self._is_doubted = False
        self._trouble: str | None = None
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE, jitter=0.5, random=random)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"discovery {self._provider.origin}")

    async def stop(self) -> None:
        """May be called twice, and without a start."""
        await cancel_tasks(self._task)
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
            return await asyncio.wait_for(self._provider.find(), LOOK_DEADLINE)
        except TimeoutError as error:
            raise Temporary(f"it did not answer within {LOOK_DEADLINE:g} s.") from error

    def _succeed(self, targets: list[Target]) -> float:
        """A provider that waits for changes looks again by itself; others are asked again soon where there is doubt."""
        self._is_doubted = not targets and self._last is not None and bool(self._last[0]) and not self._is_doubted
        if not self._is_doubted:
            self._publish(targets, list(self._provider.problems))
        self._backoff.succeed()
        if self._trouble is not None:
            log.info("%s: works again", self._provider.origin)
            self._trouble = None
            self._on_trouble(self._provider.origin, None)
        if self._is_doubted and self._provider.pause:
            return CONFIRM_PAUSE
        return max(self._provider.pause, SHORTEST_PAUSE)

    def _publish(self, targets: list[Target], problems: list[str]) -> None:
        if (targets, problems) == self._last:
            return
        before: Sequence[str] = self._last[1] if self._last else ()
        for problem in problems:
            if problem not in before:
                log.warning("%s", problem)
        self._on_change(targets)
        self._last = (targets, problems)

    def _fail(self, error: PluginError, bug: Exception | None = None) -> float:
        if self._trouble is None:
            trace = bug or (error if isinstance(error, Wrong) else None)
            log.warning("%s", name_trouble(self._provider.origin, str(error)), exc_info=trace)
        if self._trouble != str(error):
            self._trouble = str(error)
            self._on_trouble(self._provider.origin, self._trouble)
        return self._backoff.fail()


class _WatchedProvider:
    """One provider as the roster follows it: its last list, and what is wrong with it."""

    def __init__(self, provider: Provider, on_change: Callable[[], None]) -> None:
        self.provider = provider
        self.targets: list[Target] = []
        self.has_answered = False
        self.trouble: str | None = None
        self.refresh = ProviderRefresh(provider, self._take, self._note)
        self._on_change = on_change

    def _take(self, targets: list[Target]) -> None:
        self.targets = targets
        self.has_answered = True
        self._on_change()

    def _note(self, origin: str, trouble: str | None) -> None:
        kept = len(self.targets)
        still = f" Its last list of {kept} host{'' if kept == 1 else 's'} counts." if kept else ""
        self.trouble = trouble and f"{name_trouble(origin, trouble)}{still}"
        self._on_change()


class Discovery:
    """Watches the providers. `start` and `stop` in the event loop.

    `on_change` gets the whole list whenever it has changed, in the order of the providers. Of a host that is named
    twice the first one counts. `problems` are sentences for the admin: providers that do not answer, entries that make
    no sense, hosts that are named twice; `on_problems` is called whenever they have changed.
    """

    def __init__(
        self,
        providers: Sequence[Provider],
        on_change: Callable[[list[Target]], None],
        on_problems: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self._on_change = on_change
        self._on_problems = on_problems
        self._watches = [_WatchedProvider(provider, self._merge) for provider in providers]
        self.targets: list[Target] = []
        self.problems: list[str] = []

    @property
    def is_complete(self) -> bool:
        """Whether every provider has answered once: a host that none of them names is configured nowhere."""
        return all(watch.has_answered for watch in self._watches)

    def start(self) -> None:
        for watch in self._watches:
            watch.refresh.start()

    async def stop(self) -> None:
        """May be called twice, and without a start."""
        for watch in self._watches:
            await watch.refresh.stop()

    async def change(self, providers: Sequence[Provider]) -> None:
        """From now on these, while running. One that was there before goes on with the list that it has."""
        before = {id(watch.provider): watch for watch in self._watches}
        new = [_WatchedProvider(provider, self._merge) for provider in providers if id(provider) not in before]
        known = before | {id(watch.provider): watch for watch in new}
        self._watches = [known[id(provider)] for provider in providers]
        for watch in before.values():
            if watch not in self._watches:
                await watch.refresh.stop()
        self._merge()
        for watch in new:
            watch.refresh.start()

    def _merge(self) -> None:
        merged, clashes = merge_targets([watch.targets for watch in self._watches])
        self._publish_problems(clashes)
        if merged != self.targets:
            self.targets = merged
            self._on_change(merged)

    def _publish_problems(self, clashes: list[str]) -> None:
        troubles = filter(None, (watch.trouble for watch in self._watches))
        left_out = (problem for watch in self._watches for problem in watch.provider.problems)
        problems = [*troubles, *left_out, *clashes]
        if problems != self.problems:
            self.problems = problems
            self._on_problems(problems)


def merge_targets(lists: Sequence[Sequence[Target]]) -> tuple[list[Target], list[str]]:
    """One target a name, and sentences about those that are left out."""
    kept: dict[str, Target] = {}
    clashes: list[str] = []
    for target in (target for targets in lists for target in targets):
        known = kept.get(target.name)
        if known is not None:
            clashes += _explain_clash(known, target)
        elif not is_host_name(target.name):
            clashes.append(f"{target.origin}: {quote(target.name)} is no name of a host; it is left out.")
        elif len(kept) < MAX_HOSTS:
            kept[target.name] = target
        else:
            clashes.append(f"{target.origin}: {target.name} is left out, as there are more than {MAX_HOSTS} hosts.")
    if len(clashes) > MAX_CLASHES:
        clashes[MAX_CLASHES - 1 :] = [f"{len(clashes) - MAX_CLASHES + 1} more hosts are left out."]
    return list(kept.values()), clashes


def _explain_clash(first: Target, second: Target) -> list[str]:
    """Nothing where one provider says the same twice."""
    if first == second:
        return []
    if first.origin != second.origin:
        return [f"{first.name} is named by {first.origin} and by {second.origin}; the first counts."]
    return [f"{first.name} is named twice by {first.origin}, {_reach(first)} and {_reach(second)}; the first counts."]


def _reach(target: Target) -> str:
    user = f"{target.user}@" if target.user else ""
    port = f":{target.port}" if target.port else ""
    return f"as {user}{target.host}{port} via {target.via}"
