"""A matrix of readings survives the way into bytes and back; bytes that are damaged are told, and cost nothing."""

import tracemalloc
import zlib
from contextlib import suppress

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from gpudeck.history.codec import (
    MATRIX_VERSION,
    MAX_VALUES,
    Damaged,
    Floats,
    decode_columns,
    decode_matrix,
    encode_matrix,
)
from gpudeck.model.catalog import CATALOG, MIB

PRECISIONS = sorted({metric.precision for metric in CATALOG} | {metric.precision / 8 for metric in CATALOG})
SHAPES = array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=40)


def matrices(low: float, high: float) -> st.SearchStrategy[Floats]:
    numbers = st.floats(low, high, allow_subnormal=False) | st.just(float("nan")) | st.just(0.0)
    return arrays(np.float64, SHAPES, elements=numbers)


def assert_alike(found: Floats, given: Floats, precision: float) -> None:
    """`found` is `given` as far as its precision goes; a float's own error comes on top."""
    assert found.shape == given.shape
    assert np.array_equal(np.isnan(found), np.isnan(given))
    off = np.abs(found - given) - 1e-15 * np.abs(given)
    assert np.nanmax(off, initial=0.0) <= precision * 0.500001


@given(matrices(-1e15, 1e15), st.sampled_from([precision for precision in PRECISIONS if precision >= 0.01]))
def test_values_come_back_within_half_a_precision(matrix: Floats, precision: float) -> None:
    assert_alike(decode_matrix(encode_matrix(matrix, precision)), matrix, precision)


@given(matrices(-200, 200), st.sampled_from(PRECISIONS))
@example(np.zeros((1, 1)), 1.0)
@example(np.full((3, 1), np.nan), 1.0)
def test_small_values_come_back_too(matrix: Floats, precision: float) -> None:
    assert_alike(decode_matrix(encode_matrix(matrix, precision)), matrix, precision)


@pytest.mark.parametrize("precision", [0.1, 0.01, 1.0, 60.0, 1e3, 1e6, MIB])
def test_what_was_rounded_comes_back_exactly(precision: float) -> None:
    metric = next(metric for metric in CATALOG if metric.precision == precision)
    values = np.random.default_rng(1).uniform(0, 7000 * precision, (8, 360))
    matrix = np.array([[metric.round(value) for value in row] for row in values], dtype=np.float64)
    assert np.array_equal(decode_matrix(encode_matrix(matrix, precision)), matrix)


@pytest.mark.parametrize("step", [0.0, 1.0, -1.0, 127.0, 300.0, 70_000.0, 2.0**33, -(2.0**44)])
def test_counters_far_beyond_32_bits_come_back_exactly(step: float) -> None:
    matrix = 9e14 + step * np.arange(360.0) * np.ones((2, 1))
    assert np.array_equal(decode_matrix(encode_matrix(matrix, 1.0)), matrix)


@pytest.mark.parametrize(
    "unknown", [np.s_[:, :], np.s_[:, :100], np.s_[:, 300:], np.s_[3:5], np.s_[2, 7], np.s_[::2, ::2]]
)
def test_unknown_stays_unknown_and_does_not_spread(unknown: tuple[slice, ...]) -> None:
    matrix = np.random.default_rng(1).normal(600, 3, (8, 360)).round(1)
    matrix[unknown] = np.nan
    assert np.array_equal(decode_matrix(encode_matrix(matrix, 0.1)), matrix, equal_nan=True)


def test_what_is_no_reading_is_kept_as_unknown() -> None:
    matrix = np.array([[1.0, np.inf, 2.0, -np.inf, 1e300, 3.0]])
    expected = np.array([[1.0, np.nan, 2.0, np.nan, np.nan, 3.0]])
    assert np.array_equal(decode_matrix(encode_matrix(matrix, 0.01)), expected, equal_nan=True)


@pytest.mark.parametrize(
    ("matrix", "most"),
    [
        (np.full((8, 360), np.nan), 12),
        (np.full((8, 360), 80.0), 16),
        (np.repeat(np.arange(8.0)[:, None], 360, axis=1), 24),
        (np.where(np.arange(360) < 90, np.nan, np.full((8, 360), 80.0)), 48),
        (np.where(np.arange(8)[:, None] < 4, np.nan, np.full((8, 360), 80.0)), 48),
    ],
)
def test_what_does_not_change_costs_a_few_bytes(matrix: Floats, most: int) -> None:
    assert len(encode_matrix(matrix, 1.0)) <= most


def test_one_changing_row_does_not_make_the_others_dear() -> None:
    matrix = np.full((64, 360), 80.0)
    quiet = len(encode_matrix(matrix, 1.0))
    matrix[17] = np.random.default_rng(1).integers(0, 50, 360)
    assert len(encode_matrix(matrix, 1.0)) < quiet + 360


