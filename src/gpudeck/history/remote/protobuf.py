"""Series as the bytes of remote_write 1.0: `WriteRequest` of prometheus/prompb, the four messages that it needs.

    WriteRequest  1: TimeSeries, repeated      Label   1: name    2: value
    TimeSeries    1: Label, repeated           Sample  1: value (double)    2: Unix milliseconds (varint)
                  2: Sample, repeated

Two requests one after the other, as bytes, are one request with the series of both: that is how protobuf treats
repeated fields, and what lets requests be gathered without reading them.
"""

import struct
from collections.abc import Mapping

from gpudeck.history.remote.names import label_value

_pack_value = struct.Struct("<Bd").pack
_VALUE = 0x09
_TIME = 0x10
_TIME_BYTES = 6
_SAMPLE_BYTES = 9 + 1 + _TIME_BYTES
"""A sample is always as long: so the head of a series is written once, and not again for each sample."""
_LATEST = (1 << 7 * _TIME_BYTES) - 1


def encode_head(name: str, labels: Mapping[str, str | None]) -> bytes:
    """All of a series but its sample. Labels are in the order that Prometheus insists on; one that is None or empty is
    none."""
    named = {"__name__": name, **labels}
    head = b"".join(_encode_label(key, value) for key, value in sorted(named.items()) if value)
    head += b"\x12" + varint(_SAMPLE_BYTES)
    return b"\x0a" + varint(len(head) + _SAMPLE_BYTES) + head


def encode_series(head: bytes, value: float, time: bytes) -> bytes:
    """One series with one sample, as part of a request. `head` and `time` are encoded already."""
    return head + _pack_value(_VALUE, value) + time


def encode_time(at: float) -> bytes:
    """Cut to hundredths: no sample then lies in the last millisecond of a second, which is where windows end."""
    milliseconds = min(max(0, int(at * 100) * 10), _LATEST)
    digits = [milliseconds >> 7 * place & 0x7F | 0x80 for place in range(_TIME_BYTES)]
    return bytes((_TIME, *digits[:-1], digits[-1] & 0x7F))


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _encode_label(name: str, value: str | None) -> bytes:
    body = _encode_text(0x0A, name) + _encode_text(0x12, label_value(value or ""))
    return b"\x0a" + varint(len(body)) + body


def _encode_text(tag: int, text: str) -> bytes:
    raw = text.encode()
    return bytes((tag,)) + varint(len(raw)) + raw
