"""Reports on disk: what is torn or damaged costs itself, and a clock that was set misfiles nothing."""

import os
from pathlib import Path

import pytest

from gpudeck.agent.spool import EncodedReport, ReportTime, Spool, SpoolPosition


def write(folder: Path, count: int, boot: str = "boot-1") -> list[SpoolPosition]:
    spool = Spool(folder, boot)
    list(spool.open())
    places = spool.append(
        [EncodedReport("gpu01", bytes([n]) * 50, ReportTime(1000.0 + n, 10.0 + n)) for n in range(count)]
    )
    spool.close()
    return places


def read(folder: Path) -> tuple[list[int], Spool]:
    spool = Spool(folder, "boot-1")
    found = [parcel.body[0] for parcel, _ in spool.open()]
    spool.close()
    return found, spool


def damage(folder: Path, offset: int, content: bytes) -> None:
    with (folder / "000000000001.segment").open("r+b") as file:
        file.seek(offset)
        file.write(content)


def test_reports_are_found_again_in_order_and_then_are_other_segments(tmp_path: Path) -> None:
    write(tmp_path, 3)
    write(tmp_path, 2)
    assert read(tmp_path)[0] == [0, 1, 2, 0, 1]
    assert len(list(tmp_path.glob("*.segment"))) == 2


@pytest.mark.parametrize("kept", [1, 11, 12, 40])
def test_what_a_power_cut_tore_is_cut_off_and_counted(
    tmp_path: Path, kept: int, caplog: pytest.LogCaptureFixture
) -> None:
    last = write(tmp_path, 3)[-1]
    os.truncate(tmp_path / "000000000001.segment", last.offset + kept)
    found, spool = read(tmp_path)
    assert (found, spool.damaged) == ([0, 1], 1)
    assert "truncated" in caplog.text


def test_zeros_that_a_power_cut_left_are_cut_off(tmp_path: Path) -> None:
    last = write(tmp_path, 3)[-1]
    damage(tmp_path, last.offset, bytes(last.length + 4000))
    assert read(tmp_path)[0] == [0, 1]


def test_damaged_report_loses_only_itself(tmp_path: Path) -> None:
    places = write(tmp_path, 3)
    damage(tmp_path, places[1].offset + 30, b"rubbish")
    found, spool = read(tmp_path)
    assert (found, spool.damaged) == ([0, 2], 1)


@pytest.mark.parametrize(
    ("at", "content"), [(0, b"rubbish"), (4, b"\xff"), (4, b"\0\0\0\0"), (6, b"\x7f"), (0, b"GDRGDRw")]
)
def test_damaged_head_loses_only_its_own_report(tmp_path: Path, at: int, content: bytes) -> None:
    """Also where its length is what is damaged."""
    places = write(tmp_path, 4)
    write(tmp_path, 2)
    damage(tmp_path, places[1].offset + at, content)
    found, spool = read(tmp_path)
    assert (found, spool.damaged) == ([0, 2, 3, 0, 1], 1)


@pytest.mark.parametrize("content", [b"", b"rubbish" * 1000, bytes(5000), b"GDRw" + b"\xff" * 8])
def test_file_that_is_no_segment_stops_nobody(tmp_path: Path, content: bytes) -> None:
    write(tmp_path, 2)
    (tmp_path / "000000000000.segment").write_bytes(content)
    (tmp_path / "notes.segment").write_bytes(b"rubbish")
    (tmp_path / "000000000007.segment").mkdir()
    assert read(tmp_path)[0] == [0, 1]


def test_report_that_is_damaged_while_it_waits_is_gone(tmp_path: Path) -> None:
    places = write(tmp_path, 2)
    spool = Spool(tmp_path, "boot-1")
    damage(tmp_path, places[0].offset + 30, b"rubbish")
    second = spool.read(places[1])
    assert second is not None
    assert (spool.read(places[0]), second.body[0]) == (None, 1)
    (tmp_path / "000000000001.segment").unlink()
    assert spool.read(places[1]) is None


def test_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match="belongs to another user"):
        Spool(tmp_path, "boot-1").open()


def test_folder_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    write(tmp_path, 1)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "000000000001.segment").symlink_to(tmp_path / "precious")
    write(tmp_path / "spool", 1)
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize(
    ("boot", "wall", "sent_at"),
    [
        ("boot-1", 1020.0, 1020.0),
        ("boot-1", 4620.0, 1020.0),  # the clock was set an hour ahead meanwhile
        ("boot-1", 20.0, 1020.0),
        ("boot-0", 4620.0, 4620.0),  # of an earlier boot nothing but the clock is known
        ("boot-0", 20.0, 1000.0),
    ],
)
def test_time_that_a_report_waited_survives_a_restart_and_a_clock_that_was_set(
    tmp_path: Path, boot: str, wall: float, sent_at: float
) -> None:
    write(tmp_path, 1, boot)
    ((parcel, _),) = Spool(tmp_path, "boot-1").open()
    assert parcel.made.sent_at(wall, 30.0) == sent_at


def test_boot_clock_that_runs_backwards_is_not_believed() -> None:
    assert ReportTime(1000.0, 500.0).sent_at(1007.0, 20.0) == 1007.0
