"""Whatever changes in the file is found, also where the samples are long gone."""

import random
import shutil
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.waiting import wait_until
from gpudeck.history.base import SeriesQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.embedded.tables import checked_columns, find_wrong, keys_of
from gpudeck.history.settings import HistorySettings
from gpudeck.model.errors import UsageError
from gpudeck.ops.history_file import verify
from history.embedded.feeding import START, gpu, process, sample

HOUR = 3600.0
SETTINGS = HistorySettings(min_free=0)
HOSTS = ("gpu01", "gpu02")
END = START + 2 * HOUR


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hosts, two sealed hours each, one sample in the journal."""
    path, clock = tmp_path_factory.mktemp("whole") / "history.db", FakeClock(START)
    with closing(EmbeddedStore(path, SETTINGS, clock)) as store:
        for number in range(24):
            at, who = START + number * 300, process(7, "alice")
            store.take([sample(at, gpu(f"GPU-{host}-0", who), host=host, interval=300) for host in HOSTS])
        store.flush()
        clock.now = END + HOUR / 2
        wait_until(lambda: store.flush() and rows(path, "SELECT count(*) FROM chunks") == [(4,)], "hours are sealed")
        store.take([sample(END, gpu("GPU-gpu01-0"))])
        store.flush()
    return path


@pytest.fixture
def path(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(whole, tmp_path / "history.db"))


@pytest.fixture
def old(path: Path) -> Path:
    """The samples are gone, as after `history.raw`."""
    rows(path, "DELETE FROM chunks")
    rows(path, "VACUUM")
    return path


def rows(path: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.text_factory = bytes
        return connection.execute(statement, values).fetchall()


def damages(path: Path) -> list[str]:
    return list(verify(path))


def flip(value: object, dice: random.Random) -> object:
    """The same with one other bit."""
    if isinstance(value, int):
        return value ^ 1 << dice.randrange(20)
    if isinstance(value, float):
        (bits,) = struct.unpack("<q", struct.pack("<d", value))
        return struct.unpack("<d", struct.pack("<q", bits ^ 1 << dice.randrange(60)))[0]
    body = bytearray(value if isinstance(value, bytes) else b"?")
    body[dice.randrange(len(body))] ^= 1 << dice.randrange(7)
    return bytes(body)


def flips(path: Path, table: str) -> Iterator[str]:
    """Each column of a row in turn has one bit changed; of many bytes, some. Yields what, and puts it right again."""
    dice, columns = random.Random(table), checked_columns()[table]
    row = rows(path, f"SELECT {', '.join(columns)} FROM {table} LIMIT 1")[0]
    with closing(sqlite3.connect(path)) as connection:
        keys = keys_of(connection, table)
        texts = {one[1] for one in connection.execute(f"PRAGMA table_info({table})") if one[2] == "TEXT"}
    bodies = [("body", row[columns.index("body")])] * 5 if "body" in columns else []
    for column, value in [*zip(columns, row, strict=True), *bodies]:
        other = flip(value, dice)
        there = dict(zip(columns, row, strict=True)) | ({column: other} if column in keys else {})
        for new, at in ((other, dict(zip(columns, row, strict=True))), (value, there)):
            where = " AND ".join(f"{key} IS ?" for key in keys)
            cast = "CAST(? AS TEXT)" if column in texts else "?"
            rows(path, f"UPDATE {table} SET {column} = {cast} WHERE {where}", new, *(at[key] for key in keys))
            if new is other:
                yield f"{table}.{column}: {value!r} → {other!r}"


@pytest.mark.parametrize("table", sorted(checked_columns()))
def test_a_changed_bit_in_any_column_is_found_without_samples(old: Path, table: str) -> None:
    assert damages(old) == []
    count = 0
    for what in flips(old, table):
        count += 1
        assert any(sentence.startswith(table) for sentence in damages(old)), what
    assert (count >= len(checked_columns()[table]), damages(old)) == (True, [])


def dump(path: Path) -> list[object]:
    """All rows as they are read."""
    with closing(sqlite3.connect(path)) as connection:
        connection.text_factory = bytes
        return [connection.execute(f"SELECT {', '.join(c)} FROM {t}").fetchall() for t, c in checked_columns().items()]


def test_rows_of_new_hosts_are_written_with_their_checksums(tmp_path: Path) -> None:
    path = tmp_path / "history.db"
    odd = [process(1, None), process(2, "zoë", started_at=int(START)), process(3, "")._replace(started_at=None)]
    again = process(2, "zoë", started_at=START - 500)
    with closing(EmbeddedStore(path, SETTINGS, FakeClock(START))) as store:
        store.take(
            [
                sample(START, gpu("GPU-a", *odd), gpu("GPU-b", again), gpu("GPU-c", odd[1])),
                sample(START, gpu("GPU-d", *odd), host="gpu02"),
                sample(START + 10, gpu("GPU-a", *odd)),
            ]
        )
        store.flush()
        assert not store.dropped
        with closing(sqlite3.connect(path)) as connection:
            written = {table: len(connection.execute(f"SELECT 1 FROM {table}").fetchall()) for table in NEW}
            wrong = [row for table in NEW for row in find_wrong(connection, table, checked_columns()[table])]
    assert written == {"hosts": 2, "gpus": 4, "runs": 7}
    assert wrong == []


NEW = ("hosts", "gpus", "runs")


def test_a_byte_of_the_file_that_changes_what_is_read_is_found(old: Path) -> None:
    """Bytes on the pages of each table: what is not found has changed nothing that anybody reads."""
    before, right, dice = old.read_bytes(), dump(old), random.Random(8)
    with closing(sqlite3.connect(old)) as connection:
        pages = connection.execute("SELECT name, pageno FROM dbstat WHERE name IN (SELECT name FROM sqlite_master)")
        places = [(name, page) for name, page in pages.fetchall() if name in checked_columns()]
    found = 0
    for name, page in [place for place in places for _ in range(6)]:
        body = bytearray(before)
        at = page * 2048 - 1 - dice.randrange(700)  # rows fill a page from its end
        body[at] ^= 1 << dice.randrange(8)
        old.write_bytes(body)
        if damages(old):
            found += 1
        else:
            assert dump(old) == right, f"{name}, byte {at}"
    assert found > len(places)


def test_a_change_of_a_damaged_row_hides_no_damage(path: Path) -> None:
    rows(path, "UPDATE runs SET utilization_sum = utilization_sum + 4096 WHERE id = 1")
    rows(path, "UPDATE uses_of_all SET joules = joules * 2 WHERE hour = ?", START)
    rows(path, "UPDATE fleet_quarters SET observed = observed + 512 WHERE start = ?", START)
    clock = FakeClock(END + HOUR / 2)
    with closing(EmbeddedStore(path, SETTINGS, clock)) as store:
        store.take([sample(START + 60, gpu("GPU-gpu01-0", process(7, "alice")), interval=30)])
        store.flush()
        clock.advance(60)
        late = "SELECT count(*) FROM sealed WHERE upto > 2"
        wait_until(lambda: store.flush() and rows(path, late) != [(0,)], "the late sample is sealed")
    found = damages(path)
    assert {sentence.partition(":")[0] for sentence in found} == {"runs", "uses_of_all", "fleet_quarters"}, found


def test_changed_roll_up_is_left_out_of_answers(old: Path) -> None:
    ask = SeriesQuery("power_watts", START, END, points=2, fleet=True)
    with closing(EmbeddedStore(old, SETTINGS, FakeClock(END + 90 * 24 * HOUR))) as store:
        whole = store.series(ask).series[0].points
    rows(old, "UPDATE fleet_quarters SET body = CAST(substr(body, 1, 200) || x'42' || substr(body, 202) AS BLOB)")
    with closing(EmbeddedStore(old, SETTINGS, FakeClock(END + 90 * 24 * HOUR))) as store:
        assert whole
        assert store.series(ask).series[0].points == []
        assert "cannot be read" in (store.damage or "")


def test_newer_file_is_left_alone_with_one_line(path: Path) -> None:
    rows(path, "UPDATE meta SET value = 4 WHERE name = 'version'")
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is of version 4, and this gpudeck knows 3"):
        EmbeddedStore(path, SETTINGS)
    assert path.read_bytes() == before
