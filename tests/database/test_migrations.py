"""Migrations end at the tables of `schema.py`, run once, and leave a newer gpudeck's database alone."""

import asyncio
import contextlib
import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from sqlalchemy import Column, Connection, Float, inspect, text

from database_fixtures import connect
from gpudeck.database import migrations, schema, sqlite
from gpudeck.database.engine import Database, open_database
from gpudeck.database.sqlite import FILE_NAME
from gpudeck.model.errors import UsageError, Wrong

Answer = TypeVar("Answer")
RECORDED = sorted((Path(__file__).parents[1] / "captures" / "database").glob("*.sql"))


@pytest.fixture
def migrated(database_address: str | None, tmp_path: Path) -> Database:
    """Migrated by itself, where other tests have copies of one that was."""
    asyncio.run(open_and_close(database_address, tmp_path))
    return connect(database_address, tmp_path)


def test_migrations_end_at_the_tables_of_the_schema(migrated: Database) -> None:
    def compare(connection: Connection) -> list[object]:
        context = MigrationContext.configure(connection, opts={"version_table": migrations.VERSION_TABLE})
        return list(compare_metadata(context, schema.metadata))

    assert asyncio.run(ask(migrated, compare)) == []


def test_migrated_tables_are_the_same_to_the_letter(migrated: Database) -> None:
    """Alembic compares neither checks nor names nor how ids count up; a later migration relies on all of them."""

    def make_anew(connection: Connection) -> object:
        schema.metadata.drop_all(connection)
        schema.metadata.create_all(connection)
        return describe(connection)

    assert asyncio.run(ask(migrated, describe)) == asyncio.run(ask(migrated, make_anew))


def test_steps_are_in_order_and_none_is_newer_than_the_version_that_the_hub_looks_for() -> None:
    versions = [version for version, _, _ in migrations.STEPS]
    assert versions == sorted(versions)
    assert all(version <= migrations.NEWEST for version in versions)


def test_a_step_changes_the_tables_of_an_older_gpudeck(
    migrated: Database, database_address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add_column(op: Operations) -> None:
        op.add_column("vesta_spans", Column("added", Float))

    def read(connection: Connection) -> object:
        columns = [column["name"] for column in inspect(connection).get_columns("vesta_spans")]
        version = connection.execute(text(f"SELECT version_num FROM {migrations.VERSION_TABLE}")).scalar()
        return "added" in columns, version

    asyncio.run(ask(migrated, lambda connection: set_version(connection, migrations.OLDEST)))
    monkeypatch.setattr(migrations, "STEPS", ((migrations.NEWEST, "vesta_spans", add_column),))
    asyncio.run(open_and_close(database_address, tmp_path))
    assert asyncio.run(ask(migrated, read)) == (True, migrations.NEWEST)


def test_the_tables_of_the_newest_version_are_recorded() -> None:
    """A change of `schema.py` is a new version: record it as tests/captures/database/VERSION.sql beside the others."""
    assert RECORDED[-1].stem == migrations.NEWEST


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda file: str(file.stem))
def test_tables_of_each_recorded_version_become_those_of_the_schema(recorded: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / FILE_NAME)) as file:
        file.executescript(recorded.read_text())
    asyncio.run(open_and_close(None, tmp_path))
    (tmp_path / "new").mkdir()
    asyncio.run(open_and_close(None, tmp_path / "new"))
    migrated, new = connect(None, tmp_path), connect(None, tmp_path / "new")
    assert asyncio.run(ask(migrated, describe)) == asyncio.run(ask(new, describe))


def test_of_hubs_that_start_at_once_one_migrates(
    database_address: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a loaded machine those that wait for a migration wait longer than a hub would.
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 100.0)

    async def playing() -> None:
        hubs = await asyncio.gather(*(open_database(database_address, tmp_path) for _ in range(4)))
        await asyncio.gather(*(hub.close() for hub in hubs))

    with caplog.at_level(logging.DEBUG, "gpudeck"):
        asyncio.run(playing())
    assert [line for line in caplog.messages if "version" in line] == [
        migrations.MIGRATED % ("none", migrations.NEWEST)
    ]


