"""The journal: each batch of samples as one row, until the hours it is of are sealed."""

import json
import logging
import sqlite3
from collections.abc import Iterator

import msgspec

from gpudeck.history.embedded.tables import key_of
from gpudeck.history.embedded.tail import Layout, Row
from gpudeck.history.hour import SECONDS

log = logging.getLogger(__name__)

Entry = list[tuple[int, Row]]
"""Rows with their hosts."""

encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode


def read_journal(connection: sqlite3.Connection) -> Iterator[tuple[int, Row, int, Layout]]:
    """Host, row, number of the entry and layout of everything that no sealed hour has yet, in order."""
    layouts: dict[int, Layout] = {}
    sealed: dict[int, int] = {}
    for entry, layout, body in connection.execute("SELECT id, layout, body FROM journal ORDER BY id").fetchall():
        if layout not in layouts:
            layouts[layout] = _find_layout(connection, layout)
        for host, row in _decode_or_skip(entry, body):
            key = key_of(host, row.at // SECONDS * SECONDS)
            if key not in sealed:
                sealed[key] = _sealed_upto(connection, key)
            if entry > sealed[key]:
                yield host, row, entry, layouts[layout]


def check_entry(body: bytes) -> None:
    """Raises msgspec.DecodeError for what cannot be read."""
    _decode(body)


def _decode_or_skip(entry: int, body: bytes) -> Entry:
    """A second that is damaged costs that second, not the history."""
    try:
        return _decode(body)
    except msgspec.DecodeError as error:
        log.warning("entry %d of the history's journal is damaged and left out: %s", entry, error)
        return []


def join_layout(layout: Layout) -> tuple[str, ...]:
    """As the file keeps it."""
    return (*layout.gpu, "", *layout.host)


def _find_layout(connection: sqlite3.Connection, key: int) -> Layout:
    names = json.loads(connection.execute("SELECT names FROM layouts WHERE id = ?", (key,)).fetchone()[0])
    middle = names.index("")
    return Layout(tuple(names[:middle]), tuple(names[middle + 1 :]))


def _sealed_upto(connection: sqlite3.Connection, key: int) -> int:
    """The last entry that is in that sealed hour; -1 where it is not sealed."""
    row = connection.execute("SELECT upto FROM sealed WHERE key = ?", (key,)).fetchone()
    return -1 if row is None else int(row[0])
