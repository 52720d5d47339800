"""What every store of the past keeps to: the same hours in, the same answers out. A new one is added to `STORES`."""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from contract.history_fleet import (
    END,
    SHARED,
    START,
    STRANGE,
    VANISHING,
    Pick,
    cut_up,
    gpu_value,
    host_value,
    memory_value,
    points_of,
    points_of_all,
    samples,
    state_value,
)
from fakes.clock import FakeClock
from fakes.prometheus import Kind, StoreProcess, running_store
from fakes.waiting import wait_until
from gpudeck.history.base import HeatQuery, HistoryRefused, MomentQuery, OverviewQuery, SeriesQuery, Store, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.remote.store import RemoteStore
from gpudeck.history.sample import STATE_NUMBERS, GpuSample, HostSample, ProcessSample, Values
from gpudeck.history.settings import HistorySettings
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Rollup
from gpudeck.model.history import Answer, Point

Maker = Callable[[Path, list[HostSample]], AbstractContextManager[Store]]
"""A store that holds these samples."""


def remote(kind: Kind) -> Maker:
    @contextlib.contextmanager
    def make(folder: Path, taken: list[HostSample]) -> Iterator[Store]:
        with running_store(kind) as server, contextlib.closing(open_remote(server, folder, FakeClock(END))) as store:
            store.take(taken)
            store.flush()
            server.show_all()
            yield store

    return make


def open_remote(server: StoreProcess, folder: Path, clock: FakeClock) -> RemoteStore:
    settings = HistorySettings(kind="prometheus", write_url=server.write_url, read_url=server.read_url)
    usage_store = EmbeddedStore(folder / "usage.db", settings, clock, keep_samples=False)
    return RemoteStore(settings, folder, usage_store, clock)


@contextlib.contextmanager
def embedded(folder: Path, taken: list[HostSample]) -> Iterator[Store]:
    with contextlib.closing(EmbeddedStore(folder / "history.db", HistorySettings(), FakeClock(END))) as store:
        store.take(taken)
        store.flush()
        yield store


STORES: dict[str, Maker] = {
    "embedded": embedded,
    "prometheus": remote("prometheus"),
    "victoria-metrics": remote("victoria-metrics"),
}


@pytest.fixture(scope="session")
def taken() -> list[HostSample]:
    return samples()


@pytest.fixture(scope="session", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, taken: list[HostSample]
) -> Iterator[Store]:
    with STORES[request.param](tmp_path_factory.mktemp("history"), taken) as made:
        yield made


def only(answer: Answer) -> list[Point]:
    (series,) = answer.series
    return series.points


def close_to(expected: list[Point], metric: str) -> list[object]:
    """Points within rounding: that of the metric itself, and what a store of roll-ups rounds besides."""
    known = GPU_METRICS.get(metric)
    slack = known.precision / 4 if known else 1e-3
    return [tuple(pytest.approx(number, rel=2e-4, abs=slack) for number in point) for point in expected]


def ask_gpu(metric: str, gpu: str = "GPU-a0", start: float = START, end: float = END, **more: int) -> SeriesQuery:
    return SeriesQuery(metric, start, end, gpu=gpu, **more)


@pytest.mark.parametrize("points", [1000, 200, 30, 3])
@pytest.mark.parametrize("metric", ["utilization_percent", "memory_used_bytes", "temperature_celsius", "power_watts"])
def test_gpu_in_steps_of_any_length(store: Store, taken: list[HostSample], metric: str, points: int) -> None:
    answer = store.series(ask_gpu(metric, points=points))
    expected = points_of(cut_up(taken, gpu_value(metric), answer.step), "GPU-a0")
    assert only(answer) == close_to(expected, metric)


def test_every_metric_of_the_catalog_comes_back(store: Store, taken: list[HostSample]) -> None:
    for metric in GPU_METRICS:
        answer = store.series(ask_gpu(metric, points=100))
        steps = cut_up(taken, gpu_value(metric), answer.step)
        expected = points_of(steps, "GPU-a0", GPU_METRICS[metric].rollup)
        assert only(answer) == close_to(expected, metric), metric


