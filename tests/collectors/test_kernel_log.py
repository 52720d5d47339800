"""NVIDIA's faults out of the kernel's log: each once, dated, and nothing that the log does can stop the reading."""

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpudeck.collectors.xids import KernelLog
from gpudeck.model.report import GpuEvent

NOW = 1_790_000_000.0
UP_SECONDS = 5000.0
FALLEN = "NVRM: Xid (PCI:0000:18:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def record(message: str, seconds: float = 4000.0, priority: int = 4, number: int = 7) -> str:
    """A record as /dev/kmsg gives it, so many seconds after the boot."""
    return f"{priority},{number},{int(seconds * 1e6)},-;{message}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:18:00.0\n"


def log_of(path: Path, *records: str) -> KernelLog:
    path.write_text("".join(records))
    return KernelLog(str(path), monotonic=lambda: UP_SECONDS)


@pytest.fixture
def pipe() -> Iterator[tuple[str, Callable[[str], int]]]:
    """A log as the kernel keeps it: a read gives one record, and where there is none it would wait."""
    reader, writer = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    yield f"/proc/self/fd/{reader}", lambda text: os.write(writer, text.encode())
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize(
    ("message", "slot", "code", "pid", "text"),
    [
        (
            # An H200 with driver 580.159.04, as it was seen when a program wrote to an address of nobody's.
            "NVRM: Xid (PCI:0000:00:06): 31, pid=452, name=python3, channel 0x0000000a, intr 00000000. MMU Fault: "
            "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x70_00000000. "
            "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
            "0000:00:06",
            31,
            452,
            "channel 0x0000000a, intr 00000000. MMU Fault: "
            "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_8 faulted @ 0x70_00000000. "
            "Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE",
        ),
        (FALLEN, "0000:18:00", 79, None, "GPU has fallen off the bus."),
        (
            "NVRM: Xid (PCI:0000:AF:00): 31, pid=1234, name=python, Ch 00000008, intr 10000000. MMU Fault",
            "0000:af:00",
            31,
            1234,
            "Ch 00000008, intr 10000000. MMU Fault",
        ),
        (
            "NVRM: Xid (PCI:0000:18:00): 31, Ch 00000003, engmask 00000101",
            "0000:18:00",
            31,
            None,
            "Ch 00000003, engmask 00000101",
        ),
        ("NVRM: Xid (PCI:0000:18:00): 13, pid=77, Graphics Exception", "0000:18:00", 13, 77, "Graphics Exception"),
        ("NVRM: Xid (PCI:0000:01:00 GPU-I:05): 43, pid=9, name=a b, Ch 1", "0000:01:00", 43, 9, "Ch 1"),
        ("NVRM: Xid (0000:18:00): 62, 0cb5(2d50) 8503d428", "0000:18:00", 62, None, "0cb5(2d50) 8503d428"),
        ("NVRM: Xid (PCI:0000:18:00): 45", "0000:18:00", 45, None, ""),
    ],
)
def test_faults_are_read_in_the_words_of_every_driver(
    tmp_path: Path, message: str, slot: str, code: int, pid: int | None, text: str
) -> None:
    log = log_of(tmp_path / "kmsg", record(message))
    assert log.read(NOW) == [(slot, GpuEvent(at=NOW - 1000, code=code, process=pid, text=text))]


@pytest.mark.parametrize(
    "line",
    [
        record(FALLEN, priority=12),
        record(f"somebody[77]: {FALLEN}"),
        record("NVRM: Xid (PCI:nonsense): 79"),
        record("NVRM: Xid (PCI:0000:18:00): many"),
        record("NVRM: loading NVIDIA UNIX x86_64 Kernel Module"),
        f"{FALLEN}\n",
        "\x00\xff;;,,\n",
    ],
    ids=["written by a program", "quoted", "no slot", "no code", "no fault", "no record", "nonsense"],
)
def test_only_what_the_driver_says_is_a_fault(tmp_path: Path, line: str) -> None:
    log = log_of(tmp_path / "kmsg", line, record("NVRM: Xid (PCI:0000:19:00): 48, pid=1, Double Bit ECC"))
    assert [(slot, event.code) for slot, event in log.read(NOW)] == [("0000:19:00", 48)]


