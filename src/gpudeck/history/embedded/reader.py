"""Opens the file as whoever answers questions sees it: one moment, whatever is written meanwhile."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gpudeck.history.embedded.journal import read_journal
from gpudeck.history.embedded.keys import Keys
from gpudeck.history.embedded.tables import key_of, open_to_read
from gpudeck.history.embedded.tail import Tail
from gpudeck.history.embedded.view import View
from gpudeck.history.embedded.writer import Writer
from gpudeck.history.hour import SECONDS
from gpudeck.model.errors import Temporary


class Reader:
    """Opens views of one moment. Each thread has a connection of its own."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._mine = threading.local()
        self._all: list[sqlite3.Connection] = []

    @contextmanager
    def view(self) -> "Iterator[View]":
        """Raises Temporary while the file cannot be read."""
        try:
            with self._view() as view:
                yield view
        except sqlite3.Error as error:
            hint = "`gpudeck history verify`, on the hub's machine, tells what is wrong with it."
            raise Temporary(f"the history cannot be read: {error}.", hint) from error

    @contextmanager
    def _view(self) -> "Iterator[View]":
        connection = self._connection()
        with self._writer.lock:
            connection.execute("BEGIN")
            connection.execute("SELECT value FROM meta").fetchone()  # the moment begins with the first look
            tails = dict(self._writer.tails)
        try:
            yield View(connection, self._writer.keys, tails, self._writer.damage)
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def close(self) -> None:
        for connection in self._all:
            connection.close()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._mine, "connection", None)
        if connection is None or self._mine.opened != self._writer.opened:
            self._mine.opened = self._writer.opened
            connection = self._mine.connection = open_to_read(self._writer.path)
            self._all.append(connection)
        return connection


@contextmanager
def view_file(path: Path) -> "Iterator[View]":
    """The file as it is, whether a hub is writing to it or not. What that hub took in its last second is not there."""
    with closing(open_to_read(path)) as connection:
        connection.execute("BEGIN")
        keys = Keys(connection)
        tails: dict[tuple[int, int], Tail] = {}
        for row, entry, layout in read_journal(connection):
            at = float(row.own[0])
            start = int(at // SECONDS) * SECONDS
            key = row.host, start
            host = keys.by_key.get(row.host)
            if host is None:
                continue
            host.first, host.last = min(host.first, at), max(host.last, at)
            if key not in tails:
                found = connection.execute("SELECT 1 FROM sealed WHERE key = ?", (key_of(*key),)).fetchone()
                tails[key] = Tail(start, None, entry, is_late=found is not None)
            tails[key].append(row, at, entry, layout)
        yield View(connection, keys, tails)
