"""Polls all providers, merges their lists into one with unique names, and has hosts read that do not report by
themselves. The last good answer of a provider counts while it fails."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import chain

from gpudeck.discovery.host_names import is_host_name, quote
from gpudeck.discovery.inputs import MAX_HOSTS, HostFindings, Provider
from gpudeck.discovery.managed import ORIGIN
from gpudeck.fleet.hub import Hub
from gpudeck.model.backoff import Backoff
from gpudeck.model.cpu_budget import advance, cancel_tasks, run_in_steps
from gpudeck.model.errors import PluginError, ReportRefused, Temporary, Wrong
from gpudeck.model.gpu_state import RETURN_SECONDS
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport
from gpudeck.sources.poller import Poller, PollMethod

log = logging.getLogger(__name__)

MAX_PAUSE = 30.0
FIRST_PAUSE = 1.0
MIN_PAUSE = 0.5
"""Between two answers of a provider that waits for changes by itself: one that does not really wait costs no more."""
CONFIRM_PAUSE = 5.0
"""After which a list that has become empty is looked at again before it is believed."""
LOOK_DEADLINE = 60.0
"""For one look at a provider that does not wait for changes."""

Sleep = Callable[[float], Awaitable[None]]


class ProviderRefresh:
    """One provider, asked as long as it runs; `stop` closes it.

    `targets` is its last list: one that has become empty counts only when a second look says so too. `trouble` is why
    it could not be asked last, "" for nothing. `on_change` is called when either is another, or what the provider says
    of entries that make no sense.
    """

    def __init__(
        self,
        provider: Provider,
        on_change: Callable[[], None],
        *,
        sleep: Sleep = asyncio.sleep,
        random: Callable[[], float] | None = None,
    ) -> None:
        self.provider = provider
        self.targets: list[Target] = []
        self.has_answered = False
        self.trouble = ""
        self._on_change = on_change
        self._sleep = sleep
        self._problems: list[str] = []
        self._is_doubted = False
        self._backoff = Backoff(FIRST_PAUSE, MAX_PAUSE, jitter=0.5, random=random)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"discovery {self.provider.origin}")

    async def stop(self) -> None:
        """May be called twice, and without a start."""
        await cancel_tasks(self._task)
        self._task = None
        await self.provider.close()

    def problems(self) -> Iterator[str]:
        """Its problems, for the admin."""
        if self.trouble:
            kept = len(self.targets)
            still = f" Its last list of {kept} host{'' if kept == 1 else 's'} counts." if kept else ""
            yield f"{self.trouble}{still}"
        yield from self.provider.problems

    async def _run(self) -> None:
        while True:
            try:
                pause = self._succeed(await self._find())
            except PluginError as error:
                pause = self._fail(error, error if isinstance(error, Wrong) else None)
            except Exception as error:  # noqa: BLE001 - whatever one provider does, the others go on
                pause = self._fail(Wrong(f"the list of hosts failed: {type(error).__name__}: {error}."), error)
            await self._sleep(pause)

    async def _find(self) -> list[Target]:
        if not self.provider.pause:
            return await self.provider.find()
        try:
            return await asyncio.wait_for(self.provider.find(), LOOK_DEADLINE)
        except TimeoutError as error:
            raise Temporary(f"it did not answer within {LOOK_DEADLINE:g} s.") from error

    def _succeed(self, targets: list[Target]) -> float:
        """A provider that waits for changes looks again by itself; others are asked again soon where there is doubt."""
        problems, is_other = list(self.provider.problems), bool(self.trouble)
        self._is_doubted = not targets and bool(self.targets) and not self._is_doubted
        if not self._is_doubted:
            is_other |= not self.has_answered or targets != self.targets or problems != self._problems
            for problem in problems:
                if problem not in self._problems:
                    log.warning("%s", problem)
            self.targets, self._problems, self.has_answered = targets, problems, True
        if self.trouble:
            log.info("%s: works again", self.provider.origin)
        self._backoff.succeed()
        self.trouble = ""
        if is_other:
            self._on_change()
        return CONFIRM_PAUSE if self._is_doubted and self.provider.pause else max(self.provider.pause, MIN_PAUSE)

    def _fail(self, error: PluginError, trace: Exception | None) -> float:
        origin, trouble = self.provider.origin, str(error)
        if not trouble.startswith(origin.rpartition(" ")[2]):
            trouble = f"{origin}: {trouble}"
        if not self.trouble:
            log.warning("%s", trouble, exc_info=trace)
        if self.trouble != trouble:
            self.trouble = trouble
            self._on_change()
        return self._backoff.fail()


class Discovery:
    """Watches the providers. `on_change` gets the whole list whenever it has changed, in the order of the providers. Of
    a host that is named twice the first one counts. `problems` are sentences for the admin."""

    def __init__(
        self,
        providers: Sequence[Provider],
        on_change: Callable[[list[Target]], None],
        on_problems: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        self._on_change = on_change
        self._on_problems = on_problems
        self._refreshes = [ProviderRefresh(provider, self._merge) for provider in providers]
        self.targets: list[Target] = []
        self.problems: list[str] = []

    @property
    def is_complete(self) -> bool:
        """Whether every provider has answered once: a host that none of them names is configured nowhere."""
        return all(refresh.has_answered for refresh in self._refreshes)

    def start(self) -> None:
        for refresh in self._refreshes:
            refresh.start()

    async def stop(self) -> None:
        """May be called twice, and without a start."""
        for refresh in self._refreshes:
            await refresh.stop()

    async def change(self, providers: Sequence[Provider]) -> None:
        """From now on these, while running. One that was there before goes on with the list that it has."""
        before = {id(refresh.provider): refresh for refresh in self._refreshes}
        new = [ProviderRefresh(provider, self._merge) for provider in providers if id(provider) not in before]
        known = before | {id(refresh.provider): refresh for refresh in new}
        self._refreshes = [known[id(provider)] for provider in providers]
        for refresh in before.values():
            if refresh not in self._refreshes:
                await refresh.stop()
        self._merge()
        for refresh in new:
            refresh.start()

    def _merge(self) -> None:
        merged, clashes = merge_targets([refresh.targets for refresh in self._refreshes])
        problems = [*chain.from_iterable(refresh.problems() for refresh in self._refreshes), *clashes]
        if problems != self.problems:
            self.problems = problems
            self._on_problems(problems)
        if merged != self.targets:
            self.targets = merged
            self._on_change(merged)


def merge_targets(lists: Sequence[Sequence[Target]]) -> tuple[list[Target], list[str]]:
    kept, findings = dict[str, Target](), HostFindings()
    for target in (target for targets in lists for target in targets):
        known = kept.get(target.name)
        if known is not None:
            if known != target:
                findings.add_problem(f"{target.name} is named by {known.origin} and {target.origin}; the first counts.")
        elif not is_host_name(target.name):
            findings.add_problem(f"{target.origin}: {quote(target.name)} is no name of a host; it is left out.")
        elif len(kept) < MAX_HOSTS:
            kept[target.name] = target
        else:
            findings.add_problem(f"{target.origin}: {target.name} is left out: there are more than {MAX_HOSTS} hosts.")
    return list(kept.values()), findings.problems


GRACE = 3.0
"""Seconds for which a host stays that a list no longer names: who moves one between two lists writes one after the
other, and either may be read first."""

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
"""Quoted words of a list in a problem: they may be a secret in the wrong file."""


class PollingService:
    """Keeps the fleet's expectations and the poller at what the providers say. `start` and `stop` in the event loop."""

    def __init__(
        self,
        hub: Hub,
        providers: Sequence[Provider],
        methods: dict[str, PollMethod],
        *,
        grace: float = GRACE,
        reads: Callable[[str], bool] = lambda _: True,
        keeps_away: Callable[[], bool] = lambda: False,
    ) -> None:
        """`reads` says which hosts this one of several hubs reads, by their names; see `change_share`. `keeps_away` is
        asked before hosts are watched: whether this hub watches none."""
        self._reads = reads
        self._keeps_away = keeps_away
        self._hub = hub
        self._grace = grace
        self._targets: dict[str, Target] = {}
        self._leaving: dict[str, Target] = {}
        self._poller = Poller(methods, self._deliver, self._note_failure)
        self._discovery = Discovery(providers, self._set_targets, self.note_problems)
        self._dismissing: asyncio.TimerHandle | None = None
        self._has_waited = False
        self._next_steps: asyncio.Handle | None = None

    def start(self) -> None:
        self._discovery.start()
        self._dismissing = asyncio.get_running_loop().call_later(RETURN_SECONDS, self._dismiss_recalled)

    async def stop(self) -> None:
        if self._dismissing is not None:
            self._dismissing.cancel()
        await self._discovery.stop()
        self._leaving.clear()
        self._apply(iter(()))
        await self._poller.stop()

    async def change(self, providers: Sequence[Provider], methods: dict[str, PollMethod] | None = None) -> None:
        """Other lists from now on, and other methods where some are given: then every host is read anew."""
        if methods is not None:
            self._apply(iter(()))
            before, self._poller = self._poller, Poller(methods, self._deliver, self._note_failure)
            await run_in_steps(before.end_others(()))
            await before.stop()
            self._watch()
        await self._discovery.change(providers)

    def change_share(self, reads: Callable[[str], bool]) -> None:
        self._reads = reads
        self._watch()

    def find(self, name: str) -> Target | None:
        """The host that is configured under that name."""
        return self._targets.get(name)

    def _set_targets(self, targets: Sequence[Target]) -> None:
        if targets and self._keeps_away():
            return
        before, self._targets = self._targets, {target.name: target for target in targets}
        # One that a person removed goes at once.
        leaving = {
            name: target for name, target in before.items() if name not in self._targets and target.origin != ORIGIN
        }
        self._leaving = {name: at for name, at in self._leaving.items() if name not in self._targets} | leaving
        if leaving:
            # Together, as each change costs as much as the fleet is large.
            asyncio.get_running_loop().call_later(self._grace, self._drop, leaving)
        self._watch()

    def _dismiss_recalled(self) -> None:
        """Hosts that the hub read before this start, and that no list names any more."""
        if self._discovery.is_complete:
            self._has_waited = True
            self._watch()
        else:
            self._dismissing = asyncio.get_running_loop().call_later(RETURN_SECONDS, self._dismiss_recalled)

    def _drop(self, leaving: dict[str, Target]) -> None:
        kept = {name: target for name, target in self._leaving.items() if leaving.get(name) is not target}
        if kept != self._leaving:
            self._leaving = kept
            self._watch()

    def _watch(self) -> None:
        watched = [*self._targets.values(), *self._leaving.values()]
        # A host that is no longer read leaves after its last report, and one that is new is there before its first.
        self._apply(
            chain(
                self._poller.end_others(read := [target for target in watched if self._reads(target.name)]),
                self._hub.fleet.expect_in_steps(watched),
                self._poller.watch_in_steps(read),
                self._hub.fleet.remove_unconfigured() if self._has_waited else (),
            )
        )

    def _apply(self, steps: Iterator[None]) -> None:
        """In slices, as a list may name 20,000 hosts. The rest of the list before is dropped."""
        if self._next_steps is not None:
            self._next_steps.cancel()
        self._next_steps = None
        if not advance(steps):
            self._next_steps = asyncio.get_running_loop().call_soon(self._apply, steps)

    def note_problems(self, problems: list[str]) -> None:
        """All viewers see the place of an invalid entry; the log has the entry."""
        for problem in problems:
            log.info("lists of hosts: %s", problem)
        self._hub.fleet.set_problems("hosts", [_QUOTED.sub("an entry", problem) for problem in problems])

    def _deliver(self, target: Target, fetched: FetchedReport) -> bool:
        try:
            return self._hub.ingest.take_fetched(
                fetched.envelope, via=target.via, target=target.name, sent_at=fetched.sent_at
            )
        except ReportRefused as refusal:
            self._hub.ingest.count(refusal)
            raise

    def _note_failure(self, target: Target, reason: str | None) -> None:
        self._hub.fleet.note_failure(target.name, reason)
