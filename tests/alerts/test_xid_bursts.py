"""800,000 lines of one fault in a kernel log, from the agent's reader to the alert: one alert, and nothing hidden."""

from collections.abc import Iterator

from alerts.watched import NOW, Watched
from fakes.reports import make_gpu
from gpudeck.collectors.xids import KernelLog, XidWatch
from gpudeck.model.report import GpuReading

LINES = 800_000
BOOTED_SECONDS = 5000.0
SLOTS = {"GPU-a": "0000:18:00.0", "GPU-b": "0000:af:00.0"}
_BURST = b"4,%d,%d,-;NVRM: Xid (PCI:0000:18:00): 31, pid=4242, name=python, Ch 00000008, MMU Fault: ENGINE GRAPHICS\n"
_OTHER = b"3,1,4100000000,-;NVRM: Xid (PCI:0000:af:00): 79, GPU has fallen off the bus.\n"


def burst(reads: list[int]) -> Iterator[bytes]:
    """One record a read, as the kernel gives them; the other GPU falls off the bus in the middle."""
    for number in range(LINES):
        reads[-1] += 1
        if number == LINES // 2:
            yield _OTHER
        yield _BURST % (number, 4_000_000_000 + 100 * number)


def test_800000_lines_are_one_alert_and_one_event_and_hide_no_other_fault() -> None:
    reads, watched = [0], Watched()
    lines = burst(reads)

    def read(_: int, __: int) -> bytes:
        line = next(lines, None)
        if line is None:
            raise BlockingIOError
        return line

    xids = XidWatch(KernelLog("/dev/null", read=read, monotonic=lambda: BOOTED_SECONDS))

    def read_gpus() -> list[GpuReading]:
        xids.check(None, NOW)
        return [
            make_gpu(index, uuid=uuid, events=xids.events_of(uuid, slot, NOW))
            for index, (uuid, slot) in enumerate(SLOTS.items())
        ]

    watched.report("gpu01", make_gpu(0, uuid="GPU-a"), make_gpu(1, uuid="GPU-b"))
    watched.run(10)
    while sum(reads) < LINES:
        reads.append(0)
        watched.report("gpu01", *read_gpus())
        watched.step()
    assert max(reads) < 20_000, "a reading reads a part of the log only"
    watched.run(60)
    assert [title for rule, title in watched.firing() if rule == "xid"] == [
        "XID 79 on GPU 1 of gpu01: it fell off the bus",
        "XID 31 on GPU 0 of gpu01: illegal memory access by a program",
    ]
    assert watched.kinds().count("alert_fired") == 2
    assert len([title for title in watched.titles() if "XID 79" in title]) == 1
