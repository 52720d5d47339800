"""NVIDIA GPUs, read through NVML by nvidia-ml-py.

What is asked on which beat is decided in `nvml_board`. Nothing here sleeps, but any call may hang in a sick driver: run
it in a child (`child.py`). A GPU that falls off the bus stays in the inventory, missing; a reloaded driver is opened
again on the next reading.
"""

import importlib
from collections.abc import Iterable
from typing import Any

from gpudeck.collectors.base import (
    DISPLAY_SERVERS,
    NO_VALUE,
    WORK_PERCENT,
    CollectorSettings,
    IdleWatch,
    Measured,
    display_matcher,
)
from gpudeck.collectors.nvml_board import NvmlBoard, NvmlProcess, NvmlRow, ProcessLoads
from gpudeck.collectors.nvml_device import (
    DRIVER_NOT_LOADED,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    explain,
    read_driver_version,
    read_name,
    read_pci_address,
    read_uuid,
)
from gpudeck.collectors.nvml_sleep import ASLEEP, SleepWatch
from gpudeck.collectors.owners import Owners, ProcessOwner
from gpudeck.collectors.xids import XidWatch
from gpudeck.model.backoff import Backoff
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import GpuReading, Process, Report

_REOPEN_SECONDS = 60.0
# As many as a report may hold.
_PROBLEMS_AT_MOST = 64
_LOOK = "Look at the kernel log (dmesg)."


