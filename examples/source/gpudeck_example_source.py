"""A source: hosts whose reports lie as JSON files in a folder that all servers share.

    hosts: [{name: "gpu[01-08]", via: spool, path: /shared/reports}]

A file `gpu01.json` holds a report: the field `report` of what an agent sends (docs/api.md).
"""

import asyncio
from pathlib import Path

import msgspec

from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.report import Report
from gpudeck.model.target import Target
from gpudeck.sources.base import EnvelopeSequence, FetchedReport, SourcePlugin

INTERVAL, MAX_SECONDS = 5.0, 30.0


class SpoolSource:
    def __init__(self, target: Target) -> None:
        if target.path is None:
            raise UsageError("`via: spool` needs `path`, the folder with the reports.")
        self._file = Path(target.path) / f"{target.name}.json"
        self._envelopes = EnvelopeSequence(target, INTERVAL)

    async def read(self, now: float) -> FetchedReport:
        return await asyncio.to_thread(self._read, now)

    async def close(self) -> None:
        return

    def _read(self, now: float) -> FetchedReport:
        try:
            written_at = self._file.stat().st_mtime
            report = msgspec.json.decode(self._file.read_bytes(), type=Report)
        except (OSError, msgspec.DecodeError) as error:
            raise Temporary(f"{self._file.name} cannot be read: {error}.") from error
        if now - written_at > MAX_SECONDS:
            # The host then is late, and later down. An old report must never show GPUs as free.
            raise Temporary(f"{self._file.name} was written {now - written_at:.0f} s ago.")
        return FetchedReport(self._envelopes.put(report, collected_at=written_at))


plugin = SourcePlugin(make=SpoolSource, interval=INTERVAL, deadline=3.0)