def test_steps_begin_on_round_times_and_answers_say_what_they_are(store: Store) -> None:
    answer = store.series(ask_gpu("power_watts", start=START + 7, end=START + 1807, points=60))
    assert (answer.metric, answer.unit, answer.step) == ("power_watts", "watts", 30)
    assert [point[0] for point in only(answer)] == [START + 30.0 * number for number in range(61)]


def test_gap_has_no_points(store: Store) -> None:
    shown = store.series(ask_gpu("temperature_celsius", "GPU-b0", end=START + 3600, points=360))
    assert [point[0] for point in only(shown) if START + 900 <= point[0] < START + 1800] == []
    assert len(only(shown)) == 270


def test_unknown_values_have_no_points(store: Store) -> None:
    answer = store.series(ask_gpu("utilization_percent", start=START + 4000, end=START + 5200, points=120))
    assert [point for series in answer.series for point in series.points] == []


def test_metric_that_was_never_known_has_no_points(store: Store) -> None:
    answer = store.series(ask_gpu("power_watts", "GPU-a1"))
    assert [point for series in answer.series for point in series.points] == []


def test_vanished_gpu_keeps_its_past_and_no_more(store: Store) -> None:
    shown = only(store.series(ask_gpu("temperature_celsius", VANISHING, points=180)))
    assert (shown[0][0], shown[-1][0]) == (START, START + 3540)


@pytest.mark.parametrize("points", [300, 20, 3])
@pytest.mark.parametrize(
    ("metric", "pick"),
    [
        ("utilization_percent", gpu_value("utilization_percent")),
        ("memory_used_bytes", gpu_value("memory_used_bytes")),
        ("temperature_celsius", gpu_value("temperature_celsius")),
        ("power_watts", gpu_value("power_watts")),
        ("gpus_busy", state_value("busy")),
        ("gpus_free", state_value("free")),
        ("gpus_reserved", state_value("reserved")),
        ("gpus_drained", state_value("drained")),
    ],
)
def test_host_puts_its_gpus_together(
    store: Store, taken: list[HostSample], metric: str, pick: Pick, points: int
) -> None:
    answer = store.series(SeriesQuery(metric, START, END, points, host="alpha"))
    steps = cut_up((sample for sample in taken if sample.name == "alpha"), pick, answer.step)
    assert only(answer) == close_to(points_of_all(steps, rollup_of(metric)), metric)


def rollup_of(metric: str) -> Rollup:
    return GPU_METRICS[metric].rollup if metric in GPU_METRICS else Rollup.SUM


@pytest.mark.parametrize("points", [300, 20])
@pytest.mark.parametrize("metric", ["cpu_percent", "memory_used_bytes", "load_1m"])
def test_host_itself(store: Store, taken: list[HostSample], metric: str, points: int) -> None:
    answer = store.series(SeriesQuery(f"host_{metric}", START, END, points, host="id-beta"))
    expected = points_of(cut_up(taken, host_value(metric), answer.step), "id-beta")
    assert only(answer) == close_to(expected, metric)


def test_of_what_only_grows_the_last_counts(store: Store) -> None:
    shown = only(store.series(SeriesQuery("uptime_seconds", START, END, 3, host="alpha")))
    assert [point[1] for point in shown] == [3540, 7140, 10740]


def test_host_is_found_by_a_name_that_needs_quoting(store: Store, taken: list[HostSample]) -> None:
    answer = store.series(SeriesQuery("temperature_celsius", START, END, 100, host=STRANGE))
    steps = cut_up(
        (sample for sample in taken if sample.name == STRANGE), gpu_value("temperature_celsius"), answer.step
    )
    assert only(answer) == close_to(points_of_all(steps, Rollup.MAX), "temperature_celsius")
    assert [(series.host, series.label) for series in answer.series] == [("id-beta", STRANGE)]


