"""NVIDIA GPUs, read through NVML by nvidia-ml-py.

`nvml_board` decides which calls are made at which reading. Nothing here sleeps, but any call may hang in a sick driver:
run it in a child (`child.py`). A GPU that falls off the bus stays in the inventory, missing; a reloaded driver is
opened again on the next reading.

On laptops and other hybrid machines the kernel puts unused GPUs to sleep, and any call of NVML wakes them: `SleepWatch`
leaves NVML alone while all of them sleep.
"""

import contextlib
import importlib
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from gpudeck.collectors import base, nvml_device
from gpudeck.collectors.base import is_due
from gpudeck.collectors.nvml_board import NvmlBoard
from gpudeck.collectors.nvml_gpm import ActivityWatch
from gpudeck.collectors.owners import GpuDraft, Owners, ProcessOwner
from gpudeck.collectors.proc import list_names, read_if_there, read_word
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.xids import XidWatch
from gpudeck.model.backoff import Backoff
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import GpuReading, Report

ASLEEP = "asleep: reading it would wake it"

# A little less than five seconds and a minute, so that a slightly early reading counts.
_CHECK_SECONDS = 4.5
_LIST_SECONDS = 59.5
_NVIDIA, _DISPLAY_CLASS = "0x10de", "0x03"
_LENGTH = 256


