"""What waits on the disk: in order, bounded, and whole whatever happens to the hub."""

import contextlib
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudeck.history.remote.encoder import EncodedSeries
from gpudeck.history.remote.writer import DiskQueue

APPENDER = Path(__file__).with_name("appender.py")


Open = Callable[[int], DiskQueue]


@pytest.fixture
def open_queue(tmp_path: Path) -> Iterator[Open]:
    """Queues of so many bytes in the test's folder, one after the other."""
    with contextlib.ExitStack() as opened:
        yield lambda size: opened.enter_context(contextlib.closing(DiskQueue(tmp_path, size)))


def part(number: int, size: int = 10) -> EncodedSeries:
    # Bytes that cannot be packed any smaller, so that sizes on the disk are those of the test.
    return EncodedSeries(random.Random(number).randbytes(size), 7, float(number))


def numbers(queue: DiskQueue) -> list[int]:
    return [int(waiting.part.at) for waiting in queue.peek(10**9)]


def test_records_come_back_in_order_and_whole(open_queue: Open) -> None:
    queue = open_queue(10**6)
    queue.append([part(1), part(2)])
    queue.append([part(3)])
    assert [waiting.part for waiting in queue.peek(10**9)] == [part(1), part(2), part(3)]


def test_peek_takes_as_many_as_fit_and_at_least_one(open_queue: Open) -> None:
    queue = open_queue(10**6)
    queue.append([part(1), part(2), part(3)])
    assert [len(queue.peek(values)) for values in (1, 7, 14, 20, 21)] == [1, 1, 2, 2, 3]


def test_what_was_sent_is_gone_also_after_a_restart(open_queue: Open) -> None:
    queue = open_queue(10**6)
    queue.append([part(1), part(2), part(3)])
    queue.done(queue.peek(14)[-1].after)
    assert numbers(queue) == [3]
    queue.close()
    assert numbers(open_queue(10**6)) == [3]


def test_empty_queue_says_so(open_queue: Open) -> None:
    queue = open_queue(10**6)
    assert queue.is_empty()
    queue.append([part(1)])
    assert not queue.is_empty()
    queue.done(queue.peek(1)[-1].after)
    assert queue.is_empty()
    assert queue.size() == 0


def test_file_of_a_long_queue_becomes_small_again_when_all_is_sent(tmp_path: Path, open_queue: Open) -> None:
    queue = open_queue(10**7)
    for number in range(30):
        queue.append([part(number, 100_000)])
    assert numbers(queue) == list(range(30))
    queue.done(queue.peek(10**9)[-1].after)
    queue.append([part(30)])
    assert numbers(queue) == [30]
    queue.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 50_000


def test_beyond_its_size_the_oldest_is_dropped_and_counted(open_queue: Open) -> None:
    queue = open_queue(20_000)
    for number in range(100):
        queue.append([part(number, 1000)])
    left = numbers(queue)
    assert left == list(range(100 - len(left), 100))
    assert queue.dropped == 100 - len(left) > 70
    assert queue.size() <= 20_000


def test_sending_what_was_dropped_meanwhile_does_not_go_back(open_queue: Open) -> None:
    queue = open_queue(20_000)
    queue.append([part(0, 1000)])
    old = queue.peek(1)[-1].after
    for number in range(1, 100):
        queue.append([part(number, 1000)])
    left = numbers(queue), queue.size()
    queue.done(old)
    assert (numbers(queue), queue.size()) == left


def test_damaged_record_costs_itself_only(tmp_path: Path, open_queue: Open) -> None:
    queue = open_queue(10**6)
    for number in range(20):
        queue.append([part(number, 1000)])
    queue.close()
    (file,) = tmp_path.glob("*.db")
    content = file.read_bytes()
    at = content.index(part(7, 1000).body)
    file.write_bytes(content[: at + 100] + b"?" + content[at + 101 :])
    again = open_queue(10**6)
    assert numbers(again) == [number for number in range(20) if number != 7]
    assert again.dropped == 1
    again.done(again.peek(10**9)[-1].after)
    assert again.is_empty()


@pytest.mark.parametrize("keep", [0, 100, 5000])
def test_damaged_file_is_set_aside_and_the_queue_goes_on(tmp_path: Path, open_queue: Open, keep: int) -> None:
    queue = open_queue(10**6)
    for number in range(20):
        queue.append([part(number, 1000)])
    queue.close()
    (file,) = tmp_path.glob("*.db")
    file.write_bytes(file.read_bytes()[:keep] + b"rubbish" * 3000)
    again = open_queue(10**6)
    again.append([part(20)])
    assert numbers(again)[-1:] in ([20], [])
    again.append([part(21)])
    assert numbers(again)[-1] == 21
    assert list(tmp_path.glob("queue-damaged-*.db"))


def test_full_disk_is_an_error_and_leaves_no_half_records(open_queue: Open) -> None:
    queue = open_queue(10**6)
    queue.append([part(1, 5000)])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8000, limits[1]))
    try:
        with pytest.raises(OSError, match=r"disk|full"):
            queue.append([part(2, 9000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    queue.append([part(3)])
    assert numbers(queue) == [1, 3]


def test_nothing_that_was_appended_is_lost_by_kill_9(tmp_path: Path, open_queue: Open) -> None:
    said = [number for _ in range(5) for number in append_and_kill(tmp_path)]
    found = numbers(open_queue(10**9))
    assert len(said) >= 5 * 40
    assert found == sorted(found)
    assert set(said) <= set(found)


def append_and_kill(folder: Path) -> list[int]:
    """The numbers that it said, up to its death."""
    with subprocess.Popen([sys.executable, str(APPENDER), str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(40)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    return [int(line) for line in said if line.endswith("\n")]
