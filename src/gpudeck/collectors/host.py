"""The host itself: CPU, memory, disks, network, load and uptime from /proc, and who this machine is. In a container the
kernel's figures are the host's; the disk, the machine id, and mostly the network are the container's own and left out.
"""

import contextlib
import hashlib
import ipaddress
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain, islice
from pathlib import Path

from msgspec import Struct

from gpudeck.collectors.base import NEEDS_TWO, Collector, is_due
from gpudeck.collectors.proc import FIRST_MOUNT_NAMESPACE, FIRST_PID_NAMESPACE, Proc
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.sysfs import read_if_there, read_link
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.errors import Absent
from gpudeck.model.report import Disk, Number, Report

RESET = "a network interface counts from zero again"
NO_INTERFACE = "no physical network interface is seen"
RATES = ("network_receive_bytes_per_second", "network_transmit_bytes_per_second")

_VIRTUAL = re.compile(
    r"lo|(?:br-|cali|cilium|cni|docker|dummy|flannel|ifb|kube|lxc|lxd|nerdctl|podman|tailscale|tap|tun|veth|virbr|vnet|wg)"
    r".*"
)
_LOCAL_IPV4 = re.compile(r"\|-- (\S+)\n\s+/32 host LOCAL")
_MAX_ADDRESSES = 64

Totals = dict[str, tuple[int, int]]
"""Bytes received and sent, by the interface's name."""


class Network:
    """`net` is a /proc/<pid>/net, `devices` a /sys/class/net. Not for several threads at once. `is_container`: it sees
    no physical interface."""

    def __init__(self, net: Path, devices: Path, *, is_container: bool = False) -> None:
        self._net = net
        self._devices = devices
        self._is_container = is_container
        self._before: tuple[float, Totals] | None = None
        self._physical: tuple[list[str], list[str]] = ([], [])

    def read_rates(self, now: float) -> dict[str, Number]:
        """Bytes a second since the reading before, in and out. Raises OSError, and ValueError with the reason."""
        totals = self._read_totals()
        before, self._before = self._before, (now, totals)
        if before is None:
            raise ValueError(NEEDS_TWO)
        return rates_between(before[1], totals, now - before[0])

    def find_addresses(self) -> dict[str, str]:
        """Where others may reach this machine, each with the name of its interface: no loopback, no link-local address,
        none of a virtual bridge. Empty where that cannot be read."""
        try:
            self._read_totals()  # raises where nothing of the host's network is seen
            found = dict(chain(self._find_ipv4(), self._find_ipv6()))
        except (OSError, ValueError, IndexError):
            return {}
        return dict(islice(found.items(), _MAX_ADDRESSES))

    def _read_totals(self) -> Totals:
        totals = parse_interfaces((self._net / "dev").read_text())
        names = list(totals)
        if names != self._physical[0]:
            likely = [name for name in names if not _VIRTUAL.fullmatch(name)]
            with_device = [name for name in likely if (self._devices / name / "device").exists()]
            self._physical = (names, with_device or ([] if self._is_container else likely))
        if not self._physical[1]:
            raise ValueError(NO_INTERFACE)
        return {name: totals[name] for name in self._physical[1]}

    def _find_ipv4(self) -> Iterator[tuple[str, str]]:
        networks = parse_routes(_read(self._net / "route"))
        for text in _LOCAL_IPV4.findall(_read(self._net / "fib_trie")):
            address = ipaddress.IPv4Address(text)
            # The kernel gives addresses without their interface: the network they lie in has one.
            through = max((at for at in networks if address in at[0]), key=lambda at: at[0].prefixlen, default=None)
            interface = "" if through is None else through[1]
            if not (address.is_loopback or address.is_link_local or _VIRTUAL.fullmatch(interface)):
                yield str(address), interface

    def _find_ipv6(self) -> Iterator[tuple[str, str]]:
        for line in _read(self._net / "if_inet6").splitlines():
            digits, *_, interface = line.split() or [""]
            if len(digits) == 32:
                address = ipaddress.IPv6Address(int(digits, 16))
                if not (address.is_loopback or address.is_link_local or _VIRTUAL.fullmatch(interface)):
                    yield str(address), interface


