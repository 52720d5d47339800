"""From when until when the past of each host was imported: the history cannot tell, as it lets go of single samples."""

from collections.abc import Iterable

from msgspec import Struct
from sqlalchemy import delete, insert, select

from gpudeck.database.engine import Database
from gpudeck.database.schema import vesta_spans as table


class Span(Struct, frozen=True, order=True):
    """Everything from `start` to `end` was taken, both of them too."""

    start: float
    end: float

    def has(self, at: float) -> bool:
        return self.start <= at <= self.end


def merge(spans: Iterable[Span]) -> list[Span]:
    """The same times in as few spans as can be, in order: those that touch are one."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged


class Taken:
    """By the id of a sender, which stays when the sender itself is forgotten. All raise Temporary where the database
    does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, host_id: str) -> list[Span]:
        """In order; what lies between two of them was never taken."""
        wanted = select(table).where(table.c.id == host_id).order_by(table.c.start)
        async with self._database.begin() as connection:
            return [Span(row["start"], row["end"]) for row in (await connection.execute(wanted)).mappings()]

    async def add(self, host_id: str, more: Span) -> list[Span]:
        """The spans from then on."""
        spans = merge([*await self.find(host_id), more])
        rows = [{"id": host_id, "start": span.start, "end": span.end} for span in spans]
        async with self._database.begin() as connection:
            await connection.execute(delete(table).where(table.c.id == host_id))
            await connection.execute(insert(table), rows)
        return spans

    async def forget(self, host_id: str) -> None:
        async with self._database.begin() as connection:
            await connection.execute(delete(table).where(table.c.id == host_id))
