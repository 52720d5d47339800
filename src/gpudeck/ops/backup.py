"""Make a backup of a hub, also while it runs: whole copies of its two databases, and its small files."""

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from gpudeck import __version__
from gpudeck.database.sqlite import copy_file
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.ops.backup_archive import (
    AGENT_TOKEN,
    CONFIG,
    DATABASE,
    FORMAT,
    HISTORY,
    NAMES,
    SMALL,
    BadBackup,
    Manifest,
    describe_file,
    open_backup,
    pack,
    read_history_version,
    read_tables_version,
)
from gpudeck.ops.data_folder import share
from gpudeck.settings import Settings, choose_data_dir, find_token_file, load_settings

_PREFIX = ".gpudeck-backup-"
_NONE_MADE = (
    "No backup was made. `gpudeck doctor` and `gpudeck history verify` say what is damaged; `--no-history` leaves the "
    "history out."
)


def make_backup(target: Path | None, config: Path | None, *, with_history: bool = True) -> Manifest:
    """Write the archive to that file, which must not be there yet, or to the standard output for None; what is in it.

    Only its owner can read the file. It is there once it is whole and was read back as a restore would read it. Raises
    GpudeckError; then there is no such file.
    """
    settings, config_file = load_settings(config)
    data_dir = choose_data_dir(settings)
    if target is not None and target.exists():
        raise UsageError(f"{target} is there already.", "Name another file, or move it away.")
    _check_hub(settings, data_dir)
    try:
        with (
            share(data_dir, "Try again when it is done."),
            _folder_for_copies(target) as name,
        ):
            folder, archive = Path(name, "files"), Path(name, "archive")
            folder.mkdir()
            left_out = _gather(settings, data_dir, config_file, folder, with_history=with_history)
            manifest = _describe(settings, folder, left_out)
            _write(archive, manifest, folder)
            # There is room for one copy beside the archive, and this one was packed.
            shutil.rmtree(folder)
            folder.mkdir()
            open_backup(archive, folder)
            _deliver(archive, target)
    except sqlite3.Error as error:
        raise GpudeckError(f"the databases in {data_dir} cannot be copied: {error}.", _NONE_MADE) from error
    except BadBackup as error:
        raise GpudeckError(
            f"the backup of {data_dir} was read back and cannot be restored: {error.message}.", _NONE_MADE
        ) from error
    except OSError as error:
        place = error.filename or target or "the standard output"
        raise GpudeckError(
            f"{place} cannot be read or written: {(error.strerror or str(error)).lower()}.", "No backup was made."
        ) from error
    return manifest


def _check_hub(settings: Settings, data_dir: Path) -> None:
    """A restore would put the hub's database aside for a backup without one."""
    needed = [DATABASE] if settings.database is None else [name for name in NAMES if name != CONFIG]
    if not any((data_dir / name).is_file() for name in needed):
        raise UsageError(
            f"there is no hub's data in {data_dir}: no {needed[0]}.",
            "Name the hub's configuration with --config, or its folder with $GPUDECK_DATA_DIR.",
        )


@contextlib.contextmanager
def _folder_for_copies(target: Path | None) -> Iterator[str]:
    """Beside the archive: there has to be room, and whoever chose the place chose it for secrets.

    It is locked while it is used. One without a lock is of a backup that was killed, and is deleted.
    """
    place = Path(tempfile.gettempdir()) if target is None else target.absolute().parent
    for left in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), _locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=_PREFIX) as name, _locked(Path(name)):
        yield name


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Raises OSError while another process has it, and for what is no folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _gather(settings: Settings, data_dir: Path, config: Path | None, folder: Path, *, with_history: bool) -> list[str]:
    """Copy what is there; what is there and stays out."""
    databases = {DATABASE: settings.database is None, HISTORY: with_history}
    left_out = []
    for name, is_wanted in databases.items():
        if (data_dir / name).is_file() and is_wanted:
            try:
                copy_file(data_dir / name, folder / name)
            except sqlite3.Error as error:
                if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder.parent.parent) from error
                raise sqlite3.DatabaseError(f"{name}: {error}") from error
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


def _write(file: Path, manifest: Manifest, folder: Path) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        pack(opened, manifest, folder)
        opened.flush()
        os.fsync(opened.fileno())


def _deliver(archive: Path, target: Path | None) -> None:
    if target is not None:
        archive.rename(target)
        return
    with archive.open("rb") as opened:
        shutil.copyfileobj(opened, sys.stdout.buffer)
    sys.stdout.flush()
