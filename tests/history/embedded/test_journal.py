import contextlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.history.codec import Damaged
from gpudeck.history.embedded.journal import (
    GpuRuns,
    MetricLayout,
    SampleBatch,
    StepTable,
    decode_entry,
    encode_entry,
    make_batch,
    pick,
)
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES
from gpudeck.model.catalog import MIB

STEPS = np.array([1.0, 0.1, 1.0])
NUMBERS = st.none() | st.floats(allow_nan=False) | st.integers(-(2**53), 2**53) | st.booleans()
CASTS = st.lists(st.tuples(st.integers(1, 2**40), st.none() | st.lists(st.integers(1, 2**40), max_size=3).map(tuple)))


@st.composite
def batches(draw: st.DrawFn) -> SampleBatch:
    """Any hosts, GPUs and runs, with any values."""
    gpu_runs = [
        GpuRuns(tuple(gpu for gpu, _ in gpus), tuple(runs for _, runs in gpus))
        for gpus in draw(st.lists(CASTS, min_size=1, max_size=4))
    ]
    gpus = sum(len(one.gpus) for one in gpu_runs)

    def table(rows: int, width: int) -> np.ndarray:
        values = np.full((rows, width), np.nan)
        values[:, :3] = np.array([[draw(NUMBERS) for _ in range(3)] for _ in range(rows)], np.float64).reshape(-1, 3)[
            :, :width
        ]
        return values

    moments = np.array([(draw(st.floats(0, 7e9)), 10.0) for _ in gpu_runs])
    states = bytes(draw(st.integers(0, 5)) for _ in range(gpus))
    tables = (
        table(len(gpu_runs), len(HOST_NAMES)),
        table(gpus, len(GPU_NAMES)),
        table(sum(len(one.pairs) for one in gpu_runs), 2),
    )
    return make_batch(range(1, len(gpu_runs) + 1), moments, gpu_runs, states, tables)


def assert_same(one: SampleBatch, other: SampleBatch) -> None:
    assert one.gpu_runs == other.gpu_runs
    for name in ("hosts", "times", "intervals", "states", "gpu_starts", "run_starts"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
    for name in ("own", "table", "runs"):
        mine, its = getattr(one, name), getattr(other, name)
        assert mine.rows == its.rows
        for column, same in zip(mine.columns, its.columns, strict=True):
            np.testing.assert_array_equal(column, same)


@given(batches())
def test_whatever_was_written_is_read_again(batch: SampleBatch) -> None:
    assert_same(decode_entry(encode_entry(batch)), batch)


@given(st.lists(st.tuples(*[st.none() | st.floats(-1e12, 1e12)] * 3), min_size=1))
def test_values_are_kept_to_their_precision(values: list[tuple[float | None, ...]]) -> None:
    table = np.array(values, np.float64)
    packed = StepTable.pack(table, STEPS)
    for place, step in enumerate(STEPS):
        kept = np.broadcast_to(packed.column(place, slice(None), step), len(table))
        np.testing.assert_array_equal(np.isnan(kept), np.isnan(table[:, place]))
        np.testing.assert_allclose(kept, table[:, place], rtol=1e-12, atol=step / 2 + 1e-9)


def test_what_all_gpus_have_is_one_number() -> None:
    packed = StepTable.pack(np.array([(50.0, 700.0, np.nan), (50.0, 700.1, np.nan)]), STEPS)
    assert packed.columns[0] == 50.0
    assert np.isnan(packed.columns[2])
    np.testing.assert_array_equal(packed.columns[1], [7000, 7001])


def test_some_samples_of_a_batch_are_picked() -> None:
    gpu_runs = [GpuRuns((7, 8), ((1, 2), None)), GpuRuns((), ()), GpuRuns((9,), ((4,),))]
    moments = np.array([(100.0, 10.0), (101.0, 10.0), (102.0, 10.0)])
    table = np.repeat([[1.0], [3.0], [5.0]], len(GPU_NAMES), axis=1)
    runs = np.array([(10 * MIB, 30), (20 * MIB, np.nan), (40 * MIB, 50)])
    batch = make_batch((3, 4, 5), moments, gpu_runs, b"\x03\x02\x04", (np.ones((3, len(HOST_NAMES))), table, runs))
    some = pick(batch, np.array([1, 2]))
    assert (some.hosts.tolist(), some.states.tolist(), some.gpu_starts.tolist()) == ([4, 5], [4], [0, 0, 1])
    np.testing.assert_array_equal(some.table.column(0, slice(None), 1.0), [5.0])
    np.testing.assert_array_equal(some.runs.column(0, slice(None), MIB), [40 * MIB])


@given(batches(), st.data())
def test_entry_that_was_cut_off_is_damaged(batch: SampleBatch, data: st.DataObject) -> None:
    body = encode_entry(batch)
    with pytest.raises(Damaged):
        decode_entry(body[: data.draw(st.integers(0, len(body) - 1))])


@given(st.binary(max_size=200))
@pytest.mark.parametrize("first", [b"", b"\x01"])
def test_bytes_that_nobody_wrote_are_damaged_or_nothing(first: bytes, body: bytes) -> None:
    with contextlib.suppress(Damaged):
        assert not len(decode_entry(first + body).hosts)


def test_values_of_a_version_with_other_metrics_are_found_by_their_names() -> None:
    host_width = len(HOST_NAMES)
    table = np.arange(1.0, len(GPU_NAMES) + 1)[None]
    batch = make_batch(
        (3,),
        np.array([(100.0, 10.0)]),
        [GpuRuns((7,), ((),))],
        b"\x03",
        (np.ones((1, host_width)), table, np.ones((0, 2))),
    )
    names = ("smell_level", "power_watts", *(f"other_{number}" for number in range(len(GPU_NAMES) - 2)))
    found = decode_entry(encode_entry(batch), MetricLayout(names, HOST_NAMES))
    known = [name for name, column in zip(GPU_NAMES, found.table.columns, strict=True) if not np.isnan(column)]
    assert known == ["power_watts"]
    assert found.table.columns[GPU_NAMES.index("power_watts")] == batch.table.columns[1]
