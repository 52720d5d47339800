"""The hosts that a hub watches by itself: discovery says which, the poller reads them, the fleet takes the reports."""

import logging
from collections.abc import Sequence

from gpudeck.discovery.base import Provider
from gpudeck.discovery.roster import Roster
from gpudeck.hub.hub import Hub
from gpudeck.model.errors import ReportRefused
from gpudeck.model.target import Target
from gpudeck.sources.base import Arrival
from gpudeck.sources.poller import Poller, Way

log = logging.getLogger(__name__)


class Watching:
    """Keeps the fleet's expectations and the poller at what the providers say. `start` and `stop` in the event loop."""

    def __init__(self, hub: Hub, providers: Sequence[Provider], ways: dict[str, Way]) -> None:
        self._hub = hub
        self._targets: dict[str, Target] = {}
        self._poller = Poller(ways, self._deliver, self._note_failure)
        self._roster = Roster(providers, self._take, self._note_problems)

    def start(self) -> None:
        self._roster.start()

    async def stop(self) -> None:
        await self._roster.stop()
        await self._poller.stop()

    def find(self, name: str) -> Target | None:
        """The host that is configured under that name, by whomever."""
        return self._targets.get(name)

    def _take(self, targets: Sequence[Target]) -> None:
        """A demo that was asked for shows nothing else; any other ends when there are hosts to watch."""
        if targets and not self._hub.ingest.leave_demo():
            return
        self._targets = {target.name: target for target in targets}
        self._hub.fleet.expect(targets)
        self._poller.watch(targets)

    def _note_problems(self, problems: list[str]) -> None:
        self._hub.fleet.problems = problems

    def _deliver(self, target: Target, arrival: Arrival) -> bool:
        try:
            return self._hub.ingest.take_fetched(
                arrival.envelope, via=target.via, target=target.name, sent_at=arrival.sent_at
            )
        except ReportRefused as refusal:
            self._hub.ingest.count(refusal)
            raise

    def _note_failure(self, target: Target, reason: str | None) -> None:
        self._hub.fleet.note_failure(target.name, reason)
