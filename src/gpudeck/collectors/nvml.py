"""NVIDIA GPUs, read through NVML by nvidia-ml-py.

Cheap calls only. On an H200 with driver 580 a reading of a GPU without processes takes 0.07 ms in a tight loop and
0.3 ms when 0.2 s lie between two of them. Nothing here sleeps, but any call may hang in a sick driver: run it in a
child (`child.py`). A GPU that falls off the bus stays in the inventory, missing; a reloaded driver is opened again on
the next reading.
"""

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec import Struct

from gpudeck.collectors.nvml_device import (
    DRIVER_NOT_LOADED,
    LIB_RM_VERSION_MISMATCH,
    LIBRARY_NOT_FOUND,
    NO_PERMISSION,
    NO_VALUE,
    READINGS,
    RELOADED,
    UNSUPPORTED,
    Instance,
    Measured,
    Reading,
    Use,
    explain,
    find_instances,
    measure,
    measure_instance,
    read_uses,
)
from gpudeck.collectors.owners import Owner, Owners
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import GpuReading, Process, Report

WORK_PERCENT = 5.0
"""Utilization from which on a GPU counts as working."""
# A longer gap between two readings was not watched: it does not count as idle time (nor does a jump of the clock).
_WATCHED_SECONDS = 60.0
# Asking for the MIG mode, or for what a GPU does not support, costs more than all the rest (0.1 ms each on an H200).
_SLOW_SECONDS = 15.0
_REOPEN_SECONDS = 60.0
_REOPEN_SECONDS_AT_MOST = 3600.0
_LOOK = "Look at the kernel log (dmesg)."

DISPLAY_SERVERS = (
    *("X", "Xorg", "Xvnc", "Xwayland"),
    *("cinnamon", "compiz", "cosmic-comp", "gnome-shell", "Hyprland", "kwin_wayland", "kwin_x11", "labwc"),
    *("marco", "muffin", "mutter", "niri", "plasmashell", "sway", "weston", "xfwm4"),
    *("lightdm-gtk-greeter", "sddm-greeter"),
)
"""Programs that draw the desktop. With graphics alone on a GPU they do not make it busy."""


class _Board(Struct):
    """A GPU of the inventory. It stays there, with its reason in `missing`, when it can no longer be read.

    `instances` is None where the board is used as a whole. `readings` are those it supports, `unsupported` has the
    metrics of the others. Handles are good until the driver is opened again.
    """

    uuid: str
    index: int
    name: str
    handle: Any = None
    missing: str | None = None
    instances: list[Instance] | None = None
    readings: tuple[Reading, ...] = READINGS
    unsupported: dict[str, str] = {}
    explored_at: float | None = None


class _Draft(Struct):
    """A row of the report before its processes have owners. `uses` is None, with the reason, when they are unknown."""

    board: _Board
    measured: Measured
    uses: dict[int, Use] | None = None
    uses_reason: str | None = None
    instance: Instance | None = None


