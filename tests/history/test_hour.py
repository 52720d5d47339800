"""An hour comes back from its bytes, whole or only what is asked for; what has changed since is found."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from gpudeck.history import hour as hours
from gpudeck.history.codec import Damaged, add_checksum, encode_matrix
from gpudeck.history.hour import (
    HOUR_VERSION,
    Hour,
    HourMoment,
    RunMoment,
    RunSlice,
    decode_hour,
    decode_moments,
    encode_hour,
    find_since,
    make_values,
    or_none,
)
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from history.hours import START, assert_same, make_hour, make_run

GOLDEN = Path(__file__).parent / "golden" / "chunk-v1.bin"


def make_lively_hour(gpus: int = 3, samples: int = 60) -> Hour:
    """With gaps, states that change, and runs that come and go."""
    hour = make_hour(gpus, samples)
    hour.states[0, : samples // 2] = 2
    hour.states[1, samples // 3 : samples // 2] = 1
    hour.metrics["power_watts"][1, samples // 3 : samples // 2] = np.nan
    hour.covered[samples // 2] = 10.0
    hour.runs = [make_run(hour, 7, 0, 0, samples), make_run(hour, 8, 1, 5, samples // 2), make_run(hour, 7, 2, 9, 12)]
    hour.runs[1].present[8] = False
    hour.runs[1].memory[8] = hour.runs[1].utilization[8] = np.nan
    return hour


def assert_same_run(found: RunSlice, expected: RunSlice) -> None:
    assert (found.run, found.gpu) == (expected.run, expected.gpu)
    assert found.present.dtype == np.bool_
    assert np.array_equal(found.present, expected.present)
    assert_same(found.memory, expected.memory)
    assert_same(found.utilization, expected.utilization)


def assert_same_hour(found: Hour, expected: Hour) -> None:
    assert (found.start, found.gpus) == (expected.start, expected.gpus)
    assert_same(found.times, expected.times, 0.000501)
    assert_same(found.covered, expected.covered, 0.000501)
    assert found.states.dtype == np.uint8
    assert np.array_equal(found.states, expected.states)
    assert list(found.metrics) == list(expected.metrics)
    assert list(found.host) == list(expected.host)
    for name, values in expected.metrics.items():
        assert_same(found.metrics[name], values)
    for name, values in expected.host.items():
        assert_same(found.host[name], values)
    assert len(found.runs) == len(expected.runs)
    for one, other in zip(found.runs, expected.runs, strict=True):
        assert_same_run(one, other)


@pytest.mark.parametrize(("gpus", "samples"), [(3, 60), (8, 360), (1, 12), (3, 3600)])
def test_an_hour_comes_back(gpus: int, samples: int) -> None:
    hour = make_hour(gpus, samples)
    assert_same_hour(decode_hour(encode_hour(hour)), hour)


def test_gaps_changing_states_and_runs_come_back() -> None:
    hour = make_lively_hour()
    assert_same_hour(decode_hour(encode_hour(hour)), hour)


@pytest.mark.parametrize(("gpus", "samples"), [(0, 5), (2, 0), (0, 0), (1, 1)])
def test_an_hour_with_next_to_nothing_comes_back(gpus: int, samples: int) -> None:
    hour = make_hour(gpus, samples)
    assert_same_hour(decode_hour(encode_hour(hour)), hour)


def find_moment(hour: Hour, at: float) -> HourMoment | None:
    place = int(np.searchsorted(hour.times, at, side="right")) - 1
    if place < 0:
        return None
    nothing = np.full((len(hour.gpus), len(hour.times)), np.nan)
    table = np.array([hour.metrics.get(name, nothing)[:, place] for name in GPU_NAMES]).T
    own = np.array([[line[place] if (line := hour.host.get(name)) is not None else np.nan for name in HOST_NAMES]])
    return HourMoment(
        float(hour.times[place]),
        float(hour.covered[place]),
        hour.gpus,
        hour.states[:, place].tolist(),
        find_since(hour.times, hour.states, place),
        make_values(table, is_host=False),
        make_values(own, is_host=True)[0],
        [
            RunMoment(one.run, one.gpu, *or_none(np.array([one.memory[place], one.utilization[place]])))
            for one in hour.runs
            if one.present[place]
        ],
    )


@pytest.mark.parametrize("metrics", [None, frozenset({"power_watts", "host_cpu_percent"})])
def test_a_moment_is_that_of_the_whole_hour(metrics: frozenset[str] | None) -> None:
    body = encode_hour(make_lively_hour())
    hour = decode_hour(body, metrics)
    for at in (hour.start, *hour.times, *(hour.times + 1.5)):
        [found], expected = decode_moments([body], float(at), metrics), find_moment(hour, float(at))
        assert (found is None) == (expected is None) == bool(at < hour.times[0])
        if found is not None and expected is not None:
            assert found.covered == pytest.approx(expected.covered)
            assert replace(found, covered=0.0) == replace(expected, covered=0.0)


def test_only_the_metrics_asked_for_are_there() -> None:
    hour = make_lively_hour()
    found = decode_hour(encode_hour(hour), ["memory_used_bytes", "host_cpu_percent", "colour"])
    assert list(found.metrics) == ["memory_used_bytes"]
    assert list(found.host) == ["cpu_percent"]
    assert_same(found.metrics["memory_used_bytes"], hour.metrics["memory_used_bytes"])
    assert np.array_equal(found.states, hour.states)
    assert len(found.runs) == 3


def test_a_name_without_host_before_it_is_not_the_hosts() -> None:
    found = decode_hour(encode_hour(make_lively_hour()), {"cpu_percent"}, runs=False)
    assert (found.metrics, found.host, found.runs) == ({}, {}, [])


def test_a_metric_that_nobody_knows_here_survives_unchanged() -> None:
    hour = make_lively_hour()
    values = np.random.default_rng(1).normal(0, 5, (3, 60)).round(3)
    values[0, 3] = np.nan
    hour.metrics["smell_level"] = values
    hour.host["noise_bels"] = np.linspace(0, 1e9, 60).round()
    again = decode_hour(encode_hour(decode_hour(encode_hour(hour))))
    assert_same(again.metrics["smell_level"], values)
    assert_same(again.host["noise_bels"], hour.host["noise_bels"])


def test_what_was_written_twice_is_the_same_bytes() -> None:
    body = encode_hour(make_lively_hour())
    assert encode_hour(decode_hour(body)) == body


def test_metrics_that_nobody_tells_cost_next_to_nothing() -> None:
    hour = make_hour()
    before = len(encode_hour(hour))
    gpus, host = GPU_METRICS.keys() - hour.metrics.keys(), HOST_METRICS.keys() - hour.host.keys()
    hour.metrics |= {name: np.full((8, 360), np.nan) for name in gpus}
    hour.host |= {name: np.full(360, np.nan) for name in host}
    assert len(encode_hour(hour)) < before + 20 * (len(gpus) + len(host))


def test_more_runs_than_one_table_holds_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    hour = make_hour(2, 40)
    hour.runs = [make_run(hour, number, number % 2, number % 30, 40) for number in range(50)]
    monkeypatch.setattr(hours, "MAX_VALUES", 40 * 7)
    assert_same_hour(decode_hour(encode_hour(hour)), hour)


@given(st.data())
def test_a_single_changed_bit_is_found(data: st.DataObject) -> None:
    body = bytearray(encode_hour(make_lively_hour()))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Damaged):
        decode_hour(bytes(body))


@given(st.binary(max_size=200))
def test_bytes_from_anywhere_are_damaged(rubbish: bytes) -> None:
    for body in (rubbish, b"\x01" + rubbish, add_checksum(HOUR_VERSION, rubbish)):
        with pytest.raises(Damaged):
            decode_hour(body)


@pytest.mark.parametrize("cut", [1, 2, 100, 1000])
def test_an_hour_that_ends_early_is_damaged(cut: int) -> None:
    with pytest.raises(Damaged):
        decode_hour(encode_hour(make_lively_hour())[:-cut])


@pytest.mark.parametrize("field", range(10))
def test_an_hour_of_which_a_part_does_not_fit_is_damaged(field: int) -> None:
    """The checksum fits: somebody wrote it so."""
    parts = msgspec.msgpack.decode(encode_hour(make_lively_hour())[5:])
    table = encode_matrix(np.zeros((5, 7)), 1.0)
    wrong = [None, [1], table, table, b"", [], b"", [], table, [[7], [9], [], [], []]]
    parts[field] = wrong[field]
    with pytest.raises(Damaged):
        decode_hour(add_checksum(HOUR_VERSION, msgspec.msgpack.encode(parts)))


def test_version_1_as_it_was_first_written_is_still_read() -> None:
    """The file never changes: a reader that fails here loses people's past."""
    hour = decode_hour(GOLDEN.read_bytes())
    assert_same_hour(hour, make_golden_hour())


