"""Whether a hub could start on what is in a backup: asked when one is made, and again before it is restored."""

import sqlite3
from contextlib import closing
from pathlib import Path

from gpudeck.app.backup_archive import DATABASE, HISTORY, BadBackup, Manifest, unpack
from gpudeck.app.host_book import ManagedHosts
from gpudeck.database.copies import open_to_read
from gpudeck.database.migrating import NEWEST, VERSION_TABLE
from gpudeck.database.schema import metadata
from gpudeck.history.embedded import tables as history_tables
from gpudeck.history.embedded.journal import read_journal
from gpudeck.model.errors import UsageError


def open_backup(file: Path, folder: Path) -> Manifest:
    """Unpack it into that empty folder and check all of it. Raises BadBackup and OSError."""
    manifest = unpack(file, folder)
    if (manifest.tables or "") > NEWEST or (manifest.history or 0) > history_tables.VERSION:
        raise BadBackup(f"it is from a newer gpudeck ({manifest.gpudeck}); install that one first")
    try:
        _check_database(manifest, folder / DATABASE)
        _check_history(manifest, folder / HISTORY)
    except sqlite3.Error as error:
        raise BadBackup(f"a database in it cannot be used: {error}") from error
    try:
        ManagedHosts(folder / "hosts.yaml")
    except UsageError as error:
        raise BadBackup("its hosts.yaml makes no sense") from error
    return manifest


def read_tables_version(file: Path) -> str | None:
    """None where there is no file. Raises sqlite3.Error for one that is not a hub's."""
    if not file.exists():
        return None
    with closing(open_to_read(file)) as connection:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608
    return None if row is None else str(row[0])


def read_history_version(file: Path) -> int | None:
    """The same for the history."""
    if not file.exists():
        return None
    with closing(open_to_read(file)) as connection:
        return history_tables.version_of(connection)


def _check_database(manifest: Manifest, file: Path) -> None:
    """Raises sqlite3.DatabaseError for one that no hub wrote."""
    if read_tables_version(file) != manifest.tables:
        raise sqlite3.DatabaseError(f"{DATABASE} is of another version than listed")
    if file.exists():
        names = _check_file(file)
        missing = metadata.tables.keys() - names if manifest.tables == NEWEST else {"accounts"} - names
        if missing:
            raise sqlite3.DatabaseError(f"{DATABASE} has no table {min(missing)}")


def _check_history(manifest: Manifest, file: Path) -> None:
    if read_history_version(file) != manifest.history:
        raise sqlite3.DatabaseError(f"{HISTORY} is of another version than listed")
    if file.exists():
        _check_file(file)
        with closing(open_to_read(file)) as connection:
            # What cannot be read was so in the hub's file already: it costs seconds, and is told in the log.
            for _ in read_journal(connection):
                pass


def _check_file(file: Path) -> set[str]:
    """The names of its tables. A hub's have no triggers and views: those would do things behind its back."""
    with closing(open_to_read(file)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF").close()
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise sqlite3.DatabaseError(f"{file.name} is damaged: {' '.join(answer.split())}")
        found = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
    strange = [f"the {kind} {name}" for kind, name in found if kind not in {"table", "index"}]
    if strange:
        raise sqlite3.DatabaseError(f"{file.name} has {strange[0][:80]!r}, which no hub makes")
    return {name for _, name in found}
