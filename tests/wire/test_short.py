"""Short reports on the wire: which reports have one, and what is refused."""

import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fakes.reports import HOST, make_busy_gpu, make_gpu
from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import Disk, GpuEvent, Report
from gpudeck.wire import ShortReport, decode_any, describe, pack_numbers

MSGPACK, JSON = "application/msgpack", "application/json"
BUSY = make_busy_gpu(0)
REPORT = Report(gpus=[BUSY, make_gpu(1)], metrics=dict(HOST), disks=[Disk("/data", 5, 10)])
SHORT = ShortReport(
    version=2,
    host="gpu01",
    boot_id="boot",
    sequence=7,
    collected_at=1_790_000_000.0,
    interval_seconds=2.0,
    description="0123456789abcdef",
    numbers=pack_numbers(REPORT) or b"",
)


def process(**others: Any) -> Report:
    assert BUSY.processes is not None
    return replace(REPORT, gpus=[replace(BUSY, processes=[replace(BUSY.processes[0], **others)]), make_gpu(1)])


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, metrics=HOST | {"cpu_percent": 99}),
        replace(REPORT, gpus=[make_busy_gpu(0, metrics={"power_watts": 1.5}), make_gpu(1)]),
        replace(REPORT, gpus=[BUSY, make_gpu(1, idle_seconds=None)]),
        process(memory_used_bytes=None),
        process(utilization_percent=12.5),
        replace(REPORT, disks=[Disk("/data", 6, 10)]),
    ],
)
def test_report_that_differs_in_numbers_alone_has_the_same_description(report: Report) -> None:
    assert describe(report) == describe(REPORT)
    assert pack_numbers(report) != pack_numbers(REPORT)


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, metrics={name: value for name, value in HOST.items() if name != "load_1m"}),
        replace(REPORT, metrics=dict(reversed(HOST.items()))),
        replace(REPORT, unknown={"load_1m": "not permitted"}),
        replace(REPORT, gpus=[make_gpu(1), BUSY]),
        replace(REPORT, gpus=[]),
        replace(REPORT, gpus=None),
        replace(REPORT, gpus=[BUSY, make_gpu(1, processes=None)]),
        replace(REPORT, gpus=[BUSY, make_gpu(1, events=[GpuEvent(at=1.0, code=79)])]),
        process(user="eve"),
        process(reasons={"utilization_percent": "not supported"}),
        replace(REPORT, disks=[Disk("/data", 5, 11)]),
        replace(REPORT, problems=["disk is slow"]),
    ],
)
def test_report_that_differs_in_more_has_another_description(report: Report) -> None:
    assert describe(report) != describe(REPORT)


@pytest.mark.parametrize("value", [2**53 + 1, -(2**53) - 1, 2**62 - 1, 10**400, math.nan])
def test_report_with_a_metric_that_a_double_does_not_hold_is_sent_whole(value: float) -> None:
    assert pack_numbers(replace(REPORT, metrics=HOST | {"disk_used_bytes": value})) is None
    assert pack_numbers(replace(REPORT, gpus=[make_gpu(metrics={"energy_joules": value})])) is None


def test_report_with_a_disk_that_a_double_does_not_hold_is_sent_whole() -> None:
    assert pack_numbers(replace(REPORT, disks=[Disk("/data", 2**55 + 1, 2**56)])) is None
    assert pack_numbers(replace(REPORT, disks=[Disk("/data", 2**55, 2**56)])) is not None


def test_numbers_are_little_endian_doubles_in_the_order_of_the_report() -> None:
    gpus = [make_gpu(0, metrics=dict.fromkeys(BUSY.metrics)), replace(BUSY, metrics={"power_watts": 1.5})]
    report = Report(gpus=gpus, metrics={"cpu_percent": 3, "load_1m": 4.5}, disks=[Disk("/", 5, 10)])
    numbers = pack_numbers(report)
    assert numbers is not None
    *doubles, percent, used = struct.unpack("<8d", numbers)
    assert [*doubles, used] == [3.0, 4.5, 1.5, 0.0, 0.0, 20 * 2**30, 5.0]
    assert math.isnan(percent)


@pytest.mark.parametrize("media", [MSGPACK, JSON])
def test_short_report_survives_the_way(media: str) -> None:
    body = msgspec.msgpack.encode(SHORT) if media == MSGPACK else msgspec.json.encode(SHORT)
    assert decode_any(body, media) == SHORT
    document = msgspec.msgpack.decode(msgspec.msgpack.encode(SHORT))
    assert decode_any(msgspec.msgpack.encode(dict(reversed(document.items()))), MSGPACK) == SHORT


@pytest.mark.parametrize(
    "change",
    [
        {"description": ""},
        {"description": "x" * 65},
        {"numbers": 1.5},
        {"numbers": [1.5]},
        {"host": "../../etc"},
        {"sequence": -1},
        {"interval_seconds": math.nan},
        {"simulated": 1},
    ],
    ids=str,
)
def test_short_report_out_of_bounds_is_refused(change: dict[str, object]) -> None:
    body = msgspec.msgpack.encode(msgspec.msgpack.decode(msgspec.msgpack.encode(SHORT)) | change)
    assert outcome(body) == 422


@pytest.mark.parametrize("missing", ["host", "boot_id", "description", "numbers"])
def test_short_report_without_a_required_field_is_refused(missing: str) -> None:
    document = msgspec.msgpack.decode(msgspec.msgpack.encode(SHORT))
    del document[missing]
    assert outcome(msgspec.msgpack.encode(document)) == 422


def test_report_that_tells_two_versions_is_refused() -> None:
    body = msgspec.msgpack.encode(SHORT)
    twice = bytes([body[0] + 1]) + body[1:] + b"\xa7version\x01"
    assert outcome(twice) == 422


def outcome(body: bytes) -> int:
    """202 where the report is read, else the status of its refusal; any other exception is a failure."""
    try:
        return 202 if decode_any(body, MSGPACK) else 0
    except ReportRefused as refused:
        return refused.status


_PLAIN = msgspec.msgpack.encode(SHORT)


@given(st.lists(st.tuples(st.integers(0, len(_PLAIN) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_short_report_is_read_or_refused(damages: list[tuple[int, int]]) -> None:
    body = bytearray(_PLAIN)
    for place, byte in damages:
        body[place] = byte
    assert outcome(bytes(body)) in {202, 400, 422}


@given(st.binary(max_size=300))
def test_anything_that_begins_as_a_short_report_is_read_or_refused(rest: bytes) -> None:
    assert outcome(_PLAIN[:10] + rest) in {202, 400, 422}