class NvmlCollector:
    """All NVIDIA GPUs of this machine and the processes on them. A board in MIG mode is reported as its instances.

    `nvml` is the module pynvml, imported on the first reading by default. Raises Absent where there is no driver,
    Refused where its devices may not be opened, Temporary when GPUs that were there cannot be read at all.
    """

    name = "nvml"

    def __init__(
        self, nvml: Any = None, owners: Owners | None = None, display_servers: Iterable[str] = DISPLAY_SERVERS
    ) -> None:
        self._nvml = nvml
        self._owners = owners or Owners()
        # The kernel keeps 15 bytes of a program's name.
        self._display_names = frozenset(name[:15] for name in display_servers)
        self._boards: dict[str, _Board] = {}
        self._is_open = False
        self._opened_at = 0.0
        self._patience = _REOPEN_SECONDS
        self._driver_version: str | None = None
        self._problems: list[str] = []
        self._idle_seconds: dict[str, float] = {}
        self._read_at: float | None = None

    def collect(self, now: float) -> Report:
        if not self._is_open or self._is_worth_reopening(now):
            self._open(now)
        try:
            drafts = [draft for board in self._boards.values() for draft in self._read_board(board, now)]
        except self._nvml.NVMLError as error:
            self.close()
            raise Temporary(f"The NVIDIA driver went away or was reloaded ({error}).", "It is opened again.") from error
        owners = self._owners.find([pid for draft in drafts for pid in draft.uses or ()], now)
        gpus = [self._finish(draft, owners, now) for draft in drafts]
        self._read_at = now
        return Report(gpus=gpus, driver_version=self._driver_version, problems=list(self._problems))

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._nvml.nvmlShutdown()
        except self._nvml.NVMLError:
            return  # a driver that is gone needs no goodbye

    def _is_worth_reopening(self, now: float) -> bool:
        """A GPU that came back is seen only by a driver that is opened anew."""
        return self._is_incomplete() and abs(now - self._opened_at) >= self._patience

    def _is_incomplete(self) -> bool:
        return bool(self._problems) or any(board.missing is not None for board in self._boards.values())

    def _open(self, now: float) -> None:
        if self._nvml is None:
            self._nvml = _import_pynvml()
        self.close()
        try:
            self._nvml.nvmlInit()
            self._is_open = True
            self._driver_version = self._nvml.nvmlSystemGetDriverVersion() or None
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            self.close()
            raise self._opening_error(error) from error
        if not count:
            self.close()
            raise self._nothing_here("The NVIDIA driver lists no GPU.")
        self._take_inventory(count)
        self._opened_at = now
        # Each time in vain, wait twice as long: opening a driver with a sick GPU can stall the others.
        self._patience = min(2 * self._patience, _REOPEN_SECONDS_AT_MOST) if self._is_incomplete() else _REOPEN_SECONDS

    def _take_inventory(self, count: int) -> None:
        """Finds every GPU again by its UUID; one that is not found again stays, as missing."""
        for board in self._boards.values():
            board.handle, board.missing = None, board.missing or "the driver no longer lists this GPU"
        self._problems = []
        for index in range(count):
            try:
                self._find_board(index)
            except self._nvml.NVMLError as error:
                self._problems.append(f"GPU {index} cannot be opened: {explain(error)}. {_LOOK}")

    def _find_board(self, index: int) -> None:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
        uuid, name = self._nvml.nvmlDeviceGetUUID(handle), self._nvml.nvmlDeviceGetName(handle)
        # Replaced in place, so that the order of the rows stays.
        self._boards[uuid] = _Board(uuid, index, name or "NVIDIA GPU", handle)

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

    def _read_board(self, board: _Board, now: float) -> list[_Draft]:
        """The rows of a board: itself, or its MIG instances. Raises only what concerns every board."""
        if board.missing is None:
            try:
                return self._read_present_board(board, now)
            except self._nvml.NVMLError as error:
                if error.value in RELOADED:
                    raise
                board.missing = explain(error)
        return [_Draft(board, Measured({}, {}))]

    def _read_present_board(self, board: _Board, now: float) -> list[_Draft]:
        if board.explored_at is None or abs(now - board.explored_at) >= _SLOW_SECONDS:
            measured = self._explore(board, now)
        else:
            measured = measure(self._nvml, board.handle, board.readings)
            measured.unknown.update(board.unsupported)
        if board.instances is None:
            return [_Draft(board, measured, *read_uses(self._nvml, board.handle))]
        if not board.instances:
            return [_Draft(board, measured, None, "in MIG mode, but without instances: nothing can run on it")]
        return list(self._read_instances(board, board.instances, measured))

    def _explore(self, board: _Board, now: float) -> Measured:
        """Finds out what changes rarely: MIG instances, and what the board does not support; measures everything."""
        board.instances = find_instances(self._nvml, board.handle)
        measured = measure(self._nvml, board.handle)
        board.unsupported = {name: why for name, why in measured.unknown.items() if why == UNSUPPORTED}
        board.readings = tuple(reading for reading in READINGS if not board.unsupported.keys() >= set(reading.names))
        board.explored_at = now
        return measured

    def _read_instances(self, board: _Board, instances: list[Instance], measured: Measured) -> Iterator[_Draft]:
        for instance in instances:
            try:
                of_instance = measure_instance(self._nvml, instance, measured)
                yield _Draft(board, of_instance, *read_uses(self._nvml, instance.handle), instance)
            except self._nvml.NVMLError as error:
                if error.value in RELOADED:
                    raise
                board.explored_at = None  # destroyed since it was found: look again on the next reading

    def _finish(self, draft: _Draft, owners: dict[int, Owner], now: float) -> GpuReading:
        board, instance, (metrics, unknown) = draft.board, draft.instance, draft.measured
        uuid, name = (instance.uuid, instance.name) if instance else (board.uuid, board.name)
        if draft.uses:
            _add_up_memory(draft.measured, draft.uses.values())
        return GpuReading(
            uuid=uuid,
            index=board.index,
            name=name,
            vendor="nvidia",
            parent=board.uuid if instance else None,
            instance=instance.number if instance else None,
            missing=board.missing,
            metrics=metrics,
            unknown=unknown,
            processes=self._name_owners(draft.uses, owners),
            processes_reason=draft.uses_reason,
            idle_seconds=self._watch(uuid, metrics.get("utilization_percent"), now),
        )

    def _name_owners(self, uses: dict[int, Use] | None, owners: dict[int, Owner]) -> list[Process] | None:
        return None if uses is None else [self._name_owner(pid, use, owners[pid]) for pid, use in uses.items()]

    def _name_owner(self, pid: int, use: Use, owner: Owner) -> Process:
        reasons = owner.reasons
        if use.memory_bytes is None:
            reasons = reasons | {"memory_used_bytes": NO_VALUE}
        return Process(
            pid=pid,
            user=owner.user,
            command=owner.command,
            memory_used_bytes=use.memory_bytes,
            started_at=owner.started_at,
            evidence=owner.evidence,
            display=use.graphics_only and owner.name[:15] in self._display_names,
            reasons=reasons,
        )

    def _watch(self, uuid: str, utilization: float | None, now: float) -> float | None:
        """Seconds without work, as far as they were watched; a reading without utilization starts them anew."""
        watched = 0.0 if self._read_at is None else min(max(0.0, now - self._read_at), _WATCHED_SECONDS)
        idle = 0.0
        if uuid in self._idle_seconds and utilization is not None and utilization < WORK_PERCENT:
            idle = self._idle_seconds[uuid] + watched
        self._idle_seconds[uuid] = idle
        return None if utilization is None else round(idle, 1)


def _import_pynvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError as error:
        raise Absent("The Python package nvidia-ml-py is not installed.") from error


def _add_up_memory(measured: Measured, uses: Iterable[Use]) -> None:
    """Where GPU and host share memory the driver gives no figure: what the processes use is what is used."""
    used = [use.memory_bytes for use in uses]
    known = [memory for memory in used if memory is not None]
    if len(known) == len(used) and measured.unknown.get("memory_used_bytes") in {UNSUPPORTED, NO_VALUE}:
        del measured.unknown["memory_used_bytes"]
        measured.metrics["memory_used_bytes"] = GPU_METRICS["memory_used_bytes"].round(sum(known))
