"""The hosts that a hub watches by itself: discovery says which, the poller reads them, the fleet takes the reports."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

from gpudeck.discovery.base import Provider
from gpudeck.discovery.managed import ORIGIN
from gpudeck.discovery.service import Discovery
from gpudeck.fleet.hub import Hub
from gpudeck.model.availability import RETURN_SECONDS
from gpudeck.model.cpu_budget import advance, run_in_steps
from gpudeck.model.errors import ReportRefused, UsageError
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport
from gpudeck.sources.poller import Poller, PollMethod

log = logging.getLogger(__name__)

GRACE = 3.0
"""Seconds for which a host stays that a list no longer names: who moves one between two lists writes one after the
other, and either may be read first."""

_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""")
"""What a sentence quotes of a list: it may be a secret that stands in the wrong file."""


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
    ) -> None:
        """`reads` says which hosts this one of several hubs reads, by their names; see `change_share`."""
        self._reads = reads
        self._hub = hub
        self._grace = grace
        self._targets: dict[str, Target] = {}
        self._leaving: dict[str, tuple[Target, list[Target]]] = {}
        """With all that left at the same time: they go together, as each change costs as much as the fleet is large."""
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
        """This one of several hubs reads these hosts from now on."""
        self._reads = reads
        self._watch()

    def find(self, name: str) -> Target | None:
        """The host that is configured under that name. Raises UsageError where none is watched, as a demo was asked
        for."""
        if self._hub.ingest.keeps_demo:
            raise UsageError("this hub was started with --demo and watches no real hosts.", "Start it without --demo.")
        return self._targets.get(name)

    def _set_targets(self, targets: Sequence[Target]) -> None:
        """A demo that was asked for shows nothing else; any other ends when there are hosts to watch."""
        if targets and self._hub.ingest.demo:
            self._hub.ingest.end_demo()
            return
        before, self._targets = self._targets, {target.name: target for target in targets}
        for name in self._leaving.keys() & self._targets.keys():
            del self._leaving[name]
        self._schedule_removal([before[name] for name in before.keys() - self._targets.keys()])
        self._watch()

    def _dismiss_recalled(self) -> None:
        """Hosts that the hub read before this start, and that no list names any more."""
        if self._discovery.is_complete:
            self._has_waited = True
            self._watch()
        else:
            self._dismissing = asyncio.get_running_loop().call_later(RETURN_SECONDS, self._dismiss_recalled)

    def _schedule_removal(self, targets: list[Target]) -> None:
        """One that a person removed goes at once."""
        leaving = [target for target in targets if target.origin != ORIGIN]
        if leaving:
            self._leaving |= {target.name: (target, leaving) for target in leaving}
            asyncio.get_running_loop().call_later(self._grace, self._drop, leaving)

    def _drop(self, leaving: list[Target]) -> None:
        """Those of them that did not come back meanwhile."""
        gone = [name for name, (_, others) in self._leaving.items() if others is leaving]
        for name in gone:
            del self._leaving[name]
        if gone:
            self._watch()

    def _watch(self) -> None:
        watched = [*self._targets.values(), *(target for target, _ in self._leaving.values())]
        # A host that is no longer read leaves after its last report, and one that is new is there before its first.
        self._apply(
            chain(
                self._poller.end_others(read := [target for target in watched if self._reads(target.name)]),
                self._hub.fleet.expect_in_steps(watched),
                self._poller.watch_in_steps(read),
                self._hub.fleet.dismiss_recalled() if self._has_waited else (),
            )
        )

    def _apply(self, steps: Iterator[None]) -> None:
        """In slices, as a list may name 20,000 hosts: a short one is applied at once. What is left of the list before
        is replaced."""
        if self._next_steps is not None:
            self._next_steps.cancel()
        self._next_steps = None
        if not advance(steps):
            self._next_steps = asyncio.get_running_loop().call_soon(self._apply, steps)

    def note_problems(self, problems: list[str]) -> None:
        """All viewers see where an entry makes no sense; the log says which it is."""
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
