"""NVIDIA's faults (XIDs) out of the kernel's log, each told once.

/dev/kmsg gives one record a read, from the oldest that the kernel still has: so the faults of this boot from before the
agent was started are known too. Only those who may read the log (root, CAP_SYSLOG, or everybody where
kernel.dmesg_restrict is 0) can; for the others there is `nvml_events`.
"""

import errno
import os
import re
import time
from collections.abc import Callable, Iterator

from gpudeck.collectors.redaction import clean
from gpudeck.model.report import GpuEvent

# The longest record is 8 KiB: a read with less room would fail.
_ROOM = 64 * 1024
# What is left over comes on the next beat. A read costs something also where it gives little or nothing.
_BYTES_AT_MOST = 1024 * 1024
_BYTES_AT_LEAST = 64
_TEXT_LENGTH = 200

_SIGN = b"NVRM: Xid"
# "4,1234,98765432,-;NVRM: Xid (PCI:0000:18:00): 31, pid=4242, name=python, Ch 00000008, …": priority, number,
# microseconds since boot. Drivers before 440 name no process, those before 340 say no "PCI:".
_RECORD = re.compile(
    r"(?P<priority>\d+),\d+,(?P<microseconds>\d+),[^;]*;"
    r"NVRM: Xid \((?:PCI:)?(?P<slot>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})[^)]*\): (?P<code>\d{1,9})\b"
    r"(?:, pid=(?:(?P<pid>\d{1,9})|'?<unknown>'?))?(?:, name=[^,]*)?(?:, ?)?(?P<text>.*)"
)
# A program that writes into the log cannot claim to be the kernel: its facility is never 0.
_KERNEL_PRIORITIES = 8

Fault = tuple[str, GpuEvent]
"""The PCI slot as the driver writes it, in small letters (0000:18:00), and what happened there."""


class KernelLog:
    """`read` gives the faults that are new since the last call; it never raises and never waits.

    `is_readable` is None before the first call, and False for good once the log turned out not to be for us. On a beat
    without news a call costs about 2 µs, and at most 1 MiB of the log is read in one.
    """

    def __init__(
        self,
        path: str = "/dev/kmsg",
        read: Callable[[int, int], bytes] = os.read,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_readable: bool | None = None
        self._path = path
        self._read = read
        self._monotonic = monotonic
        self._descriptor = -1

    def read(self, now: float) -> list[Fault]:
        """`now` is the wall clock, by which the faults are dated."""
        if self.is_readable is None:
            self._open()
        if not self.is_readable:
            return []
        # The kernel stamps its records with a clock that, like this one, stands still while the machine sleeps.
        booted_at = now - self._monotonic()
        return [fault for chunk in self._read_news() if _SIGN in chunk for fault in _parse(chunk, booted_at, now)]

    def close(self) -> None:
        """A later `read` would begin with the oldest record again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.is_readable = -1, None

    def _open(self) -> None:
        try:
            self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            self.is_readable = False
        else:
            self.is_readable = True

    def _read_news(self) -> Iterator[bytes]:
        budget = _BYTES_AT_MOST
        while budget > 0:
            try:
                chunk = self._read(self._descriptor, _ROOM)
            except BlockingIOError:
                return
            except OSError as error:
                # EPIPE: the kernel needed the room and wrote over records that were not read yet; the next read goes on
                # behind them.
                if error.errno != errno.EPIPE:
                    self.close()
                    self.is_readable = False
                    return
                chunk = b""
            else:
                if not chunk:
                    return
                yield chunk
            budget -= max(len(chunk), _BYTES_AT_LEAST)


def _parse(chunk: bytes, booted_at: float, now: float) -> Iterator[Fault]:
    for line in chunk.decode(errors="replace").split("\n"):
        found = _RECORD.match(line)
        if found is None or int(found["priority"]) >= _KERNEL_PRIORITIES:
            continue
        at = min(now, booted_at + int(found["microseconds"]) / 1e6)
        text = clean(found["text"]).strip()[:_TEXT_LENGTH]
        pid = None if found["pid"] is None else int(found["pid"])
        yield found["slot"].lower(), GpuEvent(at=round(at, 1), code=int(found["code"]), process=pid, text=text)