def test_host_by_gpu(store: Store, taken: list[HostSample]) -> None:
    answer = store.series(SeriesQuery("power_watts", START, END, 50, host="id-beta", by="gpu"))
    steps = cut_up(taken, gpu_value("power_watts"), answer.step)
    assert [(series.gpu, series.label) for series in answer.series] == [("GPU-b0", "0"), (VANISHING, "2")]
    assert answer.series[0].points == close_to(points_of(steps, "GPU-b0"), "power_watts")
    assert answer.series[1].points == close_to(points_of(steps, VANISHING), "power_watts")


@pytest.mark.parametrize("points", [300, 36, 12])
@pytest.mark.parametrize(
    ("metric", "pick"),
    [
        ("utilization_percent", gpu_value("utilization_percent")),
        ("memory_used_bytes", gpu_value("memory_used_bytes")),
        ("temperature_celsius", gpu_value("temperature_celsius")),
        ("power_watts", gpu_value("power_watts")),
    ],
)
def test_fleet_puts_all_gpus_together(
    store: Store, taken: list[HostSample], metric: str, pick: Pick, points: int
) -> None:
    answer = store.series(SeriesQuery(metric, START, END, points, fleet=True))
    expected = points_of_all(cut_up(taken, pick, answer.step), rollup_of(metric))
    assert only(answer) == close_to(expected, metric)


def test_fleet_in_long_steps_is_the_mean_of_its_quarter_hours(store: Store, taken: list[HostSample]) -> None:
    shown = only(store.series(SeriesQuery("memory_used_bytes", START, END, 3, fleet=True)))
    quarters = [
        point[1] or 0.0 for point in points_of_all(cut_up(taken, gpu_value("memory_used_bytes"), 900), Rollup.SUM)
    ]
    means = [sum(quarters[at : at + 4]) / 4 for at in range(0, len(quarters), 4)]
    assert [point[1] for point in shown] == pytest.approx(means, rel=2e-4)


@pytest.mark.parametrize("word", ["free", "busy", "idle", "allocated", "reserved", "drained", "unknown"])
def test_states_of_a_gpu_are_shares_of_its_time(store: Store, taken: list[HostSample], word: str) -> None:
    answer = store.series(ask_gpu(f"gpus_{word}", points=30))
    expected = points_of(cut_up(taken, state_value(word), answer.step), "GPU-a0")
    assert [point[:2] for point in only(answer)] == [point[:2] for point in close_to(expected, word)]


@pytest.mark.parametrize("points", [180, 12])
@pytest.mark.parametrize("word", ["free", "busy", "idle"])
def test_states_of_the_fleet_are_numbers_of_gpus(store: Store, taken: list[HostSample], word: str, points: int) -> None:
    answer = store.series(SeriesQuery(f"gpus_{word}", START, START + 7200, points, fleet=True))
    inside = (sample for sample in taken if sample.at < START + 7200)
    expected = points_of_all(cut_up(inside, state_value(word), answer.step), Rollup.SUM)
    assert [point[:2] for point in only(answer)] == [point[:2] for point in close_to(expected, word)]


def test_memory_of_a_gpu_by_user(store: Store, taken: list[HostSample]) -> None:
    answer = store.series(SeriesQuery("memory_used_bytes", START, END, 36, gpu=SHARED, by="user"))
    shown = {series.user: series.points for series in answer.series}
    for user in ("alice", "bob"):
        expected = points_of(cut_up(taken, memory_value(SHARED, user), answer.step), user)
        assert shown[user] == close_to([point for point in expected if point[3]], "memory_used_bytes")
    assert set(shown) == {"alice", "bob"}


def test_user_has_the_gpus_that_they_held(store: Store) -> None:
    shown = only(store.series(SeriesQuery("gpus_used", START, END, 3, user="bob")))
    # Of GPU-a0 bob has three quarters from 2,000 s on.
    assert [point[0] for point in shown] == [START, START + 3600.0, START + 7200.0]
    assert shown[0][1] == pytest.approx(1600 / 3600 * 0.75, rel=0.02)


