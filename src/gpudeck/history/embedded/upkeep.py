"""What is too old or too much goes, a little at a time. The room in the file is used again."""

import logging
import sqlite3
from collections.abc import Sequence
from typing import Final

from gpudeck.history.embedded.tables import key_of
from gpudeck.history.settings import HistorySettings

log = logging.getLogger(__name__)

_HOUR: Final = 3600
_ENOUGH: Final = 0.95
_JUMP: Final = 600.0
_DOUBT: Final = 3600.0
"""How long a clock that jumped ahead is not believed: what is deleted by mistake is gone."""


class Upkeep:
    def __init__(self, connection: sqlite3.Connection, settings: HistorySettings) -> None:
        self._connection = connection
        self._settings = settings
        self._believed: tuple[float, float] | None = None

    def run(self, now: float, moment: float, hosts: Sequence[int]) -> None:
        """Delete by age, then by size. Each kind is a transaction of its own. `moment` is of a clock that nobody sets:
        while `now` has jumped ahead of it, nothing is deleted."""
        if not self._is_believed(now, moment):
            return
        settings = self._settings
        for host in hosts:
            self._delete_hours("chunks", host, now - settings.raw)
            self._delete_hours("quarters", host, now - settings.quarter_hour)
            # Only a journal of the last days asks for these.
            self._delete_hours("sealed", host, now - max(settings.raw, 30 * 86_400))
        self._delete("DELETE FROM host_hours WHERE hour < ?", now - settings.hour)
        self._delete("DELETE FROM fleet_quarters WHERE start < ?", now - settings.hour)
        self._delete("DELETE FROM uses WHERE hour < ?", now - settings.quarter_hour)
        self._delete("DELETE FROM uses_of_all WHERE hour < ?", now - settings.hour)
        self._delete("DELETE FROM runs WHERE ended AND last < ?", now - settings.hour)
        self._shrink(now, hosts)

    def _is_believed(self, now: float, moment: float) -> bool:
        """At the start always: the hub may have been away for long."""
        if self._believed is not None:
            passed, ticked = now - self._believed[0], moment - self._believed[1]
            if passed - ticked > _JUMP and ticked < _DOUBT:
                log.warning("the clock jumped ahead by %.0f s: nothing of the history is deleted yet", passed - ticked)
                return False
        self._believed = now, moment
        return True

    def used_bytes(self) -> int:
        """How much of the file is in use: what was deleted does not count."""
        pages, free, size = (
            self._connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free) * size)

    def _delete_hours(self, table: str, host: int, before: float) -> None:
        if before > 0:
            bounds = key_of(host, 0), key_of(host, before)
            self._delete(f"DELETE FROM {table} WHERE key >= ? AND key < ?", *bounds)  # noqa: S608

    def _delete(self, statement: str, *values: float) -> None:
        self._connection.execute(statement, values)

    def _shrink(self, now: float, hosts: Sequence[int]) -> None:
        """While the file is too large: the oldest samples, then the oldest quarter hours."""
        used = self.used_bytes()
        if used <= self._settings.max_size:
            return
        log.warning("the history has reached history.max_size: the oldest samples go")
        for table in ("chunks", "quarters"):
            while used > self._settings.max_size * _ENOUGH and (oldest := self._oldest(table, hosts)) is not None:
                # The newest day stays whatever happens: a limit that is too small shall not empty every chart.
                if oldest > now - 24 * _HOUR:
                    break
                self._connection.execute("BEGIN IMMEDIATE")
                for host in hosts:
                    self._delete_hours(table, host, oldest + 6 * _HOUR)
                self._connection.execute("COMMIT")
                used = self.used_bytes()

    def _oldest(self, table: str, hosts: Sequence[int]) -> float | None:
        """When the oldest hour of any host begins."""
        found = [self._oldest_of(table, host) for host in hosts]
        return min((start for start in found if start is not None), default=None)

    def _oldest_of(self, table: str, host: int) -> float | None:
        base, after = key_of(host, 0), key_of(host + 1, 0)
        row = self._connection.execute(
            f"SELECT min(key) FROM {table} WHERE key >= ? AND key < ?",  # noqa: S608
            (base, after),
        ).fetchone()
        return None if row[0] is None else float((row[0] - base) * _HOUR)
