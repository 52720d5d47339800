"""Bring the tables of a database up to those of `schema.py`. Alembic is imported only when there is something to do."""

import logging
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import Connection, inspect, text

from gpudeck.database.errors import Outdated
from gpudeck.database.schema import metadata
from gpudeck.model.errors import UsageError, Wrong

log = logging.getLogger(__name__)

NEWEST = "0011"
"""The last of the migrations. They are numbered, so that a newer gpudeck's is known as such."""
VERSION_TABLE = "gpudeck_version"
"""Where the number stands. Not under Alembic's own name: another program may keep its tables in the same database."""
MIGRATED = "the tables of the database went from version %s to %s"

_FOLDER = Path(__file__).with_name("migrations")
_LOCK = int.from_bytes(b"gpudeck")
"""PostgreSQL knows locks by number."""


def is_newest(connection: Connection, place: str) -> bool:
    """Whether there is nothing to migrate. Raises UsageError for a database that this gpudeck does not understand."""
    found = _read_version(connection)
    if found is not None and not "0000" < found <= NEWEST:
        raise UsageError(
            f"the database {place} is from a newer gpudeck: its tables have version {found}, this one knows {NEWEST}.",
            "Install that gpudeck again, or put back the backup from before it.",
        )
    return found == NEWEST


def refuse_older(connection: Connection, place: str) -> None:
    """Raises Outdated for tables of an older gpudeck, which may be in use by its hub. No tables at all are fine."""
    found = _read_version(connection)
    if found is not None and found < NEWEST:
        raise Outdated(
            f"the database {place} has tables of version {found}, this gpudeck needs {NEWEST}, and a hub of the older "
            "version may be using them.",
            "Restart the hub with this gpudeck, which updates them (`systemctl restart gpudeck-hub`), and try again.",
        )


def migrate(connection: Connection, place: str, keep: Callable[[str], object] | None = None) -> None:
    """Do, in the transaction that the connection is in, what is missing. Of hubs that start at once one does it.

    `keep` is called with the version before anything changes, where there is something to lose; what it raises stops
    the migration. On SQLite a transaction is alone from its beginning; on PostgreSQL a lock holds the others until this
    one ends.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if is_newest(connection, place):
        return
    before = _read_version(connection)
    if before is None:
        _refuse_strangers(connection, place)
    elif keep is not None:
        keep(before)
    _upgrade(connection)
    _check_references(connection)
    # A database that was empty is no news.
    log.log(logging.INFO if before else logging.DEBUG, MIGRATED, before or "none", NEWEST)


def _read_version(connection: Connection) -> str | None:
    """None for a database without tables of ours."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
    return version


def _refuse_strangers(connection: Connection, place: str) -> None:
    strangers = sorted(metadata.tables.keys() & set(inspect(connection).get_table_names()))
    if strangers:
        raise UsageError(
            f"the database {place} has tables that are not gpudeck's: {', '.join(strangers)}.",
            "Give gpudeck a database of its own.",
        )


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - takes longer than all else here, and most starts do without
    from alembic.config import Config  # noqa: PLC0415

    logging.getLogger("alembic").setLevel(logging.WARNING)  # `migrate` says in one line what it says in three
    config = Config(attributes={"connection": connection, "version_table": VERSION_TABLE})
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, NEWEST)


def _check_references(connection: Connection) -> None:
    """SQLite checks none during a migration: a table that is filled anew would take along all that refers to it."""
    if connection.dialect.name == "sqlite":
        broken = connection.execute(text("PRAGMA foreign_key_check")).all()
        if broken:
            raise Wrong(f"the migration to version {NEWEST} would leave {len(broken)} rows that refer to nothing.")
