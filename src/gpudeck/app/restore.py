"""Put a backup in place of what a stopped hub has. All of the archive is checked first; what was there is kept."""

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from gpudeck.app.backup import read_history_version, read_tables_version
from gpudeck.app.backup_archive import AGENT_TOKEN, CONFIG, DATABASE, HISTORY, NAMES, Manifest, refuse, unpack
from gpudeck.app.host_book import ManagedHosts
from gpudeck.app.hub_lock import alone
from gpudeck.app.own_database import caller_here
from gpudeck.app.restore_note import NOTE, write_note
from gpudeck.app.settings import Settings, find_data_dir, find_token_file, load_settings
from gpudeck.database.copies import open_to_read
from gpudeck.database.migrating import NEWEST
from gpudeck.database.schema import metadata
from gpudeck.history.embedded import tables as history_tables
from gpudeck.model.errors import GpudeckError, UsageError

_BESIDE = ("-wal", "-shm", "-journal")
"""What SQLite has beside a file belongs to it: with another one it would be damage."""


class Restored(Struct, frozen=True):
    """`aside` is where that lies which was there before, None where nothing was. `apart` are files of the archive that
    lie in the data folder under a name of their own, with the place that they are for, if there is one: a person
    decides about those."""

    manifest: Manifest
    data_dir: Path
    aside: Path | None
    apart: list[tuple[Path, Path | None]]


def restore(file: Path, config: Path | None) -> Restored:
    """Blocks. Raises GpudeckError; then everything is as it was."""
    settings, config_file = load_settings(config)
    data_dir = find_data_dir(settings)
    with alone(data_dir), _staging(data_dir) as stage:
        try:
            manifest = unpack(file, stage)
            _check(manifest, settings, stage, file)
            elsewhere = _places_elsewhere(settings, config_file)
            apart = _set_apart(stage, elsewhere)
            names = [name for name in NAMES if name not in elsewhere and name not in manifest.left_out]
            write_note(stage, manifest, caller_here().name)
            aside = _exchange(data_dir, [*names, NOTE, *(path.name for path, _ in apart)], stage)
        except OSError as error:
            raise GpudeckError(
                f"{error.filename or file} cannot be read or written: {(error.strerror or str(error)).lower()}.",
                "Nothing was changed.",
            ) from error
    return Restored(manifest, data_dir, aside, [(data_dir / path.name, place) for path, place in apart])


@contextlib.contextmanager
def _staging(data_dir: Path) -> Iterator[Path]:
    """In the data folder: from there a file gets to its place in one step."""
    with tempfile.TemporaryDirectory(dir=data_dir, prefix=".restoring-") as name:
        yield Path(name)


def _check(manifest: Manifest, settings: Settings, stage: Path, file: Path) -> None:
    here = "sqlite" if settings.database is None else "postgresql"
    if manifest.database != here:
        raise UsageError(
            f"{file} is of a hub with its tables on {manifest.database}, and this one has them on {here}.",
            "Set `database` in gpudeck.yaml as it was there.",
        )
    newer = (manifest.tables or "") > NEWEST or (manifest.history or 0) > history_tables.VERSION
    if newer:
        raise refuse(file, f"it is from a newer gpudeck ({manifest.gpudeck}); install that one first")
    try:
        _check_database(manifest, stage / DATABASE)
        _check_history(manifest, stage / HISTORY)
    except sqlite3.Error as error:
        raise refuse(file, f"a database in it cannot be used: {error}") from error
    try:
        ManagedHosts(stage / "hosts.yaml")
    except UsageError as error:
        raise refuse(file, "its hosts.yaml makes no sense") from error


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


def _check_file(file: Path) -> set[str]:
    """The names of its tables. A hub's have no triggers and views: those would do things behind its back."""
    with closing(open_to_read(file)) as connection:
        connection.execute("PRAGMA trusted_schema = OFF").close()
        (answer,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if answer != "ok":
            raise sqlite3.DatabaseError(f"{file.name} is damaged: {answer}")
        found = connection.execute("SELECT type, name FROM sqlite_master").fetchall()
    strange = [f"the {kind} {name}" for kind, name in found if kind not in {"table", "index"}]
    if strange:
        raise sqlite3.DatabaseError(f"{file.name} has {strange[0][:80]!r}, which no hub makes")
    return {name for _, name in found}


def _places_elsewhere(settings: Settings, config: Path | None) -> dict[str, Path | None]:
    """Files that do not lie in the data folder. They are other people's to change: often they are in /etc."""
    places: dict[str, Path | None] = {CONFIG: config}
    return places | ({AGENT_TOKEN: find_token_file(settings.token_file)} if settings.token_file else {})


def _set_apart(stage: Path, places: dict[str, Path | None]) -> list[tuple[Path, Path | None]]:
    """Give those a name under which nothing reads them; what is the same in its place already is not needed."""
    apart = []
    for name, place in places.items():
        file = stage / name
        if not file.exists():
            continue
        if place is not None and _is_same(file, place):
            file.unlink()
            continue
        apart.append((file.rename(stage / f"restored-{name}"), place))
    return apart


def _is_same(file: Path, other: Path) -> bool:
    try:
        return other.read_bytes() == file.read_bytes()
    except OSError:
        return False


def _exchange(data_dir: Path, names: list[str], stage: Path) -> Path | None:
    """What has one of these names goes aside, what is restored takes its place; all of it, or nothing."""
    aside = data_dir / f"before-restore-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    leaving = [name + end for name in names for end in ("", *_BESIDE)]
    moves = [(data_dir / name, aside / name) for name in leaving if os.path.lexists(data_dir / name)]
    coming = [(stage / name, data_dir / name) for name in names if (stage / name).exists()]
    _belong_to_owner_of(data_dir, [file for file, _ in coming])
    if moves:
        aside.mkdir(mode=0o700)
        _belong_to_owner_of(data_dir, [aside])
    try:
        _move_all([*moves, *coming])
    except OSError:
        if moves:
            aside.rmdir()
        raise
    return aside if moves else None


def _move_all(moves: list[tuple[Path, Path]]) -> None:
    """One after another; when one fails those before it are undone. Raises OSError."""
    done: list[tuple[Path, Path]] = []
    try:
        for source, target in moves:
            source.rename(target)
            done.append((source, target))
    except OSError:
        for source, target in reversed(done):
            target.rename(source)
        raise


def _belong_to_owner_of(data_dir: Path, files: list[Path]) -> None:
    """Root restores for the user that runs the hub."""
    if os.geteuid() == 0:
        owner = data_dir.stat()
        for file in files:
            os.chown(file, owner.st_uid, owner.st_gid)
