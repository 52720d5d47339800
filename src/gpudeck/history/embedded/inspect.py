"""The file looked at from outside: how large it is, and what takes the room."""

import sqlite3
from pathlib import Path

from msgspec import Struct

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
