"""Makes a backup of a hub, also while it runs: complete copies of its two databases, and its small files. Restores one
in place of a stopped hub's data: the whole archive is checked first, and the previous data are kept. A restore leaves a
note, which the hub records in the audit log when it starts."""

import contextlib
import errno
import fcntl
import gzip
import hashlib
import io
import logging
import os
import shutil
import socket
import sqlite3
import tarfile
import tempfile
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Annotated, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct

from gpudeck import __version__
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller
from gpudeck.database.migrations import NEWEST, VERSION_TABLE
from gpudeck.database.schema import metadata
from gpudeck.database.sqlite import copy_file, open_to_read
from gpudeck.discovery.managed import ManagedHosts
from gpudeck.history.embedded import tables as history_tables
from gpudeck.history.embedded.journal import read_journal
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.model.settings import expand_home
from gpudeck.ops.data_folder import FILE as LOCK
from gpudeck.ops.data_folder import local_admin, lock_exclusively, lock_for_hub, replace_files, staging
from gpudeck.settings import Settings, choose_data_dir, find_data_dir, load_settings

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DATABASE: Final = "gpudeck.db"
HISTORY: Final = "history.db"
CONFIG: Final = "gpudeck.yaml"
AGENT_TOKEN: Final = "agent.token"  # noqa: S105 - the name of its file
SMALL: Final = (AGENT_TOKEN, "admin.token", "hosts.yaml", "had-real-hosts", CONFIG)
NAMES: Final = (DATABASE, HISTORY, *SMALL)
_MAX_MANIFEST: Final = 64 * 1024
_MAX_SMALL: Final = 16 * 1024 * 1024
_MAX_PADDING: Final = 1024 * 1024
"""Zeros after the last file: `tarfile` writes up to 10,752, other programs up to their block size."""
_LEVEL: Final = 3
"""Most of a history is compressed already: a higher level takes five times as long and saves one per cent."""


class BadBackup(GpudeckError):
    """An archive that cannot be restored. `message` is the reason, as the end of a sentence."""


class Entry(Struct, frozen=True):
    """One file of the archive."""

    name: Annotated[str, Meta(max_length=64)]
    size_bytes: Annotated[int, Meta(ge=0, lt=2**60)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class Manifest(Struct, frozen=True):
    """The archive's table of contents. `tables` and `history` are versions, None if that part is missing. A restore
    does not touch `left_out`."""

    format: int
    gpudeck: Annotated[str, Meta(max_length=64)]
    made_at: Annotated[float, Meta(ge=0, le=1e11)]
    host: Annotated[str, Meta(max_length=256)]
    database: Literal["sqlite", "postgresql"]
    tables: Annotated[str, Meta(max_length=32)] | None
    history: int | None
    left_out: Annotated[list[str], Meta(max_length=16)]
    files: Annotated[list[Entry], Meta(max_length=16)]


class _FormatOnly(Struct):
    format: int
    gpudeck: str = "of another version"


def describe_file(file: Path) -> Entry:
    with file.open("rb") as opened:
        return Entry(file.name, file.stat().st_size, hashlib.file_digest(opened, "sha256").hexdigest())


def pack(target: IO[bytes], manifest: Manifest, folder: Path) -> None:
    """Write the archive with the files of the manifest from that folder. Raises OSError."""
    with (
        gzip.GzipFile(filename="", fileobj=target, mode="wb", compresslevel=_LEVEL) as packed,
        tarfile.open(fileobj=packed, mode="w|", format=tarfile.GNU_FORMAT) as archive,
    ):
        listed = msgspec.json.format(msgspec.json.encode(manifest)) + b"\n"
        archive.addfile(_header(MANIFEST, len(listed), manifest.made_at), io.BytesIO(listed))
        for entry in manifest.files:
            with (folder / entry.name).open("rb") as opened:
                archive.addfile(_header(entry.name, entry.size_bytes, manifest.made_at), opened)


def _header(name: str, size: int, at: float) -> tarfile.TarInfo:
    header = tarfile.TarInfo(name)
    header.size, header.mtime, header.mode = size, int(at), 0o600
    return header


def unpack(file: Path, folder: Path) -> Manifest:
    """Extract the archive into that empty folder. Each file must match the manifest, and is readable only by its owner.
    Raises BadBackup for an archive that is damaged or contains anything else, OSError if there is none, or no space."""
    try:
        with gzip.open(file) as packed, tarfile.open(fileobj=packed, mode="r:", tarinfo=_PlainFile) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)
            manifest = _read_manifest(archive)
            _check_list(manifest)
            _check_room(manifest, folder)
            for entry in manifest.files:
                _extract(archive, entry, folder)
            # Reading up to the end also has gzip check its sum.
            rest = packed.read(_MAX_PADDING + 1)
            if len(rest) > _MAX_PADDING or any(rest):
                raise BadBackup("it holds more than it lists")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise BadBackup(f"it is no backup, or damaged ({error})") from error
    return manifest


