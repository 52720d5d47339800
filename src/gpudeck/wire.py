"""The wire format of reports: the envelope, its versions, and its bytes.

Version 1 is a whole report. It grows by optional fields only: readers ignore fields that they do not know, so older and
newer hubs and agents understand each other. Version 2 is a short report: only the numbers of a host whose description
has not changed. What an old reader would misunderstand needs version 3. Bytes are msgpack or JSON; plain, zstd or gzip;
what is too large is refused before it is unpacked.
"""

import math
import struct
import sys
import threading
import zlib
from collections.abc import Callable
from hashlib import blake2b
from math import nan
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

if sys.version_info >= (3, 14):
    from compression import zstd  # novermin
else:
    from backports import zstd

from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import JobCgroups, Report, Word
from gpudeck.model.times import LONGEST

VERSION = 1
SHORT_VERSION = 2

# A bare $ would allow a trailing line break.
HOST_NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$(?!\n)"
HostName = Annotated[str, Meta(max_length=253, pattern=HOST_NAME)]
DescriptionId = Annotated[str, Meta(max_length=64)]


_encoder = msgspec.msgpack.Encoder()


class Head(Struct, frozen=True, omit_defaults=True):
    version: Annotated[int, Meta(ge=1)]
    host: HostName
    boot_id: Word
    sequence: Annotated[int, Meta(ge=0, lt=2**53)]
    collected_at: Annotated[float, Meta(ge=0, le=1e11)]
    interval_seconds: Annotated[float, Meta(gt=0, le=86_400)]
    run_id: Annotated[str, Meta(max_length=64)] = ""
    host_id: Annotated[str, Meta(max_length=128)] = ""
    agent_version: Annotated[str, Meta(max_length=64)] = ""
    simulated: bool = False


class Envelope(Head, frozen=True, kw_only=True):
    """Version 1: a whole report.

    Reports of one agent are ordered by `sequence` within (`boot_id`, `run_id`), never by clock. `host_id` outlives
    renames (the machine id). `simulated` reports are taken by a demo hub only. `description` is the sender's name for
    all of the report but its numbers: short reports of the same run may refer to it.
    """

    report: Report
    description: DescriptionId = ""


class ShortReport(Head, frozen=True, kw_only=True):
    """Version 2: new numbers for the last whole report of the same run, if that had this `description`.

    `numbers` are little-endian doubles in the order of that report: the metrics of the host; those of each GPU;
    `idle_seconds` of each GPU; `memory_used_bytes` and `utilization_percent` of each process, GPU by GPU; `used_bytes`
    of each disk. NaN as a number that may be left out is None. `job_cgroups` are there when they were just read.
    """

    description: Annotated[DescriptionId, Meta(min_length=1)]
    numbers: bytes
    job_cgroups: JobCgroups = field(default_factory=list)


def describe(report: Report) -> str:
    """A hash of a report's text: everything but its numbers and cgroups."""
    gpus = report.gpus and [
        replace(
            gpu,
            metrics=dict.fromkeys(gpu.metrics, 0),
            idle_seconds=None,
            processes=gpu.processes
            and [replace(one, memory_used_bytes=None, utilization_percent=None) for one in gpu.processes],
        )
        for gpu in report.gpus
    ]
    disks = [replace(disk, used_bytes=0) for disk in report.disks]
    words = replace(report, metrics=dict.fromkeys(report.metrics, 0), gpus=gpus, disks=disks, job_cgroups=[])
    return blake2b(_encoder.encode(words), digest_size=8).hexdigest()


def pack_numbers(report: Report) -> bytes | None:
    """The numbers of a report for a short report. None if a double cannot hold one of them exactly, or if a metric is
    NaN: then the report is sent whole."""
    gpus = report.gpus or ()
    metrics = [*report.metrics.values()]
    for gpu in gpus:
        metrics += gpu.metrics.values()
    optional = [gpu.idle_seconds for gpu in gpus]
    for gpu in gpus:
        for process in gpu.processes or ():
            optional += (process.memory_used_bytes, process.utilization_percent)
    disks = [disk.used_bytes for disk in report.disks]
    numbers = (*metrics, *(nan if number is None else number for number in optional), *disks)
    form = f"<{len(numbers)}d"
    try:
        packed = struct.pack(form, *numbers)
    except (struct.error, OverflowError):
        return None
    doubles, disks_at = struct.unpack(form, packed), len(metrics) + len(optional)
    is_exact = doubles[: len(metrics)] == numbers[: len(metrics)] and doubles[disks_at:] == numbers[disks_at:]
    return packed if is_exact else None


