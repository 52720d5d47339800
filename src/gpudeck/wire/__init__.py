"""How a report travels: the envelope around it, its versions, and the bytes."""

from gpudeck.wire.codec import (
    CONTENT_TYPES,
    MAX_BODY_BYTES,
    MAX_DECODED_BYTES,
    MAX_PROCESSES,
    check_report,
    decode,
    encode,
)
from gpudeck.wire.envelope import HOST_NAME, VERSION, Envelope

__all__ = [
    "CONTENT_TYPES",
    "HOST_NAME",
    "MAX_BODY_BYTES",
    "MAX_DECODED_BYTES",
    "MAX_PROCESSES",
    "VERSION",
    "Envelope",
    "check_report",
    "decode",
    "encode",
]
