"""Tests get the tables of the tests before them, emptied: to make new ones takes the server five times as long."""

from fakes.postgres import PostgresServer
from fakes.tables import borrow_tables


def test_tables_are_lent_again_without_what_was_written(postgres: PostgresServer) -> None:
    with borrow_tables(postgres) as first:
        schema = first.rpartition("=")[2]
        postgres.execute(f"INSERT INTO {schema}.audit (at, who, action) VALUES (1, 'me', 'test')")
    with borrow_tables(postgres) as second:
        postgres.execute(f"DO $$ BEGIN ASSERT (SELECT count(*) = 0 FROM {schema}.audit); END $$")
    assert second == first


def test_tables_that_were_changed_are_not_lent_again(postgres: PostgresServer) -> None:
    with borrow_tables(postgres) as first:
        postgres.execute(f"ALTER TABLE {first.rpartition('=')[2]}.audit ADD COLUMN more text")
    with borrow_tables(postgres) as second:
        assert second != first