def rates_between(before: Totals, after: Totals, seconds: float) -> dict[str, Number]:
    """Bytes a second, in and out. Raises ValueError with the reason where there are none."""
    # An interface that has just come up has no earlier reading: it counts from the next one on.
    pairs = [(before[name], total) for name, total in after.items() if name in before]
    if seconds <= 0 or not pairs:
        raise ValueError(NEEDS_TWO)
    grown = [[now[way] - then[way] for then, now in pairs] for way in (0, 1)]
    if min(map(min, grown)) < 0:
        raise ValueError(RESET)
    return {name: sum(growth) / seconds for name, growth in zip(RATES, grown, strict=True)}


def parse_interfaces(text: str) -> Totals:
    """`text` is /proc/net/dev. A name stands close to its figures where those are long: `eth0:123456`."""
    totals: Totals = {}
    for line in text.splitlines()[2:]:
        name, _, figures = line.rpartition(":")
        values = figures.split()
        totals[name.strip()] = (int(values[0]), int(values[8]))
    return totals


def parse_routes(text: str) -> list[tuple[ipaddress.IPv4Network, str]]:
    """The networks that lie right behind an interface, from /proc/net/route, which has its numbers byte by byte."""
    found = []
    for line in text.splitlines()[1:]:
        interface, destination, gateway, *rest = line.split()
        if int(gateway, 16) == 0:
            network = (_swap(destination), str(ipaddress.IPv4Address(_swap(rest[4]))))
            found.append((ipaddress.IPv4Network(network), interface))
    return found


def _swap(digits: str) -> int:
    return int.from_bytes(bytes.fromhex(digits), "little")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


