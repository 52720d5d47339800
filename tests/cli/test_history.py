import csv
import io
import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fakes.clock import FakeClock
from fakes.waiting import wait_until
from gpudeck.cli import gpudeck
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.settings import HistorySettings
from gpudeck.model.errors import UsageError
from history.embedded.feeding import START, busy_hour, gpu, process, sample

SPAN = ["--since", "2023-11-14T23:00Z", "--until", "2023-11-15T02:00Z"]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hosts: a sealed hour of each, and a sample in the journal."""
    path, clock = tmp_path_factory.mktemp("written") / "history.db", FakeClock(START)
    store = EmbeddedStore(path, HistorySettings(min_free=0), clock)
    store.take(busy_hour()[::12])
    bob = gpu("GPU-b-0", process(8, "bob", memory=None))
    store.take([sample(START + number * 120, bob, host="gpu02") for number in range(30)])
    store.flush()
    clock.now += 7200
    wait_until(lambda: store.flush() and not store.stats().parts["journal"], "the hours are sealed")
    store.take([sample(START + 7000, gpu("GPU-gpu01-0", process(9, "carol")), interval=120)])
    store.close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
    return path


@pytest.fixture
def file(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copyfile(written, tmp_path / "history.db"))


def run(*arguments: str) -> Result:
    return CliRunner().invoke(gpudeck, ["history", *arguments], catch_exceptions=True)


def export(file: Path, *arguments: str) -> list[dict[str, str]]:
    result = run("export", "--file", str(file), *arguments)
    assert result.exit_code == 0, result.output
    return list(csv.DictReader(io.StringIO(result.output)))


def test_stats_tell_what_is_there(file: Path) -> None:
    text = run("stats", "--file", str(file)).output
    assert "2 hosts, 2 GPUs" in text
    assert json.loads(run("stats", "--json", "--file", str(file)).output)["gpus"] == 2


def test_export_has_sealed_and_open_hours(file: Path) -> None:
    rows = export(file, *SPAN)
    assert {row["users"] for row in rows} == {"alice", "bob", "carol"}
    assert rows[0]["utilization_percent"] == "50.0"
    assert rows[0]["fan_percent"] == ""


def test_export_can_be_narrowed(file: Path) -> None:
    rows = export(file, *SPAN, "--host", "gpu02", "--metric", "power_watts")
    assert {row["host"] for row in rows} == {"gpu02"}
    assert "utilization_percent" not in rows[0]


def test_export_of_an_empty_span_has_a_head_alone(file: Path) -> None:
    assert export(file, "--since", "2020-01-01", "--until", "2020-01-02") == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "nobody"], "knows no host 'nobody'"),
        (["--host", "gpu01", "--host", "nobody"], "knows no host 'nobody'"),
        (["--gpu", "GPU-none"], "knows no GPU 'GPU-none'"),
        (["--metric", "warmth"], "there is no metric 'warmth'"),
        (["--since", "yesterdayish"], "is not a time"),
        (["--since", "now", "--until", "-1h"], "before --until"),
    ],
)
def test_export_says_what_it_cannot_do(file: Path, arguments: list[str], words: str) -> None:
    result = run("export", "--file", str(file), *arguments)
    assert isinstance(result.exception, UsageError)
    assert words in str(result.exception)
    assert not result.stdout


def test_export_takes_a_time_ago_with_and_without_its_sign(file: Path) -> None:
    assert export(file, "--since", "2d") == export(file, "--since", "-2d") == []


def test_verify_finds_a_flipped_bit(file: Path) -> None:
    assert "everything can be read" in run("verify", "--file", str(file)).output
    with sqlite3.connect(file) as connection:
        (body,) = connection.execute("SELECT body FROM chunks LIMIT 1").fetchone()
        damaged = bytearray(body)
        damaged[len(damaged) // 2] ^= 1
        connection.execute("UPDATE chunks SET body = ? WHERE key = (SELECT min(key) FROM chunks)", (bytes(damaged),))
    result = run("verify", "--file", str(file))
    assert result.exit_code == 1
    assert "chunks: the hour" in result.output


def test_missing_history_is_said(tmp_path: Path) -> None:
    result = run("stats", "--file", str(tmp_path / "none.db"))
    assert isinstance(result.exception, UsageError)
    assert "there is no history" in str(result.exception)


def test_clock_is_accepted_by_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path))
    before = time.time()
    result = run("accept-clock")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "clock.json").read_bytes())["certain"] >= before
    monkeypatch.setenv("GPUDECK_DATA_DIR", str(tmp_path / "nowhere"))
    assert isinstance(run("accept-clock").exception, UsageError)


def test_repair_sets_aside_what_verify_names(file: Path) -> None:
    assert "nothing is damaged" in run("repair", "--file", str(file)).output
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE chunks SET body = x'01' WHERE key = (SELECT min(key) FROM chunks)")
    result = run("repair", "--file", str(file))
    assert result.exit_code == 0, result.output
    assert "set aside: chunks: the hour from 2023-11-14 23:00 UTC of gpu01" in result.output
    assert "everything can be read" in run("verify", "--file", str(file)).output
    with sqlite3.connect(file) as connection:
        assert connection.execute("SELECT source FROM set_aside").fetchall() == [("chunks",)]


def test_file_that_is_no_database_is_told_by_verify_and_kept_by_repair(tmp_path: Path) -> None:
    file = tmp_path / "history.db"
    file.write_bytes(b"not a database" * 500)
    result = run("verify", "--file", str(file))
    assert (result.exit_code, "the file: file is not a database" in result.output) == (1, True)
    assert "it is now" in run("repair", "--file", str(file)).output
    (aside,) = tmp_path.glob("history-damaged-*.db")
    assert aside.read_bytes() == b"not a database" * 500
