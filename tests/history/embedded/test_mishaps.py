"""What may happen to a history's file and to the clock, and what it may cost: that, and nothing else."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.waiting import wait_until
from gpudeck.history.base import RunsQuery, SeriesQuery, UsageQuery
from gpudeck.history.embedded.repair import find_damage
from gpudeck.history.embedded.store import EmbeddedStore, view_file
from gpudeck.history.settings import HistorySettings
from gpudeck.model.clock import RetentionClock
from gpudeck.model.errors import Temporary, UsageError
from history.embedded.feeding import START, busy_hour, gpu, process, sample

HOUR = 3600.0
DAY = 24 * HOUR
YEAR = 365 * DAY


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "history.db"


@pytest.fixture
def store(path: Path, clock: FakeClock) -> Iterator[EmbeddedStore]:
    opened = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    yield opened
    opened.close()


def change(path: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(statement, values)
    connection.close()


def count(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    found = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    connection.close()
    return int(found)


def keep_hours(store: EmbeddedStore, clock: FakeClock, path: Path, *hosts: str) -> None:
    for host in hosts:
        store.take(busy_hour(host=host))
    store.flush()
    clock.now = START + 2 * HOUR
    wait_until(lambda: count(path, "chunks") == len(hosts), "the hours are sealed")


def damage_first_chunk(path: Path) -> None:
    statement = "UPDATE chunks SET body = substr(body, 1, length(body) - 9) WHERE key = (SELECT min(key) FROM chunks)"
    change(path, statement)


def hours_of(store: EmbeddedStore) -> dict[str | None, float]:
    return {row.user: row.gpu_hours for row in store.usage(UsageQuery("user", START, START + DAY)).rows}


def test_damaged_hour_is_a_gap_and_hides_no_other_host(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    keep_hours(store, clock, path, "gpu01", "gpu02")
    damage_first_chunk(path)
    ask = SeriesQuery("power_watts", START + 60, START + HOUR - 60, points=60, fleet=True)
    assert {point[1] for point in store.series(ask).series[0].points} == {200.0}
    of_one = SeriesQuery("power_watts", START, START + HOUR, points=60, host="gpu01")
    assert store.series(of_one).series[0].points == []


def test_late_samples_of_a_damaged_hour_stop_no_other_hour(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    keep_hours(store, clock, path, "gpu01", "gpu02")
    damage_first_chunk(path)
    store.take([sample(START + 5, gpu("GPU-gpu01-0", process(7, "alice")))])
    store.take(busy_hour(START + HOUR, "gpu02"))
    store.flush()
    clock.now = START + 4 * HOUR
    wait_until(lambda: count(path, "chunks") == 3, "the other host's hour is sealed")
    wait_until(lambda: count(path, "journal") == 0, "nothing waits any more")
    assert store.problem is None
    assert hours_of(store)["alice"] == pytest.approx(3.0, abs=0.01)


def test_damaged_entry_of_the_journal_costs_that_entry(path: Path, clock: FakeClock) -> None:
    store = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    for begin in range(0, 90, 30):
        store.take(busy_hour()[begin : begin + 30])
        store.flush()
    store.close()
    change(path, "UPDATE journal SET body = substr(body, 1, 50) WHERE id = (SELECT max(id) FROM journal)")
    with view_file(path) as view:
        assert [damage.table for damage in find_damage(view.connection)] == ["journal"]
    clock.now = START + HOUR
    again = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    assert hours_of(again) == {"alice": pytest.approx(60 * 10 / HOUR)}
    again.close()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (
            "body = CAST(x'04' || substr(body, 2) AS BLOB)",
            "entry 1 and 8 more up to 9: an entry of the journal is damaged: version 4; this release reads version 1",
        ),
        ("body = substr(body, 1, 50)", "entry 1 and 8 more up to 9: an entry of the journal is damaged"),
        ("layout = 99", "entry 1 and 8 more up to 9: layout 99 is missing"),
    ],
)
def test_many_entries_that_cannot_be_read_are_one_line(
    path: Path, clock: FakeClock, caplog: pytest.LogCaptureFixture, spoil: str, told: str
) -> None:
    """As after going back to an older gpudeck, which does not know the newer one's entries."""
    store = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    for begin in range(0, 90, 10):
        store.take(busy_hour()[begin : begin + 10])
        store.flush()
    store.close()
    change(path, f"UPDATE journal SET {spoil}")
    EmbeddedStore(path, HistorySettings(min_free=0), clock).close()
    (line,) = caplog.messages
    assert told in line
    with view_file(path) as view:
        assert [damage.where for damage in find_damage(view.connection)] == [(("id", n),) for n in range(1, 10)]