_KINDS = re.compile(
    r"ext[234]|xfs|btrfs|bcachefs|f2fs|zfs|nfs4?|lustre|beegfs\w*|gpfs|ceph|wekafs|fuse\.(?:ceph\S*|glusterfs)"
)
# What the system and its container runtimes mount for themselves.
_NOT_FOR_DATA = re.compile(
    r"/(?:boot|dev|etc|proc|run|snap|sys|usr|var/lib/(?:containerd|containers|docker|kubelet))(?:/.*)?"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_MAX_DISKS = 16
_BYTES_BELOW = 2**60
_REFRESH_SECONDS = 30.0
_DEADLINE_SECONDS = 0.5


class _Mount(Struct, frozen=True):
    device: str
    inside: str
    """The folder of the file system that is mounted: `/` is all of it."""
    point: str
    kind: str


class Disks:
    """`mountinfo` is that of a process that sees the host's mounts; `root` is where their paths begin. `read` waits
    `deadline` seconds at most, and only while a disk is new to it: a dead NFS server hangs."""

    def __init__(
        self,
        mountinfo: Path,
        root: Path = Path("/"),
        *,
        statvfs: Callable[[str], os.statvfs_result] = os.statvfs,
        deadline: float = _DEADLINE_SECONDS,
    ) -> None:
        self._mountinfo = mountinfo
        self._root = root
        self._statvfs = statvfs
        self._deadline = deadline
        self._asked: dict[str, threading.Thread] = {}
        self._read: tuple[list[Disk], list[str]] = ([], [])
        self._read_at: float | None = None

    def read(self, now: float) -> tuple[list[Disk], list[str]]:
        """The disks, and a sentence for each that does not answer. Never raises."""
        if is_due(self._read_at, _REFRESH_SECONDS, now):
            self._read, self._read_at = self._measure(find_data_mounts(self._list_mounts())), now
        return self._read

    def _list_mounts(self) -> str:
        try:
            return self._mountinfo.read_text(errors="replace")
        except OSError:
            return ""

    def _measure(self, points: list[str]) -> tuple[list[Disk], list[str]]:
        self._asked = {point: thread for point, thread in self._asked.items() if thread.is_alive()}
        answers: queue.SimpleQueue[tuple[str, Disk | None]] = queue.SimpleQueue()
        asked = [point for point in points if point not in self._asked and self._start(point, answers)]
        answered = _take(answers, len(asked), self._deadline)
        disks = [disk for point in points if (disk := answered.get(point)) is not None]
        return disks, [f"The file system at {point} does not answer." for point in points if point not in answered]

    def _start(self, point: str, answers: "queue.SimpleQueue[tuple[str, Disk | None]]") -> bool:
        thread = threading.Thread(target=self._read_size, args=(point, answers), name=f"disk {point}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False  # the machine has no thread left: the other figures are worth more than this one
        self._asked[point] = thread
        return True

    def _read_size(self, point: str, answers: "queue.SimpleQueue[tuple[str, Disk | None]]") -> None:
        try:
            size = self._statvfs(f"{self._root}/{point.lstrip('/')}")
        except OSError:
            # Not permitted, or unmounted since: there is nothing to say of it.
            answers.put((point, None))
        else:
            answers.put((point, _describe(point, size)))


def find_data_mounts(mountinfo: str) -> list[str]:
    """Where data is mounted, each file system once, by its shortest path; `/` and what lies on it are left out."""
    mounts = [mount for line in mountinfo.splitlines() if (mount := _parse(line)) is not None]
    # What is mounted later on the same folder covers what was there.
    visible = {mount.point: mount for mount in mounts}
    root_devices = {mount.device for mount in visible.values() if mount.point == "/"}
    chosen: dict[str, _Mount] = {}
    for mount in sorted(visible.values(), key=lambda mount: (mount.inside != "/", len(mount.point), mount.point)):
        if _KINDS.fullmatch(mount.kind) and not _NOT_FOR_DATA.fullmatch(mount.point):
            chosen.setdefault(mount.device, mount)
    points = (mount.point for device, mount in chosen.items() if device not in root_devices)
    return sorted(point for point in points if len(point) <= 256 and point.isprintable())[:_MAX_DISKS]


def _parse(line: str) -> _Mount | None:
    """A line of /proc/<pid>/mountinfo (proc(5)); before the lone dash stands a varying number of optional fields."""
    place, dash, source = line.partition(" - ")
    fields, kind = place.split(" "), source.split(" ")[0]
    if not dash or len(fields) < 6:
        return None
    return _Mount(fields[2], fields[3], _ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields[4]), kind)


def _take(answers: "queue.SimpleQueue[tuple[str, Disk | None]]", count: int, seconds: float) -> dict[str, Disk | None]:
    ends_at = time.monotonic() + seconds
    taken: dict[str, Disk | None] = {}
    try:
        while len(taken) < count:
            point, disk = answers.get(timeout=max(0.0, ends_at - time.monotonic()))
            taken[point] = disk
    except queue.Empty:
        pass
    return taken


def _describe(point: str, size: os.statvfs_result) -> Disk | None:
    total, free = size.f_blocks * size.f_frsize, size.f_bfree * size.f_frsize
    if not 0 < total < _BYTES_BELOW or not 0 <= free <= total:
        return None
    return Disk(point, total - free, total)


_ROOT = Path("/")
_CONTAINER_MARKS = ((".dockerenv", "docker"), ("run/.containerenv", "podman"))
_CONTAINER_CGROUP = re.compile(r"[/-](docker|libpod|kubepods|lxc|containerd)\b")

# Addresses hardly ever change, and finding them costs more than all figures.
_ADDRESSES_SECONDS = 60.0

Values = dict[str, Number]
CpuTimes = tuple[int, int]
"""Ticks spent working, and ticks altogether."""


class HostCollector(Collector):
    """Reads the host's figures. The first reading has no CPU percentage and no network rates: they need two. `root` is
    where the host's file system is seen."""

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
    """An id of this machine that outlives renames and reboots; empty where there is none to trust. It is derived:
    /etc/machine-id itself is confidential (machine-id(5)). A container has the id of its image."""
    written = _read_line(f"{root}/etc/machine-id") or _read_line(f"{root}/var/lib/dbus/machine-id")
    return "" if find_container(root) else derive_machine_id(written)


def derive_machine_id(written: str) -> str:
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
    if before is None or after[1] <= before[1]:
        raise ValueError(NEEDS_TWO)
    return min(100.0, max(0.0, 100.0 * (after[0] - before[0]) / (after[1] - before[1])))


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return f"not found: {error}" if isinstance(error, KeyError) else str(error)


def _read_line(path: str) -> str:
    return read_if_there(path).partition("\n")[0].strip()