class NvmlCollector:
    """All NVIDIA GPUs of this machine and the processes on them. A board in MIG mode is reported as its instances.

    `nvml` is the module pynvml, imported on the first reading by default; `pcie_throughput` reads that as well. Raises
    Absent where there is no driver, Refused where its devices may not be opened, Temporary when GPUs that were there
    cannot be read at all.
    """

    name = "nvml"

    def __init__(
        self,
        nvml: Any = None,
        owners: Owners | None = None,
        display_servers: Iterable[str] = DISPLAY_SERVERS,
        *,
        pcie_throughput: bool = False,
        xids: XidWatch | None = None,
        sleep: SleepWatch | None = None,
    ) -> None:
        self._nvml = nvml
        self._owners = owners or Owners()
        self._is_display = display_matcher(display_servers)
        self._has_pcie = pcie_throughput
        self._boards: dict[str, NvmlBoard] = {}
        self._is_open = False
        self._opened_at = 0.0
        self._reopen_backoff = Backoff(2 * _REOPEN_SECONDS, 3600.0)
        self._reopen_after = _REOPEN_SECONDS
        self._driver_version: str | None = None
        self._problems: list[str] = []
        self._idle = IdleWatch()
        self._xids = xids or XidWatch()
        self._sleep = sleep or SleepWatch()

    def collect(self, now: float) -> Report:
        is_asleep = self._sleep.keeps_away(now)
        self._xids.look(None if is_asleep else self._nvml, now)
        if is_asleep and self._knows_sleepers():
            return self._report([self._finish(_sleeping_row(board), {}, now) for board in self._boards.values()])
        if not self._is_open or self._is_worth_reopening(now):
            self._open(now)
        try:
            drafts = [draft for board in self._boards.values() for draft in board.read(self._nvml, now)]
        except self._nvml.NVMLError as error:
            self._shut()
            raise Temporary(f"The NVIDIA driver went away or was reloaded ({error}).", "It is opened again.") from error
        owners = self._owners.find([pid for draft in drafts for pid in draft.uses or ()], now)
        gpus = [self._finish(draft, owners, now) for draft in drafts]
        if self._sleep.wants_rest(any(_may_be_in_use(gpu) for gpu in gpus), now):
            self._shut()
            self._sleep.begin_rest(now)
        return self._report(gpus)

    def _report(self, gpus: list[GpuReading]) -> Report:
        boards = self._boards.values()
        strays = self._xids.find_strays([board.pci_address for board in boards])
        refused = [problem for board in boards for problem in board.problems]
        problems = [*self._problems, *refused, *strays][:_PROBLEMS_AT_MOST]
        return Report(gpus=gpus, driver_version=self._driver_version, problems=problems)

    def close(self) -> None:
        self._shut()
        self._xids.close()

    def _shut(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._xids.stop_listening(self._nvml)
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # a driver that is gone needs no goodbye

    def _knows_sleepers(self) -> bool:
        """Whether the GPUs can be told without NVML. Where the kernel does not know them they are woken once."""
        for gpu in [] if self._boards else self._sleep.find_gpus():
            self._boards[gpu.uuid] = NvmlBoard(gpu.uuid, gpu.index, gpu.name, None, self._has_pcie, gpu.pci_address)
        if not self._boards:
            self._sleep.allow_waking()
        self._driver_version = self._driver_version or self._sleep.find_driver_version()
        return bool(self._boards)

    def _is_worth_reopening(self, now: float) -> bool:
        """A GPU that came back is seen only by a driver that is opened anew."""
        return self._is_incomplete() and abs(now - self._opened_at) >= self._reopen_after

    def _is_incomplete(self) -> bool:
        return bool(self._problems) or any(board.missing is not None for board in self._boards.values())

    def _open(self, now: float) -> None:
        if self._nvml is None:
            self._nvml = _import_pynvml()
        self._shut()
        try:
            self._nvml.nvmlInit()
            self._is_open = True
            self._driver_version = read_driver_version(self._nvml)
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self._shut()
            raise self._opening_error(error) from error
        if not count:
            self._shut()
            raise self._nothing_here("The NVIDIA driver lists no GPU.")
        self._take_inventory(count)
        if not self._boards:
            self._shut()
            raise Temporary(" ".join(self._problems[:1]))
        self._xids.listen(self._nvml, list(self._boards.values()))
        self._opened_at = now
        # Each time in vain, wait twice as long: opening a driver with a sick GPU can stall the others.
        if self._is_incomplete():
            self._reopen_after = self._reopen_backoff.fail()
        else:
            self._reopen_backoff.succeed()
            self._reopen_after = _REOPEN_SECONDS

    def _take_inventory(self, count: int) -> None:
        """Finds every GPU again by its UUID; one that is not found again stays, as missing."""
        for board in self._boards.values():
            board.handle, board.missing = None, board.missing or "the driver no longer lists this GPU"
        refused: dict[int, str] = {}
        for index in range(count):
            try:
                self._find_board(index)
            except self._nvml.NVMLError as error:
                refused[index] = explain(error)
        self._problems = [f"GPU {index} cannot be opened: {reason}. {_LOOK}" for index, reason in refused.items()]
        self._add_refused(refused, count)

    def _add_refused(self, refused: dict[int, str], count: int) -> None:
        """A GPU that was lost before this began is missing too, where the kernel still knows its name and UUID."""
        known = self._sleep.find_gpus() if refused else []
        # Elsewhere (in a container) the kernel's files may tell of other GPUs than NVML does.
        for gpu in known if len(known) == count else ():
            if gpu.index in refused and gpu.uuid not in self._boards:
                board = NvmlBoard(gpu.uuid, gpu.index, gpu.name, None, self._has_pcie, gpu.pci_address)
                board.missing = refused[gpu.index]
                self._boards[gpu.uuid] = board

    def _find_board(self, index: int) -> None:
        nvml, handle = self._nvml, self._nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name, slot = read_uuid(nvml, handle), read_name(nvml, handle), read_pci_address(nvml, handle)
        # Replaced in place, so that the order of the rows stays.
        self._boards[uuid] = NvmlBoard(uuid, index, name, handle, self._has_pcie, slot)

    def _opening_error(self, error: Any) -> PluginError:
        if error.value == LIBRARY_NOT_FOUND:
            return self._nothing_here("There is no NVIDIA driver library (libnvidia-ml.so.1) on this machine.")
        if error.value == DRIVER_NOT_LOADED:
            return self._nothing_here("The NVIDIA driver is not loaded.")
        if error.value == NO_PERMISSION:
            return Refused("The NVIDIA devices may not be opened.", "Look at the permissions of /dev/nvidia*.")
        if error.value == LIB_RM_VERSION_MISMATCH:
            hint = "The driver was updated: reload the kernel module or restart the machine."
            return Temporary("The NVIDIA library and the loaded kernel module are of different versions.", hint)
        return Temporary(f"The NVIDIA driver cannot be opened: {explain(error)}.", _LOOK)

    def _nothing_here(self, message: str) -> PluginError:
        if not self._boards:
            return Absent(message)
        return Temporary(f"{message} There were {len(self._boards)} before.", _LOOK)

    def _finish(self, draft: NvmlRow, owners: dict[int, ProcessOwner], now: float) -> GpuReading:
        board, instance, (metrics, unknown) = draft.board, draft.instance, draft.measured
        uuid, name = (instance.uuid, instance.name) if instance else (board.uuid, board.name)
        if draft.uses:
            draft.measured.add_up_memory([use.memory_bytes for use in draft.uses.values()])
        return GpuReading(
            uuid=uuid,
            index=board.index,
            name=name,
            vendor="nvidia",
            parent=board.uuid if instance else None,
            instance=instance.number if instance else None,
            pci_address=board.pci_address,
            missing=board.missing,
            metrics=metrics,
            unknown=unknown,
            processes=self._name_owners(draft, owners),
            processes_reason=draft.uses_reason,
            idle_seconds=self._idle.track(uuid, metrics.get("utilization_percent"), now),
            events=self._xids.events_of(board.uuid, board.pci_address, now),
        )

    def _name_owners(self, draft: NvmlRow, owners: dict[int, ProcessOwner]) -> list[Process] | None:
        if draft.uses is None:
            return None
        return [self._name_owner(pid, use, draft.loads, owners[pid]) for pid, use in draft.uses.items()]

    def _name_owner(self, pid: int, use: NvmlProcess, loads: ProcessLoads, owner: ProcessOwner) -> Process:
        percent, why_not = loads.find(pid)
        reasons = {} if why_not is None else {"utilization_percent": why_not}
        if use.memory_bytes is None:
            reasons["memory_used_bytes"] = NO_VALUE
        display = use.graphics_only and self._is_display(owner.name)
        return owner.process(pid, use.memory_bytes, percent, reasons, display=display)


def make(settings: CollectorSettings) -> NvmlCollector:
    """The collector as the registry makes it."""
    return NvmlCollector(
        owners=Owners(commands=settings.commands, are_hosts_pids=True),
        display_servers=settings.display_servers,
        pcie_throughput=settings.pcie_throughput,
    )


def _import_pynvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise Absent("The Python package nvidia-ml-py is not installed.") from error


def _sleeping_row(board: NvmlBoard) -> NvmlRow:
    """The row of a GPU that sleeps: unused, and everything else is unknown."""
    return NvmlRow(board, Measured({}, dict.fromkeys(GPU_METRICS, ASLEEP)), {})


def _may_be_in_use(gpu: GpuReading) -> bool:
    """Whether it may be in use; display servers let it sleep."""
    is_working = gpu.metrics.get("utilization_percent", 0) >= WORK_PERCENT
    return is_working or gpu.processes is None or any(not process.display for process in gpu.processes)
