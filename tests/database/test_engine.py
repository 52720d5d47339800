"""Opening the hub's database and its transactions, the same on SQLite and PostgreSQL."""

import asyncio
import logging
from pathlib import Path

import pytest
from sqlalchemy import func, insert, select, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from gpudeck.database import postgresql, schema, sqlite
from gpudeck.database.engine import Database, open_database
from gpudeck.model.errors import Temporary


def test_transaction_is_kept_when_its_block_ends(database: Database) -> None:
    asyncio.run(add_row(database, "kept"))
    assert asyncio.run(read_rows(database)) == ["kept"]


def test_transaction_is_undone_when_its_block_raises(database: Database) -> None:
    with pytest.raises(LookupError):
        asyncio.run(add_row(database, "undone", LookupError()))
    assert asyncio.run(read_rows(database)) == []


def test_what_was_written_is_there_after_opening_again(database_address: str | None, tmp_path: Path) -> None:
    async def playing() -> list[str]:
        database = await open_database(database_address, tmp_path)
        await add_row(database, "first")
        await database.close()
        again = await open_database(database_address, tmp_path)
        rows = await read_rows(again)
        await again.close()
        return rows

    assert asyncio.run(playing()) == ["first"]


def test_many_transactions_at_once_all_come_through(database_address: str | None, tmp_path: Path) -> None:
    async def playing() -> int:
        database = await open_database(database_address, tmp_path)
        await asyncio.gather(*(add_row(database, str(number)) for number in range(50)))
        count = len(await read_rows(database))
        await database.close()
        return count

    assert asyncio.run(playing()) == 50


def test_processes_that_write_at_once_wait_for_each_other(database_address: str | None, tmp_path: Path) -> None:
    async def playing() -> int:
        several = [await open_database(database_address, tmp_path) for _ in range(4)]
        await asyncio.gather(*(add_row(database, "x") for database in several for _ in range(10)))
        count = len(await read_rows(several[0]))
        await asyncio.gather(*(database.close() for database in several))
        return count

    assert asyncio.run(playing()) == 40


def test_transaction_that_reads_and_then_writes_loses_no_update_of_another(database: Database) -> None:
    async def count_up() -> None:
        async with database.begin() as connection:
            row = schema.accounts.select().where(schema.accounts.c.name == "alice").with_for_update()
            seen = (await connection.execute(row)).one().created_at
            await asyncio.sleep(0)
            await connection.execute(schema.accounts.update().values(created_at=seen + 1))

    async def playing() -> float:
        async with database.begin() as connection:
            await connection.execute(insert(schema.accounts).values(name="alice", role="user", created_at=0.0))
        await asyncio.gather(*(count_up() for _ in range(8)))
        async with database.begin() as connection:
            return float((await connection.execute(select(schema.accounts.c.created_at))).scalar_one())

    assert asyncio.run(playing()) == 8


def test_request_that_is_cancelled_leaves_nothing_behind_and_the_database_usable(
    database_address: str | None, tmp_path: Path
) -> None:
    async def playing() -> list[str]:
        database = await open_database(database_address, tmp_path)
        for _ in range(2 * postgresql.POOL_SIZE):
            await cancel_in_the_middle(database)
        await add_row(database, "after")
        rows = await read_rows(database)
        await database.close()
        return rows

    assert asyncio.run(playing()) == ["after"]


async def cancel_in_the_middle(database: Database) -> None:
    is_inside = asyncio.Event()

    async def writing() -> None:
        async with database.begin() as connection:
            await connection.execute(insert(schema.audit).values(at=1.0, who="cancelled", action="test"))
            is_inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(writing())
    await is_inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_waiting_for_a_connection_has_an_end(
    database_address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.05)
    monkeypatch.setattr(postgresql, "WAIT_SECONDS", 0.05)

    async def playing() -> None:
        database = await open_database(database_address, tmp_path)
        try:
            await nest(database, postgresql.POOL_SIZE + 1)
        finally:
            await database.close()

    with pytest.raises(Temporary, match="is busy"):
        asyncio.run(playing())


async def nest(database: Database, depth: int) -> None:
    for _ in range(min(depth, 1)):
        async with database.begin():
            await nest(database, depth - 1)


def test_violated_constraints_are_left_to_the_caller(database: Database) -> None:
    async def playing() -> None:
        for _ in range(2):
            async with database.begin() as connection:
                await connection.execute(insert(schema.accounts).values(name="alice", role="user", created_at=1.0))

    with pytest.raises(IntegrityError):
        asyncio.run(playing())


@pytest.mark.parametrize(
    "values",
    [
        {"name": "alice", "role": "king", "created_at": 1.0},
        {"name": None, "role": "user", "created_at": 1.0},
    ],
)
def test_rows_that_make_no_sense_are_refused(database: Database, values: dict[str, object]) -> None:
    async def playing() -> None:
        async with database.begin() as connection:
            await connection.execute(insert(schema.accounts).values(**values))

    with pytest.raises(IntegrityError):
        asyncio.run(playing())


def test_session_of_nobody_is_refused(database: Database) -> None:
    with pytest.raises(IntegrityError):
        asyncio.run(add_session(database, account_id=99))


def test_account_takes_its_sessions_and_tokens_along(database: Database) -> None:
    async def playing() -> list[int]:
        async with database.begin() as connection:
            alice = insert(schema.accounts).values(name="alice", role="user", created_at=1.0)
            (account_id,) = (await connection.execute(alice)).inserted_primary_key or ()
            token = {"hash": "t", "name": "t", "role": "user", "account_id": account_id, "created_at": 1.0}
            await connection.execute(insert(schema.tokens).values(token))
        await add_session(database, account_id)
        async with database.begin() as connection:
            await connection.execute(schema.accounts.delete())
            counts = [select(func.count()).select_from(table) for table in (schema.sessions, schema.tokens)]
            return [(await connection.execute(count)).scalar_one() for count in counts]

    assert asyncio.run(playing()) == [0, 0]


def test_mistake_of_ours_is_not_taken_for_a_database_that_is_away(database: Database) -> None:
    async def playing() -> None:
        async with database.begin() as connection:
            await connection.execute(text("SELECT no_such_column FROM audit"))

    with pytest.raises(DBAPIError):
        asyncio.run(playing())


def test_neither_logs_nor_errors_have_the_values_of_a_statement(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async def playing() -> None:
        async with database.begin() as connection:
            values = {"name": "alice", "role": "user", "created_at": 1.0, "password_hash": "$argon2id$secret"}
            await connection.execute(insert(schema.accounts).values(values))
            await connection.execute(insert(schema.accounts).values(values))

    with caplog.at_level(logging.DEBUG), pytest.raises(IntegrityError) as raised:
        asyncio.run(playing())
    assert "secret" not in caplog.text
    assert "secret" not in str(raised.value)


async def add_row(database: Database, who: str, error: Exception | None = None) -> None:
    async with database.begin() as connection:
        await connection.execute(insert(schema.audit).values(at=1.0, who=who, action="test"))
        if error:
            raise error


async def add_session(database: Database, account_id: int) -> None:
    async with database.begin() as connection:
        session = {"hash": "s", "account_id": account_id, "created_at": 1.0, "seen_at": 1.0}
        await connection.execute(insert(schema.sessions).values(session))


async def read_rows(database: Database) -> list[str]:
    async with database.begin() as connection:
        return list((await connection.execute(select(schema.audit.c.who).order_by(schema.audit.c.id))).scalars())