def make_golden_hour() -> Hour:
    """By arithmetic alone: a generator of random numbers may change."""
    places = np.arange(40)
    times = START + 2.5 + places * 90.0
    states = np.where(places < 20, np.array([[2], [3]]), np.array([[4], [1]])).astype(np.uint8)
    hour = Hour(START, times, np.full(40, 30.0), [3, 9], states)
    hour.metrics = {
        "utilization_percent": np.stack([places * 37 % 101, places * 53 % 97]).astype(np.float64),
        "power_watts": np.stack([70 + places / 10, np.where(places < 20, 412.7, np.nan)]),
        "energy_joules": np.stack([9e14 + places * 1234.0, 5.0 + places * 70_000.0]),
        "memory_total_bytes": np.full((2, 40), 81_559 * 2.0**20),
        "fan_percent": np.full((2, 40), np.nan),
        "smell_level": np.stack([places * -0.25, places * 0.125]),
    }
    hour.metrics["power_watts"] = hour.metrics["power_watts"].round(1)
    hour.host = {"cpu_percent": (places * 7 % 1000 / 10).round(1), "uptime_seconds": 6000.0 + places // 2 * 180.0}
    hour.runs = [make_run(hour, 17, 0, 0, 40), make_run(hour, 4_000_000_000, 1, 3, 20)]
    return hour