MAX_BODY_BYTES = 1024 * 1024
MAX_DECODED_BYTES = 1024 * 1024
"""Decoding blocks the event loop: a crafted 1 MiB takes 37 ms of CPU time. 16 GPUs with 100 processes of 500 bytes each
need 0.8 MiB."""
MAX_PROCESSES = 8192
"""The most processes in one report: every reader of a host iterates over them."""
_MIN_LIMIT, _MAX_RATIO = 256 * 1024, 200
"""A report compresses to a tenth, one of many equal processes to a fiftieth. Only a crafted body unpacks to more than
this."""
CONTENT_TYPES = ("application/msgpack", "application/json")


_local = threading.local()
"""One compressor and one decompressor per thread: creating them costs three times a small report, and they are not
thread-safe."""


class _VersionOnly(msgspec.Struct):
    version: int


class _Decoders(NamedTuple):
    version: Callable[[bytes], _VersionOnly]
    whole: Callable[[bytes], Envelope]
    short: Callable[[bytes], ShortReport]


_msgpack = _Decoders(
    msgspec.msgpack.Decoder(_VersionOnly).decode,
    msgspec.msgpack.Decoder(Envelope).decode,
    msgspec.msgpack.Decoder(ShortReport).decode,
)
_json = _Decoders(
    msgspec.json.Decoder(_VersionOnly).decode,
    msgspec.json.Decoder(Envelope).decode,
    msgspec.json.Decoder(ShortReport).decode,
)
_decoders = {"application/msgpack": _msgpack, "application/x-msgpack": _msgpack, "application/json": _json}
_WRONG = (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError, OverflowError)
_AS_AGENTS_WRITE = b"\xa7version"
"""If the first field of a msgpack map is the version, its byte follows this."""


def encode(envelope: Envelope | ShortReport) -> bytes:
    """The envelope as msgpack in a zstd frame that states its size."""
    return pack(_encoder.encode(envelope))


def pack(plain: bytes) -> bytes:
    if not hasattr(_local, "compressor"):
        _local.compressor = zstd.ZstdCompressor(level=3)
    packed: bytes = _local.compressor.compress(plain, zstd.ZstdCompressor.FLUSH_FRAME)
    return packed


def decode_own(body: bytes) -> Envelope:
    """Decode a report that `encode` made in this process, without checks."""
    return _msgpack.whole(zstd.decompress(body))


def decode(body: bytes, content_type: str = "application/msgpack", encoding: str = "") -> Envelope:
    """The whole report in `body`; raises ReportRefused with a suitable HTTP status."""
    envelope = decode_any(body, content_type, encoding)
    if isinstance(envelope, ShortReport):
        raise ReportRefused(400, "unsupported_version", "a short report (wire version 2) is not taken here")
    return envelope


def decode_any(body: bytes, content_type: str = "application/msgpack", encoding: str = "") -> Envelope | ShortReport:
    """A report of either version."""
    media = content_type
    if media not in _decoders:
        media = content_type.partition(";")[0].strip().lower()
    decoders = _decoders.get(media)
    if decoders is None:
        raise ReportRefused(
            415, "unsupported_type", f"content type {media[:80]!r} is not taken", f"Send {' or '.join(CONTENT_TYPES)}."
        )
    plain = unpack(body, encoding.strip().lower())
    version = _version_of(plain, decoders)
    if version > SHORT_VERSION:
        raise ReportRefused(
            400,
            "unsupported_version",
            f"the report is of wire version {version}, this hub reads up to {SHORT_VERSION}",
            "Upgrade the hub before its agents.",
        )
    try:
        envelope = decoders.short(plain) if version == SHORT_VERSION else decoders.whole(plain)
    except _WRONG as error:
        raise _explain(media, error) from error
    if envelope.version != version:
        raise ReportRefused(422, "invalid_report", "the report has two versions")
    if isinstance(envelope, Envelope):
        check_report(envelope)
    return envelope