class SleepWatch:
    """Whether NVML may be called now. Nothing here raises or waits. Before a reading ask `keeps_away`."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._addresses: list[str] = []
        self._listed_at: float | None = None
        self._looked_at: float | None = None
        self._is_asleep = False

    def keeps_away(self, now: float) -> bool:
        """Whether all GPUs sleep."""
        if is_due(self._listed_at, _LIST_SECONDS, now):
            self._addresses, self._listed_at = self._list_addresses(), now
        if self._is_asleep or is_due(self._looked_at, _CHECK_SECONDS, now):
            states = {self._read(address, "power/runtime_status") for address in self._addresses}
            self._is_asleep, self._looked_at = states == {"suspended"}, now
        return self._is_asleep

    def find_gpus(self) -> list[GpuReading]:
        """All of them as the kernel knows them while they sleep, or none where it does not know them all: it has UUIDs
        after their first use. Their indexes are those of NVML, which counts by PCI address."""
        found = [self._identify(index, address) for index, address in enumerate(self._addresses)]
        gpus = [gpu for gpu in found if gpu is not None]
        return gpus if len(gpus) == len(found) else []

    def find_driver_version(self) -> str | None:
        return read_word(f"{self._root}/sys/module/nvidia/version")[:_LENGTH] or None

    def allow_waking(self) -> None:
        self._is_asleep = False

    def _list_addresses(self) -> list[str]:
        """The GPUs of the NVIDIA driver. NVML does not see one that was passed to a virtual machine."""
        return [
            address
            for address in list_names(f"{self._root}/proc/driver/nvidia/gpus")
            if self._read(address, "vendor") == _NVIDIA and self._read(address, "class").startswith(_DISPLAY_CLASS)
        ]

    def _read(self, address: str, name: str) -> str:
        return read_word(f"{self._root}/sys/bus/pci/devices/{address}/{name}")

    def _identify(self, index: int, address: str) -> GpuReading | None:
        text = read_if_there(f"{self._root}/proc/driver/nvidia/gpus/{address}/information")
        pairs = (line.partition(":") for line in text.splitlines())
        lines = {key.strip().lower(): clean(value).strip()[:_LENGTH] for key, _, value in pairs}
        uuid, name = lines.get("gpu uuid", ""), lines.get("model", "")
        # Before a GPU was first used the driver writes question marks.
        if not uuid or "?" in uuid:
            return None
        return GpuReading(uuid, index, name or "NVIDIA GPU", "nvidia", pci_address=address)


_REOPEN_SECONDS = 60.0
# As many as a report may hold.
_MAX_PROBLEMS = 64
_LOOK = "Look at the kernel log (dmesg)."


class NvmlCollector:
    """All NVIDIA GPUs of this machine and the processes on them. A board in MIG mode is reported as its instances.
    Raises Absent where there is no driver, Refused where its devices may not be opened, Temporary when GPUs that were
    there cannot be read."""

    name = "nvml"

    def __init__(
        self,
        nvml: Any = None,
        owners: Owners | None = None,
        display_servers: Iterable[str] = base.DISPLAY_SERVERS,
        *,
        activity: bool = True,
        pcie_throughput: bool = False,
        xids: XidWatch | None = None,
        sleep: SleepWatch | None = None,
    ) -> None:
        self._nvml = nvml
        self._owners = owners or Owners()
        self._is_display = base.display_matcher(display_servers)
        self._has_activity, self._has_pcie = activity, pcie_throughput
        self._boards: dict[str, NvmlBoard] = {}
        self._is_open = False
        self._opened_at = 0.0
        self._reopen_backoff = Backoff(2 * _REOPEN_SECONDS, 3600.0)
        self._reopen_after = _REOPEN_SECONDS
        self._driver_version: str | None = None
        self._problems: list[str] = []
        self._idle = base.IdleWatch()
        self._xids = xids or XidWatch()
        self._sleep = sleep or SleepWatch()

    def collect(self, now: float) -> Report:
        is_asleep = self._sleep.keeps_away(now)
        self._xids.check(None if is_asleep else self._nvml, now)
        if is_asleep and self._knows_sleepers():
            # The row of a GPU that sleeps: unused, and everything else is unknown.
            asleep = dict.fromkeys(GPU_METRICS, ASLEEP)
            drafts = [
                GpuDraft(replace(board.gpu, missing=board.missing, unknown=asleep.copy()), [])
                for board in self._boards.values()
            ]
            return self._report([self._finish(draft, {}, now) for draft in drafts])
        # A GPU that came back is seen only by a driver that is opened anew.
        if not self._is_open or (self._is_incomplete() and abs(now - self._opened_at) >= self._reopen_after):
            self._open(now)
        try:
            drafts = [draft for board in self._boards.values() for draft in board.read(self._nvml, now)]
        except self._nvml.NVMLError as error:
            self._shut()
            raise Temporary(f"The NVIDIA driver went away or was reloaded ({error}).", "It is opened again.") from error
        owners = self._owners.find([use.pid for draft in drafts for use in draft.uses or ()], now)
        return self._report([self._finish(draft, owners, now) for draft in drafts])

    def _report(self, gpus: list[GpuReading]) -> Report:
        boards = self._boards.values()
        strays = self._xids.find_strays([board.gpu.pci_address for board in boards])
        refused = [problem for board in boards for problem in board.problems]
        problems = [*self._problems, *refused, *strays][:_MAX_PROBLEMS]
        return Report(gpus=gpus, driver_version=self._driver_version, problems=problems)

    def close(self) -> None:
        self._shut()
        self._xids.close()

    def _shut(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._xids.stop_listening(self._nvml)
        for board in self._boards.values():
            board.close(self._nvml)
        with contextlib.suppress(self._nvml.NVMLError):  # the driver may be gone
            self._nvml.nvmlShutdown()

    def _knows_sleepers(self) -> bool:
        """Whether the GPUs can be identified without NVML. If the kernel does not know them, they are woken once."""
        for gpu in [] if self._boards else self._sleep.find_gpus():
            self._boards[gpu.uuid] = self._make_board(gpu)
        if not self._boards:
            self._sleep.allow_waking()
        self._driver_version = self._driver_version or self._sleep.find_driver_version()
        return bool(self._boards)

    def _is_incomplete(self) -> bool:
        return bool(self._problems) or any(board.missing is not None for board in self._boards.values())

    def _open(self, now: float) -> None:
        if self._nvml is None:
            try:
                self._nvml = importlib.import_module("pynvml")
            except ImportError as error:
                raise Absent("The Python package nvidia-ml-py is not installed.") from error
        self._shut()
        try:
            self._nvml.nvmlInit()
            self._is_open = True
            self._driver_version = nvml_device.read_driver_version(self._nvml)
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
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                gpu = nvml_device.identify(self._nvml, handle, index)
                # Replaced in place, so that the order of the rows stays.
                self._boards[gpu.uuid] = self._make_board(gpu, handle)
            except self._nvml.NVMLError as error:
                refused[index] = nvml_device.explain(error)
        self._problems = [f"GPU {index} cannot be opened: {reason}. {_LOOK}" for index, reason in refused.items()]
        self._add_refused(refused, count)

    def _make_board(self, gpu: GpuReading, handle: Any = None, missing: str | None = None) -> NvmlBoard:
        watch = ActivityWatch(is_wanted=self._has_activity)
        return NvmlBoard(gpu, handle, self._has_pcie, missing, activity=watch)

    def _add_refused(self, refused: dict[int, str], count: int) -> None:
        """A GPU that was lost before this began is missing too, where the kernel still knows its name and UUID."""
        known = self._sleep.find_gpus() if refused else []
        # Elsewhere (in a container) the kernel's files may list other GPUs than NVML does.
        for gpu in known if len(known) == count else ():
            if gpu.index in refused and gpu.uuid not in self._boards:
                self._boards[gpu.uuid] = self._make_board(gpu, missing=refused[gpu.index])

    def _opening_error(self, error: Any) -> PluginError:
        if error.value == nvml_device.LIBRARY_NOT_FOUND:
            return self._nothing_here("There is no NVIDIA driver library (libnvidia-ml.so.1) on this machine.")
        if error.value == nvml_device.DRIVER_NOT_LOADED:
            return self._nothing_here("The NVIDIA driver is not loaded.")
        if error.value == nvml_device.NO_PERMISSION:
            return Refused("The NVIDIA devices may not be opened.", "Look at the permissions of /dev/nvidia*.")
        if error.value == nvml_device.LIB_RM_VERSION_MISMATCH:
            hint = "The driver was updated: reload the kernel module or restart the machine."
            return Temporary("The NVIDIA library and the loaded kernel module are of different versions.", hint)
        return Temporary(f"The NVIDIA driver cannot be opened: {nvml_device.explain(error)}.", _LOOK)

    def _nothing_here(self, message: str) -> PluginError:
        if not self._boards:
            return Absent(message)
        return Temporary(f"{message} There were {len(self._boards)} before.", _LOOK)

    def _finish(self, draft: GpuDraft, owners: dict[int, ProcessOwner], now: float) -> GpuReading:
        gpu = draft.gpu
        idle_seconds = self._idle.track(gpu.uuid, gpu.metrics.get("utilization_percent"), now)
        events = self._xids.events_of(gpu.parent or gpu.uuid, gpu.pci_address, now)
        return draft.finish(owners, self._is_display, idle_seconds=idle_seconds, events=events)


def make(settings: base.CollectorSettings) -> NvmlCollector:
    return NvmlCollector(
        owners=Owners(commands=settings.commands, are_hosts_pids=True),
        display_servers=settings.display_servers,
        activity=settings.activity,
        pcie_throughput=settings.pcie_throughput,
    )
