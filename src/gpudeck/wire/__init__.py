"""The wire format of reports: envelope, versions, encoding."""

from gpudeck.wire.codec import (
    CONTENT_TYPES,
    MAX_BODY_BYTES,
    MAX_DECODED_BYTES,
    MAX_PROCESSES,
    check_report,
    decode,
    decode_any,
    decode_own,
    encode,
    pack,
    read_sent_at,
)
from gpudeck.wire.envelope import HOST_NAME, SHORT_VERSION, VERSION, Envelope, Head, ShortReport, describe, pack_numbers

__all__ = [
    "CONTENT_TYPES",
    "HOST_NAME",
    "MAX_BODY_BYTES",
    "MAX_DECODED_BYTES",
    "MAX_PROCESSES",
    "SHORT_VERSION",
    "VERSION",
    "Envelope",
    "Head",
    "ShortReport",
    "check_report",
    "decode",
    "decode_any",
    "decode_own",
    "describe",
    "encode",
    "pack",
    "pack_numbers",
    "read_sent_at",
]