class _PlainFile(tarfile.TarInfo):
    """The header of a plain file. Others are refused before `tarfile` handles them: it reads long names and extended
    headers into memory, whatever their size."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type != tarfile.REGTYPE:
            raise BadBackup(f"{header.name[:64]!r} in it is no plain file")
        return header


def _read_manifest(archive: tarfile.TarFile) -> Manifest:
    member = archive.next()
    opened = archive.extractfile(member) if member and member.name == MANIFEST else None
    if member is None or opened is None or member.size > _MAX_MANIFEST:
        raise BadBackup(f"it does not begin with {MANIFEST}, as a backup does")
    body = opened.read()
    try:
        found = msgspec.json.decode(body, type=_FormatOnly)
        if found.format > FORMAT:
            raise BadBackup(f"it is from a newer gpudeck ({found.gpudeck[:64]}), in a form that this one does not know")
        return msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBackup(f"its {MANIFEST} is invalid: {error}") from error


def _check_list(manifest: Manifest) -> None:
    names = [entry.name for entry in manifest.files]
    strange = [name for name in (*names, *manifest.left_out) if name not in NAMES]
    if strange:
        raise BadBackup(f"it lists {strange[0][:64]!r}, which is no part of a backup")
    if len(set(names)) != len(names):
        raise BadBackup("it lists a file twice")
    large = [entry.name for entry in manifest.files if entry.name in SMALL and entry.size_bytes > _MAX_SMALL]
    if large:
        raise BadBackup(f"{large[0]} in it is larger than {_MAX_SMALL // 1024**2} MiB")


def _check_room(manifest: Manifest, folder: Path) -> None:
    needed, free = sum(entry.size_bytes for entry in manifest.files), shutil.disk_usage(folder).free
    if needed > free:
        mib = 1024**2
        raise BadBackup(f"it needs {needed / mib:.1f} MiB in {folder.parent}, and {free / mib:.1f} MiB are free")


def _extract(archive: tarfile.TarFile, entry: Entry, folder: Path) -> None:
    member, target = archive.next(), folder / entry.name
    if member is None or (member.name, member.size) != (entry.name, entry.size_bytes):
        found = "it ends" if member is None else f"{member.name[:64]!r} with {member.size} bytes stands"
        raise BadBackup(f"{found} where its list has {entry.name} with {entry.size_bytes} bytes")
    archive.extract(member, folder, set_attrs=False)
    target.chmod(0o600)
    if describe_file(target) != entry:
        raise BadBackup(f"{entry.name} in it is not what was put in")


def open_backup(file: Path, folder: Path) -> Manifest:
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
        raise BadBackup("its hosts.yaml is invalid") from error
    return manifest


def read_tables_version(file: Path) -> str | None:
    if not file.exists():
        return None
    with closing(open_to_read(file)) as connection:
        row = connection.execute(f"SELECT version_num FROM {VERSION_TABLE}").fetchone()  # noqa: S608
    return None if row is None else str(row[0])


def read_history_version(file: Path) -> int | None:
    if not file.exists():
        return None
    with closing(open_to_read(file)) as connection:
        return history_tables.version_of(connection)


def _check_database(manifest: Manifest, file: Path) -> None:
    """Raises sqlite3.DatabaseError for a database that no hub wrote."""
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
            # What cannot be read was so in the hub's file already: it costs seconds, and is logged.
            for _ in read_journal(connection):
                pass


def _check_file(file: Path) -> set[str]:
    """The names of its tables. A hub's database has no triggers and views, which could run statements on their own."""
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


log = logging.getLogger(__name__)

NOTE = "restored.json"
_PREFIX = ".gpudeck-backup-"
_NONE_MADE = (
    "No backup was made. `gpudeck doctor` and `gpudeck history verify` say what is damaged; `--no-history` leaves the "
    "history out."
)


def make_backup(target: Path, config: Path | None, *, with_history: bool = True) -> Manifest:
    """Write the archive to that file, which must not exist yet; returns its manifest. The file appears when it is
    complete and was verified as by a restore. Raises GpudeckError."""
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
    """Without this check, a restore of a backup without a database would set the hub's database aside."""
    needed = [DATABASE] if settings.database is None else [name for name in NAMES if name != CONFIG]
    if not any((data_dir / name).is_file() for name in needed):
        raise UsageError(
            f"there is no hub's data in {data_dir}: no {needed[0]}.",
            "Name the hub's configuration with --config, or its folder with $GPUDECK_DATA_DIR.",
        )


@contextlib.contextmanager
def _folder_for_copies(target: Path) -> Iterator[str]:
    """Next to the archive, where there has to be space. An unlocked folder is left by a backup that was killed, and is
    deleted."""
    place = target.absolute().parent
    for left in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), locked(left):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=_PREFIX) as name, locked(Path(name)):
        yield name


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Raises OSError if another process holds the lock, and if it is no folder."""
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
    """`aside` is the folder with the previous data. `apart` are files that were saved in the data folder under another
    name, with their original places: the operator decides about those."""

    manifest: Manifest
    data_dir: Path
    aside: Path | None
    apart: list[tuple[Path, Path | None]]


def restore(file: Path, config: Path | None) -> Restored:
    """Blocks. Raises GpudeckError; then nothing has changed."""
    settings, config_file = load_settings(config)
    data_dir = choose_data_dir(settings)
    try:
        with _made_for_good(settings, data_dir), lock_exclusively(data_dir), staging(data_dir) as stage:
            manifest = open_backup(file, stage)
            _check_kind(manifest, settings, file)
            elsewhere = _places_elsewhere(settings, config_file)
            apart = _set_apart(stage, elsewhere)
            names = [name for name in NAMES if name not in elsewhere and name not in manifest.left_out]
            write_note(stage, manifest, local_admin().name)
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
    """The data folder, created if needed. If the block fails, a folder that was created here is removed."""
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
    """Files outside the data folder, often in /etc: a restore does not change them."""
    places: dict[str, Path | None] = {CONFIG: config}
    return places | ({AGENT_TOKEN: expand_home("token_file", settings.token_file)} if settings.token_file else {})


def _set_apart(stage: Path, places: dict[str, Path | None]) -> list[tuple[Path, Path | None]]:
    """Save these files under names that nothing reads. Those equal to the file in place are not needed."""
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
    """`who` restored which hub's backup, and when. Times are in Unix seconds."""

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
    """Does nothing without a note. An unreadable one is logged and kept."""
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
