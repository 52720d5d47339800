"""The processes on one NVIDIA device, and how hard each of them works.

As in `nvml_device` an `NVMLError` comes out only when the device as a whole cannot be read.
"""

import ctypes
from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from gpudeck.collectors.nvml_errors import (
    FATAL,
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    LASTING,
    NO_VALUE,
    NOT_FOUND,
    SUCCESS,
    explain,
)

_COMPUTE, _GRAPHICS = "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"
# Version 3 of the lists, then 2, each with its own layout: drivers 535.43 to 535.86 scramble the pids of one that is
# asked for as the other.
_LAYOUTS = (("_v3", "c_nvmlProcessInfo_v3_t"), ("_v2", "c_nvmlProcessInfo_v2_t"))
_ROOM = 32
_ROOM_AT_MOST = 65536

PROCESSES_AT_MOST = 1024
_BYTES_AT_MOST = 2**53
# How far back a first question goes, and how old an answer may be for the next one to go on from it.
_FIRST_SECONDS = 10.0
_RESUME_SECONDS = 60.0

NOT_YET = "not measured yet: it is read every few seconds"
UNDER_MIG = "not measured by process on a GPU in MIG mode"


class Use(Struct):
    """What one process has on one device; unknown memory is None."""

    memory_bytes: int | None
    graphics_only: bool


class _List:
    """A process list of the driver, read into memory that is kept: pynvml asks for the length first, which takes the
    driver as long as the list itself (26 µs on an H200)."""

    def __init__(self, nvml: Any, name: str) -> None:
        self._nvml = nvml
        self._versions = [(getattr(nvml.nvmlLib, name + end, None), getattr(nvml, layout)) for end, layout in _LAYOUTS]
        self._count = ctypes.c_uint()
        self._count_at = ctypes.byref(self._count)
        self._make_room(_ROOM)

    def read(self, handle: Any) -> Iterator[tuple[int, int]]:
        """Pids and their bytes. Raises NVMLError."""
        code = self._call(handle)
        while code == FUNCTION_NOT_FOUND and len(self._versions) > 1:
            del self._versions[0]
            self._make_room(_ROOM)
            code = self._call(handle)
        while code == INSUFFICIENT_SIZE and len(self._room) < _ROOM_AT_MOST:
            self._make_room(2 * max(len(self._room), self._count.value))
            code = self._call(handle)
        if code != SUCCESS:
            raise self._nvml.NVMLError(code)
        return ((process.pid, process.usedGpuMemory) for process in self._room[: self._count.value])

    def _call(self, handle: Any) -> int:
        ask = self._versions[0][0]
        if ask is None:
            return FUNCTION_NOT_FOUND
        self._count.value = len(self._room)
        code: int = ask(handle, self._count_at, self._room)
        return code

    def _make_room(self, length: int) -> None:
        self._room = (self._versions[0][1] * min(length, _ROOM_AT_MOST))()


_lists: dict[tuple[int, str], _List] = {}


def _list(nvml: Any, name: str, handle: Any) -> Iterator[tuple[int, int]]:
    """A library that was loaded anew has functions of its own."""
    key = (id(nvml.nvmlLib), name)
    found = _lists.get(key)
    if found is None:
        _lists.clear()
        found = _lists[key] = _List(nvml, name)
    return found.read(handle)


def read_uses(nvml: Any, handle: Any) -> tuple[dict[int, Use] | None, str | None]:
    """The processes on a device by pid, those with most memory first; or None and why they cannot be listed."""
    uses: dict[int, Use] = {}
    try:
        for pid, memory in _list(nvml, _COMPUTE, handle):
            _note(uses, pid, memory, graphics_only=False)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        return None, explain(error)
    try:
        for pid, memory in _list(nvml, _GRAPHICS, handle):
            _note(uses, pid, memory, graphics_only=True)
    except nvml.NVMLError as error:
        # Some boards and all MIG instances draw nothing: the compute list is then the whole list.
        if error.value in FATAL:
            raise
    kept = sorted(uses.items(), key=lambda item: -(item[1].memory_bytes or 0))[:PROCESSES_AT_MOST]
    return dict(kept), None


def _note(uses: dict[int, Use], pid: int, memory: int | None, *, graphics_only: bool) -> None:
    if memory is not None and not 0 <= memory < _BYTES_AT_MOST:
        memory = None
    before = uses.get(pid)
    if before is None:
        uses[pid] = Use(memory, graphics_only)
        return
    # Both lists give the process's memory as a whole, so a process on both is not the sum.
    before.memory_bytes = max((m for m in (before.memory_bytes, memory) if m is not None), default=None)
    before.graphics_only = before.graphics_only and graphics_only


class Loads(Struct):
    """How hard the processes of one board worked when they were last asked about.

    `percents` has those that did anything, None where the driver said nonsense; `listed` all that were there: who is
    listed and did nothing was idle. `reason` is why nothing at all is known. `seen_at` is the driver's own time of the
    newest sample, in microseconds.
    """

    percents: dict[int, int | None] = field(default_factory=dict)
    listed: frozenset[int] = frozenset()
    reason: str | None = None
    seen_at: int = 0

    def find(self, pid: int) -> tuple[int | None, str | None]:
        """Percent of the GPU, or None and why."""
        if self.reason is not None:
            return None, self.reason
        percent = self.percents.get(pid, 0 if pid in self.listed else None)
        return percent, None if percent is not None else NO_VALUE if pid in self.percents else NOT_YET

    def update(self, nvml: Any, handle: Any, pids: frozenset[int], now: float) -> None:
        """Asks again, for what happened since the last time; from 0 on would be the driver's whole buffer, in which
        finished work still looks busy. Takes 1.5 ms on an H200."""
        if self.reason in LASTING:
            return
        since = self._start(now)
        self.percents, self.listed, self.reason = {}, pids, None
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(handle, since)
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            # No samples: nobody worked. (pynvml makes an error of an empty list that is a success.)
            self.reason = None if error.value in {NOT_FOUND, SUCCESS} else explain(error)
            return
        self._take(sorted((sample.timeStamp, sample.pid, sample.smUtil) for sample in samples), since)

    def _start(self, now: float) -> int:
        """The clock may jump, and a machine may sleep: neither is to be filled with what is long over."""
        if abs(now - self.seen_at / 1e6) < _RESUME_SECONDS:
            return self.seen_at
        return max(0, int((now - _FIRST_SECONDS) * 1e6))

    def _take(self, samples: list[tuple[int, int, int]], since: int) -> None:
        for time, pid, percent in samples:
            if time > since:  # drivers have been seen to return older ones too
                self.percents[pid] = percent if percent <= 100 else None
                self.seen_at = max(self.seen_at, time)