def test_host_without_gpus_is_kept_and_read_again_at_the_next_start(path: Path, clock: FakeClock) -> None:
    store = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    store.take([sample(START + number * 10) for number in range(6)])
    store.flush()
    assert store.problem is None
    store.close()
    again = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    clock.now = START + HOUR
    ask = SeriesQuery("host_cpu_percent", START, START + 60, points=6, host="gpu01")
    assert [point[1] for point in again.series(ask).series[0].points] == [1.0] * 6
    clock.now = START + 2 * HOUR
    wait_until(lambda: count(path, "chunks") == 1, "the hour is sealed")
    assert [point[1] for point in again.series(ask).series[0].points] == [1.0] * 6
    again.close()


def test_second_hub_leaves_the_file_to_the_first(store: EmbeddedStore, path: Path, clock: FakeClock) -> None:
    with pytest.raises(UsageError, match="another hub"):
        EmbeddedStore(path, HistorySettings(min_free=0), clock)
    store.close()
    EmbeddedStore(path, HistorySettings(min_free=0), clock).close()


def test_file_that_was_taken_away_is_said(path: Path, clock: FakeClock) -> None:
    first = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    path.rename(path.with_name("elsewhere.db"))
    first.take(busy_hour()[:10])
    first.flush()
    assert "was removed" in (first.problem or "")
    with pytest.raises(Temporary, match="cannot be read"):
        first.runs(RunsQuery())
    first.close()


def test_late_samples_leave_quarter_hours_whose_samples_are_gone(path: Path, clock: FakeClock) -> None:
    store = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    keep_hours(store, clock, path, "gpu01")
    change(path, "DELETE FROM chunks")
    store.take([sample(START + 5, gpu("GPU-gpu01-0", process(7, "alice"), utilization=100))])
    store.flush()
    clock.now = START + 3 * HOUR
    wait_until(lambda: count(path, "journal") == 0, "the late sample is sealed")
    answer = store.series(SeriesQuery("utilization_percent", START, START + HOUR, gpu="GPU-gpu01-0", points=4))
    assert [point[1] for point in answer.series[0].points] == [50.0] * 4
    store.close()


def test_clock_that_was_ahead_hides_nobody_who_comes_or_goes_after(store: EmbeddedStore, clock: FakeClock) -> None:
    alice, bob = process(7, "alice"), process(9, "bob", started_at=START + 600)
    store.take([sample(START + number * 10, gpu("GPU-1", alice)) for number in range(60)])
    store.take([sample(START + YEAR, gpu("GPU-1", alice))])
    store.flush()
    clock.now = START + 600
    store.take([sample(START + number * 10, gpu("GPU-1", bob)) for number in range(60, 120)])
    store.flush()
    clock.now = START + 1200
    assert [run.user for run in store.runs(RunsQuery(now=True)).runs] == ["bob"]


class Clocks:
    """The hub's clock, and the seconds that it has really run."""

    def __init__(self, now: float) -> None:
        self.wall, self.ticks = FakeClock(now), FakeClock(0.0)
        self.retention = RetentionClock(START, self.wall, self.ticks)

    def run(self, seconds: float) -> None:
        self.wall.advance(seconds)
        self.ticks.advance(seconds)


