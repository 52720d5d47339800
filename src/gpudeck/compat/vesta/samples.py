"""What was posted or imported of each host, at its own times, in the hub's database: what `fetch_num` returns.

The history cannot answer that: it keeps means over steps of its own.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec import Struct
from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.dialects import postgresql, sqlite

from gpudeck.database.engine import Database
from gpudeck.database.schema import vesta_samples, vesta_spans

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
    "sqlite": sqlite.insert(vesta_samples).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(vesta_samples).on_conflict_do_nothing(),
}
_DELETE_EVERY: Final = 50
_TIMES: Final = (
    select(vesta_samples.c.at).where(vesta_samples.c.id == bindparam("b_id")).order_by(vesta_samples.c.at.desc())
)
_OLDEST_KEPT: Final = _TIMES.limit(1).offset(MOST - 1).scalar_subquery()
_DELETE_OLD: Final = delete(vesta_samples).where(
    vesta_samples.c.id == bindparam("b_id"), vesta_samples.c.at < _OLDEST_KEPT
)


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
        wanted = select(vesta_samples.c.at, vesta_samples.c.body).where(
            vesta_samples.c.id == host_id, vesta_samples.c.at < before
        )
        async with self._database.begin() as connection:
            rows = (await connection.execute(wanted.order_by(vesta_samples.c.at.desc()).limit(min(count, MOST)))).all()
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


class TimeSpan(Struct, frozen=True, order=True):
    """Everything from `start` to `end` was taken, both of them too."""

    start: float
    end: float

    def has(self, at: float) -> bool:
        return self.start <= at <= self.end


def merge_spans(spans: Iterable[TimeSpan]) -> list[TimeSpan]:
    """The same times in as few spans as can be, in order: those that touch are one."""
    merged: list[TimeSpan] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = TimeSpan(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


class ImportedSpans:
    """By the id of a sender, which stays when the sender itself is forgotten. All raise Temporary where the database
    does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, host_id: str) -> list[TimeSpan]:
        """In order; what lies between two of them was never taken."""
        wanted = select(vesta_spans).where(vesta_spans.c.id == host_id).order_by(vesta_spans.c.start)
        async with self._database.begin() as connection:
            return [TimeSpan(row["start"], row["end"]) for row in (await connection.execute(wanted)).mappings()]

    async def add(self, host_id: str, more: TimeSpan) -> list[TimeSpan]:
        """The spans from then on."""
        spans = merge_spans([*await self.find(host_id), more])
        rows = [{"id": host_id, "start": span.start, "end": span.end} for span in spans]
        async with self._database.begin() as connection:
            await connection.execute(delete(vesta_spans).where(vesta_spans.c.id == host_id))
            await connection.execute(insert(vesta_spans), rows)
        return spans

    async def forget(self, host_id: str) -> None:
        async with self._database.begin() as connection:
            await connection.execute(delete(vesta_spans).where(vesta_spans.c.id == host_id))
