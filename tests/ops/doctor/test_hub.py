"""The hub's files, each in the states that a doctor is called for."""

import shutil
import socket
import sqlite3
from collections import namedtuple
from contextlib import closing
from pathlib import Path

import pytest

from fakes.certificates import Authority
from fakes.ports import free_port
from gpudeck.database.migrations import NEWEST
from gpudeck.model.settings import Address
from gpudeck.ops.doctor.hub import (
    check_certificate,
    check_database,
    check_folder,
    check_history,
    check_port,
    check_room,
    check_secrets,
    judge_version,
)
from gpudeck.settings import Settings

GIB = 1024**3
Usage = namedtuple("Usage", "total used free")


def make_database(folder: Path, version: str = NEWEST) -> Path:
    file = folder / "gpudeck.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE gpudeck_version (version_num TEXT)")
        connection.execute("INSERT INTO gpudeck_version VALUES (?)", [version])
    connection.close()
    return file


def test_a_free_port_means_that_no_hub_runs() -> None:
    port = free_port()
    assert check_port(Address("127.0.0.1", port)).verdict == "warn"


def test_a_port_on_which_a_program_listens_is_fine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        listen = Address("127.0.0.1", server.getsockname()[1])
        finding = check_port(listen)
    assert (finding.verdict, finding.told) == ("ok", f"a program listens on {listen}")


def test_an_address_of_another_machine_fails() -> None:
    assert check_port(Address("192.0.2.1", 8042)).verdict == "fail"


def test_a_folder_that_is_not_there_fails(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "none").verdict == "fail"
    assert check_folder(tmp_path).verdict == "ok"


@pytest.mark.parametrize(("free", "verdict"), [(100 * GIB, "ok"), (GIB, "warn"), (1024, "fail")])
def test_room_on_the_disk_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, verdict: str) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(200 * GIB, 200 * GIB - free, free))
    assert check_room(tmp_path).verdict == verdict


def test_tokens_that_others_may_read_fail(tmp_path: Path) -> None:
    for name, mode in (("agent.token", 0o644), ("admin.token", 0o600)):
        (tmp_path / name).write_text("gd_admin_secret\n")
        (tmp_path / name).chmod(mode)
    (finding,) = check_secrets(tmp_path)
    assert (finding.verdict, "agent.token" in finding.told) == ("fail", True)


def test_a_sound_database_of_today_is_fine(tmp_path: Path) -> None:
    assert check_database(Settings(), tmp_path).verdict == "skip"
    make_database(tmp_path)
    assert check_database(Settings(), tmp_path).verdict == "ok"


def test_a_damaged_database_fails(tmp_path: Path) -> None:
    make_database(tmp_path).write_bytes(b"no database at all" * 100)
    assert check_database(Settings(), tmp_path).verdict == "fail"


def test_looking_at_a_database_changes_nothing(tmp_path: Path) -> None:
    file = make_database(tmp_path)
    before = file.read_bytes(), sorted(tmp_path.iterdir())
    check_database(Settings(), tmp_path)
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == before


@pytest.mark.parametrize(
    ("found", "newest", "verdict"),
    [("0007", "0007", "ok"), ("0006", "0007", "warn"), ("0008", "0007", "fail"), ("0008", None, "ok")],
)
def test_versions_of_the_tables_are_judged(found: str, newest: str | None, verdict: str) -> None:
    assert judge_version(Path("x"), found, newest).verdict == verdict


def test_an_address_of_a_database_is_not_shown(tmp_path: Path) -> None:
    finding = check_database(Settings(database="postgresql://hub:hidden-word@db/gpudeck"), tmp_path)
    assert (finding.verdict, "hidden-word" in str(finding)) == ("skip", False)


def test_a_damaged_history_fails(tmp_path: Path) -> None:
    assert check_history(Settings(), tmp_path).verdict == "skip"
    (tmp_path / "history.db").write_bytes(b"rubbish" * 1000)
    assert check_history(Settings(), tmp_path).verdict == "fail"


def test_a_demos_history_is_looked_at_where_there_is_no_other(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "history-demo-24.db")) as demo:
        demo.execute("CREATE TABLE hours (at)")
    finding = check_history(Settings(), tmp_path)
    assert (finding.verdict, "history-demo-24.db is intact" in finding.told) == ("ok", True)
    assert "the simulated history of a demo" in finding.told
    with closing(sqlite3.connect(tmp_path / "history.db")) as real:
        real.execute("CREATE TABLE hours (at)")
    assert "simulated" not in check_history(Settings(), tmp_path).told


@pytest.mark.parametrize(("days", "verdict"), [(90, "ok"), (3, "warn"), (-2, "fail")])
def test_certificates_that_end_are_told(tmp_path: Path, days: int, verdict: str) -> None:
    Authority(tmp_path).server_context("hub.example", days)
    both = tmp_path / "hub.example.pem"
    assert check_certificate(both, both).verdict == verdict


def test_a_certificate_that_is_not_there_fails(tmp_path: Path) -> None:
    assert check_certificate(tmp_path / "none.pem", tmp_path / "none.key").verdict == "fail"
