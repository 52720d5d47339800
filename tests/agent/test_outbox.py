"""What waits for the hub: bounded, the newest first, the rest in order, and on disk when it waits for long."""

import contextlib
import os
import resource
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.waiting import wait_until
from gpudeck.agent.outbox import WRITE_AFTER, EncodedReport, Outbox, ReportTime, Spool


def parcels(count: int, size: int = 10) -> list[EncodedReport]:
    return [EncodedReport("gpu01", bytes([n]) * size) for n in range(count)]


def take_all(outbox: Outbox, *, newest_first: bool = True) -> list[int]:
    taken = []
    while (parcel := outbox.wait(timeout=0, newest_first=newest_first)) is not None:
        taken.append(parcel.body[0])
        outbox.done(parcel)
    return taken


def fill(outbox: Outbox, count: int) -> None:
    for parcel in parcels(count):
        outbox.put(parcel)


def spooled(folder: Path, timer: FakeClock | None = None, most_bytes: int = 1_000_000, boot: str = "boot-1") -> Outbox:
    spool = Spool(folder / "gpu01.db", boot)
    return Outbox(None, most_bytes, max_age=86_400.0, spool=spool, boottime=timer or FakeClock(100.0))


def files_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.db"))


def test_newest_report_goes_first_and_the_backlog_follows_in_order() -> None:
    outbox = Outbox(most_reports=100, most_bytes=10_000)
    fill(outbox, 5)
    assert take_all(outbox) == [4, 0, 1, 2, 3]


def test_new_report_goes_before_the_rest_of_the_backlog() -> None:
    outbox = Outbox(most_reports=100, most_bytes=10_000)
    fill(outbox, 3)
    taken = []
    for late in (b"\x07", None, b"\x08"):
        parcel = outbox.wait(timeout=0)
        assert parcel is not None
        taken.append(parcel.body[0])
        if late:
            outbox.put(EncodedReport("gpu01", late))
        outbox.done(parcel)
    assert taken + take_all(outbox) == [2, 7, 0, 8, 1]


def test_each_hosts_newest_report_goes_before_any_backlog() -> None:
    outbox = Outbox(None, 10_000)
    for host, number in (("a", 1), ("b", 2), ("a", 3), ("b", 4), ("a", 5)):
        outbox.put(EncodedReport(host, bytes([number])))
    assert take_all(outbox) == [4, 5, 1, 2, 3]


def test_oldest_report_goes_first_where_the_hub_wants_order() -> None:
    outbox = Outbox(most_reports=100, most_bytes=10_000)
    fill(outbox, 5)
    assert take_all(outbox, newest_first=False) == [0, 1, 2, 3, 4]


def test_backlog_can_be_left_waiting() -> None:
    outbox = Outbox(most_reports=100, most_bytes=10_000)
    fill(outbox, 3)
    newest = outbox.wait(0, backlog=False)
    assert newest is not None
    assert outbox.is_newest(newest)
    outbox.done(newest)
    assert (newest.body[0], outbox.wait(0, backlog=False), len(outbox)) == (2, None, 2)


def test_a_full_outbox_drops_the_oldest_and_counts_it() -> None:
    outbox = Outbox(most_reports=3, most_bytes=10_000)
    fill(outbox, 5)
    assert (take_all(outbox), outbox.dropped) == ([4, 2, 3], 2)


def test_bytes_are_bounded_too() -> None:
    outbox = Outbox(most_reports=100, most_bytes=35)
    fill(outbox, 5)
    assert take_all(outbox) == [4, 2, 3]


def test_one_report_is_kept_however_large() -> None:
    outbox = Outbox(most_reports=100, most_bytes=5)
    fill(outbox, 2)
    assert take_all(outbox) == [1]


def test_a_report_dropped_while_it_was_sent_takes_no_other_with_it() -> None:
    outbox = Outbox(most_reports=2, most_bytes=10_000)
    first, second, third = parcels(3)
    outbox.put(first)
    sending = outbox.wait(timeout=0)
    outbox.put(second)
    outbox.put(third)
    assert sending is first
    outbox.done(first)
    assert take_all(outbox) == [2, 1]


def test_reports_of_this_boot_age_by_the_clock_that_nobody_sets() -> None:
    wall, timer = FakeClock(), FakeClock(100.0)
    outbox = Outbox(None, 10_000, max_age=60.0, now=wall, boottime=timer)
    outbox.put(EncodedReport("gpu01", b"\x01", ReportTime(wall.now, timer.now)))
    wall.advance(40 * 86_400)
    outbox.put(EncodedReport("gpu01", b"\x02", ReportTime(wall.now, timer.now)))
    assert (len(outbox), outbox.dropped) == (2, 0)
    timer.advance(61)
    outbox.put(EncodedReport("gpu01", b"\x03", ReportTime(wall.now, timer.now)))
    assert (take_all(outbox), outbox.dropped) == ([3], 2)


