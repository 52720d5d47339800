"""Make a backup of a hub, also while it runs: whole copies of its two databases, and its small files. And put one in
place of what a stopped hub has: all of the archive is checked first, and what was there is kept. A restore is noted in
a file, and recorded in the audit log when the hub starts."""

import contextlib
import errno
import fcntl
import logging
import os
import shutil
import socket
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from gpudeck import __version__
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller
from gpudeck.database.sqlite import copy_file
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.settings import expand_home
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
from gpudeck.ops.data_folder import FILE as LOCK
from gpudeck.ops.data_folder import caller_here, lock_exclusively, lock_for_hub, replace_files, staging
from gpudeck.settings import Settings, choose_data_dir, find_data_dir, load_settings

log = logging.getLogger(__name__)

NOTE = "restored.json"
_PREFIX = ".gpudeck-backup-"
_NONE_MADE = (
    "No backup was made. `gpudeck doctor` and `gpudeck history verify` say what is damaged; `--no-history` leaves the "
    "history out."
)


def make_backup(target: Path, config: Path | None, *, with_history: bool = True) -> Manifest:
    """Write the archive to that file, which must not be there yet; what is in it. It is there once it is whole and was
    read back as a restore would read it. Raises GpudeckError."""
    settings, config_file = load_settings(config)
    data_dir = choose_data_dir(settings)
    if target.exists():
        raise UsageError(f"{target} is there already.", "Name another file, or move it away.")
    _check_hub(settings, data_dir)
    try:
        with lock_for_hub(data_dir, "Try again when it is done."), _folder_for_copies(target) as name:
            folder, archive = Path(name, "files"), Path(name, "archive")
            folder.mkdir()
            left_out = _gather(settings, data_dir, config_file, folder, with_history=with_history)
            manifest = Manifest(
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
            _write(archive, manifest, folder)
            # There is room for one copy next to the archive, and this one was packed.
            shutil.rmtree(folder)
            folder.mkdir()
            open_backup(archive, folder)
            archive.rename(target)
    except sqlite3.Error as error:
        raise GpudeckError(f"the databases in {data_dir} cannot be copied: {error}.", _NONE_MADE) from error
    except BadBackup as error:
        raise GpudeckError(
            f"the backup of {data_dir} was read back and cannot be restored: {error.message}.", _NONE_MADE
        ) from error
    except OSError as error:
        place = error.filename or target
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
def _folder_for_copies(target: Path) -> Iterator[str]:
    """Next to the archive: there has to be room. One without a lock is of a backup that was killed, and is deleted."""
    place = target.absolute().parent
    for left in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=_PREFIX) as name, locked(Path(name)):
        yield name


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises OSError while another process has it, and for what is no folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _gather(settings: Settings, data_dir: Path, config: Path | None, folder: Path, *, with_history: bool) -> list[str]:
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
    files = {name: data_dir / name for name in SMALL if name != CONFIG}
    if settings.token_file:
        files[AGENT_TOKEN] = expand_home("token_file", settings.token_file)
    return files if config is None else files | {CONFIG: config}


def _write(file: Path, manifest: Manifest, folder: Path) -> None:
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        pack(opened, manifest, folder)
        opened.flush()
        os.fsync(opened.fileno())


class Restored(Struct, frozen=True):
    """`aside` is where that lies which was there before. `apart` are files of the archive that lie in the data folder
    under a name of their own, with the place that they are for: a person decides about those."""

    manifest: Manifest
    data_dir: Path
    aside: Path | None
    apart: list[tuple[Path, Path | None]]


def restore(file: Path, config: Path | None) -> Restored:
    """Blocks. Raises GpudeckError; then everything is as it was."""
    settings, config_file = load_settings(config)
    data_dir = choose_data_dir(settings)
    try:
        with _made_for_good(settings, data_dir), lock_exclusively(data_dir), staging(data_dir) as stage:
            manifest = open_backup(file, stage)
            _check_kind(manifest, settings, file)
            elsewhere = _places_elsewhere(settings, config_file)
            apart = _set_apart(stage, elsewhere)
            names = [name for name in NAMES if name not in elsewhere and name not in manifest.left_out]
            write_note(stage, manifest, caller_here().name)
            aside = replace_files(data_dir, [*names, NOTE, *(path.name for path, _ in apart)])
    except BadBackup as error:
        raise GpudeckError(f"{file} cannot be restored: {error.message}.", "Nothing was changed.") from error
    except OSError as error:
        raise GpudeckError(
            f"{error.filename or file} cannot be read or written: {(error.strerror or str(error)).lower()}.",
            "Nothing was changed.",
        ) from error
    return Restored(manifest, data_dir, aside, [(data_dir / path.name, place) for path, place in apart])


@contextlib.contextmanager
def _made_for_good(settings: Settings, data_dir: Path) -> Iterator[None]:
    """The data folder, made if it is not there: one that was made here is gone again when this fails."""
    made = [folder for folder in (data_dir, *data_dir.parents) if not folder.exists()]
    try:
        find_data_dir(settings)
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            if made:
                (data_dir / LOCK).unlink(missing_ok=True)
            for folder in made:
                folder.rmdir()
        raise


def _check_kind(manifest: Manifest, settings: Settings, file: Path) -> None:
    here = "sqlite" if settings.database is None else "postgresql"
    if manifest.database != here:
        raise UsageError(
            f"{file} is of a hub with its tables on {manifest.database}, and this one has them on {here}.",
            "Set `database` in gpudeck.yaml as it was there.",
        )


def _places_elsewhere(settings: Settings, config: Path | None) -> dict[str, Path | None]:
    """Files that do not lie in the data folder. They are other people's to change: often they are in /etc."""
    places: dict[str, Path | None] = {CONFIG: config}
    return places | ({AGENT_TOKEN: expand_home("token_file", settings.token_file)} if settings.token_file else {})


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


class RestoreNote(Struct, frozen=True):
    """`who` restored it and when, and of which hub it was. Times are in Unix seconds."""

    who: str
    restored_at: float
    made_at: float
    host: str
    gpudeck: str


def write_note(folder: Path, manifest: Manifest, who: str) -> None:
    """Raises OSError."""
    note = RestoreNote(who, time.time(), manifest.made_at, manifest.host, manifest.gpudeck)
    descriptor = os.open(folder / NOTE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(note))


async def record_restore(audit: Audit, data_dir: Path) -> None:
    """Does nothing where there is no note. One that cannot be read is logged and left."""
    file = data_dir / NOTE
    try:
        note = msgspec.json.decode(file.read_bytes(), type=RestoreNote)
    except FileNotFoundError:
        return
    except (OSError, msgspec.DecodeError) as error:
        log.warning("a backup was restored, and %s does not say which: %s", file, error)
        return
    details = f"made {_show_time(note.made_at)} by gpudeck {note.gpudeck}, restored {_show_time(note.restored_at)}"
    caller = Caller(kind="local", role="admin", name=note.who)
    await audit.record(caller, "restore backup", f"backup of {note.host}", details=details)
    file.unlink(missing_ok=True)


def _show_time(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(moment))
