"""Whatever arrives: a good envelope is read, anything else is refused with the answer it deserves."""

import gzip
import json
import math
from collections.abc import Callable

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import Process
from gpudeck.wire import MAX_BODY_BYTES, MAX_DECODED_BYTES, decode, encode

MSGPACK, JSON = "application/msgpack", "application/json"


def refusal(body: bytes, media: str = MSGPACK, encoding: str = "") -> tuple[int, str]:
    with pytest.raises(ReportRefused) as caught:
        decode(body, media, encoding)
    return caught.value.status, caught.value.code


def test_an_envelope_survives_the_way() -> None:
    envelope = make_envelope(gpus=[make_busy_gpu(0), make_gpu(1, missing="fell off the bus")])
    assert decode(encode(envelope), MSGPACK, "zstd") == envelope


@pytest.mark.parametrize("encoding", ["", "identity", "zstd", "gzip"])
@pytest.mark.parametrize("media", [MSGPACK, JSON, "application/json; charset=utf-8"])
def test_every_form_is_read(media: str, encoding: str) -> None:
    envelope = make_envelope()
    plain = msgspec.json.encode(envelope) if media.startswith(JSON) else msgspec.msgpack.encode(envelope)
    pack = {"zstd": zstandard.compress, "gzip": gzip.compress}.get(encoding, bytes)
    assert decode(pack(plain), media, encoding) == envelope


def test_unknown_fields_are_ignored() -> None:
    document = msgspec.to_builtins(make_envelope())
    document["colour"] = {"deep": [1, 2]}
    document["report"]["gpus"][0]["smell"] = "burnt"
    assert decode(msgspec.json.encode(document), JSON) == make_envelope()


@pytest.mark.parametrize("document", [{"version": 3}, {"version": 3, "host": 7, "report": []}])
@pytest.mark.parametrize(("media", "write"), [(JSON, msgspec.json.encode), (MSGPACK, msgspec.msgpack.encode)])
def test_a_newer_version_is_named_even_where_its_shape_is_another(
    media: str, write: Callable[[object], bytes], document: object
) -> None:
    with pytest.raises(ReportRefused, match=r"wire version 3, this hub reads up to 2 Upgrade the hub"):
        decode(write(document), media)


@pytest.mark.parametrize(
    ("body", "media", "encoding", "expected"),
    [
        (b"", MSGPACK, "", (400, "malformed")),
        (b"{", JSON, "", (400, "malformed")),
        (b"\xff\xfe", JSON, "", (400, "malformed")),
        (b"[]", JSON, "", (422, "invalid_report")),
        (b'{"version":1}', JSON, "", (422, "invalid_report")),
        (b"x", "text/plain", "", (415, "unsupported_type")),
        (b"x", MSGPACK, "br", (415, "unsupported_encoding")),
        (b"x", MSGPACK, "zstd", (400, "bad_compression")),
        (b"x", MSGPACK, "gzip", (400, "bad_compression")),
        (encode(make_envelope())[:-9], MSGPACK, "zstd", (400, "bad_compression")),
        (gzip.compress(b"{}" * 99, mtime=0)[:-9], JSON, "gzip", (400, "bad_compression")),
        (b'{"report":' * 100_000, JSON, "", (400, "too_deep")),
        (b"x" * (MAX_BODY_BYTES + 1), MSGPACK, "", (413, "too_large")),
        (zstandard.compress(bytes(MAX_DECODED_BYTES + 1)), MSGPACK, "zstd", (413, "too_large")),
        (gzip.compress(bytes(MAX_DECODED_BYTES + 1), mtime=0), MSGPACK, "gzip", (413, "too_large")),
    ],
    ids=lambda value: str(value)[:30],
)
def test_rubbish_gets_a_clear_answer(body: bytes, media: str, encoding: str, expected: tuple[int, str]) -> None:
    assert refusal(body, media, encoding) == expected


def test_a_zstd_bomb_that_hides_its_size_is_refused() -> None:
    packer = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    bomb = packer.compress(bytes(200 * 1024 * 1024)) + packer.flush()
    assert len(bomb) < MAX_BODY_BYTES
    assert refusal(bomb, encoding="zstd")[0] in {400, 413}


