"""Make a backup of a hub, also while it runs: whole copies of its two databases, and its small files."""

import os
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from gpudeck import __version__
from gpudeck.app.backup_archive import (
    AGENT_TOKEN,
    CONFIG,
    DATABASE,
    FORMAT,
    HISTORY,
    NAMES,
    SMALL,
    Manifest,
    describe_file,
    pack,
)
from gpudeck.app.settings import Settings, choose_data_dir, find_token_file, load_settings
from gpudeck.database.copies import copy_file, open_to_read
from gpudeck.database.migrating import VERSION_TABLE
from gpudeck.history.embedded.tables import version_of
from gpudeck.model.errors import GpudeckError, UsageError


def make_backup(target: Path | None, config: Path | None, *, with_history: bool = True) -> Manifest:
    """Write the archive to that file, which must not be there yet, or to the standard output for None; what is in it.

    Only its owner can read the file, and it is there when it is whole. Raises GpudeckError.
    """
    settings, config_file = load_settings(config)
    data_dir = choose_data_dir(settings)
    if target is not None and target.exists():
        raise UsageError(f"{target} is there already.", "Name another file, or move it away.")
    try:
        with tempfile.TemporaryDirectory(dir=_folder_for_copies(target), prefix=".gpudeck-backup-") as name:
            folder = Path(name)
            left_out = _gather(settings, data_dir, config_file, folder, with_history=with_history)
            manifest = _describe(settings, folder, left_out)
            if {entry.name for entry in manifest.files} <= {CONFIG}:
                raise UsageError(
                    f"there is no hub's data in {data_dir}.",
                    "Name the hub's configuration with --config, or its folder with $GPUDECK_DATA_DIR.",
                )
            _write(target, manifest, folder)
    except sqlite3.Error as error:
        raise GpudeckError(f"the databases in {data_dir} cannot be copied: {error}.", "No backup was made.") from error
    except OSError as error:
        place = error.filename or target or "the standard output"
        raise GpudeckError(
            f"{place} cannot be read or written: {(error.strerror or str(error)).lower()}.", "No backup was made."
        ) from error
    return manifest


def _folder_for_copies(target: Path | None) -> Path | None:
    """Beside the archive: there has to be room, and whoever chose the place chose it for secrets."""
    return None if target is None else target.absolute().parent


def _gather(settings: Settings, data_dir: Path, config: Path | None, folder: Path, *, with_history: bool) -> list[str]:
    """Copy what is there; what is there and stays out."""
    databases = {DATABASE: settings.database is None, HISTORY: with_history}
    left_out = []
    for name, is_wanted in databases.items():
        if (data_dir / name).is_file() and is_wanted:
            copy_file(data_dir / name, folder / name)
        elif not is_wanted:
            left_out.append(name)
    for name, file in _small_files(settings, data_dir, config).items():
        if file.is_file():
            shutil.copyfile(file, folder / name)
            (folder / name).chmod(0o600)
    return left_out


def _small_files(settings: Settings, data_dir: Path, config: Path | None) -> dict[str, Path]:
    """Where each is by its name in the archive."""
    files = {name: data_dir / name for name in SMALL if name != CONFIG}
    if settings.token_file:
        files[AGENT_TOKEN] = find_token_file(settings.token_file)
    return files if config is None else files | {CONFIG: config}


def _describe(settings: Settings, folder: Path, left_out: list[str]) -> Manifest:
    return Manifest(
        format=FORMAT,
        gpudeck=__version__,
        made_at=time.time(),
        host=socket.gethostname(),
        database="sqlite" if settings.database is None else "postgresql",
        tables=read_tables_version(folder / DATABASE),
        history=read_history_version(folder / HISTORY),
        left_out=left_out,
        files=[describe_file(folder / name) for name in NAMES if (folder / name).exists()],
    )


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
        return version_of(connection)


def _write(target: Path | None, manifest: Manifest, folder: Path) -> None:
    if target is None:
        pack(sys.stdout.buffer, manifest, folder)
        sys.stdout.flush()
        return
    begun = folder / "archive"
    with os.fdopen(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        pack(opened, manifest, folder)
        opened.flush()
        os.fsync(opened.fileno())
    begun.rename(target)
