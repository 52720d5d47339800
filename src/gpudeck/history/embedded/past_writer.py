"""A past that is known all at once, written into the file host by host, through the same sealing as live hours."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from gpudeck.history.embedded.keys import HostKeys, KeyRegistry
from gpudeck.history.embedded.seal import HourSealer
from gpudeck.history.embedded.tables import open_to_write
from gpudeck.history.hour import Hour
from gpudeck.history.sample import ProcessSample

_RESERVED_RUNS: Final = 10_000_000


class PastSpan(NamedTuple):
    """When a run was first and last seen. One that is not over may go on with the first sample after the past."""

    first: float
    last: float
    is_over: bool


class PastWriter:
    """A hub may have the file open: what is added is written in a transaction until `flush`, the sums of all hosts when
    it is closed, and `reserve` has set numbers apart that the hub does not assign. Raises sqlite3.Error."""

    def __init__(self, path: Path) -> None:
        self._connection = open_to_write(path)
        self.keys = KeyRegistry(self._connection)
        self._sealer = HourSealer(self._connection, self.keys)

    def reserve(self, words: Iterable[str]) -> None:
        """Before a hub opens the file. `words` are all users and models that are going to come."""
        for word in words:
            self.keys.word(word)
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('newest_runs', ?)", (_RESERVED_RUNS,))

    def add_run(self, key: int, host: HostKeys, process: ProcessSample, gpus: Iterable[int], seen: PastSpan) -> None:
        """Before the hours that it is in: what it did is added up from them. `key` is one that no other run has."""
        self._begin()
        self._connection.execute(
            "INSERT INTO runs (id, host, pid, started_at, user, command, container, job, gpus, first, last, ended) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (key, host.key, *process[:6], ",".join(map(str, sorted(gpus))), seen.first, seen.last, seen.is_over),
        )

    def extend_run(self, key: int, first: float) -> None:
        """One that the file has was there before, since `first`."""
        self._begin()
        self._connection.execute("UPDATE runs SET first = min(first, ?) WHERE id = ?", (first, key))

    def add(self, host: HostKeys, hour: Hour, *, keep_samples: bool) -> None:
        self._begin()
        self._sealer.add(host, hour, keep_samples=keep_samples)

    def flush(self) -> None:
        self._begin()
        self.keys.write_new()
        for host in self.keys.by_key.values():
            if host.is_changed:
                self.keys.write_seen(host)
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._begin()
        self._sealer.write_sums()
        self.flush()
        self._connection.close()

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")
