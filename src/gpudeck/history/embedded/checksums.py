"""A checksum for each row: the column `crc` is the CRC-32 of the row's other columns.

NULL stands for a row that an earlier version wrote. The connection that writes has triggers that keep the column, so no
statement can forget it; rows with many bytes (`BY_HAND`) bring their own, because a trigger would write them twice. A
row that was damaged before it is changed gets `DAMAGED`, which fits nothing: a change hides no damage.
"""

import sqlite3
import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from gpudeck.history.codec import Damaged

BY_HAND: Final = frozenset({"chunks", "quarters"})
DAMAGED: Final = -1
WRONG: Final = "the checksum does not fit: the row has changed since it was written"

_DOUBLE: Final = struct.Struct("<d")
_pack = msgspec.msgpack.Encoder().encode


def checksum(*row: object) -> int:
    """`row` are all columns but `crc`, in the order of the table. Text is bytes: also what is no text any more."""
    return zlib.crc32(_pack(row))


def is_sound(row: Sequence[Any], crc: object) -> bool:
    """Also where nobody knows, because an earlier version wrote it."""
    return crc is None or crc == checksum(*row)


def require_sound(row: Sequence[Any]) -> None:
    """`row` ends with its `crc`. Raises Damaged."""
    if not is_sound(row[:-1], row[-1]):
        raise Damaged(WRONG)


def select(columns: Sequence[str], prefix: str = "") -> str:
    """Columns as `checksum` wants them, for a question. The function of a trigger cannot be given damaged text."""
    return ", ".join(
        f"CASE typeof({prefix}{name}) WHEN 'text' THEN CAST({prefix}{name} AS BLOB) ELSE {prefix}{name} END"
        for name in columns
    )


def keep_checksums(connection: sqlite3.Connection, tables: dict[str, tuple[str, ...]]) -> None:
    """From here on each row of these tables that the connection writes has its checksum. `tables`: their columns."""
    connection.create_function("row_crc", -1, checksum, deterministic=True)
    connection.execute("PRAGMA temp_store = MEMORY")
    for table, columns in tables.items():
        if table in BY_HAND:
            continue
        new, old = (f"row_crc({select(columns, prefix)})" for prefix in ("new.", "old."))
        same = " AND ".join(f"{name} IS new.{name}" for name in keys_of(connection, table))
        was_sound = f"old.crc IS NULL OR old.crc = {old}"
        for event, crc in (("INSERT", new), ("UPDATE", f"CASE WHEN {was_sound} THEN {new} ELSE {DAMAGED} END")):
            connection.execute(
                f"CREATE TEMP TRIGGER {table}_{event} AFTER {event} ON main.{table} "  # noqa: S608
                f"BEGIN UPDATE {table} SET crc = {crc} WHERE {same}; END"
            )


def keys_of(connection: sqlite3.Connection, table: str) -> list[str]:
    """The columns of its primary key."""
    found = connection.execute(f"PRAGMA table_info({table})").fetchall()
    return [row[1] for row in sorted(found, key=lambda row: row[5]) if row[5]]


def find_wrong(connection: sqlite3.Connection, table: str, columns: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """The key of each row whose checksum does not fit. Raises sqlite3.Error where the table has none."""
    keys = keys_of(connection, table)
    question = f"SELECT {', '.join(keys)}, {select(columns)}, crc FROM {table} WHERE crc IS NOT NULL"  # noqa: S608
    for row in connection.execute(question):
        if not is_sound(row[len(keys) : -1], row[-1]):
            yield row[: len(keys)]


def correct(row: Sequence[Any], crc: object) -> tuple[Any, ...] | None:
    """The row with one bit flipped back, so that its checksum fits; None where more than one bit is damaged.

    Tries every bit: for rows of some kilobytes. That a wrong one fits is as likely as 1 in 100,000.
    """
    for place, value in enumerate(row):
        for other in _neighbours(value):
            tried = (*row[:place], other, *row[place + 1 :])
            if crc == checksum(*tried):
                return tried
    return None


def _neighbours(value: object) -> Iterator[object]:
    """All values that differ by one bit of what the file holds: SQLite keeps a whole number as one, whatever it is."""
    if isinstance(value, bytes):
        yield from _flip(value)
    elif isinstance(value, int):
        yield from _whole_neighbours(value)
    elif isinstance(value, float):
        yield from (_DOUBLE.unpack(other)[0] for other in _flip(_DOUBLE.pack(value)))
        if value.is_integer() and abs(value) < 1 << 53:
            yield from (float(other) for other in _whole_neighbours(int(value)))


def _whole_neighbours(number: int) -> Iterator[int]:
    return (int.from_bytes(other, "little", signed=True) for other in _flip(number.to_bytes(8, "little", signed=True)))


def _flip(body: bytes) -> Iterator[bytes]:
    for place, octet in enumerate(body):
        yield from (body[:place] + bytes([octet ^ 1 << bit]) + body[place + 1 :] for bit in range(8))
