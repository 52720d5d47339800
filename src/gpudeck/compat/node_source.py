"""The source of nodes that are asked over HTTP: GPU Cluster Status Monitor and gpumonitor."""

from typing import Final

from gpudeck.fetch import AddressGuard, Fetcher
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.report import Report
from gpudeck.model.target import Target
from gpudeck.sources.base import EnvelopeSequence, FetchedReport

MAX_BYTES: Final = 1024 * 1024
"""16 GPUs with 100 processes each, and commands of 500 characters."""


class NodeSource:
    """Posts one question to a node over a kept connection, and parses the answer in a thread. A subclass makes the
    report in `_parse`. See `Source` for errors and calls."""

    def __init__(
        self, target: Target, url: str, question: bytes, media: str, *, interval: float, deadline: float, who: str
    ) -> None:
        self._target = target
        self._url = url
        self._question = question
        self._headers = {"Content-Type": media}
        self._fetcher = Fetcher(deadline=deadline, bytes_at_most=MAX_BYTES, guard=AddressGuard.of(target))
        self._envelopes = EnvelopeSequence(target, interval, who)

    async def read(self, now: float) -> FetchedReport:
        body = await self._ask()
        # The largest allowed answer takes half a second to read.
        report, collected_at, host = await parse_in_thread(self._parse, body, now)
        return FetchedReport(self._envelopes.put(report, collected_at, host=host), now)

    async def close(self) -> None:
        await self._fetcher.close()

    async def _ask(self) -> bytes:
        return (await self._fetcher.post(self._url, self._question, self._headers)).body

    def _parse(self, body: bytes, now: float) -> tuple[Report, float, str | None]:
        """The report, when its values were read, and the name that the host has for itself, if that is used. Raises
        Temporary."""
        raise NotImplementedError