def test_clock_that_is_wrong_at_boot_deletes_nothing() -> None:
    wall, timer = FakeClock(), FakeClock(100.0)
    outbox = Outbox(None, 10_000, max_age=60.0, now=wall, boottime=timer)
    outbox.put(EncodedReport("gpu01", b"\x01", ReportTime(wall.now - 86_400, None)))
    outbox.put(EncodedReport("gpu01", b"\x02", ReportTime(wall.now, timer.now)))
    assert len(outbox) == 2
    timer.advance(3601)
    outbox.put(EncodedReport("gpu01", b"\x03", ReportTime(wall.now, timer.now)))
    assert take_all(outbox) == [3]


def test_reports_that_are_taken_within_seconds_never_touch_the_disk(tmp_path: Path) -> None:
    timer = FakeClock(100.0)
    outbox = spooled(tmp_path / "outbox", timer)
    for parcel in parcels(20):
        outbox.put(parcel)
        timer.advance(1.0)
        outbox.tick()
        take_all(outbox)
    outbox.tick()
    outbox.close()
    assert not (tmp_path / "outbox").exists()


def test_reports_that_wait_for_seconds_are_on_disk_and_readable_by_their_owner_alone(tmp_path: Path) -> None:
    timer = FakeClock(100.0)
    outbox = spooled(tmp_path / "outbox", timer)
    fill(outbox, 3)
    timer.advance(WRITE_AFTER - 0.1)
    outbox.tick()
    assert not (tmp_path / "outbox").exists()
    timer.advance(0.1)
    outbox.tick()
    folder = tmp_path / "outbox"
    assert files_in(folder) == ["gpu01.db"]
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    assert {oct(path.stat().st_mode & 0o777) for path in folder.iterdir()} == {"0o600"}


def test_killed_agent_loses_only_what_was_not_written_yet(tmp_path: Path) -> None:
    before = spooled(tmp_path)
    fill(before, 4)
    before.save()
    before.put(EncodedReport("gpu01", b"\x09"))
    assert before.spool is not None
    before.spool.close()  # as the system does it for a process that is killed
    after = spooled(tmp_path)
    assert take_all(after) == [0, 1, 2, 3]
    after.close()
    assert files_in(tmp_path) == []


def test_agent_that_is_told_to_end_loses_nothing(tmp_path: Path) -> None:
    before = spooled(tmp_path)
    fill(before, 40)
    before.close()
    after = spooled(tmp_path)
    after.put(EncodedReport("gpu01", b"\x63"))
    assert take_all(after) == [99, *range(40)]


def test_report_that_waits_on_disk_is_whole(tmp_path: Path) -> None:
    outbox = spooled(tmp_path)
    outbox.put(EncodedReport("gpu01", b"whole", description="same", short=b"short"))
    outbox.save()
    parcel = outbox.wait(0)
    assert parcel is not None
    assert (parcel.body, parcel.description, parcel.short) == (b"whole", "", b"")


def test_sent_reports_are_not_sent_again_after_a_restart(tmp_path: Path) -> None:
    before = spooled(tmp_path)
    fill(before, 9)
    before.save()
    for _ in range(4):
        parcel = before.wait(0)
        assert parcel is not None
        before.done(parcel)
    before.close()
    assert take_all(spooled(tmp_path)) == [3, 4, 5, 6, 7]


def test_report_that_was_sent_while_it_was_written_is_not_sent_again(tmp_path: Path) -> None:
    before = spooled(tmp_path)
    fill(before, 2)
    sending = before.wait(0)
    before.save()
    before.put(EncodedReport("gpu01", b"\x07"))
    assert sending is not None
    before.done(sending)
    before.close()
    assert take_all(spooled(tmp_path)) == [0, 7]


def test_space_on_disk_is_bounded(tmp_path: Path) -> None:
    outbox = spooled(tmp_path, most_bytes=200_000)
    for number in range(200):
        outbox.put(EncodedReport("gpu01", bytes([number]) * 5000))
        outbox.save()
        outbox.tick()
    assert (tmp_path / "gpu01.db").stat().st_size < 400_000
    outbox.close()
    assert take_all(spooled(tmp_path))[-1] == 199


def test_report_that_was_dropped_while_it_was_sent_takes_no_file_with_it(tmp_path: Path) -> None:
    outbox = spooled(tmp_path, most_bytes=135)
    fill(outbox, 2)
    outbox.save()
    sending = outbox.wait(0, newest_first=False)
    assert sending is not None
    outbox.put(EncodedReport("gpu01", b"\x07" * 120))
    assert outbox.dropped == 1
    outbox.done(sending)
    outbox.tick()
    outbox.close()
    assert take_all(spooled(tmp_path), newest_first=False)[-2:] == [1, 7]


def test_folder_whose_name_cannot_be_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outbox = spooled(tmp_path / ("x" * 300))
    fill(outbox, 2)
    outbox.save()
    assert "File name too long" in caplog.text
    assert take_all(outbox) == [1, 0]


