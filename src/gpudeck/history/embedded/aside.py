"""Rows that must not be used any more but are not thrown away either: damaged ones, and those of a wrong clock.

They are moved to the table `set_aside` of the same file, each as it was, with when and why.
"""

import sqlite3
from collections.abc import Sequence
from typing import Final

import msgspec

_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS set_aside (at REAL NOT NULL, reason TEXT NOT NULL, source TEXT NOT NULL, "
    "body BLOB NOT NULL)"
)


def set_aside(
    connection: sqlite3.Connection, table: str, where: str, values: Sequence[object], *, reason: str, now: float
) -> int:
    """Move the rows of `table` that fit; how many there were. Inside the transaction of whoever calls.

    `body` is the row as msgpack, its columns in their order.
    """
    rows = connection.execute(f"SELECT * FROM {table} WHERE {where}", tuple(values)).fetchall()  # noqa: S608
    if rows:
        connection.execute(_TABLE)
        connection.executemany(
            "INSERT INTO set_aside VALUES (?, ?, ?, ?)",
            [(now, reason, table, msgspec.msgpack.encode(row)) for row in rows],
        )
        connection.execute(f"DELETE FROM {table} WHERE {where}", tuple(values))  # noqa: S608
    return len(rows)


def count_set_aside(connection: sqlite3.Connection) -> int:
    found = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'set_aside'").fetchone()
    return 0 if found is None else int(connection.execute("SELECT count(*) FROM set_aside").fetchone()[0])
