"""Checks this machine as the agent reads it: GPUs, driver, permissions, visible processes. As a program it queries NVML
and prints the result as JSON: any call may hang in a broken driver."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from gpudeck.child_process import ChildFailed, python_module, run
from gpudeck.collectors.nvml_device import DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH, LIBRARY_NOT_FOUND, NO_PERMISSION
from gpudeck.ops.doctor import Area, Finding

_AREA = Area("machine")
_NVIDIA = "0x10de"
_OTHERS = {"0x1002": "AMD", "0x8086": "Intel"}
_DISPLAY = "0x03"
"""The PCI classes of displays and 3D controllers begin with this."""
_MODULE = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([\d.]+)")
_HIDEPID = re.compile(r"hidepid=(\w+)")
_STEPS = {
    LIBRARY_NOT_FOUND: "Install the library that belongs to the driver (libnvidia-ml1, nvidia-utils or the like).",
    DRIVER_NOT_LOADED: "Load the driver (modprobe nvidia); if that fails, check dmesg.",
    LIB_RM_VERSION_MISMATCH: "The driver was updated under the running kernel module: restart the machine.",
    NO_PERMISSION: "See the line about devices.",
}
_NVML_SECONDS = 15.0
_LOOK = "Check nvidia-smi and the kernel log (dmesg)."


class ProbedGpu(Struct, frozen=True):
    """`problem` is why it cannot be read; `is_persistent` is None if the driver does not tell."""

    index: int
    problem: str | None = None
    is_persistent: bool | None = None


class Probed(Struct, frozen=True):
    trouble: str | None = None
    code: int | None = None
    library: str = ""
    gpus: list[ProbedGpu] = []


def probe_nvml(seconds: float = _NVML_SECONDS) -> Probed:
    try:
        found = run(python_module("gpudeck.ops.doctor.machine"), seconds=seconds)
    except ChildFailed as error:
        return Probed(trouble=f"it has not answered within {seconds:g} s" if error.why == "time" else error.message)
    if found.code:
        return Probed(trouble=f"it ended the process that asked ({found.code})")
    return msgspec.json.decode(found.output, type=Probed)


def check_machine(probe: Callable[[], Probed], root: Path = Path("/")) -> Iterator[Finding]:
    """`root` is where /proc, /sys and /dev are."""
    cards, others = _find_cards(root)
    if not cards:
        seen = f", but GPUs by {' and '.join(sorted(others))}" if others else ""
        yield _AREA.skip("gpus", f"no NVIDIA GPU on the PCI bus{seen}", "" if others else _no_gpu(root))
    else:
        yield _AREA.ok("gpus", f"{cards} NVIDIA GPU{'s' if cards > 1 else ''} on the PCI bus")
    has_driver = (root / "proc/driver/nvidia/version").exists()
    if cards or has_driver:
        yield check_driver(root)
        yield from check_devices(root)
        yield from check_library(probe(), cards)
    yield check_processes(root)


def _no_gpu(root: Path) -> str:
    # A container sees no PCI bus of its own, and often no device either.
    is_inside = (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()
    return "In a container GPUs have to be passed in (--gpus all)." if is_inside else ""


def _find_cards(root: Path) -> tuple[int, set[str]]:
    nvidia, others = 0, set()
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        vendor, kind = _read(device / "vendor"), _read(device / "class")
        if not kind.startswith(_DISPLAY):
            continue
        nvidia += vendor == _NVIDIA
        if vendor in _OTHERS:
            others.add(_OTHERS[vendor])
    return nvidia, others


def check_driver(root: Path) -> Finding:
    text = _read(root / "proc/driver/nvidia/version")
    if not text:
        return _AREA.fail(
            "driver",
            "the NVIDIA driver is not loaded",
            "Install it, or load it (modprobe nvidia); dmesg shows why that fails.",
        )
    version = _MODULE.search(text)
    return _AREA.ok("driver", f"NVIDIA driver {version[1] if version else 'of unknown version'} is loaded")


def check_devices(root: Path) -> Iterator[Finding]:
    """The driver creates these files at its first use; root may always open them."""
    devices = sorted(path for path in (root / "dev").glob("nvidia*") if re.fullmatch(r"nvidia(ctl|\d+)", path.name))
    if not devices:
        step = "Run nvidia-smi once as root, or enable nvidia-persistenced: either makes them."
        yield _AREA.fail("devices", "there are no /dev/nvidia* files", step)
        return
    closed = [path.name for path in devices if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        group = _group_of(root / "dev" / closed[0])
        join = "" if group == "root" else f"Add the agent's user to the group {group}, or make "
        step = f"{join or 'Make '}the files open to all (NVreg_DeviceFileMode=0666)."
        yield _AREA.fail("devices", f"this user cannot open {', '.join(f'/dev/{name}' for name in closed[:4])}", step)
    else:
        yield _AREA.ok("devices", f"{len(devices)} device files can be opened")


def check_library(probed: Probed, cards: int) -> Iterator[Finding]:
    if probed.trouble is not None:
        step = _STEPS.get(probed.code or 0, _LOOK)
        yield _AREA.fail("library", f"NVML cannot be used: {probed.trouble}", step)
        return
    found = f"{len(probed.gpus)} GPU{'s' if len(probed.gpus) != 1 else ''}"
    yield _AREA.ok("library", f"NVML {probed.library or 'of unknown version'} finds {found}")
    broken = [gpu for gpu in probed.gpus if gpu.problem is not None]
    for gpu in broken:
        yield _AREA.fail("gpu", f"GPU {gpu.index} cannot be read: {gpu.problem}", _LOOK)
    if cards > len(probed.gpus):
        lost = f"on the PCI bus there are {cards}, but NVML finds {found}"
        yield _AREA.warn(
            "gpu", lost, "Search dmesg for NVRM and Xid: a GPU may have failed, or belong to a virtual machine."
        )
    sleepy = [str(gpu.index) for gpu in probed.gpus if gpu.is_persistent is False]
    if sleepy:
        told = f"persistence mode is off on GPU {', '.join(sleepy)}: the first use of each takes seconds"
        yield _AREA.warn("persistence", told, "systemctl enable --now nvidia-persistenced, or nvidia-smi -pm 1.")
    elif probed.gpus:
        yield _AREA.ok("persistence", "persistence mode is on, or not reported")


def check_processes(root: Path) -> Finding:
    """With hidepid only root sees the owners of processes."""
    mount = next((line for line in _read(root / "proc/mounts").splitlines() if line.split()[1:2] == ["/proc"]), "")
    hidden = _HIDEPID.search(mount)
    if hidden is None or hidden[1] in {"0", "off"}:
        return _AREA.ok("processes", "processes of all users can be seen")
    if os.geteuid() == 0:
        return _AREA.ok("processes", "/proc hides processes (hidepid), but not from root")
    group = re.search(r"gid=(\d+)", mount)
    if group is not None and int(group[1]) in os.getgroups():
        return _AREA.ok("processes", "/proc hides processes (hidepid), but not from a group of this user")
    step = "Mount /proc with gid= of a group that the agent's user is in, or let the agent run as root."
    return _AREA.warn(
        "processes", f"/proc hides the processes of others (hidepid={hidden[1]}): owners stay unknown", step
    )


def _group_of(path: Path) -> str:
    try:
        return path.group()
    except (KeyError, OSError):
        return "that owns them"


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _ask_nvml(nvml: Any) -> Probed:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return Probed(trouble=str(error), code=error.value)
    gpus = [_ask_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    try:
        return Probed(library=str(nvml.nvmlSystemGetNVMLVersion()), gpus=gpus)
    except nvml.NVMLError:
        return Probed(gpus=gpus)


def _ask_gpu(nvml: Any, index: int) -> ProbedGpu:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        return ProbedGpu(index, str(error))
    try:
        return ProbedGpu(index, is_persistent=bool(nvml.nvmlDeviceGetPersistenceMode(handle)))
    except nvml.NVMLError:
        return ProbedGpu(index)


if __name__ == "__main__":
    import pynvml

    sys.stdout.buffer.write(msgspec.json.encode(_ask_nvml(pynvml)))
