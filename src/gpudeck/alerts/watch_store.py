"""Watches in the database, those of each fleet by themselves."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update

from gpudeck.database.engine import Database, delete_old
from gpudeck.database.schema import REAL
from gpudeck.database.schema import watches as table
from gpudeck.model.wanted import Wanted
from gpudeck.model.watch import FoundGpu, Watch

_LISTED_SECONDS: Final = 7 * 86_400.0
"""How long one that fired is still shown to whom it belongs."""
_WANTED: Final = ("gpus", "memory_bytes", "model", "same_host", "host")


class WatchStore:
    """One fleet's watches. All of it raises Temporary where the database does not answer."""

    def __init__(self, database: Database, fleet: str = REAL) -> None:
        self._database = database
        self._fleet = fleet

    @property
    def is_shared(self) -> bool:
        return self._database.kind == "postgresql"

    async def list(self, now: float) -> list[Watch]:
        """Those that are open or fired lately, in the order in which they came."""
        mine = table.c.fleet == self._fleet
        async with self._database.begin() as connection:
            found = await connection.execute(select(table).where(mine, ~_is_over(now)).order_by(table.c.id))
            return [_read(dict(row)) for row in found.mappings()]

    async def trim(self, now: float) -> None:
        """Delete those that nobody wants to see any more, of every fleet."""
        await delete_old(self._database, table, table.c.created_at, _is_over(now))

    async def add(self, user: str, account: str | None, wanted: Wanted, now: float, expires_at: float) -> Watch:
        row = {name: getattr(wanted, name) for name in _WANTED} | {"same_host": int(wanted.same_host)}
        row |= {"fleet": self._fleet, "user": user, "account": account, "created_at": now, "expires_at": expires_at}
        async with self._database.begin() as connection:
            made = (await connection.execute(insert(table).values(row).returning(table))).mappings().one()
        return _read(dict(made))

    async def fire(self, number: int, now: float, found: Sequence[FoundGpu]) -> bool:
        """False where it has fired, or is gone."""
        is_open = (table.c.id == number) & table.c.fired_at.is_(None)
        text = msgspec.json.encode(found).decode()
        async with self._database.begin() as connection:
            fired = await connection.execute(update(table).where(is_open).values(fired_at=now, found=text))
            return fired.rowcount == 1

    async def remove(self, number: int) -> bool:
        mine = (table.c.id == number) & (table.c.fleet == self._fleet)
        async with self._database.begin() as connection:
            return (await connection.execute(delete(table).where(mine))).rowcount == 1


def _is_over(now: float) -> ColumnElement[bool]:
    is_expired = table.c.fired_at.is_(None) & (table.c.expires_at < now)
    return or_(func.coalesce(table.c.fired_at, now) < now - _LISTED_SECONDS, is_expired)


def _read(row: dict[str, Any]) -> Watch:
    wanted = {name: row[name] for name in _WANTED} | {"same_host": bool(row["same_host"])}
    return Watch(
        id=row["id"],
        user=row["user"],
        account=row["account"],
        wanted=Wanted(**wanted),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
        fired_at=row["fired_at"],
        found=msgspec.json.decode(row["found"] or "[]", type=list[FoundGpu]),
    )
