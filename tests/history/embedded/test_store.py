import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from fakes.clock import FakeClock
from fakes.waiting import wait_until
from gpudeck.history.base import HeatQuery, HistoryRefused, OverviewQuery, RunsQuery, SeriesQuery, UsageQuery
from gpudeck.history.embedded import view
from gpudeck.history.embedded.export import measure_file
from gpudeck.history.embedded.repair import find_damage
from gpudeck.history.embedded.store import EmbeddedStore, view_file
from gpudeck.history.embedded.writer import FEW_OPEN_HOURS
from gpudeck.history.settings import HistorySettings
from gpudeck.model.clock import RetentionClock
from gpudeck.model.errors import UsageError
from history.embedded.feeding import GIB, START, busy_hour, gpu, process, sample

HOUR = 3600.0
Opener = Callable[[], EmbeddedStore]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def open_store(path: Path, clock: FakeClock) -> Iterator[Opener]:
    opened: list[EmbeddedStore] = []

    def opener() -> EmbeddedStore:
        opened.append(EmbeddedStore(path, HistorySettings(min_free=0), clock))
        return opened[-1]

    yield opener
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Opener) -> EmbeddedStore:
    return open_store()


def wait_until_sealed(path: Path, hours: int, table: str = "chunks") -> None:
    wait_until(lambda: count(path, table) >= hours, "sealing the hour")


def count(path: Path, table: str) -> int:
    with sqlite3.connect(path) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def seal(store: EmbeddedStore, clock: FakeClock, path: Path, hours: int = 1) -> None:
    store.flush()
    clock.now += 2 * HOUR
    wait_until_sealed(path, hours)


def hours_of(store: EmbeddedStore, end: float = START + 10 * HOUR) -> dict[str | None, float]:
    rows = store.usage(UsageQuery("user", START - HOUR, end)).rows
    return {row.user: row.gpu_hours for row in rows}


