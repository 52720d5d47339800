"""From when until when the past of each host was imported: the history cannot tell, as it lets go of single samples."""

from msgspec import Struct
from sqlalchemy import delete, insert, select, update

from gpudeck.database.engine import Database
from gpudeck.database.schema import vesta_past as table


class Span(Struct, frozen=True):
    """Everything from `start` to `end` was taken, both of them too."""

    start: float
    end: float

    def has(self, at: float) -> bool:
        return self.start <= at <= self.end


class Taken:
    """By the id of a sender, which stays when the sender itself is forgotten. All raise Temporary where the database
    does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find(self, host_id: str) -> Span | None:
        async with self._database.begin() as connection:
            row = (await connection.execute(select(table).where(table.c.id == host_id))).mappings().one_or_none()
        return None if row is None else Span(row["start"], row["end"])

    async def add(self, host_id: str, more: Span) -> Span:
        """The span from then on. Whoever imports sees to it that `more` adjoins what is there."""
        old = await self.find(host_id)
        span = more if old is None else Span(min(old.start, more.start), max(old.end, more.end))
        values = {"start": span.start, "end": span.end}
        async with self._database.begin() as connection:
            if old is None:
                await connection.execute(insert(table).values(id=host_id, **values))
            else:
                await connection.execute(update(table).where(table.c.id == host_id).values(**values))
        return span

    async def forget(self, host_id: str) -> None:
        async with self._database.begin() as connection:
            await connection.execute(delete(table).where(table.c.id == host_id))
