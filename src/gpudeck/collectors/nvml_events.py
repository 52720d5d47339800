"""What went wrong on each NVIDIA GPU lately: its XIDs, out of the kernel's log or, where that may not be read, of NVML.

Only one of the two is ever asked, so nothing is counted twice. The log knows the process and the time, and also what
happened before this agent was started; NVML tells only the code, and only what happens while it is open.
"""

import ctypes
from typing import TYPE_CHECKING, Any

from gpudeck.collectors.kernel_log import KernelLog
from gpudeck.model.report import GpuEvent
from gpudeck.model.xid import find_xid

if TYPE_CHECKING:
    from gpudeck.collectors.nvml_board import Board

KEPT_SECONDS = 24 * 3600.0
KEPT_AT_MOST = 16
"""Events by GPU: each report carries all of them."""
_GPUS_AT_MOST = 512
_EVENTS_A_BEAT = 64


class XidWatch:
    """The XIDs of the last day by GPU. Nothing here raises: a driver that tells of no events is left in peace.

    On each beat: `look`, then `events_of` each board. `listen` follows each opening of NVML, and `stop_listening` comes
    before it is closed.
    """

    def __init__(self, log: KernelLog | None = None) -> None:
        self._log = log or KernelLog()
        # By PCI slot where the log tells it, by UUID where NVML does.
        self._events: dict[str, list[GpuEvent]] = {}
        self._event_set: Any = None
        self._uuids: dict[int, str] = {}

    def look(self, nvml: Any, now: float) -> None:
        """Take what is new. NVML is not asked where the log can be read, nor where `nvml` is None."""
        for slot, event in self._log.read(now):
            self._keep(slot, event, now)
        if self._event_set is not None and nvml is not None:
            self._hear(nvml, now)

    def events_of(self, uuid: str, pci_address: str | None, now: float) -> list[GpuEvent]:
        """Those of the last day, the newest last. A MIG instance shares those of its board."""
        if not self._events:
            return []
        events = self._events.get(uuid, []) + self._events.get(_slot(pci_address), [])
        return [event for event in events if abs(now - event.at) <= KEPT_SECONDS]

    def find_strays(self, pci_addresses: list[str | None]) -> list[str]:
        """Sentences on GPUs that the driver no longer lists, but told something critical about before."""
        known = {_slot(address) for address in pci_addresses}
        strays = {slot: events for slot, events in self._events.items() if slot not in known and ":" in slot}
        return [
            f"The GPU in PCI slot {slot} is not listed by the driver. XID {event.code}: {xid.text}. {xid.action}"
            for slot, events in strays.items()
            for event in events[-1:]
            if (xid := find_xid(event.code)).kind == "critical"
        ]

    def listen(self, nvml: Any, boards: "list[Board]") -> None:
        """Ask NVML to note XIDs, where the log cannot be read."""
        if self._log.is_readable is not False:
            return
        try:
            self._event_set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return
        self._uuids = {_address(board.handle): board.uuid for board in boards if board.handle is not None}
        for board in boards:
            _register(nvml, board, self._event_set)

    def stop_listening(self, nvml: Any) -> None:
        if self._event_set is None:
            return
        event_set, self._event_set = self._event_set, None
        try:
            nvml.nvmlEventSetFree(event_set)
        except nvml.NVMLError:
            return  # it went with the driver

    def close(self) -> None:
        self._log.close()
        self._events.clear()

    def _hear(self, nvml: Any, now: float) -> None:
        """Measured on an H200 with driver 580: 4 µs where there is nothing."""
        for _ in range(_EVENTS_A_BEAT):
            try:
                heard = nvml.nvmlEventSetWait_v2(self._event_set, 0)
            except nvml.NVMLError:
                return  # nothing more (Timeout); whatever else it is, the readings of this beat meet it too
            uuid = self._uuids.get(_address(heard.device)) or _ask_uuid(nvml, heard.device)
            if uuid is not None and heard.eventType == nvml.nvmlEventTypeXidCriticalError:
                self._keep(uuid, GpuEvent(at=round(now, 1), code=heard.eventData & 0x7FFFFFFF), now)

    def _keep(self, key: str, event: GpuEvent, now: float) -> None:
        if key not in self._events and len(self._events) >= _GPUS_AT_MOST:
            return
        events = self._events.setdefault(key, [])
        events[:] = [*(old for old in events if abs(now - old.at) <= KEPT_SECONDS), event]
        if len(events) > KEPT_AT_MOST:
            del events[_find_least(events)]


def _find_least(events: list[GpuEvent]) -> int:
    """The oldest of those that came again since: a program that fails by the second does not push out an XID 79."""
    codes = [event.code for event in events]
    return next((at for at, code in enumerate(codes) if code in codes[at + 1 :]), 0)


def _register(nvml: Any, board: "Board", event_set: Any) -> None:
    if board.handle is None:
        return
    try:
        nvml.nvmlDeviceRegisterEvents(board.handle, nvml.nvmlEventTypeXidCriticalError, event_set)
    except nvml.NVMLError:
        return  # not supported, or lost: the others are heard all the same


def _ask_uuid(nvml: Any, handle: Any) -> str | None:
    """Of a handle that is not the one a GPU was found by."""
    try:
        return str(nvml.nvmlDeviceGetUUID(handle))
    except nvml.NVMLError:
        return None


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


def _slot(pci_address: str | None) -> str:
    """0000:18:00.0 is function 0 of what the driver calls 0000:18:00."""
    return "" if pci_address is None else pci_address.partition(".")[0]
