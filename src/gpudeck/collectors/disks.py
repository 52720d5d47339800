"""File systems with user data, other than `/`.

Asking a dead NFS server for its size hangs in the kernel, so each is asked in a thread of its own and waited for with
a deadline. One that hangs is left alone until it answers, and never hides the others.
"""

import os
import queue
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from gpudeck.collectors.base import is_due
from gpudeck.model.report import Disk

_KINDS = re.compile(
    r"ext[234]|xfs|btrfs|bcachefs|f2fs|zfs|nfs4?|lustre|beegfs\w*|gpfs|ceph|wekafs|fuse\.(?:ceph\S*|glusterfs)"
)
# What the system and its container runtimes mount for themselves.
_NOT_FOR_DATA = re.compile(
    r"/(?:boot|dev|etc|proc|run|snap|sys|usr|var/lib/(?:containerd|containers|docker|kubelet))(?:/.*)?"
)
_ESCAPED = re.compile(r"\\([0-7]{3})")
_DISKS_AT_MOST = 16
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
    """`mountinfo` is that of a process that sees the host's mounts; `root` is where their paths begin.

    `read` waits `deadline` seconds at most, and only while a disk is new to it: most calls give what was read before.
    """

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
    return sorted(point for point in points if len(point) <= 256 and point.isprintable())[:_DISKS_AT_MOST]


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
