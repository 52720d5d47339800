"""The host itself: CPU, memory, disks, network, load and uptime from /proc, and who this machine is.

In a container the kernel's figures (CPU, load, memory, uptime) are the host's and are reported as such; the file system
and the machine id are the container's own, so the disk is unknown and the id is left out. So is the network where the
container has one of its own.
"""

import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path

from gpudeck.collectors.base import NEEDS_TWO, Collector, is_due
from gpudeck.collectors.disks import Disks
from gpudeck.collectors.network import RATES, Network
from gpudeck.collectors.proc import FIRST_MOUNT_NAMESPACE, FIRST_PID_NAMESPACE, Proc
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.sysfs import read_if_there, read_link
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.errors import Absent
from gpudeck.model.report import Number, Report

_ROOT = Path("/")
_CONTAINER_MARKS = ((".dockerenv", "docker"), ("run/.containerenv", "podman"))
_CONTAINER_CGROUP = re.compile(r"[/-](docker|libpod|kubepods|lxc|containerd)\b")

# Addresses hardly ever change, and finding them costs more than all figures.
_ADDRESSES_SECONDS = 60.0

Values = dict[str, Number]
CpuTimes = tuple[int, int]
"""Ticks spent working, and ticks altogether."""


class HostCollector(Collector):
    """Reads the host's figures. The first reading has no CPU percentage and no network rates: they need two.

    `root` is where the host's file system is seen: a container that has it mounted reads the host through it, its
    mounts and its network by way of the host's process 1. `disks` and `network` are found below `root` by default.
    """

    name = "host"

    def __init__(self, root: Path = _ROOT, disks: Disks | None = None, network: Network | None = None) -> None:
        self._root = root
        self._proc = root / "proc"
        self._cpu_before: CpuTimes | None = None
        self._container = find_container(root)
        self._os = read_os_name(root)
        process = self._proc / ("self" if root == _ROOT else "1")
        self._disks = disks or Disks(process / "mountinfo", root)
        self._network = network or Network(
            process / "net", root / "sys/class/net", is_container=self._container is not None
        )
        self._addresses: dict[str, str] = {}
        self._addresses_at: float | None = None
        self._readings: tuple[tuple[tuple[str, ...], Callable[[float], Values]], ...] = (
            (("cpu_percent", "cpu_count"), self._read_cpu),
            (("load_1m",), lambda _: {"load_1m": self._read_first("loadavg")}),
            (("memory_used_bytes", "memory_total_bytes"), lambda _: self._read_memory("memory", "Mem", "MemAvailable")),
            (("swap_used_bytes", "swap_total_bytes"), lambda _: self._read_memory("swap", "Swap", "SwapFree")),
            (("disk_used_bytes", "disk_total_bytes"), self._read_disk),
            (RATES, self._network.read_rates),
            (("uptime_seconds",), lambda _: {"uptime_seconds": self._read_first("uptime")}),
        )

    def collect(self, now: float) -> Report:
        if not (self._proc / "stat").exists():
            raise Absent(f"There is no {self._proc}/stat: host figures can be read on Linux only.")
        metrics: Values = {}
        unknown: dict[str, str] = {}
        for names, read in self._readings:
            try:
                values = read(now)
            except (OSError, ValueError, IndexError, KeyError) as error:
                values = {}
                unknown |= dict.fromkeys(names, _reason(error))
            metrics |= {name: HOST_METRICS[name].round(value) for name, value in values.items()}
        if "cpu_percent" not in metrics:
            unknown.setdefault("cpu_percent", NEEDS_TWO)
        disks, problems = self._disks.read(now)
        if is_due(self._addresses_at, _ADDRESSES_SECONDS, now):
            self._addresses, self._addresses_at = self._network.find_addresses(), now
        return Report(
            metrics=metrics,
            unknown=unknown,
            os=self._os,
            labels={"container": self._container} if self._container else {},
            disks=disks,
            addresses=list(self._addresses),
            interfaces={address: interface for address, interface in self._addresses.items() if interface},
            problems=problems,
        )

    def _read_cpu(self, _now: float) -> Values:
        lines = (self._proc / "stat").read_text().splitlines()
        count = sum(line.startswith("cpu") for line in lines) - 1
        values: Values = {"cpu_count": count}
        before, self._cpu_before = self._cpu_before, parse_cpu_times(lines[0])
        with contextlib.suppress(ValueError):
            values["cpu_percent"] = percent_between(before, self._cpu_before)
        return values

    def _read_first(self, file: str) -> float:
        return float((self._proc / file).read_text().split()[0])

    def _read_memory(self, what: str, name: str, free: str) -> Values:
        return parse_memory((self._proc / "meminfo").read_text(), what, name, free)

    def _read_disk(self, _now: float) -> Values:
        if self._container:
            raise ValueError("the root file system is the container's, not the host's")
        disk = os.statvfs(self._root)
        used = (disk.f_blocks - disk.f_bfree) * disk.f_frsize
        return {"disk_used_bytes": used, "disk_total_bytes": disk.f_blocks * disk.f_frsize}


