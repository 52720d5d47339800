"""Those who wait, in the database, those of each fleet by themselves: so a hub that is started again knows the line."""

from typing import Any, Final

import msgspec
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpudeck.database.engine import Database
from gpudeck.database.fleets import REAL
from gpudeck.database.schema import queue_requests as table
from gpudeck.model.wanted import Wanted
from gpudeck.queueing.request import Granted, Request

_WANTED: Final = ("gpus", "memory_bytes", "model", "same_host", "host", "near")


class QueueStore:
    """One fleet's line. All of it raises Temporary where the database does not answer."""

    def __init__(self, database: Database, fleet: str = REAL) -> None:
        self._database = database
        self._fleet = fleet

    @property
    def is_shared(self) -> bool:
        """Whether other hubs may write to the same tables."""
        return self._database.kind == "postgresql"

    async def list(self) -> list[Request]:
        """In the order in which they came."""
        wanted = select(table).where(table.c.fleet == self._fleet).order_by(table.c.created_at, table.c.id)
        async with self._database.begin() as connection:
            return [_read(dict(row)) for row in (await connection.execute(wanted)).mappings()]

    async def add(self, key: str, user: str, account: str | None, wanted: Wanted, now: float) -> Request:
        """The request with that key, a new one where there is none."""
        row = {name: getattr(wanted, name) for name in _WANTED} | {"same_host": int(wanted.same_host)}
        row |= {"fleet": self._fleet, "key": key, "user": user, "account": account}
        row |= {"created_at": now, "last_seen_at": now}
        try:
            async with self._database.begin() as connection:
                made = (await connection.execute(insert(table).values(row).returning(table))).mappings().one()
                return _read(dict(made))
        except IntegrityError:
            async with self._database.begin() as connection:
                known = select(table).where(table.c.fleet == self._fleet, table.c.key == key)
                return _read(dict((await connection.execute(known)).mappings().one()))

    async def note_seen(self, numbers: dict[int, float]) -> None:
        """When those who wait were last heard of, by id."""
        async with self._database.begin() as connection:
            for number, at in numbers.items():
                later = (table.c.id == number) & (table.c.last_seen_at < at)
                await connection.execute(update(table).where(later).values(last_seen_at=at))

    async def grant(self, number: int, granted: Granted) -> bool:
        """False where it is gone, or another hub was first."""
        text = msgspec.json.encode(granted).decode()
        is_waiting = (table.c.id == number) & table.c.granted.is_(None)
        async with self._database.begin() as connection:
            return (await connection.execute(update(table).where(is_waiting).values(granted=text))).rowcount == 1

    async def extend(self, number: int, granted: Granted) -> None:
        """What was granted is kept for longer."""
        text = msgspec.json.encode(granted).decode()
        is_granted = (table.c.id == number) & table.c.granted.is_not(None)
        async with self._database.begin() as connection:
            await connection.execute(update(table).where(is_granted).values(granted=text))

    async def remove(self, number: int) -> None:
        async with self._database.begin() as connection:
            await connection.execute(delete(table).where(table.c.id == number))


def _read(row: dict[str, Any]) -> Request:
    wanted = {name: row[name] for name in _WANTED} | {"same_host": bool(row["same_host"])}
    granted = row["granted"]
    return Request(
        id=row["id"],
        key=row["key"],
        user=row["user"],
        account=row["account"],
        wanted=Wanted(**wanted),
        created_at=row["created_at"],
        last_seen_at=row["last_seen_at"],
        granted=None if granted is None else msgspec.json.decode(granted, type=Granted),
    )
