"""What was posted or imported of each host, at its own times, in the hub's database: what `fetch_num` returns.

The history cannot answer that: it keeps means over steps of its own.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from gpudeck.database.engine import Database
from gpudeck.database.schema import vesta_samples as table

MOST: Final = 1000
"""Samples of a host that `fetch_num` returns at most, and that are kept: the newest ones."""
_FAST: Final = 1
_GATHER_SECONDS: Final = 0.005
"""Cron starts all senders in the same second, and a transaction costs more than a post."""

Json = dict[str, Any]
Moment = tuple[float, Json]
"""When, and the GPUs of then in vesta's words."""
_Row = dict[str, Any]
_INSERT: Final = {
    "sqlite": sqlite.insert(table).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(table).on_conflict_do_nothing(),
}
_DELETE_EVERY: Final = 50
_TIMES: Final = select(table.c.at).where(table.c.id == bindparam("b_id")).order_by(table.c.at.desc())
_OLDEST_KEPT: Final = _TIMES.limit(1).offset(MOST - 1).scalar_subquery()
_DELETE_OLD: Final = delete(table).where(table.c.id == bindparam("b_id"), table.c.at < _OLDEST_KEPT)


class Samples:
    """By the id of a sender. Everything raises Temporary if the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[_Row] = []
        self._since: dict[str, int] = {}
        self._writing = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    async def keep(self, host_id: str, at: float, gpus: Json) -> None:
        """A post. Returns once it is written; senders that post at once share a transaction."""
        self._waiting.append(_row(host_id, at, gpus))
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._write_waiting())
        await asyncio.shield(self._next)

    async def add(self, host_id: str, moments: Iterable[Moment]) -> None:
        """What was imported. Returns once it is written."""
        rows = [_row(host_id, at, gpus) for at, gpus in moments]
        async with self._writing:
            await self._write(rows)

    async def newest(self, host_id: str, before: float, count: int) -> list[Moment]:
        """The `count` newest from before that time, the newest last."""
        wanted = select(table.c.at, table.c.body).where(table.c.id == host_id, table.c.at < before)
        async with self._database.begin() as connection:
            rows = (await connection.execute(wanted.order_by(table.c.at.desc()).limit(min(count, MOST)))).all()
        return await asyncio.to_thread(_unpack, rows[::-1])

    async def _write_waiting(self) -> None:
        """What comes in a moment, and while the transaction before runs, is one transaction for all who wait."""
        await asyncio.sleep(_GATHER_SECONDS)
        async with self._writing:
            rows, self._waiting, self._next = self._waiting, [], None
            await self._write(rows)

    async def _write(self, rows: list[_Row]) -> None:
        counts = Counter(row["id"] for row in rows)
        full = [{"b_id": host_id} for host_id, count in counts.items() if self._is_due(host_id, count)]
        async with self._database.begin() as connection:
            await connection.execute(_INSERT[self._database.kind], rows)
            if full:
                await connection.execute(_DELETE_OLD, full)

    def _is_due(self, host_id: str, count: int) -> bool:
        """Whether old samples of that host are deleted now: not with every post, which would double its cost."""
        self._since[host_id] = self._since.get(host_id, 0) + count
        return self._since[host_id] >= _DELETE_EVERY and self._since.pop(host_id) > 0


def _row(host_id: str, at: float, gpus: Json) -> _Row:
    return {"id": host_id, "at": at, "body": zlib.compress(msgspec.json.encode(gpus), _FAST)}


def _unpack(rows: Sequence[Any]) -> list[Moment]:
    return [(at, msgspec.json.decode(zlib.decompress(body))) for at, body in rows]
