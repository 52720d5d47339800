"""The host itself: CPU, memory, disks, network, load and uptime from /proc, and who this machine is. In a container the
kernel's figures are the host's; the disk, the machine id, and mostly the network are the container's own and left out.
"""

import contextlib
import hashlib
import ipaddress
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from msgspec import Struct

from gpudeck.collectors.base import NEEDS_TWO, Collector, is_due
from gpudeck.collectors.proc import FIRST_MOUNT_NAMESPACE, FIRST_PID_NAMESPACE, read_link
from gpudeck.collectors.redaction import clean
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


class HostFiles:
    """The files that say what this machine is and does; `root` is where they are found. Another machine's, read over
    SSH, is a subclass."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self.environment = os.environ if root == Path("/") else {}

    def read(self, path: str) -> str:
        """Raises OSError."""
        return (self._root / path[1:]).read_text(errors="replace")

    def read_if_there(self, path: str) -> str:
        try:
            return self.read(path)
        except OSError:
            return ""

    def read_line(self, path: str) -> str:
        return self.read_if_there(path).partition("\n")[0].strip()

    def exists(self, path: str) -> bool:
        return (self._root / path[1:]).exists()

    def link(self, path: str) -> str:
        return read_link(str(self._root / path[1:]))

    def disk_bytes(self) -> tuple[int, int]:
        """Used and total of the root file system. Raises OSError, ValueError."""
        disk = os.statvfs(self._root)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_blocks * disk.f_frsize


class Network:
    """Not for several threads at once. `is_container`: it sees no physical interface."""

    def __init__(self, *, is_container: bool = False) -> None:
        self._is_container = is_container
        self._before: tuple[float, Totals] | None = None
        self._physical: tuple[list[str], list[str]] = ([], [])

    def read_rates(self, files: HostFiles, now: float) -> dict[str, Number]:
        """Bytes a second since the reading before, in and out. Raises OSError, and ValueError with the reason."""
        totals = self._read_totals(files)
        before, self._before = self._before, (now, totals)
        if before is None:
            raise ValueError(NEEDS_TWO)
        return rates_between(before[1], totals, now - before[0])

    def find_addresses(self, files: HostFiles) -> dict[str, str]:
        """The addresses at which others may reach this machine, with the names of their interfaces: no loopback, no
        link-local address, none of a virtual bridge. Empty if they cannot be read."""
        try:
            self._read_totals(files)  # raises where nothing of the host's network is seen
            found: tuple[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, str], ...]
            found = (*_find_ipv4(files), *_find_ipv6(files))
        except (OSError, ValueError, IndexError):
            return {}
        reachable = {
            str(address): interface
            for address, interface in found
            if not (address.is_loopback or address.is_link_local or _VIRTUAL.fullmatch(interface))
        }
        return dict(islice(reachable.items(), _MAX_ADDRESSES))

    def _read_totals(self, files: HostFiles) -> Totals:
        totals = parse_interfaces(files.read("/proc/self/net/dev"))
        names = list(totals)
        if names != self._physical[0]:
            likely = [name for name in names if not _VIRTUAL.fullmatch(name)]
            with_device = [name for name in likely if files.exists(f"/sys/class/net/{name}/device")]
            self._physical = (names, with_device or ([] if self._is_container else likely))
        if not self._physical[1]:
            raise ValueError(NO_INTERFACE)
        return {name: totals[name] for name in self._physical[1]}


def _find_ipv4(files: HostFiles) -> Iterator[tuple[ipaddress.IPv4Address, str]]:
    networks = parse_routes(files.read_if_there("/proc/self/net/route"))
    for text in _LOCAL_IPV4.findall(files.read_if_there("/proc/self/net/fib_trie")):
        address = ipaddress.IPv4Address(text)
        # The kernel gives addresses without their interface: the network they lie in has one.
        through = max((at for at in networks if address in at[0]), key=lambda at: at[0].prefixlen, default=None)
        yield address, "" if through is None else through[1]


def _find_ipv6(files: HostFiles) -> Iterator[tuple[ipaddress.IPv6Address, str]]:
    for line in files.read_if_there("/proc/self/net/if_inet6").splitlines():
        digits, *_, interface = line.split() or [""]
        if len(digits) == 32:
            yield ipaddress.IPv6Address(int(digits, 16)), interface


def rates_between(before: Totals, after: Totals, seconds: float) -> dict[str, Number]:
    """Bytes a second, in and out. Raises ValueError with the reason where there are none."""
    # An interface that has just come up has no earlier reading: it counts from the next one on.
    pairs = [(before[name], total) for name, total in after.items() if name in before]
    if not (seconds > 0 and pairs):  # not a number, where a machine did not report its uptime
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


_KINDS = re.compile(
    r"ext[234]|xfs|btrfs|bcachefs|f2fs|zfs|nfs4?|lustre|beegfs\w*|gpfs|ceph|wekafs|fuse\.(?:ceph\S*|glusterfs)"
)
# Mounts of the system and of its container runtimes.
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
        sizes: dict[str, Disk | None] = {}
        asked = [point for point in points if point not in self._asked and self._start(point, sizes)]
        ends_at = time.monotonic() + self._deadline
        for point in asked:
            self._asked[point].join(max(0.0, ends_at - time.monotonic()))
        answered = sizes.copy()
        disks = [disk for point in points if (disk := answered.get(point)) is not None]
        return disks, [f"The file system at {point} does not answer." for point in points if point not in answered]

    def _start(self, point: str, sizes: dict[str, Disk | None]) -> bool:
        thread = threading.Thread(target=self._read_size, args=(point, sizes), name=f"disk {point}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False  # the machine has no thread left: the other figures are worth more than this one
        self._asked[point] = thread
        return True

    def _read_size(self, point: str, sizes: dict[str, Disk | None]) -> None:
        try:
            sizes[point] = _describe(point, self._statvfs(f"{self._root}/{point.lstrip('/')}"))
        except OSError:
            sizes[point] = None  # not permitted, or unmounted since: there is nothing to report


def find_data_mounts(mountinfo: str) -> list[str]:
    """The mount points of data, each file system once, by its shortest path, without that of `/`."""
    mounts = [mount for line in mountinfo.splitlines() if (mount := _parse(line)) is not None]
    # A later mount on the same folder hides the earlier one.
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


def _describe(point: str, size: os.statvfs_result) -> Disk | None:
    total, free = size.f_blocks * size.f_frsize, size.f_bfree * size.f_frsize
    if not 0 < total < _BYTES_BELOW or not 0 <= free <= total:
        return None
    return Disk(point, total - free, total)


_CONTAINER_MARKS = (("/.dockerenv", "docker"), ("/run/.containerenv", "podman"))
_CONTAINER_CGROUP = re.compile(r"[/-](docker|libpod|kubepods|lxc|containerd)\b")
_THIS_MACHINE = HostFiles()

# Addresses hardly ever change, and finding them costs more than all figures.
_ADDRESSES_SECONDS = 60.0

Values = dict[str, Number]
CpuTimes = tuple[int, int]
"""Ticks spent working, and ticks altogether."""


class HostFigures:
    """The figures of one machine, reading after reading. The first has no CPU percentage and no network rates."""

    def __init__(self, container: str | None) -> None:
        self.network = Network(is_container=container is not None)
        self._container = container
        self._cpu_before: CpuTimes | None = None
        self._readings: tuple[tuple[tuple[str, ...], Callable[[HostFiles, float], Values]], ...] = (
            (("cpu_percent", "cpu_count"), self._read_cpu),
            (("load_1m",), lambda files, _: {"load_1m": _read_first(files, "/proc/loadavg")}),
            (
                ("memory_used_bytes", "memory_total_bytes"),
                lambda files, _: parse_memory(files.read("/proc/meminfo"), "memory", "Mem", "MemAvailable"),
            ),
            (
                ("swap_used_bytes", "swap_total_bytes"),
                lambda files, _: parse_memory(files.read("/proc/meminfo"), "swap", "Swap", "SwapFree"),
            ),
            (("disk_used_bytes", "disk_total_bytes"), self._read_disk),
            (RATES, self.network.read_rates),
            (("uptime_seconds",), lambda files, _: {"uptime_seconds": _read_first(files, "/proc/uptime")}),
        )

    def read(self, files: HostFiles, now: float) -> tuple[Values, dict[str, str]]:
        """The metrics, and the unknown ones with their reasons. `now` may be any clock that does not stand."""
        metrics: Values = {}
        unknown: dict[str, str] = {}
        for names, read in self._readings:
            try:
                values = read(files, now)
            except (OSError, ValueError, IndexError, KeyError) as error:
                unknown |= dict.fromkeys(names, _reason(error))
                continue
            for name, value in values.items():
                metric = HOST_METRICS[name]
                if metric.low <= value <= metric.high:
                    metrics[name] = metric.round(value)
                else:
                    unknown[name] = "the machine reported an impossible value"
        if "cpu_percent" not in metrics:
            unknown.setdefault("cpu_percent", NEEDS_TWO)
        return metrics, unknown

    def _read_cpu(self, files: HostFiles, _now: float) -> Values:
        lines = files.read("/proc/stat").splitlines()
        count = sum(line.startswith("cpu") for line in lines) - 1
        if count < 1:
            raise ValueError("/proc/stat lists no CPU")
        values: Values = {"cpu_count": count}
        before, self._cpu_before = self._cpu_before, None
        with contextlib.suppress(ValueError):
            self._cpu_before = parse_cpu_times(lines[0])
            values["cpu_percent"] = percent_between(before, self._cpu_before)
        return values

    def _read_disk(self, files: HostFiles, _now: float) -> Values:
        if self._container:
            raise ValueError("the root file system is the container's, not the host's")
        used, total = files.disk_bytes()
        return {"disk_used_bytes": used, "disk_total_bytes": total}


class HostCollector(Collector):
    """Reads the host's figures. `root` is where the host's file system is seen."""

    name = "host"

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = HostFiles(root)
        self._container = find_container(self._files)
        self._os = read_os_name(self._files)
        self._disks = Disks(root / "proc/self/mountinfo", root)
        self._figures = HostFigures(self._container)
        self._addresses: dict[str, str] = {}
        self._addresses_at: float | None = None

    def collect(self, now: float) -> Report:
        if not self._files.exists("/proc/stat"):
            raise Absent("There is no /proc/stat: host figures can be read on Linux only.")
        metrics, unknown = self._figures.read(self._files, now)
        disks, problems = self._disks.read(now)
        if is_due(self._addresses_at, _ADDRESSES_SECONDS, now):
            self._addresses, self._addresses_at = self._figures.network.find_addresses(self._files), now
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


def find_container(files: HostFiles = _THIS_MACHINE) -> str | None:
    """The kind of container that these files belong to; None for a host or a virtual machine."""
    # With the machine's first namespaces of processes and mounts it is all ours: a virtual machine that was made from
    # a container's image still has the image's marks.
    mounts = files.link("/proc/self/ns/mnt")
    is_first = mounts in {FIRST_MOUNT_NAMESPACE, files.link("/proc/1/ns/mnt") or "not permitted"}
    if is_first and files.link("/proc/self/ns/pid") == FIRST_PID_NAMESPACE:
        return None
    for mark, kind in _CONTAINER_MARKS:
        if files.exists(mark):
            return kind
    # systemd-nspawn, podman and lxc set this variable, in lower case, for what they start.
    named = files.read_line("/run/systemd/container") or files.environment.get("container")
    if named:
        return clean(named)[:64]
    # Under cgroup v1, and v2 without its own namespace, the path of process 1 names the runtime.
    found = _CONTAINER_CGROUP.search(files.read_if_there("/proc/1/cgroup"))
    return found[1] if found else None


def machine_id(files: HostFiles = _THIS_MACHINE) -> str:
    """An id of this machine that outlives renames and reboots; empty where there is none to trust. It is derived:
    /etc/machine-id itself is confidential (machine-id(5)). A container has the id of its image."""
    written = files.read_line("/etc/machine-id") or files.read_line("/var/lib/dbus/machine-id")
    if not re.fullmatch(r"[0-9a-f]{32}", written) or find_container(files):
        return ""
    return hashlib.blake2b(b"gpudeck", key=written.encode(), digest_size=16).hexdigest()


def boot_id(files: HostFiles = _THIS_MACHINE) -> str:
    """An id of this run of the kernel. Where the kernel gives none, its time of boot serves as one."""
    written = clean(files.read_line("/proc/sys/kernel/random/boot_id"))[:64]
    booted = re.search(r"^btime (\d{1,18})$", files.read_if_there("/proc/stat"), re.MULTILINE)
    return written or (f"booted-{booted[1]}" if booted else "unknown")


def host_name(node: str | None = None) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", os.uname().nodename if node is None else node)
    return name[:253].strip("._-") or "unnamed"


def read_os_name(files: HostFiles = _THIS_MACHINE) -> str | None:
    """ "Debian GNU/Linux 12 (bookworm)", or None where no os-release file says."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        for line in files.read_if_there(path).splitlines():
            if line.startswith("PRETTY_NAME="):
                return clean(line.partition("=")[2].strip().strip("\"'"))[:256] or None
    return None


def _read_first(files: HostFiles, path: str) -> float:
    return float(files.read(path).split()[0])


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
