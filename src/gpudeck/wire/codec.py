"""Bytes to envelope and back: msgpack or JSON; plain, zstd or gzip. Refuses what is too large before unpacking it."""

import threading
import zlib
from collections.abc import Callable

import msgspec
import zstandard

from gpudeck.model.errors import ReportRefused
from gpudeck.wire.envelope import VERSION, Envelope

MAX_BODY_BYTES = 1024 * 1024
MAX_DECODED_BYTES = 1024 * 1024
"""Decoding takes the event loop: 1 MiB that was made to take long takes 37 ms of CPU time. 16 GPUs with 100 processes
of 500 bytes each need 0.8 MiB."""
MAX_PROCESSES = 8192
"""Of one report: whatever looks at a host goes through all of them."""
_LEAST_LIMIT, _MOST_RATIO = 256 * 1024, 200
"""A report packs to a tenth, one of many equal processes to a fiftieth. What unpacks to more than this was made to."""
CONTENT_TYPES = ("application/msgpack", "application/json")


class _Zstd(threading.local):
    """One compressor and one decompressor a thread: making them costs three times a small report, sharing crashes.

    Level 3 windows are 2 MiB; a frame that asks for more than the limit would make us allocate it unread.
    """

    def __init__(self) -> None:
        self.pack = zstandard.ZstdCompressor(level=3).compress
        self.unpack = zstandard.ZstdDecompressor(max_window_size=MAX_DECODED_BYTES).decompress


_zstd = _Zstd()


class _VersionOnly(msgspec.Struct):
    version: int


_encoder = msgspec.msgpack.Encoder()
_decoders: dict[str, Callable[[bytes], Envelope]] = {
    "application/msgpack": msgspec.msgpack.Decoder(Envelope).decode,
    "application/x-msgpack": msgspec.msgpack.Decoder(Envelope).decode,
    "application/json": msgspec.json.Decoder(Envelope).decode,
}
_version_decoders: dict[str, Callable[[bytes], _VersionOnly]] = {
    "application/msgpack": msgspec.msgpack.Decoder(_VersionOnly).decode,
    "application/x-msgpack": msgspec.msgpack.Decoder(_VersionOnly).decode,
    "application/json": msgspec.json.Decoder(_VersionOnly).decode,
}


def encode(envelope: Envelope) -> bytes:
    """The envelope as msgpack in a zstd frame that states its size."""
    return _zstd.pack(_encoder.encode(envelope))


def decode(body: bytes, content_type: str = "application/msgpack", encoding: str = "") -> Envelope:
    """The envelope in `body`; raises ReportRefused with the HTTP status that fits whatever is wrong with it."""
    media = content_type.partition(";")[0].strip().lower()
    decoder = _decoders.get(media)
    if decoder is None:
        raise ReportRefused(
            415, "unsupported_type", f"content type {media[:80]!r} is not taken", f"Send {' or '.join(CONTENT_TYPES)}."
        )
    plain = unpack(body, encoding.strip().lower())
    try:
        envelope = decoder(plain)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError, OverflowError) as error:
        raise _explain(plain, media, error) from error
    _check_version(envelope.version)
    check_report(envelope)
    return envelope


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
    except (zstandard.ZstdError, zlib.error, MemoryError) as error:
        raise ReportRefused(400, "bad_compression", f"the body is not valid {encoding}: {error}") from error
    if len(plain) > MAX_DECODED_BYTES:
        raise _too_large(MAX_DECODED_BYTES)
    return plain


def _limit_of(body: bytes) -> int:
    """How much a packed body may unpack to: a bomb is refused before it has cost more than an honest report."""
    return min(MAX_DECODED_BYTES, max(_LEAST_LIMIT, _MOST_RATIO * len(body)))


def _unzstd(body: bytes) -> bytes:
    limit = _limit_of(body)
    size = zstandard.frame_content_size(body)
    if size > limit:
        raise _too_large(limit)
    plain = _zstd.unpack(body, max_output_size=limit + 1, allow_extra_data=False)
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


def _check_version(version: int) -> None:
    if version > VERSION:
        raise ReportRefused(
            400,
            "unsupported_version",
            f"the report is of wire version {version}, this hub reads up to {VERSION}",
            "Upgrade the hub before its agents.",
        )


def check_report(envelope: Envelope) -> None:
    """What the types do not say. Raises ReportRefused."""
    gpus = envelope.report.gpus or ()
    if len({gpu.uuid for gpu in gpus}) != len(gpus):
        raise ReportRefused(422, "duplicate_gpu", "two GPUs of the report have the same UUID")
    processes = sum(len(gpu.processes or ()) for gpu in gpus)
    if processes > MAX_PROCESSES:
        raise ReportRefused(
            422, "too_many_processes", f"the report lists {processes} processes, and {MAX_PROCESSES} are taken at most"
        )


def _explain(plain: bytes, media: str, error: Exception) -> ReportRefused:
    """A newer version is named as such even where its shape no longer fits ours."""
    try:
        _check_version(_version_decoders[media](plain).version)
    except ReportRefused as newer:
        return newer
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, ValueError, OverflowError):
        pass
    if isinstance(error, RecursionError):
        return ReportRefused(400, "too_deep", "the report is nested too deeply")
    if isinstance(error, msgspec.ValidationError):
        return ReportRefused(422, "invalid_report", str(error)[:300])
    return ReportRefused(400, "malformed", f"the body is not valid {media.rpartition('/')[2]}: {error}"[:300])


def _too_large(limit: int) -> ReportRefused:
    return ReportRefused(413, "too_large", f"the report is larger than {limit // 1024} KiB")
