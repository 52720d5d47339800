"""The archive of a backup: what may be in it, how it is written, and how one from an untrusted source is unpacked
and checked, when it is made and again before it is restored.

A gzipped tar, so that any machine can open it. Its first file lists the others with their sizes and hashes. `tarfile`
reads it, with its filter for untrusted data where this Python has one (3.11.4 and newer; Debian 12 has 3.11.2). The
checks here do not depend on the filter: only plain files are read, in the order of the list, under names known to us.
"""

import gzip
import hashlib
import io
import shutil
import sqlite3
import tarfile
import zlib
from contextlib import closing
from pathlib import Path
from typing import IO, Annotated, Final, Literal, Self

import msgspec
from msgspec import Meta, Struct

from gpudeck.database.migrations import NEWEST, VERSION_TABLE
from gpudeck.database.schema import metadata
from gpudeck.database.sqlite import open_to_read
from gpudeck.discovery.managed import ManagedHosts
from gpudeck.history.embedded import tables as history_tables
from gpudeck.history.embedded.journal import read_journal
from gpudeck.model.errors import GpudeckError, UsageError

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
"""Zeros after the last file: `tarfile` writes up to 10,752, other programs as many as their block size says."""
_LEVEL: Final = 3
"""Most of a history is packed already: more effort takes five times as long and gains a hundredth."""


class BadBackup(GpudeckError):
    """An archive that cannot be restored. `message` is the reason, as the end of a sentence."""


class Entry(Struct, frozen=True):
    """One file of the archive."""

    name: Annotated[str, Meta(max_length=64)]
    size_bytes: Annotated[int, Meta(ge=0, lt=2**60)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class Manifest(Struct, frozen=True):
    """What the archive says of itself. `tables` and `history` are versions, None where that part is not in it. A
    restore leaves `left_out` alone."""

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
    """Write the archive with the files that the manifest lists, from that folder. Raises OSError."""
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
    """Put the archive's files into that empty folder. Each is as the list says, and for its owner alone. Raises
    BadBackup for one that is damaged or holds anything else, OSError where there is none, or no room."""
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
    """The header of a plain file. Others are refused before `tarfile` acts on them: it reads long names and extended
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
            # What cannot be read was so in the hub's file already: it costs seconds, and is logged.
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