def test_open_hour_is_answered_like_a_sealed_one(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    store.take(busy_hour())
    clock.now = START + HOUR
    store.flush()
    ask = SeriesQuery("utilization_percent", START, START + HOUR, gpu="GPU-gpu01-0", points=60)
    before = store.series(ask), store.usage(UsageQuery("user", START, START + HOUR)), store.runs(RunsQuery())
    seal(store, clock, path)
    clock.now = START + HOUR
    assert (store.series(ask), store.usage(UsageQuery("user", START, START + HOUR)), store.runs(RunsQuery())) == before


def test_an_hour_of_one_user_is_one_gpu_hour(store: EmbeddedStore, clock: FakeClock) -> None:
    store.take(busy_hour())
    clock.now = START + HOUR
    store.flush()
    answer = store.usage(UsageQuery("user", START, START + HOUR))
    assert answer.coverage == pytest.approx(1.0, abs=0.01)
    assert answer.rows[0].gpu_hours == pytest.approx(1.0)
    assert answer.rows[0].active_hours == pytest.approx(0.5)
    assert answer.rows[0].energy_kwh == pytest.approx(0.2)


def test_open_hours_survive_a_restart(open_store: Opener, clock: FakeClock) -> None:
    first = open_store()
    first.take(busy_hour()[:200])
    first.flush()
    first.close()
    second = open_store()
    second.take(busy_hour()[200:])
    second.flush()
    clock.now = START + HOUR
    assert hours_of(second) == {"alice": pytest.approx(1.0)}
    assert len(second.runs(RunsQuery()).runs) == 1


def test_repeated_samples_count_once(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    store.take(busy_hour() + busy_hour())
    seal(store, clock, path)
    store.take(busy_hour()[100:200])
    store.flush()
    clock.now += 60
    wait_until_late_is_sealed(store)
    assert hours_of(store) == {"alice": pytest.approx(1.0)}


def wait_until_late_is_sealed(store: EmbeddedStore) -> None:
    """The journal is empty once everything is sealed."""
    wait_until(lambda: not store.stats().parts["journal"], "sealing late samples")


def test_late_samples_fill_a_gap_in_a_sealed_hour(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    hour = busy_hour()
    store.take(hour[:100] + hour[260:])
    seal(store, clock, path)
    assert hours_of(store)["alice"] == pytest.approx(2000 / 3600)
    store.take(hour[100:260])
    store.flush()
    clock.now += 60
    wait_until_late_is_sealed(store)
    answer = store.usage(UsageQuery("user", START, START + HOUR))
    assert answer.rows[0].gpu_hours == pytest.approx(1.0)
    assert answer.monitored_gpu_hours == pytest.approx(1.0)
    assert store.runs(RunsQuery()).runs[0].gpu_seconds == pytest.approx(HOUR)
    fleet = store.series(SeriesQuery("power_watts", START, START + HOUR, fleet=True, points=4))
    assert [point[1] for point in fleet.series[0].points] == [pytest.approx(200.0)] * 4


def test_late_samples_count_beside_the_sealed_ones(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    store.take(busy_hour()[:135])
    seal(store, clock, path)
    late = [
        sample(START + number * 10, gpu("GPU-gpu01-0", process(7, "alice"), utilization=80))
        for number in range(135, 270)
    ]
    store.take(late)
    store.flush()
    clock.now += 60
    wait_until_late_is_sealed(store)
    fleet = store.series(SeriesQuery("utilization_percent", START, START + HOUR, fleet=True, points=4))
    assert [point[1] for point in fleet.series[0].points] == pytest.approx([50, 65, 80])
    (row,) = store.heat(HeatQuery("utilization_percent", START, START + HOUR)).rows
    assert row.values == pytest.approx([65])
    # What is added up over GPUs is not added up over the two parts of an hour.
    fleet = store.series(SeriesQuery("power_watts", START, START + HOUR, fleet=True, points=4))
    assert [point[1:] for point in fleet.series[0].points] == [pytest.approx((200, 200, 200))] * 3
    (row,) = store.heat(HeatQuery("power_watts", START, START + HOUR)).rows
    assert row.values == pytest.approx([200])


def test_late_samples_of_an_hour_whose_samples_are_gone_are_no_more_gpus(
    store: EmbeddedStore, clock: FakeClock, path: Path
) -> None:
    store.take(busy_hour()[:180])
    seal(store, clock, path)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("DELETE FROM chunks")
    store.take(busy_hour()[180:])
    store.flush()
    clock.now += 60
    wait_until_late_is_sealed(store)
    ask = HeatQuery("power_watts", START, START + HOUR)
    assert store.heat(ask).rows[0].values == pytest.approx([200])


def test_memory_of_those_whom_nobody_can_name_is_told_of_an_open_hour(
    store: EmbeddedStore, clock: FakeClock, path: Path
) -> None:
    store.take([sample(START + number * 10, gpu("GPU-1")) for number in range(360)])
    clock.now = START + HOUR
    store.flush()
    ask = UsageQuery("user", START, START + HOUR)
    assert [(row.user, row.peak_memory_bytes) for row in store.usage(ask).rows] == [(None, 4.0 * GIB)]
    seal(store, clock, path)
    assert [(row.user, row.peak_memory_bytes) for row in store.usage(ask).rows] == [(None, 4.0 * GIB)]


def test_open_and_sealed_hours_of_several_hosts_add_up_by_day(
    store: EmbeddedStore, clock: FakeClock, path: Path
) -> None:
    store.take(busy_hour() + busy_hour(host="gpu02"))
    seal(store, clock, path, 2)
    later = START + 24 * HOUR
    store.take(busy_hour(later))
    clock.now = later + HOUR
    store.flush()
    for by, expected in (("user", {"alice": 3.0}), ("host", {"gpu01": 2.0, "gpu02": 1.0})):
        rows = store.usage(UsageQuery(by, START - HOUR, later + HOUR, daily=True, zone="Asia/Kolkata")).rows
        assert {getattr(row, by): row.gpu_hours for row in rows} == pytest.approx(expected)
        assert sum(day.gpu_hours for day in rows[0].days) == pytest.approx(rows[0].gpu_hours)
        assert len(rows[0].days) == 2


def test_gap_is_unobserved_not_idle(store: EmbeddedStore, clock: FakeClock) -> None:
    hour = busy_hour()
    store.take(hour[:90] + hour[270:])
    clock.now = START + HOUR
    store.flush()
    answer = store.usage(UsageQuery("user", START, START + HOUR))
    assert answer.coverage == pytest.approx(0.5, abs=0.01)
    assert answer.rows[0].gpu_hours == pytest.approx(0.5)
    points = (
        store.series(SeriesQuery("utilization_percent", START, START + HOUR, gpu="GPU-gpu01-0", points=4))
        .series[0]
        .points
    )
    assert len(points) == 2


def test_unknown_values_are_no_zeros(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    store.take([sample(START + n * 10, gpu("GPU-0", process(1, "alice"), utilization=None)) for n in range(360)])
    seal(store, clock, path)
    row = store.usage(UsageQuery("user", START, START + HOUR)).rows[0]
    assert row.active_hours is None
    assert store.series(SeriesQuery("utilization_percent", START, START + HOUR, gpu="GPU-0")).series[0].points == []


def test_gpus_come_and_go_within_an_hour(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    one, two = gpu("GPU-1", process(1, "alice")), gpu("GPU-2", process(2, "bob"))
    store.take([sample(START + n * 10, one) for n in range(120)])
    store.take([sample(START + n * 10, one, two) for n in range(120, 240)])
    store.take([sample(START + n * 10, two) for n in range(240, 360)])
    seal(store, clock, path)
    assert hours_of(store) == {"alice": pytest.approx(2400 / 3600), "bob": pytest.approx(2400 / 3600)}


def test_host_that_loses_all_its_gpus_keeps_its_hour(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    lost = [sample(START + number * 10) for number in range(180, 360)]
    store.take([*busy_hour()[:180], *lost[:90]])
    for one in lost[90:]:
        # Together with others, as in a fleet, and alone.
        store.take([one, sample(one.at, gpu("GPU-2"), host="gpu02")])
        store.flush()
    seal(store, clock, path, 2)
    assert store.stats().samples_dropped == 0
    points = (
        store.series(SeriesQuery("utilization_percent", START, START + HOUR, gpu="GPU-gpu01-0", points=4))
        .series[0]
        .points
    )
    assert [point[1] for point in points] == [50.0, 50.0]
    points = store.series(SeriesQuery("host_cpu_percent", START, START + HOUR, host="gpu01", points=4)).series[0].points
    assert [point[1] for point in points] == [1.0] * 4


def test_two_users_share_a_gpu_by_memory(store: EmbeddedStore, clock: FakeClock) -> None:
    shared = gpu("GPU-1", process(1, "alice", memory=30), process(2, "bob", memory=10))
    store.take([sample(START + n * 10, shared) for n in range(360)])
    clock.now = START + HOUR
    store.flush()
    assert hours_of(store) == {"alice": pytest.approx(0.75), "bob": pytest.approx(0.25)}


def test_process_on_four_gpus_counts_on_four(store: EmbeddedStore, clock: FakeClock) -> None:
    gpus = [gpu(f"GPU-{n}", process(9, "alice", memory=10)) for n in range(4)]
    store.take([sample(START + n * 10, *gpus) for n in range(360)])
    clock.now = START + HOUR
    store.flush()
    assert hours_of(store) == {"alice": pytest.approx(4.0)}
    (run,) = store.runs(RunsQuery()).runs
    assert run.gpus == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert run.peak_memory_bytes == pytest.approx(40 * GIB)


def test_reused_pid_is_another_run(store: EmbeddedStore, clock: FakeClock) -> None:
    store.take([sample(START + n * 10, gpu("GPU-1", process(5, "alice"))) for n in range(10)])
    later = process(5, "bob", started_at=START + 95)
    store.take([sample(START + n * 10, gpu("GPU-1", later)) for n in range(10, 20)])
    store.flush()
    clock.now = START + 200
    newest, oldest = store.runs(RunsQuery()).runs
    assert (oldest.user, oldest.ended_at) == ("alice", START + 90)
    assert (newest.user, newest.ended_at) == ("bob", None)


def test_run_is_not_said_to_end_while_nobody_can_look(store: EmbeddedStore, clock: FakeClock) -> None:
    seen = gpu("GPU-1", process(5, "alice"))
    store.take([sample(START, seen), sample(START + 10, seen._replace(processes=None)), sample(START + 20, seen)])
    store.flush()
    clock.now = START + 20
    (run,) = store.runs(RunsQuery()).runs
    assert run.ended_at is None


def test_runs_come_by_page(store: EmbeddedStore, clock: FakeClock) -> None:
    store.take([sample(START, *(gpu(f"GPU-{n}", process(n, "alice")) for n in range(5)))])
    store.flush()
    clock.now = START
    first = store.runs(RunsQuery(limit=3))
    second = store.runs(RunsQuery(limit=3, before=first.next))
    assert [run.pid for run in first.runs + second.runs] == [4, 3, 2, 1, 0]
    assert second.next is None


def test_unknown_host_is_refused(store: EmbeddedStore) -> None:
    with pytest.raises(HistoryRefused, match="gpu99"):
        store.runs(RunsQuery(host="gpu99"))


def test_clock_set_back_and_forth_loses_nothing_else(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    store.take(busy_hour())
    store.take([sample(START + 400 * 24 * HOUR, gpu("GPU-gpu01-0"))])
    store.take([sample(START - 30 * HOUR, gpu("GPU-gpu01-0", process(3, "bob")))])
    store.take(busy_hour(START + HOUR))
    store.flush()
    seal(store, clock, path, hours=3)
    assert hours_of(store)["alice"] == pytest.approx(2.0)


def test_samples_beyond_their_age_are_deleted_and_quarter_hours_stay(path: Path, clock: FakeClock) -> None:
    store = EmbeddedStore(path, HistorySettings(min_free=0, raw=HOUR), clock)
    store.take(busy_hour())
    store.flush()
    clock.now += 2 * HOUR
    # Its samples may be too old already when somebody looks; its quarter hours stay.
    wait_until_sealed(path, 1, "quarters")
    store.close()
    clock.now = START + 40 * HOUR
    ticks = FakeClock(0.0)
    retention = RetentionClock(None, clock, ticks)
    ticks.advance(HOUR)
    retention.confirm(clock.now)
    store = EmbeddedStore(path, HistorySettings(min_free=0, raw=HOUR), clock, retention=retention)
    wait_until(lambda: not count(path, "chunks"), "removing the chunks")
    answer = store.series(SeriesQuery("utilization_percent", START, START + HOUR, gpu="GPU-gpu01-0", points=4))
    assert [point[1] for point in answer.series[0].points] == [pytest.approx(50.0)] * 4
    assert hours_of(store)["alice"] == pytest.approx(1.0)
    store.close()


def test_file_of_a_newer_gpudeck_is_left_alone(path: Path, open_store: Opener) -> None:
    open_store().close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE name = 'version'")
    with pytest.raises(UsageError, match="version 99"):
        EmbeddedStore(path)


def test_something_else_than_a_history_is_left_alone(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE thesis (chapter TEXT)")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="a database of something else"):
        EmbeddedStore(path)
    assert path.read_bytes() == before


def test_heat_map_has_no_value_where_nothing_was_observed(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    store.take(busy_hour() + busy_hour(START + 2 * HOUR))
    clock.now = START + 3 * HOUR
    store.flush()
    (row,) = store.heat(HeatQuery("utilization_percent", START, START + 3 * HOUR)).rows
    assert row.values == [pytest.approx(50.0), None, pytest.approx(50.0)]


def feed_and_kill(path: Path, seconds: float) -> float:
    """When the last sample was taken that the store said it has."""
    command = [sys.executable, "-m", "history.embedded.feeding", str(path)]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        first = child.stdout.readline()
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        return max(float(line) for line in [first, *child.stdout.read().split("\n")[:-1]])


@pytest.mark.parametrize("seed", range(4))
def test_killed_at_any_moment_it_loses_at_most_what_was_not_flushed(tmp_path: Path, seed: int) -> None:
    path, dice, told = tmp_path / "history.db", Random(seed), START
    for _ in range(3):
        told = feed_and_kill(path, dice.uniform(0.0, 0.4))
    with view_file(path) as view:
        assert list(find_damage(view.connection)) == []
        times = [at for hour in view.hours(1, START, told + 1e6, ()) for at in hour.times.tolist()]
        used = sum(use.used for _, use in view.uses(int(START), int(told + 1e6), by_host=False))
    assert times[: int((told - START) // 10) + 1] == [START + 10 * n for n in range(int((told - START) // 10) + 1)]
    assert used == pytest.approx(10 * len(times))


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="a small disk needs root to be mounted")
def test_full_disk_stops_writing_and_it_goes_on_when_there_is_room(tmp_path: Path, clock: FakeClock) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("no small disk can be mounted here")
    try:
        store = EmbeddedStore(disk / "history.db", HistorySettings(min_free=0), clock)
        store.take(busy_hour()[:10])
        store.flush()
        (disk / "filler").write_bytes(b"x" * (shutil.disk_usage(disk).free - 8192))

        def fill() -> str | None:
            store.take([sample(START + 1000, *(gpu(f"GPU-{n}", process(n, "u" * 200)) for n in range(50)))])
            store.flush()
            return store.problem

        assert "full" in (wait_until(fill, "filling the disk") or "")
        (disk / "filler").unlink()
        store.take(busy_hour()[200:210])
        store.flush()
        assert store.problem is None
        assert store.stats().samples_dropped > 0
        store.close()
        with view_file(disk / "history.db") as view:
            assert list(find_damage(view.connection)) == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_nearly_full_disk_is_said_before_it_is_full(path: Path, clock: FakeClock) -> None:
    store = EmbeddedStore(path, HistorySettings(min_free=2**62), clock)
    store.take(busy_hour()[:3])
    store.flush()
    assert store.problem is not None
    assert "min_free" in store.problem
    assert store.stats().samples_dropped == 3
    store.close()


def test_runs_of_a_range_that_ends_before_it_begins_are_refused(store: EmbeddedStore) -> None:
    with pytest.raises(HistoryRefused) as caught:
        store.runs(RunsQuery(start=START + HOUR, end=START))
    assert caught.value.code == "bad_range"


def test_runs_come_in_order_of_time_whatever_came_late(store: EmbeddedStore, clock: FakeClock) -> None:
    store.take([sample(START + HOUR, gpu("GPU-1", process(2, "bob")))])
    store.take([sample(START, gpu("GPU-1", process(1, "alice", started_at=START - 5)))])
    store.flush()
    clock.now = START + HOUR
    first = store.runs(RunsQuery(limit=1))
    assert [run.user for run in first.runs + store.runs(RunsQuery(before=first.next)).runs] == ["bob", "alice"]


def test_sample_that_stands_for_a_minute_tells_of_all_its_steps(store: EmbeddedStore, clock: FakeClock) -> None:
    store.take([sample(START + n * 60, gpu("GPU-1"), interval=60) for n in range(1, 60)])
    store.flush()
    clock.now = START + HOUR
    answer = store.series(SeriesQuery("utilization_percent", START, START + HOUR, gpu="GPU-1", points=360))
    assert answer.step == 10
    assert len(answer.series[0].points) >= 350


def test_an_open_hour_is_worked_out_once_and_again_with_the_next_sample(
    store: EmbeddedStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    worked_out: list[int] = []
    work = view.uses_of

    def count_and_work(*args: Any) -> Any:
        worked_out.append(1)
        return work(*args)

    def used() -> float:
        (row,) = store.usage(UsageQuery("user", START, START + HOUR)).rows
        return row.gpu_hours * HOUR

    monkeypatch.setattr(view, "uses_of", count_and_work)
    first, second, *_ = busy_hour()
    clock.now = START + 30
    store.take([first])
    store.flush()
    before = used(), used(), len(worked_out)
    store.take([second])
    store.flush()
    assert (before, used(), len(worked_out)) == ((10.0, 10.0, 1), 20.0, 2)


def test_size_tells_the_newest_sample_also_of_the_journal(store: EmbeddedStore, path: Path) -> None:
    store.take(busy_hour()[:7])
    store.flush()
    with view_file(path) as found:
        size = measure_file(found, path)
    assert (size.oldest, size.newest) == (START, START + 60)


def test_overview_of_many_hosts_ends_with_the_last_quarter_hour(open_store: Opener, clock: FakeClock) -> None:
    store = open_store()
    many = FEW_OPEN_HOURS + 20
    for at in (START + 60 * minute for minute in range(40)):
        clock.now = at
        store.take([sample(at, gpu(f"GPU-{n}-0", process(7, "ann")), host=f"h{n}", interval=60) for n in range(many)])
        store.flush()
    wait_until(lambda: store.writer.summarized == START + 1800, "the summaries")
    overview = store.overview(OverviewQuery(START - 24 * HOUR, clock.now))
    assert overview.until == START + 1800
    usage = store.usage(UsageQuery("user", START - 24 * HOUR, START + 1800))
    assert overview.usage.total.gpu_hours == pytest.approx(usage.total.gpu_hours, rel=0.05)
    assert overview.usage.total.gpu_hours == pytest.approx(many / 2, rel=0.05)
    busy = next(answer for answer in overview.series if answer.metric == "gpus_busy")
    assert [point[1] for point in busy.series[0].points] == pytest.approx([many] * len(busy.series[0].points), rel=0.05)
    assert overview.heat is not None
    assert {row.values[-1] for row in overview.heat.rows} == {50.0}


def test_overview_of_many_hosts_is_the_same_before_and_after_their_hour_is_sealed(
    open_store: Opener, clock: FakeClock, path: Path
) -> None:
    store, many = open_store(), FEW_OPEN_HOURS + 1
    for at in (START + 60 * minute for minute in range(62)):
        clock.now = at
        store.take([sample(at, gpu(f"GPU-{n}-0", process(7, "ann")), host=f"h{n}", interval=60) for n in range(many)])
        store.flush()
    clock.now = START + HOUR + 200
    wait_until(lambda: store.writer.summarized == START + HOUR, "the summaries")
    open_overview = store.overview(OverviewQuery(START - HOUR, clock.now))
    wait_until_sealed(path, many)
    wait_until(lambda: store.writer.summarized == START + HOUR, "the summaries")
    sealed = store.overview(OverviewQuery(START - HOUR, START + HOUR))
    assert sealed.usage.total.gpu_hours == pytest.approx(open_overview.usage.total.gpu_hours)
    assert sealed.usage.coverage == pytest.approx(open_overview.usage.coverage)
