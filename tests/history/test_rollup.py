"""An hour summed up is what a slow and plain reading of it says, and comes back from its bytes."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from gpudeck.history import rollup
from gpudeck.history.codec import Damaged, Floats
from gpudeck.history.hour import Hour, cover
from gpudeck.history.rollup import (
    Quarters,
    Roll,
    decode_quarters,
    encode_quarters,
    hour_totals,
    quarter_totals,
    roll_up,
)
from gpudeck.history.sample import STATES
from gpudeck.history.totals import StepTotals, decode_totals, encode_totals, subtract_totals, sum_totals
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from history.hours import START, assert_same, make_hour

SUMMED, MEANT, HOTTEST = "power_watts", "utilization_percent", "temperature_celsius"
FIELDS = ("sum", "seconds", "low", "high", "last")


@st.composite
def hours(draw: st.DrawFn) -> Hour:
    gpus, samples = draw(st.integers(0, 4)), draw(st.integers(0, 30))
    offsets = sorted(draw(st.sets(st.integers(0, 35_999), min_size=samples, max_size=samples)))
    times = START + np.array(offsets, dtype=np.float64) / 10
    values = st.integers(-100, 1000).map(lambda tenths: tenths / 10) | st.just(math.nan)
    matrices = arrays(np.float64, (gpus, samples), elements=values)
    states = draw(arrays(np.uint8, (gpus, samples), elements=st.integers(0, len(STATES) - 1)))
    hour = Hour(START, times, cover(times, 10.0, None), list(range(gpus)), states)
    hour.metrics = {name: draw(matrices) for name in (SUMMED, MEANT, HOTTEST)}
    hour.host = {"cpu_percent": draw(arrays(np.float64, samples, elements=values))}
    return hour


def slow_cell(times: Floats, covered: Floats, values: Floats, quarter: int) -> dict[str, float]:
    """One quarter hour of one device, sample by sample."""
    begin = START + 900 * quarter
    inside = [
        (value, seconds)
        for at, seconds, value in zip(times, covered, values, strict=True)
        if begin <= at < begin + 900 and not math.isnan(value)
    ]
    known = [value for value, _ in inside]
    return {
        "sum": sum(value * seconds for value, seconds in inside),
        "seconds": sum(seconds for _, seconds in inside),
        "low": min(known, default=math.nan),
        "high": max(known, default=math.nan),
        "last": known[-1] if known else math.nan,
    }


def assert_rolled(roll: Roll, hour: Hour, values: Floats) -> None:
    cells = [[slow_cell(hour.times, hour.covered, row, quarter) for quarter in range(4)] for row in values]
    for name in FIELDS:
        expected = np.array([[cell[name] for cell in row] for row in cells]).reshape(len(values), 4)
        assert_same(getattr(roll, name), expected, 1e-6)


@given(hours())
def test_quarter_hours_are_what_sample_by_sample_gives(hour: Hour) -> None:
    found = roll_up(hour)
    assert (found.start, found.gpus) == (START, hour.gpus)
    for name, values in hour.metrics.items():
        assert_rolled(found.metrics[name], hour, values)
    for name, values in hour.host.items():
        assert_rolled(found.host[name], hour, values[None])


@given(hours())
def test_states_add_up_to_what_is_covered(hour: Hour) -> None:
    found = roll_up(hour)
    expected = [
        [
            [
                sum(
                    seconds
                    for at, seconds, now in zip(hour.times, hour.covered, row, strict=True)
                    if now == state and START + 900 * quarter <= at < START + 900 * (quarter + 1)
                )
                for quarter in range(4)
            ]
            for row in hour.states
        ]
        for state in range(len(STATES))
    ]
    assert_same(found.states, np.array(expected, dtype=np.float64).reshape(len(STATES), len(hour.gpus), 4), 1e-6)


def test_many_gpus_are_worked_on_in_pieces_and_come_out_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = make_hour()
    whole = roll_up(hour)
    monkeypatch.setattr(rollup, "VALUES_AT_ONCE", 1)
    pieces = roll_up(hour)
    for name, roll in whole.metrics.items():
        assert_same(pieces.metrics[name].sum, roll.sum, 1e-3)
        assert_same(pieces.metrics[name].low, roll.low)


def assert_kept(found: Roll, given: Roll, precision: float) -> None:
    """As exact as bytes are: a mean to an eighth of the precision, seconds to a hundredth."""
    assert_same(found.seconds, given.seconds, 0.00501)
    for name in ("low", "high", "last"):
        assert_same(getattr(found, name), getattr(given, name), precision * 0.500001)
    means = [
        np.divide(roll.sum, roll.seconds, out=np.zeros(roll.sum.shape), where=roll.seconds > 0)
        for roll in (found, given)
    ]
    assert_same(*means, precision / 16 * 1.0001)


@given(hours())
def test_quarter_hours_come_back_from_their_bytes(hour: Hour) -> None:
    given = roll_up(hour)
    found = decode_quarters(encode_quarters(given))
    assert (found.start, found.gpus) == (given.start, given.gpus)
    assert_same(found.states, given.states, 0.00501)
    for kept, made, catalog in ((found.metrics, given.metrics, GPU_METRICS), (found.host, given.host, HOST_METRICS)):
        assert list(kept) == [name for name, roll in made.items() if roll.seconds.any()]
        for name in kept:
            assert_kept(kept[name], made[name], catalog[name].precision)


def test_only_what_is_wanted_is_decoded() -> None:
    body = encode_quarters(roll_up(make_hour()))
    found = decode_quarters(body, ["power_watts", "host_memory_used_bytes", "memory_used_bytes", "colour"])
    assert list(found.metrics) == ["power_watts", "memory_used_bytes"]
    assert list(found.host) == ["memory_used_bytes"]
    assert_same(found.host["memory_used_bytes"].low, np.full((1, 4), 2.0**40))


def test_a_metric_that_the_catalog_does_not_know_keeps_its_values() -> None:
    hour = make_hour(2, 40)
    hour.metrics = {"smell_level": hour.metrics["power_watts"] / 100}
    given = roll_up(hour)
    assert_kept(
        decode_quarters(encode_quarters(given)).metrics["smell_level"],
        given.metrics["smell_level"],
        0.001,
    )


def test_metrics_of_many_gpus_come_back_one_by_one() -> None:
    hour = roll_up(make_hour(200, 60))
    body = encode_quarters(hour)
    for name, roll in hour.metrics.items():
        found = decode_quarters(body, {name}).metrics
        assert (name in found) == bool(roll.seconds.any())
        if name in found:
            assert_kept(found[name], roll, GPU_METRICS[name].precision)


def test_what_is_constant_or_unknown_costs_next_to_nothing() -> None:
    hour = make_hour()
    hour.metrics = {name: np.full((8, 360), 5.0) for name in GPU_METRICS}
    plain = len(encode_quarters(roll_up(hour)))
    assert plain < 640
    hour.metrics |= {name: np.full((8, 360), np.nan) for name in list(GPU_METRICS)[5:]}
    assert len(encode_quarters(roll_up(hour))) < plain + 50


@given(st.data())
def test_changed_bytes_of_quarter_hours_are_damaged(data: st.DataObject) -> None:
    body = bytearray(encode_quarters(roll_up(make_hour(2, 30))))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Damaged):
        decode_quarters(bytes(body))


def line(totals: StepTotals, name: str) -> list[float]:
    return totals.table[totals.names.index(name)].tolist()


def slow_line(parts: Quarters, name: str, quarters: list[int]) -> list[float]:
    """A line of totals, GPU by GPU."""
    roll = parts.metrics[name]
    devices: list[tuple[float, float, float, float]] = [
        (
            sum(roll.sum[row, quarter] for quarter in quarters),
            sum(roll.seconds[row, quarter] for quarter in quarters),
            min((roll.low[row, quarter] for quarter in quarters if roll.seconds[row, quarter] > 0), default=math.nan),
            max((roll.high[row, quarter] for quarter in quarters if roll.seconds[row, quarter] > 0), default=math.nan),
        )
        for row in range(len(parts.gpus))
    ]
    seen = [device for device in devices if device[1] > 0]
    together: dict[str, tuple[Any, Any]] = {SUMMED: (sum, sum), MEANT: (min, max), HOTTEST: (min, max)}
    lower, higher = together[name]
    return [
        sum(device[0] for device in seen),
        sum(device[1] for device in seen),
        lower([device[2] for device in seen]) if seen else math.nan,
        higher([device[3] for device in seen]) if seen else math.nan,
        sum(device[0] / device[1] for device in seen) if seen else math.nan,
    ]


@given(hours())
def test_totals_are_what_gpu_by_gpu_gives(hour: Hour) -> None:
    parts = roll_up(hour)
    whole = hour_totals(parts)
    assert (whole.start, whole.seconds_per_step) == (START, 3600)
    assert whole.states == pytest.approx(parts.states.sum(axis=(1, 2)))
    for name in hour.metrics:
        assert line(whole, name) == pytest.approx(slow_line(parts, name, [0, 1, 2, 3]), nan_ok=True)
    for totals in quarter_totals(parts):
        number = (totals.start - START) // 900
        assert totals.seconds_per_step == 900
        assert totals.states == pytest.approx(parts.states[:, :, number].sum(axis=1))
        for name in hour.metrics:
            assert line(totals, name) == pytest.approx(slow_line(parts, name, [number]), nan_ok=True)


def test_a_quarter_hour_without_any_sample_has_no_totals() -> None:
    hour = make_hour(2, 20)
    kept = hour.times < START + 1800
    late = Hour(START, hour.times[kept], hour.covered[kept], hour.gpus, hour.states[:, kept])
    late.metrics = {name: values[:, kept] for name, values in hour.metrics.items()}
    assert [totals.start - START for totals in quarter_totals(roll_up(late))] == [0, 900]


def make_totals(seed: int, gpus: int = 2) -> StepTotals:
    return hour_totals(roll_up(make_hour(gpus, 60, seed)))


def test_sums_are_added_and_extremes_are_those_of_both() -> None:
    one, other = make_totals(1), make_totals(2)
    both = sum_totals([one, other])
    for name in ("power_watts", "memory_used_bytes", "host_memory_used_bytes"):
        assert line(both, name) == pytest.approx(np.add(line(one, name), line(other, name)))
    for name in ("utilization_percent", "temperature_celsius", "host_cpu_percent"):
        (a, b, c, d, e), (f, g, h, i, j) = line(one, name), line(other, name)
        assert line(both, name) == pytest.approx([a + f, b + g, min(c, h), max(d, i), e + j])
    assert line(both, "fan_percent") == pytest.approx([0, 0, math.nan, math.nan, math.nan], nan_ok=True)


def test_what_was_added_is_taken_out_again() -> None:
    one, other = make_totals(1), make_totals(2)
    left = subtract_totals(sum_totals([one, other]), other)
    assert left.states == pytest.approx(one.states)
    assert left.table[:, [0, 1, 4]] == pytest.approx(one.table[:, [0, 1, 4]], nan_ok=True)
    assert line(left, "power_watts") == pytest.approx(line(one, "power_watts"))


def test_the_extremes_of_single_gpus_cannot_be_taken_back() -> None:
    one, other = make_totals(1), make_totals(2)
    both = sum_totals([one, other])
    left = subtract_totals(both, other)
    for name in ("utilization_percent", "temperature_celsius", "host_cpu_percent"):
        assert line(left, name)[2:4] == line(both, name)[2:4]


def test_what_only_one_knows_is_neither_lost_nor_made_up() -> None:
    one, other = make_totals(1), make_totals(2)
    less = StepTotals(other.start, 3600, other.names[2:], other.table[2:], other.states)
    both = sum_totals([one, less])
    assert both.names == one.names
    assert line(both, "utilization_percent") == line(one, "utilization_percent")
    turned = sum_totals([less, one])
    assert set(turned.names) == set(one.names)
    assert line(turned, "power_watts") == line(one, "power_watts")
    assert line(turned, "energy_joules") == pytest.approx(line(both, "energy_joules"))
    assert line(subtract_totals(both, less), "utilization_percent") == line(one, "utilization_percent")


def test_when_all_is_taken_out_nothing_is_known() -> None:
    one = make_totals(1)
    left = subtract_totals(one, one)
    assert np.isnan(left.table[:, 2:]).all()
    assert not left.table[:, :2].any()
    assert not left.states.any()


def test_totals_come_back_from_their_bytes() -> None:
    given = make_totals(1, 8)
    found = decode_totals((7, given.start, 1, encode_totals(given)), given.names, 3600)
    assert (found.start, found.seconds_per_step, found.names) == (given.start, 3600, given.names)
    assert np.array_equal(found.states, given.states)
    assert np.array_equal(found.table[:, [0, 1, 4]], given.table[:, [0, 1, 4]], equal_nan=True)
    assert found.table[:, 2:4] == pytest.approx(given.table[:, 2:4], rel=1e-7, nan_ok=True)


@pytest.mark.parametrize("cut", [1, 8, 40, 200, 10_000])
def test_totals_that_end_early_are_damaged(cut: int) -> None:
    given = make_totals(1)
    with pytest.raises(Damaged):
        decode_totals((7, given.start, 1, encode_totals(given)[:-cut]), given.names, 3600)
