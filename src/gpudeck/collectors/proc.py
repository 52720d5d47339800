"""Reads the files of /proc/<pid>, any of which may vanish between two reads: methods raise OSError or ValueError,
except where a missing file means that there is nothing to say."""

import os

from msgspec import Struct

from gpudeck.collectors.containers import Placement, parse_placement
from gpudeck.collectors.redaction import clean

# Numbers that the kernel gives its own namespaces (PROC_PID_INIT_INO; MNT_NS_INIT_INO, from Linux 6.18 on).
FIRST_PID_NAMESPACE = "pid:[4026531836]"
FIRST_MOUNT_NAMESPACE = "mnt:[4026531832]"
COMMAND_BYTES = 4096
"""Bytes of a command line that are read. Whatever has as many was cut."""
_ENVIRONMENT_BYTES = 65536
_NO_LOGIN = 2**32 - 1


class Stat(Struct, frozen=True):
    """`name` is the kernel's short one: 15 bytes, which may hold spaces and brackets. `state` is a letter, as in ps.
    The same process has the same pid and `start_ticks` (since the boot)."""

    name: str
    state: str
    parent: int
    start_ticks: int


def parse_stat(line: bytes) -> Stat:
    """Raises ValueError."""
    before, _, after = line.rpartition(b")")
    fields = after.split(None, 20)
    if len(fields) < 20:
        raise ValueError("a line of /proc/<pid>/stat is too short")
    name = clean(before.partition(b"(")[2].decode(errors="replace"))[:256]
    return Stat(name, fields[0].decode(errors="replace"), int(fields[1]), int(fields[19]))


class Proc:
    """A /proc, seen at `folder`. On every beat, so paths are text: a Path costs more than the call."""

    def __init__(self, folder: str = "/proc") -> None:
        self._folder = folder

    def stat(self, pid: int) -> Stat:
        return parse_stat(self._read(pid, "stat", 1024))

    def uid(self, pid: int) -> int:
        """Who started it: of a program that takes on another's rights, the real uid."""
        try:
            status = self._read(pid, "status", 4096)
        except FileNotFoundError:
            return self.folder_uid(pid)
        _, found, rest = status.partition(b"\nUid:")
        return int(rest.split(None, 1)[0]) if found else self.folder_uid(pid)

    def folder_uid(self, pid: int) -> int:
        return os.stat(f"{self._folder}/{pid}").st_uid  # noqa: PTH116 - see the class

    def arguments(self, pid: int) -> list[str]:
        """Empty for zombies, kernel threads and what is just being started."""
        raw = self._read(pid, "cmdline", COMMAND_BYTES)
        if len(raw) == COMMAND_BYTES:
            # The last argument is cut: half a secret may no longer look like one.
            raw = raw.rpartition(b"\0")[0] or raw
        text = raw.rstrip(b"\0").decode(errors="replace")
        return text.split("\0") if text else []

    def placement(self, pid: int) -> Placement:
        """Nothing where the kernel has no cgroups or does not show them."""
        try:
            return parse_placement(self._read(pid, "cgroup", 16384).decode(errors="replace"))
        except OSError:
            return Placement()

    def login_uid(self, pid: int) -> int | None:
        """Who logged in at the beginning of it all; kept through sudo and su. None for what the machine started."""
        try:
            uid = int(self._read(pid, "loginuid", 32))
        except (OSError, ValueError):
            return None  # a kernel without auditing has no such file
        return None if uid == _NO_LOGIN else uid

    def variable(self, pid: int, name: str) -> str | None:
        """A variable of the environment it was started with; None where it has none or may not be looked into."""
        try:
            variables = b"\0" + self._read(pid, "environ", _ENVIRONMENT_BYTES) + b"\0"
        except OSError:
            return None
        _, found, rest = variables.partition(f"\0{name}=".encode())
        return rest.partition(b"\0")[0].decode(errors="replace") if found else None

    def boot_time(self) -> int:
        with open(f"{self._folder}/stat", "rb") as lines:  # noqa: PTH123 - see the class
            for line in lines:
                if line.startswith(b"btime "):
                    return int(line[6:])
        raise ValueError("no btime in /proc/stat")

    def _read(self, pid: int, name: str, limit: int) -> bytes:
        descriptor = os.open(f"{self._folder}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.read(descriptor, limit)
        finally:
            os.close(descriptor)
