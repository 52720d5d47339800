"""The file looked at from outside: how large it is, and whether all of it can be read."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gpudeck.history import chunk, rollup
from gpudeck.history.codec import Damaged
from gpudeck.history.embedded import journal
from gpudeck.history.embedded.tables import split_key
from gpudeck.history.embedded.view import View

_TABLES = ("chunks", "quarters", "host_hours", "fleet_quarters", "uses", "uses_of_all", "runs", "journal")


class Part(Struct, frozen=True):
    """`bytes` is what is inside; None for tables of plain numbers."""

    name: str
    rows: int
    bytes: int | None


class Size(Struct, frozen=True):
    path: str
    file_bytes: int
    hosts: int
    gpus: int
    oldest: float | None
    newest: float | None
    parts: list[Part]


def measure(view: View, path: Path) -> Size:
    hosts = view.hosts().values()
    return Size(
        path=str(path),
        file_bytes=sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*") if file.is_file()),
        hosts=len(hosts),
        gpus=len(view.gpus()),
        oldest=min((host.first for host in hosts), default=None),
        newest=max((host.last for host in hosts), default=None),
        parts=[_part(view.connection, name) for name in _TABLES],
    )


def _part(connection: sqlite3.Connection, name: str) -> Part:
    has_body = any(row[1] == "body" for row in connection.execute(f"PRAGMA table_info({name})"))
    size = "CAST(total(length(body)) AS INTEGER)" if has_body else "NULL"
    return Part(name, *connection.execute(f"SELECT count(*), {size} FROM {name}").fetchone())  # noqa: S608


def find_damage(view: View) -> Iterator[str]:
    """A sentence for everything that cannot be read. Looks at every byte: takes a minute for some gigabytes."""
    for (sentence,) in view.connection.execute("PRAGMA integrity_check(20)"):
        if sentence != "ok":
            yield f"the file: {sentence}"
    names = {key: host.name for key, host in view.hosts().items()}
    for table, check in (("chunks", chunk.verify), ("quarters", rollup.decode)):
        for key, body in view.connection.execute(f"SELECT key, body FROM {table} ORDER BY key"):  # noqa: S608
            try:
                check(body)
            except Damaged as error:
                host, start = split_key(key)
                yield f"{table}: the hour from {start} of {names.get(host, host)}: {error}"
    for sentence in journal.find_damage(view.connection):
        yield f"journal: {sentence}"
