"""Retention: old data is deleted in small steps and logged; the space in the file is used again. Damaged rows and rows
of a wrong clock are moved to the table `set_aside`, each as it was, with time and reason."""

import logging
import sqlite3
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from gpudeck.history.embedded.tables import key_of, keys_between, split_key
from gpudeck.history.settings import HistorySettings
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

_HOUR: Final = 3600
_ENOUGH: Final = 0.95
_LAST: Final = 7e9
_OF_HOSTS: Final = {"chunks": "samples", "quarters": "quarter hours", "sealed": None}
"""What a host's hours in each table are called in the log."""
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS set_aside (at REAL NOT NULL, reason TEXT NOT NULL, source TEXT NOT NULL, "
    "body BLOB NOT NULL)"
)


def set_aside(
    connection: sqlite3.Connection, table: str, where: str, values: Sequence[object], *, reason: str, now: float
) -> int:
    """Move the rows of `table` that fit; how many there were. Inside the caller's transaction. `body` is the row as
    msgpack, its columns in their order."""
    rows = connection.execute(f"SELECT * FROM {table} WHERE {where}", tuple(values)).fetchall()  # noqa: S608
    if rows:
        connection.execute(_TABLE)
        connection.executemany(
            "INSERT INTO set_aside VALUES (?, ?, ?, ?)",
            [(now, reason, table, msgspec.msgpack.encode(row)) for row in rows],
        )
        connection.execute(f"DELETE FROM {table} WHERE {where}", tuple(values))  # noqa: S608
    return len(rows)


class HistoryRetention:
    def __init__(self, connection: sqlite3.Connection, settings: HistorySettings) -> None:
        self._connection = connection
        self._settings = settings
        self._deleted: dict[str, tuple[int, float, float]] = {}

    def run(self, time: float, hosts: Sequence[int]) -> None:
        """Delete by age, then by size. Each kind is a transaction of its own. `time` is that of a `RetentionClock`."""
        settings, self._deleted = self._settings, {}
        for host in hosts:
            self._delete_hours("chunks", host, time - settings.raw)
            self._delete_hours("quarters", host, time - settings.quarter_hour)
            # Only a journal of the last days asks for these.
            self._delete_hours("sealed", host, time - max(settings.raw, 30 * 86_400))
        self._delete("host_hours", "hour", time - settings.hour, "hours of hosts")
        self._delete("fleet_quarters", "start", time - settings.hour, "quarter hours of the fleet")
        self._delete("uses", "hour", time - settings.quarter_hour, "usage by host")
        self._delete("uses_of_all", "hour", time - settings.hour, "usage")
        self._delete("runs", "last", time - settings.hour, "runs", also="ended AND ")
        self._shrink(time, hosts)
        deleted = [
            f"{count} rows of {what} from {show_utc(first)} until {show_utc(last)}"
            for what, (count, first, last) in self._deleted.items()
        ]
        if deleted:
            log.info("retention deleted from the history: %s", "; ".join(deleted))

    def set_future_aside(self, now: float, hosts: Sequence[int]) -> int:
        """Move all hours that begin more than an hour after `now`; how many rows that were. Inside a transaction."""
        begin, move = now + _HOUR, partial(set_aside, self._connection, reason="of a clock that was ahead", now=now)
        of_hosts = [
            move(table, "key > ? AND key <= ?", (key_of(host, begin), key_of(host, _LAST)))
            for table in ("chunks", "quarters", "sealed")
            for host in hosts
        ]
        tables = (("host_hours", "hour"), ("uses", "hour"), ("uses_of_all", "hour"), ("fleet_quarters", "start"))
        return sum(of_hosts) + sum(move(table, f"{column} > ?", (begin,)) for table, column in tables)

    def used_bytes(self) -> int:
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _delete_hours(self, table: str, host: int, before: float) -> None:
        if before <= 0:
            return
        bounds = key_of(host, 0), key_of(host, before)
        where = f"FROM {table} WHERE key >= ? AND key < ?"
        count, first, last = self._connection.execute(f"SELECT count(*), min(key), max(key) {where}", bounds).fetchone()
        if count:
            self._connection.execute(f"DELETE {where}", bounds)
            if (what := _OF_HOSTS[table]) is not None:
                self._note(what, count, split_key(first)[1], split_key(last)[1] + _HOUR)

    def _delete(self, table: str, column: str, before: float, what: str, also: str = "") -> None:
        where = f"FROM {table} WHERE {also}{column} < ?"
        found = f"SELECT count(*), min({column}), max({column}) {where}"
        count, first, last = self._connection.execute(found, (before,)).fetchone()
        if count:
            self._connection.execute(f"DELETE {where}", (before,))
            self._note(what, count, first, last)

    def _note(self, what: str, count: int, first: float, last: float) -> None:
        before = self._deleted.get(what, (0, first, last))
        self._deleted[what] = before[0] + count, min(before[1], first), max(before[2], last)

    def _shrink(self, time: float, hosts: Sequence[int]) -> None:
        """While the file is too large: the oldest samples, then the oldest quarter hours."""
        used = self.used_bytes()
        if used <= self._settings.max_size:
            return
        log.warning("the history has reached history.max_size: the oldest samples are deleted")
        for table in ("chunks", "quarters"):
            while used > self._settings.max_size * _ENOUGH and (oldest := self._oldest(table, hosts)) is not None:
                # The newest day stays whatever happens: a limit that is too small shall not empty every chart.
                if oldest > time - 24 * _HOUR:
                    break
                self._connection.execute("BEGIN IMMEDIATE")
                for host in hosts:
                    self._delete_hours(table, host, oldest + 6 * _HOUR)
                self._connection.execute("COMMIT")
                used = self.used_bytes()

    def _oldest(self, table: str, hosts: Sequence[int]) -> float | None:
        oldest = f"SELECT min(key) FROM {table} WHERE key BETWEEN ? AND ?"  # noqa: S608
        found = [self._connection.execute(oldest, keys_between(host, 0, _LAST)).fetchone()[0] for host in hosts]
        return min((float(split_key(key)[1]) for key in found if key is not None), default=None)
