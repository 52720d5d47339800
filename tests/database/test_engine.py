"""Opening the hub's database, and its transactions."""

import asyncio

import pytest
from sqlalchemy import insert, select

from gpudeck.database import schema
from gpudeck.database.engine import Database


def test_transaction_is_kept_when_its_block_ends(database: Database) -> None:
    asyncio.run(add_row(database, "kept"))
    assert asyncio.run(read_rows(database)) == ["kept"]


def test_transaction_is_undone_when_its_block_raises(database: Database) -> None:
    with pytest.raises(LookupError):
        asyncio.run(add_row(database, "undone", LookupError()))
    assert asyncio.run(read_rows(database)) == []


async def add_row(database: Database, who: str, error: Exception | None = None) -> None:
    async with database.begin() as connection:
        await connection.execute(insert(schema.audit).values(at=1.0, who=who, action="test"))
        if error:
            raise error


async def read_rows(database: Database) -> list[str]:
    async with database.begin() as connection:
        return list((await connection.execute(select(schema.audit.c.who).order_by(schema.audit.c.id))).scalars())
