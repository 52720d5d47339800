"""Migrations: bring the tables of a database to the version of `schema.py`.

A new table needs only the next number in `NEWEST`. A change of an existing table is a step in `STEPS`, never changed
once released. There is no way back: an older gpudeck refuses the database and needs the backup.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, String, Table, inspect, text

from gpudeck.database import Outdated
from gpudeck.database.schema import metadata
from gpudeck.model.errors import UsageError, Wrong

if TYPE_CHECKING:
    from alembic.operations import Operations

log = logging.getLogger(__name__)

OLDEST, NEWEST = "0018", "0026"
"""`NEWEST` is the version of the tables in `schema.py`, a number, so that newer versions are recognised. Tables older
than `OLDEST` were never released."""
VERSION_TABLE = "gpudeck_version"
MIGRATED = "the tables of the database went from version %s to %s"

_LOCK = int.from_bytes(b"gpudeck")
"""PostgreSQL identifies advisory locks by number."""
_version = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))


def is_newest(connection: Connection, place: str) -> bool:
    """Whether there is nothing to migrate. Raises UsageError for a database of an unknown version."""
    found = _read_version(connection)
    if found is not None and found < OLDEST:
        raise UsageError(
            f"the database {place} is from a development version of gpudeck: its tables have version {found}.",
            "Move it away, and start the hub with a new one.",
        )
    if found is not None and found > NEWEST:
        raise UsageError(
            f"the database {place} is from a newer gpudeck: its tables have version {found}, this one knows {NEWEST}.",
            "Install that gpudeck again, or put back the backup from before it.",
        )
    return found == NEWEST


def refuse_older(connection: Connection, place: str) -> None:
    """Raises Outdated for tables of an older gpudeck, whose hub may be running. An empty database is fine."""
    found = _read_version(connection)
    if found is not None and found < NEWEST:
        raise Outdated(
            f"the database {place} has tables of version {found}, this gpudeck needs {NEWEST}, and a hub of the older "
            "version may be using them.",
            "Restart the hub with this gpudeck, which updates them (`systemctl restart gpudeck-hub`), and try again.",
        )


def migrate(connection: Connection, place: str, keep: Callable[[str], object] | None = None) -> None:
    """Run the missing steps in the connection's transaction. If several hubs start at once, one of them does it: on
    PostgreSQL a lock holds the others. `keep` is called with the version before anything changes; if it raises, nothing
    is migrated."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if is_newest(connection, place):
        return
    before = _read_version(connection)
    if before is None:
        _refuse_foreign(connection, place)
    elif keep is not None:
        keep(before)
    upgrade(connection, before or "")
    check_references(connection)
    # An empty database is not worth a log line.
    log.log(logging.INFO if before else logging.DEBUG, MIGRATED, before or "none", NEWEST)


def _read_version(connection: Connection) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    version: str | None = connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608
    return version


def _refuse_foreign(connection: Connection, place: str) -> None:
    foreign = sorted(metadata.tables.keys() & set(inspect(connection).get_table_names()))
    if foreign:
        raise UsageError(
            f"the database {place} has tables that are not gpudeck's: {', '.join(foreign)}.",
            "Give gpudeck a database of its own.",
        )


def upgrade(connection: Connection, before: str) -> None:
    tables = inspect(connection).get_table_names()
    due = [change for version, table, change in STEPS if before < version and table in tables]
    if due:
        from alembic.migration import MigrationContext  # noqa: PLC0415 - takes long, and most starts do without
        from alembic.operations import Operations  # noqa: PLC0415

        operations = Operations(MigrationContext.configure(connection))
        for change in due:
            change(operations)
    metadata.create_all(connection)
    _version.create(connection, checkfirst=True)
    connection.execute(_version.delete())
    connection.execute(_version.insert().values(version_num=NEWEST))


def _keep_grants(operations: "Operations") -> None:
    """Grants of a provider no longer end with the session."""
    connection = operations.get_bind()
    metadata.tables["provider_grants"].create(connection)
    connection.execute(
        text(
            "INSERT INTO provider_grants (hash, account_id, provider, subject, sid, sealed, due_at) "
            "SELECT hash, account_id, provider, subject, sid, sealed, due_at "
            "FROM provider_sessions JOIN sessions USING (hash)"
        )
    )
    operations.drop_table("provider_sessions")


STEPS: tuple[tuple[str, str, Callable[["Operations"], None]], ...] = (("0025", "provider_sessions", _keep_grants),)
"""In order: the version from which the step applies, the table that it changes, and the change. A database without that
table gets it from `schema.py`."""


def check_references(connection: Connection) -> None:
    """SQLite does not check references during a migration: refilling a table would delete all rows that refer to it."""
    if connection.dialect.name == "sqlite":
        broken = connection.execute(text("PRAGMA foreign_key_check")).all()
        if broken:
            raise Wrong(f"the migration to version {NEWEST} would leave {len(broken)} rows that refer to nothing.")