def keep_up(store: EmbeddedStore) -> None:
    """As it does once a minute."""
    store.writer.next_upkeep = 0.0
    before = store.writer.upkept
    wait_until(lambda: store.writer.upkept > before, "the upkeep has run")


def test_start_with_the_clock_ahead_deletes_nothing(
    store: EmbeddedStore, clock: FakeClock, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    keep_hours(store, clock, path, "gpu01", "gpu02")
    store.close()
    clocks = Clocks(clock.now + 40 * DAY)
    again = EmbeddedStore(path, HistorySettings(min_free=0), clocks.wall, retention=clocks.retention)
    for _ in range(3):
        keep_up(again)
        clocks.run(2 * HOUR)
    assert count(path, "chunks") == 2
    clocks.retention.confirm(clocks.wall())
    keep_up(again)
    assert count(path, "chunks") == 0
    assert "2 rows of samples from 2023-11-14 23:00 UTC until 2023-11-15 00:00 UTC" in caplog.text
    assert count(path, "quarters") == 2
    again.close()


def test_nothing_is_deleted_in_the_first_hour_of_a_start(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    keep_hours(store, clock, path, "gpu01")
    store.close()
    clocks = Clocks(clock.now + 40 * DAY)
    clocks.retention.confirm(clocks.wall())
    again = EmbeddedStore(path, HistorySettings(min_free=0), clocks.wall, retention=clocks.retention)
    keep_up(again)
    assert count(path, "chunks") == 1
    again.close()


def test_samples_of_a_clock_that_was_ahead_do_not_stay_in_the_future(
    store: EmbeddedStore, clock: FakeClock, path: Path
) -> None:
    keep_hours(store, clock, path, "gpu01")
    ahead, false = 40 * DAY, START + 40 * DAY
    clock.now = false + HOUR
    store.take(busy_hour(false, "gpu01"))
    store.flush()
    clock.now = false + 2 * HOUR
    wait_until(lambda: count(path, "chunks") == 2, "the hour is sealed")
    store.close()
    clocks = Clocks(START + 4 * HOUR)
    again = EmbeddedStore(path, HistorySettings(min_free=0), clocks.wall, retention=clocks.retention)
    assert (again.newest or 0) <= clocks.wall.now
    assert [run.ended_at for run in again.runs(RunsQuery()).runs] == [pytest.approx(clocks.wall.now, abs=1)]
    keep_up(again)
    assert count(path, "chunks") == 2  # nobody knows yet which clock is right
    clocks.retention.confirm(clocks.wall())
    keep_up(again)
    assert (count(path, "chunks"), count(path, "set_aside") > 0) == (1, True)
    for table, column in (("hosts", "last"), ("gpus", "last"), ("runs", "last"), ("uses", "hour")):
        assert column_max(path, table, column) <= clocks.wall.now
    # When that time really comes, its samples count once.
    clocks.run(ahead)
    again.take(busy_hour(false, "gpu01")[:180])
    again.flush()
    usage = again.usage(UsageQuery("user", false, false + DAY))
    assert {row.user: row.gpu_hours for row in usage.rows} == {"alice": pytest.approx(0.5)}
    again.close()


def test_clock_that_is_behind_sets_nothing_aside(store: EmbeddedStore, clock: FakeClock, path: Path) -> None:
    keep_hours(store, clock, path, "gpu01")
    store.close()
    clocks = Clocks(START - 400 * DAY)
    again = EmbeddedStore(path, HistorySettings(min_free=0), clocks.wall, retention=clocks.retention)
    clocks.retention.confirm(START + DAY)
    clocks.run(2 * HOUR)
    keep_up(again)
    assert count(path, "chunks") == 1
    again.close()


def column_max(path: Path, table: str, column: str) -> float:
    with sqlite3.connect(path) as connection:
        return float(connection.execute(f"SELECT max({column}) FROM {table}").fetchone()[0])