def test_second_agent_of_the_same_name_keeps_its_reports_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    timer = FakeClock(100.0)
    first, second = spooled(tmp_path), spooled(tmp_path, timer)
    fill(first, 2)
    first.save()
    second.put(EncodedReport("gpu01", b"\x05"))
    second.save()
    second.save()
    assert caplog.text.count("another agent of this name uses it") == 1
    assert (len(second), take_all(second)) == (1, [5])
    first.close()
    second.put(EncodedReport("gpu01", b"\x06"))
    second.save()
    assert take_all(second) == [6, 0, 1]


def test_folder_that_cannot_be_used_costs_the_restart_only_and_is_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    timer = FakeClock(100.0)
    (tmp_path / "outbox").write_text("a file where the folder should be")
    outbox = spooled(tmp_path / "outbox", timer)
    for parcel in parcels(5):
        outbox.put(parcel)
        timer.advance(WRITE_AFTER)
        outbox.tick()
    assert caplog.text.count("cannot be saved to") == 1
    (tmp_path / "outbox").unlink()
    timer.advance(60.0)
    outbox.tick()
    assert "again" in caplog.text
    outbox.close()
    assert take_all(spooled(tmp_path / "outbox")) == [0, 1, 2, 3, 4]


@contextlib.contextmanager
def no_room_beyond(most_bytes: int) -> Iterator[None]:
    """The kernel takes the first bytes of a write and refuses the rest, as on a disk that is full."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_disk_without_room_loses_no_report_and_keeps_none_by_halves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = spooled(tmp_path)
    fill(outbox, 3)
    outbox.save()
    for number in (3, 4):
        outbox.put(EncodedReport("gpu01", bytes([number]) * 100_000))
    with no_room_beyond((tmp_path / "gpu01.db").stat().st_size + 50_000):
        outbox.save()
    assert "cannot be saved to" in caplog.text
    assert len(outbox) == 5
    outbox.close()
    assert take_all(spooled(tmp_path), newest_first=False) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("at", [0, 40, 5000])
def test_damaged_file_is_replaced_and_stops_nobody(tmp_path: Path, at: int, caplog: pytest.LogCaptureFixture) -> None:
    before = spooled(tmp_path)
    for number in range(20):
        before.put(EncodedReport("gpu01", bytes([number]) * 1000))
    before.close()
    with (tmp_path / "gpu01.db").open("r+b") as file:
        file.seek(at)
        file.write(b"rubbish" * 1000)
    after = spooled(tmp_path)
    after.put(EncodedReport("gpu01", b"\x63"))
    assert take_all(after)[0] == 99
    assert "lost" in caplog.text


def test_folder_of_another_user_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    outbox = spooled(tmp_path)
    fill(outbox, 1)
    outbox.save()
    assert "belongs to another user" in caplog.text
    assert (take_all(outbox), files_in(tmp_path)) == ([0], [])


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
    before = spooled(tmp_path, boot=boot)
    before.put(EncodedReport("gpu01", b"\x01", ReportTime(1000.0, 10.0)))
    before.close()
    report = spooled(tmp_path).wait(0)
    assert report is not None
    assert report.made.sent_at(wall, 30.0) == sent_at


def test_boot_clock_that_runs_backwards_is_not_believed() -> None:
    assert ReportTime(1000.0, 500.0).sent_at(1007.0, 20.0) == 1007.0


def test_writer_loop_and_sender_at_once_lose_and_repeat_nothing(tmp_path: Path) -> None:
    outbox, stop, taken = spooled(tmp_path), threading.Event(), list[int]()

    def send() -> None:
        while (parcel := outbox.wait(0.05)) is not None or not stop.is_set():
            if parcel is not None:
                taken.append(int(parcel.body))
                outbox.done(parcel)

    def save() -> None:
        while not stop.is_set():
            outbox.save()

    threads = [threading.Thread(target=target) for target in (send, save)]
    for thread in threads:
        thread.start()
    for number in range(2000):
        outbox.put(EncodedReport("gpu01", str(number).encode()))
    wait_until(lambda: len(outbox) == 0, "everything sent")
    stop.set()
    for thread in threads:
        thread.join(10)
    assert sorted(taken) == list(range(2000))
    outbox.close()
    assert files_in(tmp_path) == []


def test_dropped_reports_are_logged_when_it_begins_and_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("WARNING")
    outbox = Outbox(most_reports=None, most_bytes=30)
    fill(outbox, 5)
    assert outbox.dropped == 2
    assert [record.message for record in caplog.records] == [
        "undelivered reports exceed agent.outbox_size or outbox_age: the oldest are dropped"
    ]
    take_all(outbox)
    assert caplog.records[-1].message == "the outbox is empty again: 2 reports were dropped"
    fill(outbox, 1)
    take_all(outbox)
    assert len(caplog.records) == 2
