"""Recent faults (XIDs) of each NVIDIA GPU, from the kernel log or, where that may not be read, from NVML.

Only one of the two is used, so nothing is counted twice. The log has the process and the time, and also the faults of
this boot from before the agent started; reading it takes root, CAP_SYSLOG, or kernel.dmesg_restrict = 0. NVML reports
only the code, and only what happens while it is open.
"""

import contextlib
import ctypes
import errno
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gpudeck.collectors.redaction import clean
from gpudeck.model.gpu_state import find_xid, is_repeat
from gpudeck.model.report import GpuEvent

if TYPE_CHECKING:
    from gpudeck.collectors.nvml_board import NvmlBoard

# The longest record is 8 KiB: a read with less room would fail.
_ROOM = 64 * 1024
# The rest is read at the next reading. An empty read counts as _MIN_BYTES, because it costs time too.
_MAX_BYTES = 1024 * 1024
_MIN_BYTES = 64
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
KEPT_SECONDS = 24 * 3600.0
MAX_KEPT = 16
"""Events by GPU: each report carries all of them."""
_MAX_GPUS = 512
_EVENTS_PER_READING = 64


class KernelLog:
    """`read` gives the faults that are new since the last call; it never raises and never waits.

    `is_readable` is None before the first call, and False for good once the log turned out not to be for us. A call
    without new records takes about 2 µs; one call reads at most 1 MiB of the log.
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
            with contextlib.suppress(OSError):
                self._descriptor = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self.is_readable = self._descriptor >= 0
        if not self.is_readable:
            return []
        # The kernel stamps its records with a clock that, like this one, stands still while the machine sleeps.
        booted_at = now - self._monotonic()
        seen: set[tuple[str, str]] = set()
        return [fault for chunk in self._read_new() if _SIGN in chunk for fault in _parse(chunk, booted_at, now, seen)]

    def close(self) -> None:
        """A later `read` would begin with the oldest record again."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor, self.is_readable = -1, None

    def _read_new(self) -> Iterator[bytes]:
        budget = _MAX_BYTES
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
            budget -= max(len(chunk), _MIN_BYTES)


def _parse(chunk: bytes, booted_at: float, now: float, seen: set[tuple[str, str]]) -> Iterator[Fault]:
    """Skips faults whose priority and words are in `seen`: of a burst, the first at each reading is enough."""
    for line in chunk.decode(errors="replace").split("\n"):
        words = (line.partition(",")[0], line.partition(";")[2])
        if words in seen:
            continue
        seen.add(words)
        found = _RECORD.match(line)
        if found is None or int(found["priority"]) >= _KERNEL_PRIORITIES:
            continue
        at = min(now, booted_at + int(found["microseconds"]) / 1e6)
        text = clean(found["text"]).strip()[:_TEXT_LENGTH]
        pid = None if found["pid"] is None else int(found["pid"])
        yield found["slot"].lower(), GpuEvent(at=round(at, 1), code=int(found["code"]), process=pid, text=text)


class XidWatch:
    """The XIDs of the last day by GPU. Nothing here raises.

    At each reading: `check`, then `events_of` each board. Call `listen` after NVML is opened, and `stop_listening`
    before it is closed.
    """

    def __init__(self, log: KernelLog | None = None) -> None:
        self._log = log or KernelLog()
        # By PCI slot from the log, by UUID from NVML.
        self._events: dict[str, list[GpuEvent]] = {}
        self._event_set: Any = None
        self._uuids: dict[int, str] = {}

    def check(self, nvml: Any, now: float) -> None:
        """Take what is new. NVML is not asked where the log can be read, nor where `nvml` is None."""
        for slot, event in self._log.read(now):
            self._keep(slot, event, now)
        if self._event_set is not None and nvml is not None:
            self._read_events(nvml, now)

    def events_of(self, uuid: str, pci_address: str | None, now: float) -> list[GpuEvent]:
        """The faults of the last day, the newest last. A MIG instance shares those of its board."""
        if not self._events:
            return []
        events = self._events.get(uuid, []) + self._events.get(_slot(pci_address), [])
        return [event for event in events if abs(now - event.at) <= KEPT_SECONDS]

    def find_strays(self, pci_addresses: list[str | None]) -> list[str]:
        """Sentences on GPUs that the driver no longer lists, but reported something critical about before."""
        known = {_slot(address) for address in pci_addresses}
        strays = {slot: events for slot, events in self._events.items() if slot not in known and ":" in slot}
        return [
            f"The GPU in PCI slot {slot} is not listed by the driver. XID {event.code}: {xid.text}. {xid.action}"
            for slot, events in strays.items()
            for event in events[-1:]
            if (xid := find_xid(event.code)).kind == "critical"
        ]

    def listen(self, nvml: Any, boards: "list[NvmlBoard]") -> None:
        """Subscribe to XIDs in NVML if the log cannot be read."""
        if self._log.is_readable is not False:
            return
        try:
            self._event_set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        self._uuids = {_address(board.handle): board.gpu.uuid for board in boards if board.handle is not None}
        for board in boards:
            # Not supported, or lost: events of the others still arrive.
            with contextlib.suppress(nvml.NVMLError):
                if board.handle is not None:
                    nvml.nvmlDeviceRegisterEvents(board.handle, nvml.nvmlEventTypeXidCriticalError, self._event_set)

    def stop_listening(self, nvml: Any) -> None:
        if self._event_set is None:
            return
        event_set, self._event_set = self._event_set, None
        with contextlib.suppress(nvml.NVMLError):  # it went with the driver
            nvml.nvmlEventSetFree(event_set)

    def close(self) -> None:
        self._log.close()
        self._events.clear()

    def _read_events(self, nvml: Any, now: float) -> None:
        """Measured on an H200 with driver 580: 4 µs where there is nothing."""
        for _ in range(_EVENTS_PER_READING):
            try:
                event = nvml.nvmlEventSetWait_v2(self._event_set, 0)
            except nvml.NVMLError:
                return  # nothing more (Timeout); whatever else it is, the other readings of this interval meet it too
            uuid = self._uuids.get(_address(event.device))
            if uuid is not None and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._keep(uuid, GpuEvent(at=round(now, 1), code=event.eventData & 0x7FFFFFFF), now)

    def _keep(self, key: str, event: GpuEvent, now: float) -> None:
        if key not in self._events and len(self._events) >= _MAX_GPUS:
            return
        events = self._events.setdefault(key, [])
        if is_repeat(event, events):
            return
        events[:] = [*(old for old in events if abs(now - old.at) <= KEPT_SECONDS), event]
        if len(events) > MAX_KEPT:
            # The oldest of those that came again since: a program that fails by the second does not push out an XID 79.
            codes = [event.code for event in events]
            del events[next((at for at, code in enumerate(codes) if code in codes[at + 1 :]), 0)]


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _slot(pci_address: str | None) -> str:
    """0000:18:00.0 is function 0 of what the driver calls 0000:18:00."""
    return "" if pci_address is None else pci_address.partition(".")[0]
