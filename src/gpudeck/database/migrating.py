"""Bring the tables of a database up to those of `schema.py`. Alembic is imported only when there is something to do."""

from pathlib import Path

from sqlalchemy import Connection, inspect, text

from gpudeck.model.errors import UsageError

NEWEST = "0001"
"""The last of the migrations. They are numbered, so that a newer gpudeck's is known as such."""

_FOLDER = Path(__file__).with_name("migrations")
_LOCK = 0x6770756465636B
"""The name of the lock on PostgreSQL, which knows them by number: "gpudeck" in ASCII."""


def is_newest(connection: Connection, place: str) -> bool:
    """Whether there is nothing to migrate. Raises UsageError for a database that this gpudeck does not understand."""
    found = _read_version(connection)
    if found is not None and not "0000" < found <= NEWEST:
        raise UsageError(
            f"the database {place} is from a newer gpudeck: its tables have version {found}, this one knows {NEWEST}.",
            "Install that gpudeck again, or put back the backup from before it.",
        )
    return found == NEWEST


def migrate(connection: Connection, place: str) -> None:
    """Do, in the transaction that the connection is in, what is missing. Of hubs that start at once one does it.

    On SQLite a transaction is alone from its beginning; on PostgreSQL a lock holds the others until this one ends.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    if not is_newest(connection, place):
        _upgrade(connection)


def _read_version(connection: Connection) -> str | None:
    """None for a database without tables of ours."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    return connection.execute(text("SELECT version_num FROM alembic_version")).scalar()


def _upgrade(connection: Connection) -> None:
    from alembic import command  # noqa: PLC0415 - takes longer than all else here, and most starts do without
    from alembic.config import Config  # noqa: PLC0415

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(_FOLDER).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    command.upgrade(config, NEWEST)