@pytest.mark.parametrize("metric", ["utilization_percent", "memory_used_bytes", "temperature_celsius"])
def test_heat_is_hosts_by_hour(store: Store, taken: list[HostSample], metric: str) -> None:
    heat = store.heat(HeatQuery(metric, START, END))
    assert heat.times == [START, START + 3600.0, START + 7200.0]
    assert [(row.host, row.name) for row in heat.rows] == [("id-alpha", "alpha"), ("id-beta", STRANGE)]
    for row in heat.rows:
        steps = cut_up((sample for sample in taken if sample.host_id == row.host), gpu_value(metric), 3600)
        expected = [point[1] for point in points_of_all(steps, rollup_of(metric))]
        assert row.values == pytest.approx(expected, rel=2e-4)


def test_overview_says_what_the_single_questions_say(store: Store) -> None:
    overview = store.overview(OverviewQuery(START, END, "host", 12, "Europe/Berlin"))
    assert overview.until == END
    asks = [SeriesQuery(answer.metric, START, END, 12, fleet=True) for answer in overview.series]
    assert {"gpus_free", "gpus_busy", "utilization_percent", "power_watts"} < {ask.metric for ask in asks}
    assert overview.series == [store.series(ask) for ask in asks]
    usage = store.usage(UsageQuery("host", START, END))
    days = store.usage(UsageQuery("host", START, END, daily=True, zone="Europe/Berlin")).total.days
    assert (overview.usage.rows, overview.usage.coverage) == (usage.rows, usage.coverage)
    assert [(day.day, day.gpu_hours) for day in overview.usage.total.days] == [(day.day, day.gpu_hours) for day in days]
    assert overview.heat == store.heat(HeatQuery("utilization_percent", START, END))
    assert store.overview(OverviewQuery(START, END, heat=False)).heat is None


