"""Files with flipped bytes, lost pages, cut ends and lost rows: it costs what is damaged, and is found and repaired."""

import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.waiting import wait_until
from gpudeck.history.base import HeatQuery, HistoryRefused, RunsQuery, SamplesQuery, SeriesQuery, UsageQuery
from gpudeck.history.embedded.export import read_page
from gpudeck.history.embedded.repair import repair
from gpudeck.history.embedded.store import EmbeddedStore, view_file
from gpudeck.history.sample import HostSample
from gpudeck.history.settings import HistorySettings
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.ops.history_file import verify
from history.embedded.feeding import START, busy_hour, gpu, process, sample

HOUR = 3600.0
HOSTS = ("gpu01", "gpu02", "gpu03")
HOURS = 3
SETTINGS = HistorySettings(min_free=0)
END = START + HOURS * HOUR


def rare_hour(start: float, host: str) -> list[HostSample]:
    """As `busy_hour`, with a sample in 40 s: what is tested reads it all again and again."""
    each = gpu(f"GPU-{host}-0", process(7, "alice"))
    return [sample(start + number * 40, each, host=host, interval=40) for number in range(90)]


def count(path: Path, table: str) -> int:
    with closing(sqlite3.connect(path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def change(path: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement, values)


def damages(path: Path) -> list[str]:
    return list(verify(path))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hosts, five sealed hours, and ten minutes in the journal; one file, as a hub that was stopped leaves it."""
    path, clock = tmp_path_factory.mktemp("whole") / "history.db", FakeClock(START)
    store = EmbeddedStore(path, SETTINGS, clock)
    for number in range(HOURS):
        for host in HOSTS:
            store.take(rare_hour(START + number * HOUR, host))
            store.flush()
    clock.now = END + HOUR / 2
    # A flush wakes the writer, which otherwise looks once a second for hours to seal.
    wait_until(lambda: store.flush() and count(path, "chunks") == HOURS * len(HOSTS), "the hours are sealed")
    for number in range(10):
        at = END + number * 60
        store.take([sample(at, gpu(f"GPU-{host}-0", process(7, "alice")), host=host) for host in HOSTS])
        store.flush()
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("VACUUM")  # the same bytes each time: a seed is the same damage each time
    assert damages(path) == []
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "history.db"
    shutil.copyfile(whole, copy)
    return copy


def ask_everything(store: EmbeddedStore) -> list[object]:
    """What each question was answered with. Only errors that a person understands may come out."""
    end = END + HOUR
    questions: list[Callable[[], object]] = [
        *(
            lambda host=host: store.series(SeriesQuery("power_watts", START, end, points=60, host=host))
            for host in HOSTS
        ),
        lambda: store.series(SeriesQuery("utilization_percent", START, end, gpu="GPU-gpu01-0", points=2000)),
        lambda: store.series(SeriesQuery("power_watts", START, end, fleet=True)),
        lambda: store.series(SeriesQuery("gpus_used", START, end, user="alice")),
        lambda: store.series(SeriesQuery("power_watts", START, end, run=1)),
        lambda: store.heat(HeatQuery("power_watts", START, end)),
        lambda: store.usage(UsageQuery("user", START, end, daily=True)),
        lambda: store.usage(UsageQuery("host", START, end)),
        lambda: store.usage(UsageQuery("model", START + 60, end - 60)),
        lambda: store.runs(RunsQuery()),
        lambda: store.run(1),
        store.stats,
    ]
    answers: list[object] = []
    for question in questions:
        try:
            answers.append(question())
        except (HistoryRefused, Temporary) as error:
            answers.append(error)
    return answers


def use(path: Path) -> EmbeddedStore | None:
    """A hub that starts with this file, keeps new samples, and asks it everything."""
    clock = FakeClock(END + 2 * HOUR)
    store = EmbeddedStore(path, SETTINGS, clock)
    try:
        before = store.writer.taken
        store.take([sample(clock.now, gpu(f"GPU-{host}-0", process(7, "alice")), host=host) for host in HOSTS])
        assert store.flush()
        ask_everything(store)
        assert store.writer.taken - before == len(HOSTS), store.problem
        assert "unforeseen" not in (store.problem or "")
    finally:
        store.close()
    return store


def export_all(path: Path) -> int:
    with suppress(sqlite3.Error, GpudeckError), view_file(path) as view:
        return len(read_page(view, SamplesQuery(START, END + HOUR, ("power_watts",))).columns)
    return 0


def spoil(path: Path, seed: int) -> str:
    """Some damage, by its number."""
    dice = random.Random(seed)
    body = bytearray(path.read_bytes())
    kind = ("flip", "flip", "flip", "zero", "cut", "noise")[seed % 6]
    if kind == "flip":
        for _ in range(dice.choice((1, 1, 10, 100))):
            body[dice.randrange(len(body))] ^= 1 << dice.randrange(8)
    elif kind == "zero":
        page = dice.randrange(len(body) // 2048) * 2048
        body[page : page + 2048] = bytes(2048)
    elif kind == "noise":
        page = dice.randrange(len(body) // 2048) * 2048
        body[page : page + 2048] = dice.randbytes(2048)
    else:
        del body[dice.randrange(len(body)) :]
    path.write_bytes(body)
    return kind


# The last three: pages that lead back to themselves, names of tables that are no text, damage that a new sample finds.
@pytest.mark.parametrize("seed", [*range(18), 130, 145, 179])
def test_any_damage_costs_what_is_damaged(path: Path, seed: int, caplog: pytest.LogCaptureFixture) -> None:
    spoil(path, seed)
    damages(path)
    export_all(path)
    use(path)
    assert not [record for record in caplog.records if record.exc_info], caplog.text
    repair(path, END)
    assert damages(path) == []
    assert use(path) is not None


@pytest.mark.parametrize("seed", [*range(24, 30), 163])
def test_repair_leaves_a_file_that_is_sound(path: Path, seed: int) -> None:
    before = path.read_bytes()
    spoil(path, seed)
    damaged = path.read_bytes()
    is_damaged = bool(damages(path))
    done = repair(path, END)
    assert damages(path) == []
    assert bool(done.found or done.aside) == is_damaged
    if done.aside is not None:
        assert done.aside.read_bytes() == damaged != before
    use(path)


CASES = {
    "chunks": ("UPDATE chunks SET body = substr(body, 1, 40) WHERE key = (SELECT min(key) FROM chunks)", "of gpu01"),
    "quarters": ("UPDATE quarters SET body = x'0000000000' WHERE key = (SELECT min(key) FROM quarters)", "of gpu01"),
    "host_hours": ("UPDATE host_hours SET body = x'01' WHERE host = 2 AND hour = ?", "2023-11-14 23:00 UTC of gpu02"),
    "fleet_quarters": (
        "UPDATE fleet_quarters SET layout = 99 WHERE start = ?",
        "the quarter hour from 2023-11-14 23:00",
    ),
    "uses": ("UPDATE uses SET held = held * 3 WHERE host = 3 AND hour = ?", "uses: the hour from 2023-11-14 23:00 UTC"),
    "uses_of_all": ("UPDATE uses_of_all SET held = 1 WHERE hour = ?", "uses_of_all: the hour from 2023-11-14 23:00"),
    "runs": ("UPDATE runs SET seconds = 7 WHERE host = 1", "runs: number 1"),
    "journal": ("UPDATE journal SET body = x'03' || body WHERE id = (SELECT min(id) FROM journal)", "journal: entry"),
    "hosts": ("UPDATE hosts SET name = 'x' WHERE id = 2", "hosts: number 2"),
    "gpus": ("UPDATE gpus SET model = 'x' WHERE id = 3", "gpus: number 3"),
    "words": ("UPDATE words SET text = 'mallory' WHERE text = 'alice'", "words: number"),
    "layouts": ("UPDATE layouts SET names = 'no list' WHERE id = 2", "layouts: number 2"),
}


@pytest.mark.parametrize("table", CASES)
def test_damage_of_each_table_is_named_and_repaired(path: Path, table: str) -> None:
    statement, told = CASES[table]
    change(path, statement, *([START] if "?" in statement else []))
    found = damages(path)
    assert any(told in sentence for sentence in found), found
    export_all(path)
    with closing(EmbeddedStore(path, SETTINGS, FakeClock(END + HOUR))) as store:
        assert not [answer for answer in ask_everything(store) if isinstance(answer, Temporary)]
    done = repair(path, END)
    assert done.aside is None
    assert set(found) <= set(done.found)
    assert damages(path) == []


def test_number_of_a_lost_host_is_not_given_to_another(path: Path) -> None:
    change(path, "DELETE FROM hosts WHERE id = 3")
    clock = FakeClock(END + HOUR)
    with closing(EmbeddedStore(path, SETTINGS, clock)) as store:
        store.take([sample(clock.now, gpu("GPU-new-0", process(7, "bob")), host="new")])
        store.flush()
        answer = store.series(SeriesQuery("power_watts", START, END, host="new"))
        assert [series.points for series in answer.series] == [[]]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT id FROM hosts WHERE name = 'new'").fetchone() == (4,)


@pytest.mark.parametrize("content", [b"somebody's thesis" * 999, b"SQLite format 3\0" + bytes(4000), b"\xff" * 50])
def test_file_that_cannot_be_opened_is_set_aside_and_a_new_one_begun(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.db"
    path.write_bytes(content)
    clock = FakeClock(START + HOUR)
    with closing(EmbeddedStore(path, SETTINGS, clock)) as store:
        assert "the history's file was damaged" in (store.damage or "")
        store.take(busy_hour())
        store.flush()
        assert store.runs(RunsQuery()).runs
    (aside,) = tmp_path.glob("history-damaged-*.db")
    assert aside.read_bytes() == content


def test_damaged_file_keeps_what_can_be_read_of_it(path: Path) -> None:
    body = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'journal'").fetchone()
    body[(page - 1) * 2048 : page * 2048] = bytes(2048)
    path.write_bytes(body)
    with closing(EmbeddedStore(path, SETTINGS, FakeClock(END + HOUR))) as store:
        assert store.damage is not None
        usage = store.usage(UsageQuery("user", START, END))
        assert {row.user: row.gpu_hours for row in usage.rows} == {"alice": pytest.approx(HOURS * 3.0)}
    assert list(path.parent.glob("history-damaged-*.db"))


def test_file_that_may_not_be_read_is_left_where_it_is(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> sqlite3.Connection:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr(sqlite3, "connect", refuse)
        with pytest.raises(Temporary, match="cannot be opened"):
            EmbeddedStore(path, SETTINGS)
    assert (path.read_bytes(), list(path.parent.glob("*damaged*"))) == (before, [])


def test_file_that_turns_out_damaged_while_it_is_written_is_replaced(path: Path) -> None:
    clock = FakeClock(END + 2 * HOUR)
    with closing(sqlite3.connect(path)) as connection:
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'uses'").fetchone()
    body = bytearray(path.read_bytes())
    body[(page - 1) * 2048 : page * 2048] = bytes(2048)
    path.write_bytes(body)
    with closing(EmbeddedStore(path, SETTINGS, clock)) as store:
        clock.advance(60)
        wait_until(lambda: store.flush() and "damaged" in (store.damage or ""), "the hours in the journal are sealed")
        store.take([sample(clock.now, gpu("GPU-gpu01-0", process(7, "alice")))])
        store.flush()
        clock.advance(60)
        sealed = (HOURS + 1) * len(HOSTS)
        wait_until(lambda: store.flush() and count(path, "chunks") == sealed, "the next hour is sealed")
        assert store.problem is None
    assert damages(path) == []


@pytest.fixture
def accounting(tmp_path: Path) -> Path:
    """The file beside a store of the site: without samples."""
    path, clock = tmp_path / "history.db", FakeClock(START)
    store = EmbeddedStore(path, SETTINGS, clock, keep_samples=False)
    for host in HOSTS:
        store.take(busy_hour(host=host))
    store.flush()
    clock.now = START + 2 * HOUR
    wait_until(lambda: store.flush() and count(path, "uses") == len(HOSTS), "the hours are sealed")
    store.close()
    return path


def test_file_without_samples_is_checked_and_repaired_too(accounting: Path) -> None:
    assert damages(accounting) == []
    change(accounting, "UPDATE uses SET joules = 'much' WHERE host = 2")
    (found,) = damages(accounting)
    assert "uses: the hour from 2023-11-14 23:00 UTC of gpu02: the checksum does not fit" in found
    with closing(EmbeddedStore(accounting, SETTINGS, FakeClock(START + 2 * HOUR), keep_samples=False)) as store:
        assert store.usage(UsageQuery("user", START, START + HOUR)).rows[0].gpu_hours == pytest.approx(3.0)
        store.usage(UsageQuery("host", START, START + HOUR))
    assert repair(accounting, END).found == [found]
    assert damages(accounting) == []
