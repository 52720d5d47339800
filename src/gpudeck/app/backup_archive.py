"""The archive of a backup: what may be in it, how it is written, and how one that may be anybody's is unpacked.

A gzipped tar, so that a person can open it anywhere. The first file in it is a list of the others, with their sizes and
hashes. Unpacking reads the plain headers of tar and nothing else: no links, no folders, no names that are not known.
"""

import gzip
import hashlib
import io
import os
import shutil
import tarfile
import zlib
from pathlib import Path
from typing import IO, Annotated, Final, Literal

import msgspec
from msgspec import Meta, Struct

from gpudeck.model.errors import GpudeckError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
DATABASE: Final = "gpudeck.db"
HISTORY: Final = "history.db"
CONFIG: Final = "gpudeck.yaml"
AGENT_TOKEN: Final = "agent.token"  # noqa: S105 - the name of its file
SMALL: Final = (AGENT_TOKEN, "admin.token", "hosts.yaml", "host-tokens.json", "had-real-hosts", CONFIG)
NAMES: Final = (DATABASE, HISTORY, *SMALL)
_MOST_MANIFEST: Final = 64 * 1024
_MOST_SMALL: Final = 16 * 1024 * 1024
_BLOCK: Final = tarfile.BLOCKSIZE
_CHUNK: Final = 1024 * 1024
_LEVEL: Final = 3
"""Most of a history is packed already: more effort takes five times as long and gains a hundredth."""


class Entry(Struct, frozen=True):
    """One file of the archive."""

    name: Annotated[str, Meta(max_length=64)]
    size_bytes: Annotated[int, Meta(ge=0, lt=2**60)]
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class Manifest(Struct, frozen=True):
    """What the archive says of itself. `tables` and `history` are versions, None where that part is not in it.

    `left_out` are parts that the hub had and the archive has not, so that a restore leaves them alone.
    """

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
    """The file as the list names it. Reads all of it."""
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
    """Put the archive's files into that folder, which is empty. Each is as the list says, and for its owner alone.

    Raises GpudeckError for an archive that is damaged, or that holds anything else than a backup does; OSError where
    there is none, or no room.
    """
    with file.open("rb") as opened:
        try:
            with gzip.GzipFile(fileobj=opened) as packed:
                manifest = _read_manifest(packed, file)
                _check_room(manifest, folder, file)
                for entry in manifest.files:
                    _read_entry(packed, entry, folder, file)
                _check_end(packed, file)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise refuse(file, f"it is no backup, or damaged ({error})") from error
    return manifest


def refuse(file: Path, reason: str) -> GpudeckError:
    return GpudeckError(f"{file} cannot be restored: {reason}.", "Nothing was changed.")


def _read_manifest(packed: gzip.GzipFile, file: Path) -> Manifest:
    header = _read_header(packed, file)
    if header is None or header.name != MANIFEST or header.size > _MOST_MANIFEST:
        raise refuse(file, f"it does not begin with {MANIFEST}, as a backup does")
    body = _read_exactly(packed, header.size)
    _read_exactly(packed, -header.size % _BLOCK)
    try:
        found = msgspec.json.decode(body, type=_FormatOnly)
        if found.format > FORMAT:
            raise refuse(
                file, f"it is from a newer gpudeck ({found.gpudeck[:64]}), in a form that this one does not know"
            )
        manifest = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refuse(file, f"its {MANIFEST} makes no sense: {error}") from error
    _check_list(manifest, file)
    return manifest


def _check_list(manifest: Manifest, file: Path) -> None:
    names = [entry.name for entry in manifest.files]
    strange = [name for name in (*names, *manifest.left_out) if name not in NAMES]
    if strange:
        raise refuse(file, f"it lists {strange[0][:64]!r}, which is no part of a backup")
    if len(set(names)) != len(names):
        raise refuse(file, "it lists a file twice")
    large = [entry.name for entry in manifest.files if entry.name in SMALL and entry.size_bytes > _MOST_SMALL]
    if large:
        raise refuse(file, f"{large[0]} in it is larger than {_MOST_SMALL // 1024**2} MiB")


def _check_room(manifest: Manifest, folder: Path, file: Path) -> None:
    needed, free = sum(entry.size_bytes for entry in manifest.files), shutil.disk_usage(folder).free
    if needed > free:
        raise refuse(file, f"it needs {needed // 1024**2} MiB in {folder.parent}, and {free // 1024**2} MiB are free")


def _read_header(packed: gzip.GzipFile, file: Path) -> tarfile.TarInfo | None:
    """The next file's; None at the end. What is no plain file is refused, and its content never read."""
    block = _read_exactly(packed, _BLOCK)
    if not any(block):
        return None
    try:
        header = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeError, ValueError) as error:
        raise refuse(file, f"it is no backup, or damaged ({error})") from error
    if header.type != tarfile.REGTYPE:
        raise refuse(file, f"{header.name[:64]!r} in it is no plain file")
    return header


def _read_entry(packed: gzip.GzipFile, entry: Entry, folder: Path, file: Path) -> None:
    header = _read_header(packed, file)
    if header is None or (header.name, header.size) != (entry.name, entry.size_bytes):
        found = "it ends" if header is None else f"{header.name[:64]!r} with {header.size} bytes stands"
        raise refuse(file, f"{found} where its list has {entry.name} with {entry.size_bytes} bytes")
    digest = hashlib.sha256()
    with os.fdopen(os.open(folder / entry.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
        left = entry.size_bytes
        while left:
            chunk = _read_exactly(packed, min(left, _CHUNK))
            digest.update(chunk)
            opened.write(chunk)
            left -= len(chunk)
        opened.flush()
        os.fsync(opened.fileno())
    _read_exactly(packed, -entry.size_bytes % _BLOCK)
    if digest.hexdigest() != entry.sha256:
        raise refuse(file, f"{entry.name} in it is not what was put in")


def _check_end(packed: gzip.GzipFile, file: Path) -> None:
    """Nothing but what fills the last record of a tar; reading up to the end also has gzip check its sum."""
    rest = packed.read(tarfile.RECORDSIZE + 1)
    if len(rest) > tarfile.RECORDSIZE or any(rest):
        raise refuse(file, "it holds more than it lists")
    if packed.read(1):
        raise refuse(file, "it holds more than it lists")


def _read_exactly(packed: gzip.GzipFile, size: int) -> bytes:
    found = packed.read(size)
    if len(found) != size:
        raise EOFError("it ends early")
    return found
