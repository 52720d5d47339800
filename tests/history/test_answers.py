"""Series of GPUs, hosts, runs and the fleet, over a past of plain arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.past import T0, FakePast, make_hour, without
from gpudeck.history.answers import answer_series
from gpudeck.history.base import STATE_METRICS, HistoryRefused, KnownRun, SeriesQuery
from gpudeck.history.hour import ABSENT, BUSY, FREE, IDLE, UNKNOWN, Hour, RunSlice
from gpudeck.model.history import Answer, Point

HOUR = 3600
NOW = T0 + 2 * 86_400.0
UTILIZATION = "utilization_percent"


def ask(past: FakePast, metric: str = UTILIZATION, **more: object) -> Answer:
    given = {"start": T0, "end": T0 + HOUR, "points": 60} | more
    return answer_series(past, SeriesQuery(metric=metric, **given), NOW)  # type: ignore[arg-type]


def points(answer: Answer) -> list[Point]:
    (one,) = answer.series
    return one.points


def values(answer: Answer) -> list[float | None]:
    return [point[1] for point in points(answer)]


def ramp(gpus: int = 1) -> np.ndarray:
    return np.tile(np.linspace(0, 100, 360), (gpus, 1))


def slice_of(run: int, gpu: int, first: int, end: int, memory: float = 1e9) -> RunSlice:
    present = np.zeros(360, dtype=bool)
    present[first:end] = True
    return RunSlice(run, gpu, present, np.where(present, memory, np.nan), np.full(360, np.nan))


def test_point_has_the_mean_and_the_band_of_its_step() -> None:
    answer = ask(FakePast(make_hour(utilization_percent=ramp())), gpu="GPU-100")
    assert (answer.step, answer.resolution, answer.unit) == (60, "raw", "percent")
    first = ramp()[0, :6]
    assert points(answer)[0] == (T0, round(first.mean(), 2), 0.0, round(first.max(), 2))
    assert len(points(answer)) == 60
    assert (answer.series[0].gpu, answer.series[0].label) == ("GPU-100", "0")


def test_steps_of_a_quarter_hour_and_more_come_from_quarter_hours() -> None:
    past = FakePast(make_hour(utilization_percent=ramp()), make_hour(T0 + HOUR, utilization_percent=50))
    answer = ask(past, gpu="GPU-100", end=T0 + 2 * HOUR, points=2)
    assert (answer.step, answer.resolution, past.reads) == (HOUR, "quarter_hour", 0)
    assert points(answer) == [(T0, 50.0, 0.0, 100.0), (T0 + HOUR, 50.0, 50.0, 50.0)]


def test_samples_and_quarter_hours_tell_the_same() -> None:
    hour = make_hour(utilization_percent=ramp(4), power_watts=ramp(4) * 7, gpus=4, states=IDLE)
    fine = FakePast(hour)
    coarse = FakePast(hour, raw_since=T0 + HOUR)
    for metric in (UTILIZATION, "power_watts", "gpus_idle", "gpus_free", "memory_total_bytes"):
        quarters = ask(coarse, metric, host="gpu01", points=60)
        samples = ask(fine, metric, host="gpu01", points=60)
        assert (quarters.step, quarters.resolution) == (900, "quarter_hour")
        averaged = np.array([point[1] for point in points(samples)]).reshape(4, 15).mean(axis=1)
        assert [point[1] for point in points(quarters)] == pytest.approx(averaged, rel=1e-3)


def test_gap_has_no_points() -> None:
    answer = ask(FakePast(without(make_hour(utilization_percent=50), 60, 120)), gpu="GPU-100")
    assert [point[0] for point in points(answer)] == [T0 + 60 * n for n in range(60) if not 10 <= n < 20]


def test_unknown_values_weigh_nothing_and_are_never_zero() -> None:
    shown = np.where(np.arange(360) % 2 == 0, 80.0, np.nan)
    answer = ask(FakePast(make_hour(utilization_percent=shown)), gpu="GPU-100")
    assert set(values(answer)) == {80.0}


def test_metric_that_nobody_knew_has_no_points_but_its_gpu_is_not_unknown() -> None:
    assert points(ask(FakePast(make_hour(utilization_percent=np.nan)), gpu="GPU-100")) == []
    assert points(ask(FakePast(make_hour()), "fan_percent", gpu="GPU-100", points=2)) == []


def test_mean_is_weighted_by_the_seconds_that_a_sample_stands_for() -> None:
    host, hour = make_hour(utilization_percent=np.where(np.arange(360) == 0, 90.0, 0.0))
    hour.covered[0] = 25.0
    answer = ask(FakePast((host, hour)), gpu="GPU-100")
    assert values(answer)[0] == pytest.approx(90 * 25 / (25 + 50), abs=0.01)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (UTILIZATION, (30.0, 20.0, 40.0)),
        ("power_watts", (300.0, 300.0, 300.0)),
        ("temperature_celsius", (70.0, 50.0, 70.0)),
    ],
)
@pytest.mark.parametrize("end", [T0 + HOUR, T0 + 86_400], ids=["samples", "quarter hours"])
@pytest.mark.parametrize("whose", [{"host": "gpu01"}, {"host": "id-1"}, {"fleet": True}], ids=["name", "id", "fleet"])
def test_devices_become_one_as_the_catalog_says(
    metric: str, expected: tuple[float, float, float], end: int, whose: dict[str, object]
) -> None:
    of_each = {
        UTILIZATION: np.array([[20.0], [40.0]]),
        "power_watts": np.array([[100.0], [200.0]]),
        "temperature_celsius": np.array([[50.0], [70.0]]),
    }
    answer = ask(FakePast(make_hour(gpus=2, **of_each)), metric, end=end, **whose)
    assert {point[1:] for point in points(answer)} == {expected}


def test_fleet_is_all_hosts_together() -> None:
    past = FakePast(
        make_hour(host=1, gpus=2, utilization_percent=30, power_watts=100),
        make_hour(host=2, gpus=1, utilization_percent=90, power_watts=500),
    )
    for end in (T0 + HOUR, T0 + 86_400):
        assert set(values(ask(past, UTILIZATION, fleet=True, end=end))) == {50.0}
        assert set(values(ask(past, "power_watts", fleet=True, end=end))) == {700.0}


def test_gpu_that_is_gone_takes_nothing_from_the_others() -> None:
    shown = np.full((2, 360), 100.0)
    shown[1, 180:] = np.nan
    states = np.full((2, 360), BUSY, dtype=np.uint8)
    states[1, 180:] = ABSENT
    past = FakePast(make_hour(gpus=2, power_watts=shown, states=states))
    assert values(ask(past, "power_watts", host="gpu01", points=2)) == [200.0, 100.0]
    assert values(ask(past, "gpus_busy", host="gpu01", points=2)) == [2.0, 1.0]
    assert values(ask(past, "gpus_busy", gpu="GPU-101", points=2)) == [1.0]
    assert values(ask(past, "gpus_busy", gpu="GPU-101", points=60)) == [1.0] * 30


def test_set_of_gpus_may_change_from_hour_to_hour() -> None:
    past = FakePast(make_hour(gpus=2, power_watts=100), make_hour(T0 + HOUR, gpus=3, power_watts=100))
    for count in (24, 2):
        answer = ask(past, "power_watts", host="gpu01", end=T0 + 2 * HOUR, points=count)
        assert values(answer)[0] == 200.0
        assert values(answer)[-1] == 300.0


@pytest.mark.parametrize("points_asked", [60, 4])
def test_states_are_a_share_of_one_gpu_and_a_number_of_many(points_asked: int) -> None:
    states = np.repeat([[FREE], [BUSY], [IDLE], [UNKNOWN]], 360, axis=1).astype(np.uint8)
    states[0, :180] = BUSY
    past = FakePast(make_hour(gpus=4, states=states))
    asked = {"points": points_asked}
    found = {name: values(ask(past, name, host="gpu01", **asked)) for name in STATE_METRICS}
    assert (found["gpus_busy"][0], found["gpus_busy"][-1]) == (2.0, 1.0)
    assert (found["gpus_free"][0], found["gpus_free"][-1]) == (0.0, 1.0)
    assert set(found["gpus_idle"]) == {1.0} == set(found["gpus_unknown"])
    assert set(found["gpus_reserved"]) == {0.0}
    assert values(ask(past, "gpus_busy", gpu="GPU-100", **asked))[0] == 1.0
    assert values(ask(past, "gpus_busy", gpu="GPU-100", points=1)) == [0.5]


def test_fleet_counts_gpus_also_where_it_was_observed_for_a_part_of_the_time() -> None:
    hours = [make_hour(host=host, gpus=4, states=IDLE) for host in (1, 2)]
    past = FakePast(*(without(pair, 20, 90) for pair in hours))
    for count in (60, 4, 1):
        assert set(values(ask(past, "gpus_idle", fleet=True, points=count))) == {8.0}
        assert set(values(ask(past, "gpus_free", fleet=True, points=count))) == {0.0}


def test_metric_of_the_host_itself_is_not_that_of_its_gpus() -> None:
    hour = make_hour(memory_used_bytes=1e9, host_metrics={"memory_used_bytes": 5e9, "cpu_percent": 12.5})
    for count in (60, 2):
        assert set(values(ask(FakePast(hour), "host_memory_used_bytes", host="gpu01", points=count))) == {5e9}
        assert set(values(ask(FakePast(hour), "memory_used_bytes", host="gpu01", points=count))) == {1e9}
        assert set(values(ask(FakePast(hour), "cpu_percent", host="gpu01", points=count))) == {12.5}
        assert set(values(ask(FakePast(hour), "cpu_percent", fleet=True, points=count))) == {12.5}


@pytest.mark.parametrize(("count", "expected"), [(60, 50.0), (4, 890.0)])
def test_last_value_stands_for_what_only_grows_with_time(count: int, expected: float) -> None:
    hour = make_hour(host_metrics={"uptime_seconds": np.arange(0, 3600, 10.0)})
    assert values(ask(FakePast(hour), "host_uptime_seconds", host="gpu01", points=count))[0] == expected


def test_host_splits_into_its_gpus() -> None:
    past = FakePast(make_hour(gpus=3, utilization_percent=np.array([[1.0], [2.0], [3.0]])))
    answer = ask(past, host="gpu01", by="gpu", points=4)
    assert [(s.gpu, s.label, s.points[0][1]) for s in answer.series] == [
        ("GPU-100", "0", 1.0),
        ("GPU-101", "1", 2.0),
        ("GPU-102", "2", 3.0),
    ]


def test_fine_steps_end_where_samples_do() -> None:
    hours = [make_hour(T0 + HOUR * n, utilization_percent=10) for n in range(2)]
    assert ask(FakePast(*hours, raw_since=T0 + HOUR), gpu="GPU-100").resolution == "quarter_hour"
    assert ask(FakePast(*hours, raw_since=T0 + HOUR), fleet=True).resolution == "quarter_hour"
    assert ask(FakePast(*hours, raw_since=T0), gpu="GPU-100").resolution == "raw"


def test_new_store_shows_fine_steps_though_the_range_begins_before_it() -> None:
    past = FakePast(make_hour(utilization_percent=10), raw_since=T0)
    for whose in ({"gpu": "GPU-100"}, {"host": "gpu01"}, {"fleet": True}):
        assert ask(past, start=T0 - 20 * HOUR, points=500, **whose).resolution == "raw"


def test_fleet_that_is_too_large_for_fine_steps_gets_quarter_hours() -> None:
    hours = [make_hour(host=host, utilization_percent=10, every=900) for host in range(1, 90)]
    past = FakePast(*hours, make_hour(T0 + 23 * HOUR, utilization_percent=10, every=900))
    answer = ask(past, fleet=True, end=T0 + 86_400, points=500)
    assert (answer.step, past.reads) == (900, 0)


def make_run(gpus: tuple[int, ...], user: str | None, first: float, last: float) -> KnownRun:
    return KnownRun(7, 1, 4242, None, user, None, None, None, gpus, first, last)


def test_run_has_its_gpus_while_it_was_there() -> None:
    shown = np.array([[10.0], [50.0], [90.0]])
    runs = [slice_of(7, 0, 60, 120), slice_of(7, 1, 60, 120), slice_of(8, 2, 0, 360)]
    past = FakePast(make_hour(gpus=3, utilization_percent=shown, runs=runs))
    past.known_runs[7] = make_run((100, 101), "alice", T0 + 600.0, T0 + 1190.0)
    answer = ask(past, run=7)
    assert answer.series[0].run == 7
    assert points(answer) == [(T0 + 600.0 + 60 * n, 30.0, 10.0, 50.0) for n in range(10)]
    split = ask(past, run=7, by="gpu")
    assert [(s.gpu, len(s.points)) for s in split.series] == [("GPU-100", 10), ("GPU-101", 10)]


def test_run_in_quarter_hours_is_there_from_its_first_to_its_last() -> None:
    past = FakePast(make_hour(utilization_percent=10, runs=[slice_of(7, 0, 100, 200)]))
    past.known_runs[7] = make_run((100,), None, T0 + 1000.0, T0 + 1990.0)
    answer = ask(past, run=7, points=4)
    assert [point[0] for point in points(answer)] == [T0 + 900.0, T0 + 1800.0]


def test_run_that_goes_on_is_shown_until_its_last_sample() -> None:
    past = FakePast(make_hour(utilization_percent=10, runs=[slice_of(7, 0, 0, 300)]))
    past.known_runs[7] = make_run((100,), None, float(T0), T0 + 10.0)
    answer = answer_series(past, SeriesQuery(UTILIZATION, T0, T0 + HOUR, 4, run=7), T0 + 3600.0)
    assert [point[0] for point in points(answer)] == [T0, T0 + 900.0, T0 + 1800.0, T0 + 2700.0]


def test_late_hour_may_come_after_those_that_follow_it() -> None:
    class LateSecond(FakePast):
        def quarters(self, *args: object) -> object:  # type: ignore[override]
            first, second, *others = super().quarters(*args)  # type: ignore[arg-type]
            return iter((first, *others, second))

    hours = [make_hour(T0 + HOUR * n, utilization_percent=n * 10) for n in range(4)]
    answer = ask(LateSecond(*hours), gpu="GPU-100", end=T0 + 4 * HOUR, points=2)
    assert values(answer) == [5.0, 25.0]


@pytest.mark.parametrize(
    ("more", "code", "hint"),
    [
        ({}, "not_one_subject", "exactly one of gpu, host, user, run, or fleet=1"),
        ({"gpu": "GPU-100", "fleet": True}, "not_one_subject", "exactly one"),
        ({"gpu": "GPU-10"}, "unknown_gpu", "Did you mean GPU-100"),
        ({"gpu": ""}, "unknown_gpu", "GPU-100"),
        ({"host": "gpu1"}, "unknown_host", "Did you mean gpu01"),
        ({"host": "\x00" * 500}, "unknown_host", "gpu01"),
        ({"run": 99}, "unknown_run", "/api/v1/runs"),
        ({"run": 2**70}, "unknown_run", "/api/v1/runs"),
        ({"fleet": True, "by": "gpu"}, "bad_split", "by=gpu splits"),
        ({"host": "gpu01", "by": "user"}, "bad_split", "by=user splits memory_used_bytes of one GPU"),
        ({"gpu": "GPU-100", "by": "user"}, "bad_split", "by=user splits memory_used_bytes of one GPU"),
        ({"host": "gpu01", "by": "gpu", "metric": "host_cpu_percent"}, "bad_split", "a metric of GPUs"),
        ({"gpu": "GPU-100", "metric": "utilisation"}, "unknown_metric", "utilization_percent"),
        ({"gpu": "GPU-100", "end": T0}, "bad_range", "before"),
        ({"gpu": "GPU-100", "start": float("nan")}, "bad_range", "Unix seconds"),
        ({"gpu": "GPU-100", "start": 1e300, "end": 1e301}, "bad_range", "Unix seconds"),
        ({"gpu": "GPU-100", "start": 0, "end": 5e8}, "too_long", "10 years"),
        ({"gpu": "GPU-100", "points": 0}, "bad_points", "5,000"),
        ({"gpu": "GPU-100", "points": 10**9}, "too_many_points", "5,000"),
    ],
)
def test_question_without_an_answer_is_refused_with_what_is_possible(
    more: dict[str, object], code: str, hint: str
) -> None:
    past = FakePast(make_hour(utilization_percent=10))
    with pytest.raises(HistoryRefused) as refused:
        ask(past, **more)  # type: ignore[arg-type]
    assert refused.value.code == code
    assert hint in refused.value.hint
    assert len(str(refused.value)) < 3_000


def test_store_that_knows_nothing_yet_says_so() -> None:
    with pytest.raises(HistoryRefused, match="Nothing was recorded yet"):
        ask(FakePast(), gpu="GPU-100")
    assert points(ask(FakePast(), fleet=True)) == []
    assert points(ask(FakePast(), fleet=True, end=T0 + 86_400)) == []


def test_many_series_have_fewer_points_each() -> None:
    past = FakePast(make_hour(gpus=100, utilization_percent=10, every=60))
    answer = ask(past, host="gpu01", by="gpu", points=5_000)
    assert len(answer.series) == 100
    assert sum(len(one.points) for one in answer.series) <= 1.2 * 100_000 + 200


hours_of_noise = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 3), st.randoms(use_true_random=False)), min_size=1
)


@settings(max_examples=40, deadline=None)
@given(hours_of_noise, st.integers(1, 300), st.integers(0, 3000))
def test_answer_is_that_of_plain_sums(made: list[tuple[int, int, object]], count: int, offset: int) -> None:
    by_start = {start: (gpus, chance) for start, gpus, chance in made}
    pairs = [_noise(T0 + HOUR * start, gpus, chance) for start, (gpus, chance) in by_start.items()]
    past = FakePast(*pairs)
    answer = ask(past, gpu="GPU-100", start=T0 + offset, end=T0 + 4 * HOUR, points=count)
    expected = _plain(pairs, answer.step, T0 + offset, T0 + 4 * HOUR)
    found = {point[0]: point[1:] for one in answer.series for point in one.points}
    assert found.keys() == expected.keys()
    for at, told in found.items():
        assert told == pytest.approx(expected[at], abs=0.006)


def _noise(start: int, gpus: int, chance: object) -> tuple[int, Hour]:
    shown = np.array([[chance.choice((np.nan, *range(0, 100, 7))) for _ in range(60)] for _ in range(gpus)])  # type: ignore[attr-defined]
    return make_hour(start, gpus=gpus, every=60, utilization_percent=shown)


def _plain(
    pairs: list[tuple[int, Hour]], step: float, start: float, end: float
) -> dict[float, tuple[float, float, float]]:
    buckets: dict[float, list[tuple[float, float]]] = {}
    for _, hour in pairs:
        for at, seconds, value in zip(hour.times, hour.covered, hour.metrics[UTILIZATION][0], strict=True):
            begin = at // step * step
            if value == value and start // step * step <= begin < end:
                buckets.setdefault(begin, []).append((seconds, value))
    return {
        at: (
            sum(seconds * value for seconds, value in pairs) / sum(seconds for seconds, _ in pairs),
            min(value for _, value in pairs),
            max(value for _, value in pairs),
        )
        for at, pairs in buckets.items()
    }