def test_heat_has_holes_where_nobody_looked(store: Store) -> None:
    heat = store.heat(HeatQuery("temperature_celsius", START - 3600, END + 3600))
    assert [[value is None for value in row.values] for row in heat.rows] == [[True, False, False, False, True]] * 2


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (SeriesQuery("power_watts", START, END, gpu="GPU-none"), "unknown_gpu"),
        (SeriesQuery("power_watts", START, END, gpu='"} or vector(1) #'), "unknown_gpu"),
        (SeriesQuery("power_watts", START, END, host="nobody"), "unknown_host"),
        (SeriesQuery("power_watts", START, END, run=4711), "unknown_run"),
        (SeriesQuery("colour", START, END, fleet=True), "unknown_metric"),
        (SeriesQuery("power_watts", END, START, fleet=True), "bad_range"),
        (SeriesQuery("power_watts", START, END, 0, fleet=True), "bad_points"),
        (SeriesQuery("power_watts", START, END), "not_one_subject"),
        (SeriesQuery("power_watts", START, END, fleet=True, by="user"), "bad_split"),
    ],
)
def test_question_without_an_answer_is_refused(store: Store, ask: SeriesQuery, code: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        store.series(ask)
    assert refused.value.code == code


@pytest.mark.parametrize("kind", ["prometheus", "victoria-metrics"])
def test_store_that_was_away_for_an_hour_gets_everything(kind: Kind, tmp_path: Path, taken: list[HostSample]) -> None:
    clock = FakeClock(START)
    with running_store(kind) as server, contextlib.closing(open_remote(server, tmp_path, clock)) as store:
        take_until(store, taken, clock, START + 3600)
        store.flush()
        server.stop()
        take_until(store, taken, clock, START + 7200)
        wait_until(lambda: store.stats().problem is not None, "the trouble")
        assert store.stats().behind_seconds > 3000
        server.start()
        take_until(store, taken, clock, END)
        store.flush()
        server.show_all()
        answer = store.series(ask_gpu("temperature_celsius", points=1080))
        assert only(answer) == close_to(points_of(cut_up(taken, gpu_value(answer.metric), 10), "GPU-a0"), answer.metric)
        assert store.stats().problem is None


def take_until(store: Store, taken: list[HostSample], clock: FakeClock, end: float) -> None:
    store.take([sample for sample in taken if clock.now <= sample.at < end])
    clock.now = end


def single(host: str, at: float, interval: float) -> HostSample:
    """One GPU, which alice is on."""
    values = tuple({"power_watts": 100.0, "utilization_percent": 50.0}.get(name) for name in GPU_METRICS)
    process = ProcessSample(7, None, "alice", None, None, None, 2**30, None)
    gpu = GpuSample(f"GPU-{host}", "0", "H200", STATE_NUMBERS["busy"], values, (process,))
    return HostSample(f"id-{host}", host, START + at, interval, (None,) * len(HOST_METRICS), (gpu,))


OFTEN = [single("often", 10.0 * number, 10.0) for number in range(60)]


@pytest.mark.parametrize("name", STORES)
def test_host_that_is_sampled_once_a_minute_has_only_the_gaps_that_there_were(name: str, tmp_path: Path) -> None:
    # Each time a little later.
    slow = [single("slow", 60.02 * minute, 60.0) for minute in (1, 2, 3, 9, 10)]
    asks = [
        SeriesQuery("power_watts", START, START + 610, 62, gpu="GPU-slow"),
        SeriesQuery("gpus_busy", START, START + 610, 62, host="slow"),
        SeriesQuery("power_watts", START, START + 610, 62, host="slow", by="gpu"),
        SeriesQuery("memory_used_bytes", START, START + 610, 62, gpu="GPU-slow", by="user"),
    ]
    with STORES[name](tmp_path, sorted(slow + OFTEN, key=lambda one: one.at)) as store:
        answers = [store.series(ask) for ask in asks]
    assert {answer.step for answer in answers} == {10}
    shown = [{round(point[0] - START) for point in only(answer)} for answer in answers]
    # What comes first, and what comes after the gap, tells of a minute.
    assert shown == [{*range(10, 190, 10), *range(490, 610, 10)}] * 4


@pytest.mark.parametrize("name", ["prometheus", "victoria-metrics"])
def test_fleet_is_told_in_steps_in_which_each_host_was_sampled(name: str, tmp_path: Path) -> None:
    slow = [single("slow", 60.0 * minute, 60.0) for minute in range(10)]
    with STORES[name](tmp_path, sorted(slow + OFTEN, key=lambda one: one.at)) as store:
        answer = store.series(SeriesQuery("power_watts", START, START + 600, 60, fleet=True))
    assert answer.step == 60
    assert [point[1] for point in only(answer)] == [200.0] * 10


def whole(values: Values) -> list[object]:
    """Each store rounds in its own way."""
    return [None if value is None else pytest.approx(value, rel=0.01, abs=1.0) for value in values]


@pytest.mark.parametrize("ago", [60.0, 4000.0, 9000.0])
def test_the_fleet_at_a_moment_is_what_was_sampled_last(store: Store, taken: list[HostSample], ago: float) -> None:
    at = END - ago
    last = {sample.host_id: sample for sample in taken if sample.at <= at}
    found = {past.sample.host_id: past.sample for past in store.moment(MomentQuery(at))}
    assert found.keys() == last.keys()
    for host_id, sample in last.items():
        assert found[host_id].at == pytest.approx(sample.at, abs=0.01)
        assert list(found[host_id].values) == whole(sample.values)
        for gpu, expected in zip(found[host_id].gpus, sample.gpus, strict=True):
            assert gpu[:4] == expected[:4]
            assert list(gpu.values) == whole(expected.values)
            there, wanted = (sorted((one.pid, one.user) for one in own.processes or ()) for own in (gpu, expected))
            assert there == wanted


def test_a_moment_before_the_first_sample_or_to_come_is_refused(store: Store) -> None:
    for at, code in ((START - 7200, "before_history"), (END + 7200, "in_future")):
        with pytest.raises(HistoryRefused) as refused:
            list(store.moment(MomentQuery(at)))
        assert refused.value.code == code