def _version_of(plain: bytes, decoders: _Decoders) -> int:
    """Version 1 if there is none: decoding then reports the actual mistake."""
    if decoders is _msgpack and plain[1:9] == _AS_AGENTS_WRITE and plain[9:10] in {b"\x01", b"\x02"}:
        return plain[9]
    try:
        return max(VERSION, decoders.version(plain).version)
    except _WRONG:
        return VERSION


def unpack(body: bytes, encoding: str) -> bytes:
    """`body` without its compression, never more than MAX_DECODED_BYTES."""
    if len(body) > MAX_BODY_BYTES:
        raise _too_large(MAX_BODY_BYTES)
    try:
        plain = _unpackers[encoding](body)
    except KeyError:
        raise ReportRefused(
            415, "unsupported_encoding", f"content encoding {encoding[:80]!r} is not taken", "Send zstd, gzip or none."
        ) from None
    except (zlib.error, MemoryError) as error:
        raise _bad_compression(encoding, error) from error
    if len(plain) > MAX_DECODED_BYTES:
        raise _too_large(MAX_DECODED_BYTES)
    return plain


def _limit_of(body: bytes) -> int:
    """The limit for the unpacked size of a body: a compression bomb is refused before it costs more than a genuine
    report."""
    return min(MAX_DECODED_BYTES, max(_MIN_LIMIT, _MAX_RATIO * len(body)))


def _unzstd(body: bytes) -> bytes:
    """With the library of a hub's install: the agent's needs a new decompressor per frame, which takes fifteen times as
    long."""
    import zstandard  # noqa: PLC0415 - 24 MB that an agent does not need

    if not hasattr(_local, "unpack"):
        # Level 3 windows are 2 MiB; a larger window would make us allocate it unread.
        _local.unpack = zstandard.ZstdDecompressor(max_window_size=MAX_DECODED_BYTES).decompress
    limit = _limit_of(body)
    try:
        if zstandard.frame_content_size(body) > limit:
            raise _too_large(limit)
        plain: bytes = _local.unpack(body, max_output_size=limit + 1, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise _bad_compression("zstd", error) from error
    if len(plain) > limit:
        raise _too_large(limit)
    return plain


def _gunzip(body: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=31)
    limit = _limit_of(body)
    plain = unpacker.decompress(body, limit + 1)
    if len(plain) > limit:
        raise _too_large(limit)
    if not unpacker.eof:
        raise zlib.error("the stream ends early")
    return plain


_unpackers: dict[str, Callable[[bytes], bytes]] = {
    "": lambda body: body,
    "identity": lambda body: body,
    "zstd": _unzstd,
    "gzip": _gunzip,
}


def check_report(envelope: Envelope) -> None:
    """Checks that the types do not express. Raises ReportRefused."""
    gpus = envelope.report.gpus or ()
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise ReportRefused(422, "duplicate_gpu", "two GPUs of the report have the same UUID")
    processes = sum(len(gpu.processes or ()) for gpu in gpus)
    if processes > MAX_PROCESSES:
        raise ReportRefused(
            422, "too_many_processes", f"the report lists {processes} processes, and {MAX_PROCESSES} are taken at most"
        )


def _explain(media: str, error: Exception) -> ReportRefused:
    if isinstance(error, RecursionError):
        return ReportRefused(400, "too_deep", "the report is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return ReportRefused(422, "invalid_report", str(error)[:300])
    return ReportRefused(400, "malformed", f"the body is not valid {media.rpartition('/')[2]}: {error}"[:300])


def _bad_compression(encoding: str, error: Exception) -> ReportRefused:
    return ReportRefused(400, "bad_compression", f"the body is not valid {encoding}: {error}")


def _too_large(limit: int) -> ReportRefused:
    return ReportRefused(413, "too_large", f"the report is larger than {limit // 1024} KiB")


def read_sent_at(text: str | bytes) -> float | None:
    """The agent's clock in a Gpudeck-Sent-At header; None if it is absent or invalid."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= LONGEST else None
