"""Retention: old data is deleted in small steps and logged; the space in the file is used again. Damaged rows and rows
of a wrong clock are moved to the table `set_aside`, each as it was, with time and reason."""

import logging
import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

from gpudeck.history.embedded.tables import HOUR_BITS
from gpudeck.history.settings import HistorySettings
from gpudeck.model.times import show_utc

log = logging.getLogger(__name__)

_HOUR: Final = 3600
_DAY: Final = 86_400
_ENOUGH: Final = 0.95
_MASK: Final = (1 << HOUR_BITS) - 1
_NAMES: Final = {
    "chunks": "samples",
    "quarters": "quarter hours",
    "host_hours": "hours of hosts",
    "fleet_quarters": "quarter hours of the fleet",
    "uses": "usage by host",
    "uses_of_all": "usage",
    "runs": "runs",
}
"""What the log calls the rows of a table."""
_TIMES: Final = {"fleet_quarters": "start", "runs": "last"} | dict.fromkeys(
    ("host_hours", "uses", "uses_of_all"), "hour"
)
"""The column with the time of a row. Others have the key of a host's hour."""
_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS set_aside (at REAL NOT NULL, reason TEXT NOT NULL, source TEXT NOT NULL, "
    "body BLOB NOT NULL)"
)


def set_aside(
    connection: sqlite3.Connection, table: str, where: str, values: Sequence[object], *, reason: str, now: float
) -> int:
    """Move the matching rows of `table`, and return their number. Inside a transaction. `body` is the row as msgpack,
    with the columns in their order."""
    rows = connection.execute(f"SELECT * FROM {table} WHERE {where}", tuple(values)).fetchall()  # noqa: S608
    if rows:
        connection.execute(_TABLE)
        connection.executemany(
            "INSERT INTO set_aside VALUES (?, ?, ?, ?)",
            [(now, reason, table, msgspec.msgpack.encode(row)) for row in rows],
        )
        connection.execute(f"DELETE FROM {table} WHERE {where}", tuple(values))  # noqa: S608
    return len(rows)


def set_future_aside(connection: sqlite3.Connection, now: float) -> int:
    """Move all hours that begin more than an hour after `now`, and return their number. Inside a transaction."""
    begin, reason = now + _HOUR, "of a clock that was ahead"
    count = 0
    for table in ("chunks", "quarters", "sealed", "host_hours", "uses", "uses_of_all", "fleet_quarters"):
        if table in _TIMES:
            where, value = f"{_TIMES[table]} > ?", begin
        else:
            where, value = _hours_of_hosts(table, "> (id << {0}) + ?", "< (id + 1) << {0}"), begin // _HOUR
        count += set_aside(connection, table, where, (value,), reason=reason, now=now)
    return count


def delete_old(connection: sqlite3.Connection, settings: HistorySettings, time: float) -> None:
    """Delete by age, then by size. Each table is a transaction of its own. `time` is that of a `RetentionClock`."""
    kept = {
        **dict.fromkeys(("host_hours", "fleet_quarters", "uses_of_all", "runs"), settings.hour),
        **dict.fromkeys(("quarters", "uses"), settings.quarter_hour),
        "chunks": settings.raw,
        # Only a journal of the last days asks for these.
        "sealed": max(settings.raw, 30 * _DAY),
    }
    for table, seconds in kept.items():
        _delete(connection, table, time - seconds)
    if used_bytes(connection) > settings.max_size:
        log.warning("the history has reached history.max_size: the oldest samples are deleted")
        _shrink(connection, settings.max_size * _ENOUGH, time)


def used_bytes(connection: sqlite3.Connection) -> int:
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _delete(connection: sqlite3.Connection, table: str, before: float) -> None:
    if table in _TIMES:
        column, value = _TIMES[table], before
        where = f"{column} < ?" + (" AND ended" if table == "runs" else "")
    else:
        column, value = f"(key & {_MASK}) * {_HOUR}", before // _HOUR
        where = _hours_of_hosts(table, ">= id << {0}", "< (id << {0}) + ?")
    found = f"SELECT count(*), min({column}), max({column}) FROM {table} WHERE {where}"  # noqa: S608
    count, first, last = connection.execute(found, (value,)).fetchone()
    if count:
        connection.execute(f"DELETE FROM {table} WHERE {where}", (value,))  # noqa: S608
        if table in _NAMES:
            until = last if table in _TIMES else last + _HOUR
            text = "retention deleted from the history: %d rows of %s from %s until %s"
            log.info(text, count, _NAMES[table], show_utc(first), show_utc(until))


def _hours_of_hosts(table: str, low: str, high: str) -> str:
    """A condition for hours between two keys of each host, which uses the primary key."""
    bounds = f"{table}.key {low} AND {table}.key {high}".format(HOUR_BITS)
    return f"key IN (SELECT {table}.key FROM hosts CROSS JOIN {table} WHERE {bounds})"  # noqa: S608


def _shrink(connection: sqlite3.Connection, enough: float, time: float) -> None:
    """Deletes the oldest samples, then the oldest quarter hours. The last day stays in any case, so that a limit that
    is too small does not empty all charts."""
    for table in ("chunks", "quarters"):
        of_host = f"SELECT min(key) FROM {table} WHERE key >= id << {HOUR_BITS} AND key < (id + 1) << {HOUR_BITS}"  # noqa: S608
        question = f"SELECT min(({of_host}) & {_MASK}) * {_HOUR} FROM hosts"  # noqa: S608
        while used_bytes(connection) > enough:
            (oldest,) = connection.execute(question).fetchone()
            if oldest is None or oldest > time - _DAY:
                break
            _delete(connection, table, oldest + 6 * _HOUR)
