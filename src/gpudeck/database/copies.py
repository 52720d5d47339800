"""Copies of a SQLite file that are whole at one moment, also while others write it; and the one before a migration."""

import contextlib
import logging
import os
import sqlite3
import time
from pathlib import Path

from gpudeck.database.sqlite import BUSY_SECONDS
from gpudeck.model.errors import UsageError

log = logging.getLogger(__name__)

FOLDER = "backups"
"""In the data folder: the database as it was before each of the last migrations."""
KEPT = 3
COPIED = "the database as it was with version %s is kept in %s"


def copy_file(source: Path, target: Path) -> None:
    """A new file `target`, which only its owner can read, with all that was committed in `source` when this began.

    One step of SQLite's own backup: writers go on meanwhile. The copy is one file, with none beside it. Blocks. Raises
    sqlite3.Error and OSError; then there is no target.
    """
    os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.closing(open_to_read(source)) as opened, contextlib.closing(sqlite3.connect(target)) as copy:
            opened.backup(copy)
            copy.execute("PRAGMA journal_mode = DELETE").close()
    except BaseException:
        target.unlink(missing_ok=True)
        raise


def open_to_read(file: Path) -> sqlite3.Connection:
    """A connection that cannot write. The caller closes it. Raises sqlite3.Error where there is no file."""
    return sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)


def keep_before_migration(file: Path, version: str) -> Path:
    """A copy in the folder of backups; the oldest of more than KEPT go. Raises UsageError: then nothing may change."""
    folder = file.with_name(FOLDER)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    copy = folder / f"{file.stem}-{version}-{stamp}{file.suffix}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        copy.unlink(missing_ok=True)  # of a migration that failed within the same second
        copy_file(file, copy)
        _belong_to_owner_of(file, folder, copy)
        _forget_oldest(folder, f"{file.stem}-[0-9]*{file.suffix}", newest=copy)
    except (OSError, sqlite3.Error) as error:
        raise UsageError(
            f"the database {file} cannot be copied to {folder} before its tables change: {error}.",
            "Nothing was changed. Make room there, or give the folder to the user that runs the hub.",
        ) from error
    log.info(COPIED, version, copy)
    return copy


def _belong_to_owner_of(file: Path, *made: Path) -> None:
    """What root makes, with a command, is the hub's to clear away."""
    owner = file.stat()
    if os.geteuid() == 0:
        for path in made:
            os.chown(path, owner.st_uid, owner.st_gid)


def _forget_oldest(folder: Path, pattern: str, newest: Path) -> None:
    """`newest` stays, also where the clock says that it is the oldest."""
    others = (path for path in folder.glob(pattern) if path != newest)
    by_age = sorted(others, key=lambda path: (path.stat().st_mtime_ns, path.name))
    for path in by_age[: 1 - KEPT]:
        path.unlink()
