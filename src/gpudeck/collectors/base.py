"""What a collector is."""

from typing import Protocol

from gpudeck.model.report import Report


class Collector(Protocol):
    """Reads one kind of thing on this machine.

    `collect` returns a partial report (only the fields this collector knows). It may block, but never sleeps. It raises
    Absent when there is nothing to read here, Temporary when it may work later, Refused when permissions are missing. A
    single device or value that cannot be read is no error: it goes into the report as unknown, with its reason. `now`
    is Unix seconds. `close` frees what was opened and may be called at any time.
    """

    name: str

    def collect(self, now: float) -> Report: ...

    def close(self) -> None: ...