def find_container(root: Path = _ROOT) -> str | None:
    """What kind of container this process sees as its machine, or None on a host or a virtual machine."""
    # With the machine's first namespaces of processes and mounts it is all ours: a virtual machine that was made from
    # a container's image still has the image's marks.
    mounts = read_link(f"{root}/proc/self/ns/mnt")
    is_first = mounts in {FIRST_MOUNT_NAMESPACE, read_link(f"{root}/proc/1/ns/mnt") or "not permitted"}
    if is_first and read_link(f"{root}/proc/self/ns/pid") == FIRST_PID_NAMESPACE:
        return None
    for mark, kind in _CONTAINER_MARKS:
        if (root / mark).exists():
            return kind
    # systemd-nspawn, podman and lxc set this variable, in lower case, for what they start.
    variable = os.environ.get("container", "") if root == _ROOT else ""  # noqa: SIM112
    named = _read_line(f"{root}/run/systemd/container") or variable
    if named:
        return clean(named)[:64]
    # Under cgroup v1, and v2 without its own namespace, the path of process 1 names the runtime.
    found = _CONTAINER_CGROUP.search(read_if_there(f"{root}/proc/1/cgroup"))
    return found[1] if found else None


def machine_id(root: Path = _ROOT) -> str:
    """An id of this machine that outlives renames and reboots; empty where there is none to trust.

    It is derived: /etc/machine-id itself is confidential (machine-id(5)). A container has the id of its image, which
    every other container of that image has too.
    """
    written = _read_line(f"{root}/etc/machine-id") or _read_line(f"{root}/var/lib/dbus/machine-id")
    return "" if find_container(root) else derive_machine_id(written)


def derive_machine_id(written: str) -> str:
    """What we call a machine with that /etc/machine-id; empty where it is none."""
    if not re.fullmatch(r"[0-9a-f]{32}", written):
        return ""
    return hashlib.blake2b(b"gpudeck", key=written.encode(), digest_size=16).hexdigest()


def boot_id(root: Path = _ROOT) -> str:
    """An id of this run of the kernel. Where the kernel gives none, its time of boot serves as one."""
    written = _read_line(f"{root}/proc/sys/kernel/random/boot_id")
    if written:
        return written
    try:
        return f"booted-{Proc(f'{root}/proc').boot_time()}"
    except (OSError, ValueError):
        return "unknown"


def host_name(node: str | None = None) -> str:
    """The machine's name as a report may carry it: letters, digits, dots and dashes."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.uname().nodename if node is None else node)
    return name[:253].strip("._-") or "unnamed"


def read_os_name(root: Path = _ROOT) -> str | None:
    """ "Debian GNU/Linux 12 (bookworm)", or None where no os-release file says."""
    for path in ("etc/os-release", "usr/lib/os-release"):
        for line in read_if_there(f"{root}/{path}").splitlines():
            if line.startswith("PRETTY_NAME="):
                return clean(line.partition("=")[2].strip().strip("\"'"))[:256] or None
    return None


def parse_memory(meminfo: str, what: str, name: str, free: str) -> Values:
    """Used is what programs could not get: caches that the kernel would give up do not count. A machine without swap
    says so: its total is a true zero. Raises KeyError, ValueError and IndexError."""
    lines = (line.partition(":") for line in meminfo.splitlines())
    kib = {key.strip(): int(value.split()[0]) for key, _, value in lines}
    total = kib[f"{name}Total"]
    return {f"{what}_used_bytes": (total - kib[free]) * 1024, f"{what}_total_bytes": total * 1024}


def parse_cpu_times(line: str) -> CpuTimes:
    """`line` is the first one of /proc/stat. Guest time is left out: the kernel counts it as user time already."""
    user, nice, system, idle, iowait, *rest = (int(ticks) for ticks in line.split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + iowait


def percent_between(before: CpuTimes | None, after: CpuTimes) -> float:
    """The share of time that the CPUs worked. Raises ValueError where there are no two readings."""
    if before is None or after[1] <= before[1]:
        raise ValueError(NEEDS_TWO)
    return min(100.0, max(0.0, 100.0 * (after[0] - before[0]) / (after[1] - before[1])))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return f"not found: {error}" if isinstance(error, KeyError) else str(error)


def _read_line(path: str) -> str:
    return read_if_there(path).partition("\n")[0].strip()
