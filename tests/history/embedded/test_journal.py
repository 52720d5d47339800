import contextlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.journal import (
    GpuRuns,
    MetricLayout,
    SampleBatch,
    SampleHead,
    decode_entry,
    encode_entry,
    make_batch,
)

LAYOUT = MetricLayout(("utilization_percent", "power_watts", "fan_percent"), ("cpu_percent",))
NUMBERS = st.none() | st.floats(allow_nan=False) | st.integers(-(2**53), 2**53) | st.booleans()
CASTS = st.lists(st.tuples(st.integers(1, 2**40), st.none() | st.lists(st.integers(1, 2**40), max_size=3).map(tuple)))


@st.composite
def batches(draw: st.DrawFn) -> SampleBatch:
    """Any hosts, GPUs and runs, with any values."""
    heads, own, tables, run_values = [], [], [], []
    for number in range(1, draw(st.integers(1, 4)) + 1):
        gpus = draw(CASTS)
        gpu_runs = GpuRuns(tuple(gpu for gpu, _ in gpus), tuple(runs for _, runs in gpus))
        runs = sum(len(some or ()) for some in gpu_runs.runs)
        heads.append(SampleHead(number, bytes(draw(st.integers(0, 5)) for _ in gpus), gpu_runs))
        own += [(draw(st.floats(0, 1e10)), 10.0), (draw(NUMBERS),)]
        tables += [tuple(draw(NUMBERS) for _ in LAYOUT.gpu) for _ in gpus]
        run_values += [[draw(NUMBERS) for _ in range(runs)] for _ in range(2)]
    return make_batch(heads, own, tables, run_values)


def assert_same(one: SampleBatch, other: SampleBatch) -> None:
    assert one.heads == other.heads
    for mine, its in ((one.own, other.own), (one.table, other.table), (one.run_values, other.run_values)):
        np.testing.assert_array_equal(mine.reshape(its.shape), its)


@given(batches())
def test_whatever_was_written_is_read_again(batch: SampleBatch) -> None:
    assert_same(decode_entry(encode_entry(batch), LAYOUT), batch)


def test_what_all_gpus_have_is_written_once() -> None:
    head = SampleHead(1, bytes(64), GpuRuns(tuple(range(64)), ((),) * 64))
    same = make_batch([head], [(0.0, 10.0), (5.0,)], [(50.0, 700.0, None)] * 64, [])
    other = make_batch([head], [(0.0, 10.0), (5.0,)], [(50.0, 700.0 + gpu, None) for gpu in range(64)], [])
    assert len(encode_entry(other)) - len(encode_entry(same)) >= 63 * 8
    assert_same(decode_entry(encode_entry(same), LAYOUT), same)


def test_rows_of_a_batch_are_those_of_each_host() -> None:
    heads = [
        SampleHead(3, b"\x03\x02", GpuRuns((7, 8), ((1, 2), None))),
        SampleHead(4, b"", GpuRuns((), ())),
        SampleHead(5, b"\x03", GpuRuns((9,), ((4,),))),
    ]
    own = [(100.0, 10.0), (1.0,), (101.0, 10.0), (2.0,), (102.0, 10.0), (None,)]
    tables = [(1, 2, None), (3, 4, None), (5, 6, None)]
    rows = list(make_batch(heads, own, tables, [(10, 20), (30, None), (40,), (50,)]).rows())
    assert [row.host for row in rows] == [3, 4, 5]
    assert [row.table[:, 0].tolist() for row in rows] == [[1, 3], [], [5]]
    assert [row.states.tolist() for row in rows] == [[3, 2], [], [3]]
    np.testing.assert_array_equal(rows[0].run_values, [10, 20, 30, np.nan])
    assert rows[2].run_values.tolist() == [40, 50]


def test_entry_of_the_first_version_is_read() -> None:
    gpus = [(7, 3, (50.0, 200.0, None), (1, 2), [2**30, None], [10.0, None]), (8, 2, (None, None, None), None, [], [])]
    body = msgspec.msgpack.encode([(3, (100.0, 10.0, (5.0,), gpus))])
    (row,) = decode_entry(body, LAYOUT).rows()
    assert (row.host, row.gpu_runs) == (3, GpuRuns((7, 8), ((1, 2), None)))
    assert row.own.tolist() == [100.0, 10.0, 5.0]
    np.testing.assert_array_equal(row.table, [[50.0, 200.0, np.nan], [np.nan] * 3])
    np.testing.assert_array_equal(row.run_values, [2**30, np.nan, 10.0, np.nan])


@given(batches(), st.data())
def test_entry_that_was_cut_off_is_damaged(batch: SampleBatch, data: st.DataObject) -> None:
    body = encode_entry(batch)
    with pytest.raises(Damaged):
        decode_entry(body[: data.draw(st.integers(0, len(body) - 1))], LAYOUT)


@given(st.binary(max_size=200))
@pytest.mark.parametrize("first", [b"", b"\x02"])
def test_bytes_that_nobody_wrote_are_damaged_or_nothing(first: bytes, body: bytes) -> None:
    with contextlib.suppress(Damaged):
        assert not list(decode_entry(first + body, LAYOUT).rows())
