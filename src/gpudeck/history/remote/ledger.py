"""Who used what and which runs there were is kept by the hub itself, also where a site's store keeps the samples."""

from typing import Protocol

from gpudeck.history.base import Run, Runs, RunsAsk, Usage, UsageAsk


class Ledger(Protocol):
    """The accounting half of a store."""

    def usage(self, ask: UsageAsk) -> Usage: ...
    def runs(self, ask: RunsAsk) -> Runs: ...
    def run(self, key: int) -> Run | None: ...
