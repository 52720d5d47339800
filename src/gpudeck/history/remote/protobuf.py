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


def encode_labels(name: str, labels: Mapping[str, str | None]) -> bytes:
    """The series' labels, in the order that Prometheus insists on. A label that is None or empty is none."""
    named = {"__name__": name, **labels}
    return b"".join(_encode_label(key, value) for key, value in sorted(named.items()) if value)


def encode_series(labels: bytes, value: float, time: bytes) -> bytes:
    """One series with one sample, as part of a request. `labels` and `time` are encoded already."""
    sample = _pack_value(_VALUE, value) + time
    body = labels + b"\x12" + varint(len(sample)) + sample
    return b"\x0a" + varint(len(body)) + body


def encode_time(at: float) -> bytes:
    """Cut to hundredths: no sample then lies in the last millisecond of a second, which is where windows end."""
    return bytes((_TIME,)) + varint(max(0, int(at * 100)) * 10)


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