@pytest.mark.parametrize(
    "change",
    [
        {"host": ""},
        {"host": "../../etc"},
        {"host": "a b"},
        {"host": "x" * 300},
        {"host": "<script>"},
        {"host": "a\n"},
        {"sequence": -1},
        {"sequence": "1"},
        {"interval_seconds": 0},
        {"interval_seconds": -2},
        {"collected_at": -1},
        {"version": 0},
        {"report": {"gpus": [{"uuid": "a", "index": 0}]}},
        {"report": {"gpus": [{"uuid": "a", "index": -1, "name": "x"}]}},
        {"report": {"gpus": [{"uuid": "a", "index": 0, "name": "x", "metrics": {"power_watts": "300"}}]}},
        {"report": {"gpus": [{"uuid": "a", "index": 0, "name": "x"}] * 2}},
        {"report": {"gpus": [{"uuid": str(n), "index": 0, "name": "x"} for n in range(513)]}},
        {"report": {"metrics": {"cpu_percent": 10**400}}},
        {"report": {"gpus": [{"uuid": "a", "index": 0, "name": "x", "idle_seconds": 1e308}]}},
        {"report": {"gpus": [{"uuid": "a", "index": 0, "name": "x", "processes": [{"pid": 1, "started_at": -1e308}]}]}},
        {"report": {"labels": {str(n): "" for n in range(65)}}},
    ],
    ids=lambda change: str(change)[:40],
)
def test_fields_out_of_bounds_are_refused(change: dict[str, object]) -> None:
    document = msgspec.to_builtins(make_envelope()) | change
    assert refusal(json.dumps(document).encode(), JSON)[0] == 422


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["idle_seconds", "started_at"])
def test_a_time_that_is_no_number_is_refused(place: str, value: float) -> None:
    gpu = {"idle_seconds": {"idle_seconds": value}, "started_at": {"processes": [{"pid": 1, "started_at": value}]}}[
        place
    ]
    report = {"gpus": [{"uuid": "a", "index": 0, "name": "x"} | gpu]}
    assert refusal(msgspec.msgpack.encode(msgspec.to_builtins(make_envelope()) | {"report": report}))[0] == 422


@given(st.binary(max_size=2000), st.sampled_from(["", "zstd", "gzip"]), st.sampled_from([MSGPACK, JSON]))
def test_random_bytes_are_refused_and_nothing_else_happens(body: bytes, encoding: str, media: str) -> None:
    with pytest.raises(ReportRefused):
        decode(body, media, encoding)


def status_of(body: bytes) -> int:
    """202 where the report is read, else the status of its refusal; any other exception is a failure."""
    try:
        return 202 if decode(body, MSGPACK) else 0
    except ReportRefused as refused:
        return refused.status


_plain = msgspec.msgpack.encode(make_envelope(gpus=[make_busy_gpu(0), make_gpu(1)]))


@given(st.lists(st.tuples(st.integers(0, len(_plain) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_a_damaged_report_is_read_or_refused(damages: list[tuple[int, int]]) -> None:
    body = bytearray(_plain)
    for place, byte in damages:
        body[place] = byte
    assert status_of(bytes(body)) in {202, 400, 422}


_value = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(msgspec.to_builtins(make_envelope()))), _value)
def test_a_field_of_any_other_value_is_read_or_refused(name: str, value: object) -> None:
    document = msgspec.to_builtins(make_envelope()) | {name: value}
    assert status_of(msgspec.msgpack.encode(document)) in {202, 400, 422}


def test_a_report_of_more_processes_than_anybody_looks_at_is_refused() -> None:
    gpus = [make_gpu(index, processes=[Process(pid=pid) for pid in range(1024)]) for index in range(9)]
    assert refusal(msgspec.msgpack.encode(make_envelope(gpus=gpus))) == (422, "too_many_processes")
    assert decode(msgspec.msgpack.encode(make_envelope(gpus=gpus[:8])))
