"""A record of the queue as bytes: a head with a checksum, and series, packed. A segment is a file of them."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

import zstandard

from gpudeck.history.remote.scribe import Part

_HEAD = struct.Struct("<4sIIId")
"""A mark, the body's length and checksum, how many values it has, and their time."""
_MARK: Final = b"GDQ1"
_LONGEST: Final = 16 * 1024 * 1024


def encode_record(part: Part, packer: zstandard.ZstdCompressor) -> bytes:
    """`packer` is the caller's: to make one takes longer than to use it, and no two threads may."""
    body = packer.compress(part.body)
    return _HEAD.pack(_MARK, len(body), zlib.crc32(body), part.values, part.at) + body


def read_records(file: Path, begin: int = 0, end: int | None = None) -> Iterator[tuple[Part, int]]:
    """The records from `begin` until `end`, and where each ends; stops early at one that is torn or damaged.

    A file that is gone has none.
    """
    try:
        opened = file.open("rb")
    except FileNotFoundError:
        return
    with opened:
        opened.seek(begin)
        while end is None or opened.tell() < end:
            part = _decode_record(opened)
            if part is None:
                return
            yield part, opened.tell()


def _decode_record(file: BinaryIO) -> Part | None:
    head = file.read(_HEAD.size)
    if len(head) < _HEAD.size:
        return None
    mark, length, checksum, values, at = _HEAD.unpack(head)
    if mark != _MARK or length > _LONGEST:
        return None
    body = file.read(length)
    if len(body) < length or zlib.crc32(body) != checksum:
        return None
    return Part(zstandard.ZstdDecompressor().decompress(body, max_output_size=_LONGEST), values, at)