def test_migration_that_fails_leaves_the_database_as_it_was(
    database_address: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_connection: Connection) -> None:
        raise LookupError("after the migration")

    monkeypatch.setattr(migrations, "check_references", fail)
    with pytest.raises(LookupError):
        asyncio.run(open_and_close(database_address, tmp_path))
    monkeypatch.undo()
    asyncio.run(open_and_close(database_address, tmp_path))


def test_migration_that_loses_references_on_sqlite_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite itself does not look at them then."""

    def upgrade_badly(connection: Connection, _before: str) -> None:
        schema.metadata.create_all(connection)
        connection.execute(text("INSERT INTO sessions (hash, account_id, created_at, seen_at) VALUES ('s', 9, 1, 1)"))

    monkeypatch.setattr(migrations, "upgrade", upgrade_badly)
    with pytest.raises(Wrong, match="would leave 1 rows that refer to nothing"):
        asyncio.run(open_and_close(None, tmp_path))
    monkeypatch.undo()
    asyncio.run(open_and_close(None, tmp_path))


@pytest.mark.parametrize("version", [f"{int(migrations.NEWEST) + 1:04}", "9999", "ae1027a6acf"])
def test_database_of_a_newer_gpudeck_is_refused(
    migrated: Database, database_address: str | None, tmp_path: Path, version: str
) -> None:
    asyncio.run(ask(migrated, lambda connection: set_version(connection, version)))
    with pytest.raises(UsageError) as raised:
        asyncio.run(open_and_close(database_address, tmp_path))
    assert str(raised.value) == (
        f"the database {migrated.place} is from a newer gpudeck: its tables have version {version}, this one knows "
        f"{migrations.NEWEST}. Install that gpudeck again, or put back the backup from before it."
    )


def test_database_from_before_the_first_version_is_refused(
    migrated: Database, database_address: str | None, tmp_path: Path
) -> None:
    asyncio.run(ask(migrated, lambda connection: set_version(connection, "0011")))
    with pytest.raises(UsageError, match="is from a development version of gpudeck: its tables have version 0011"):
        asyncio.run(open_and_close(database_address, tmp_path))


def test_tables_of_somebody_else_are_left_alone(
    database_address: str | None, tmp_path: Path, migrated: Database
) -> None:
    asyncio.run(ask(migrated, lambda connection: connection.execute(text("DROP TABLE gpudeck_version"))))
    strange = "has tables that are not gpudeck's: accounts, alert_mutes, alerts, audit, cluster_hubs"
    with pytest.raises(UsageError, match=strange):
        asyncio.run(open_and_close(database_address, tmp_path))


async def open_and_close(address: str | None, data_dir: Path) -> None:
    await (await open_database(address, data_dir)).close()


async def ask(database: Database, question: Callable[[Connection], Answer]) -> Answer:
    async with database.begin() as connection:
        return await connection.run_sync(question)


def set_version(connection: Connection, version: str) -> None:
    connection.execute(text("UPDATE gpudeck_version SET version_num = :version"), {"version": version})


def describe(connection: Connection) -> object:
    """Everything that the database can tell of its tables."""
    return [sorted(map(tuple, connection.execute(text(query)))) for query in _DESCRIPTIONS[connection.dialect.name]]


_DESCRIPTIONS = {
    "sqlite": [
        # A table that was renamed has its name in quotes.
        "SELECT name, replace(sql, '\"' || name || '\" (', name || ' (')"
        " FROM sqlite_master WHERE tbl_name != 'gpudeck_version' AND sql IS NOT NULL"
    ],
    "postgresql": [
        "SELECT table_name, column_name, data_type, character_maximum_length::text, is_nullable,"
        " coalesce(regexp_replace(column_default, 'test[0-9]+', ''), '')"
        " FROM information_schema.columns WHERE table_schema = current_schema() AND table_name != 'gpudeck_version'",
        "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint"
        " WHERE connamespace = current_schema()::regnamespace",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = current_schema()",
    ],
}