def test_each_record_is_told_once_also_those_from_before_the_start(
    pipe: tuple[str, Callable[[str], int]],
) -> None:
    path, write = pipe
    write(record(FALLEN, 10.0))
    write(record("usb 1-1: new device"))
    write(record("NVRM: Xid (PCI:0000:19:00): 13, pid=5, name=x, Fault", 20.0))
    log = KernelLog(path, monotonic=lambda: UP_SECONDS)
    assert [event.code for _, event in log.read(NOW)] == [79, 13]
    assert log.read(NOW + 2) == []
    write(record("NVRM: Xid (PCI:0000:19:00): 43, pid=5, name=x, Fault", 30.0))
    assert [event.code for _, event in log.read(NOW + 4)] == [43]
    log.close()


def test_the_real_log_of_this_machine_is_read_without_waiting() -> None:
    log = KernelLog()
    log.read(NOW)
    assert log.read(NOW) == []
    log.close()


def test_a_fault_is_never_dated_after_now(tmp_path: Path) -> None:
    ((_, event),) = log_of(tmp_path / "kmsg", record(FALLEN, UP_SECONDS + 60)).read(NOW)
    assert event.at == NOW


def test_absent_log_is_no_error_and_is_not_looked_for_again(tmp_path: Path) -> None:
    log = KernelLog(str(tmp_path / "kmsg"))
    assert (log.read(NOW), log.is_readable) == ([], False)
    (tmp_path / "kmsg").write_text(record(FALLEN))
    assert log.read(NOW) == []


@pytest.mark.parametrize("code", [errno.EPERM, errno.EINVAL, errno.EIO])
def test_log_that_cannot_be_read_is_given_up(tmp_path: Path, code: int) -> None:
    (tmp_path / "kmsg").write_text("")

    def fail(descriptor: int, room: int) -> bytes:
        raise OSError(code, os.strerror(code))

    log = KernelLog(str(tmp_path / "kmsg"), read=fail)
    assert (log.read(NOW), log.is_readable, log.read(NOW)) == ([], False, [])


def test_reading_goes_on_where_the_kernel_wrote_over_records(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("")
    answers: list[bytes | OSError] = [OSError(errno.EPIPE, ""), record(FALLEN).encode(), BlockingIOError()]

    def answer(descriptor: int, room: int) -> bytes:
        return _give(answers.pop(0))

    log = KernelLog(str(tmp_path / "kmsg"), read=answer)
    assert [event.code for _, event in log.read(NOW)] == [79]
    assert log.is_readable


def test_a_flood_is_read_in_portions(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("")
    reads: list[int] = []

    def flood(descriptor: int, room: int) -> bytes:
        reads.append(room)
        return b"x" * 1024

    log = KernelLog(str(tmp_path / "kmsg"), read=flood)
    assert log.read(NOW) == []
    assert len(reads) == 1024


def test_a_log_that_only_breaks_does_not_hold_up_the_reading(tmp_path: Path) -> None:
    (tmp_path / "kmsg").write_text("")

    def always_behind(descriptor: int, room: int) -> bytes:
        raise BrokenPipeError(errno.EPIPE, "")

    assert KernelLog(str(tmp_path / "kmsg"), read=always_behind).read(NOW) == []


def test_long_and_hostile_texts_are_cut_and_cleaned(tmp_path: Path) -> None:
    log = log_of(tmp_path / "kmsg", record(f"NVRM: Xid (PCI:0000:18:00): 13, pid=1, \x1b[31m{'x' * 5000}"))
    ((_, event),) = log.read(NOW)
    assert event.text.startswith("[31mxxx")
    assert len(event.text) == 200


def _give(answer: bytes | OSError) -> bytes:
    if isinstance(answer, OSError):
        raise answer
    return answer