def test_gaps_in_a_counter_cost_little_more_than_their_bits() -> None:
    counter = 1e12 + 700.0 * np.arange(360.0)[None]
    whole = len(encode_matrix(counter, 1.0))
    counter[0, ::5] = np.nan
    assert len(encode_matrix(counter, 1.0)) < whole + 45 + 40


def test_more_than_any_hour_has_is_not_packed() -> None:
    with pytest.raises(ValueError, match="more than"):
        encode_matrix(np.broadcast_to(np.float64(1.0), (MAX_VALUES, 2)), 1.0)


@pytest.mark.parametrize("precision", [0.0, -1.0, float("nan"), float("inf")])
def test_a_precision_that_is_none_is_refused(precision: float) -> None:
    with pytest.raises(ValueError, match="precision"):
        encode_matrix(np.zeros((1, 1)), precision)


def rough() -> bytes:
    """A blob with every part there is."""
    matrix = np.random.default_rng(1).normal(600, 30, (8, 90)).round(1)
    matrix[1] = 5.0
    matrix[:, 20:30] = np.nan
    return encode_matrix(matrix, 0.1)


def read_or_refuse(blob: bytes) -> None:
    """Whatever it is: a matrix of bounded size, or Damaged."""
    with suppress(Damaged):
        assert decode_matrix(blob).size <= MAX_VALUES
    for place in (-1, 0, 17):
        with suppress(Damaged):
            assert len(decode_columns([blob], [place])[0]) <= MAX_VALUES


@given(matrices(-1e6, 1e6), st.sampled_from([1.0, 0.1, 1024.0]), st.data())
def test_a_column_is_that_of_the_matrix(matrix: Floats, precision: float, data: st.DataObject) -> None:
    blob = encode_matrix(matrix, precision)
    for place in range(matrix.shape[1]):
        column, rows = decode_columns([blob], [place])
        assert rows == [len(matrix)]
        assert np.array_equal(column, decode_matrix(blob)[:, place], equal_nan=True)
    with pytest.raises(Damaged, match="has none at"):
        decode_columns([blob], [data.draw(st.sampled_from([-1, matrix.shape[1]]))])


@given(st.binary(max_size=400))
def test_bytes_from_anywhere_are_read_or_refused(rubbish: bytes) -> None:
    read_or_refuse(rubbish)
    read_or_refuse(bytes([MATRIX_VERSION]) + rubbish)


@given(st.data())
def test_a_changed_blob_is_read_or_refused(data: st.DataObject) -> None:
    blob = bytearray(rough())
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(1, len(blob) - 1))] = data.draw(st.integers(0, 255))
    read_or_refuse(bytes(blob))


_anything = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=True)
_planes = st.lists(st.binary(max_size=40), max_size=9)


@given(
    st.tuples(
        _anything, st.integers(0, 70), st.integers(0, 70), st.integers(0, 31), _planes, _planes, st.binary(max_size=9)
    )
)
def test_a_well_formed_lie_is_read_or_refused(parts: tuple[object, ...]) -> None:
    read_or_refuse(bytes([MATRIX_VERSION]) + msgspec.msgpack.encode((*parts, b"\xff")))


@pytest.mark.parametrize("cut", range(1, 40))
def test_a_blob_that_ends_early_is_damaged(cut: int) -> None:
    with pytest.raises(Damaged):
        decode_matrix(rough()[:-cut])


def test_a_blob_of_endless_depth_is_damaged() -> None:
    with pytest.raises(Damaged):
        decode_matrix(bytes([MATRIX_VERSION]) + b"\x99\x01\x01\x01\x01\x90\x90\xc4\x00\xc4\x00" + b"\x91" * 100_000)


def test_nothing_at_all_is_damaged() -> None:
    with pytest.raises(Damaged, match="version None"):
        decode_matrix(b"")


def test_a_later_version_is_named() -> None:
    with pytest.raises(Damaged, match="version 2 of a matrix; this release reads version 1"):
        decode_matrix(b"\x02" + rough()[1:])


@pytest.mark.parametrize("shape", [(MAX_VALUES, 2), (2, MAX_VALUES), (65_536, 65_536)])
def test_a_blob_that_claims_to_be_huge_is_refused_before_anything_is_made(shape: tuple[int, int]) -> None:
    with pytest.raises(Damaged, match="larger than any that was written"):
        decode_matrix(bytes([MATRIX_VERSION]) + msgspec.msgpack.encode((1, *shape, 1)))


def test_a_plane_that_swells_is_stopped_at_what_it_should_hold() -> None:
    deflater = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = deflater.compress(bytes(50_000_000)) + deflater.flush()
    blob = bytes([MATRIX_VERSION]) + msgspec.msgpack.encode((1, 8, 360, 8, [b"\x00" * 8], [bomb]))
    tracemalloc.start()
    with pytest.raises(Damaged, match="does not hold"):
        decode_matrix(blob)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
