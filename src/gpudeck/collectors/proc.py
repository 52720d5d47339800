"""Reads single values from sysfs, with the reason if one is missing, and the files of /proc/<pid>.

Every file is opened, read once and closed. Paths are text: there are dozens of files at every reading, and a Path costs
more than the reading. Files of a process may vanish between two reads: methods of Proc raise OSError or ValueError,
except where a missing file means that there is nothing to say.
"""

import errno
import os
import re

from msgspec import Struct

from gpudeck.collectors.base import NO_VALUE
from gpudeck.collectors.containers import Placement, parse_placement
from gpudeck.collectors.redaction import clean

UNSUPPORTED = "not supported by this GPU or its driver"
NO_NUMBER = "the driver gives something that is no number"

_BYTES = 16384
# Longer ones are no figures, and would not fit into a report.
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_REASONS = {
    errno.ENOENT: UNSUPPORTED,
    errno.ENOTDIR: UNSUPPORTED,
    errno.EOPNOTSUPP: UNSUPPORTED,
    errno.EINVAL: NO_VALUE,
    errno.ENODATA: NO_VALUE,
    errno.EBUSY: NO_VALUE,
    errno.EAGAIN: NO_VALUE,
    errno.EACCES: "not permitted to read it",
    # amdgpu (amdgpu_pm.c) answers so while it resets the GPU or has put it to sleep.
    errno.EPERM: "the driver does not answer now: the GPU is being reset or asleep",
    errno.ENODEV: "the GPU is gone",
}


def read_bytes(path: str, limit: int) -> bytes:
    """The beginning of the file. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def read_text(path: str, limit: int = _BYTES) -> str:
    """The text of the file, without the blanks around it. Raises OSError."""
    return read_bytes(path, limit).decode(errors="replace").strip()


def read_number(path: str) -> int:
    """The whole number that the file holds. Raises OSError, and ValueError where it holds none."""
    text = read_text(path)
    if not text:
        raise ValueError(NO_VALUE)
    if not _NUMBER.fullmatch(text):
        raise ValueError(NO_NUMBER)
    return int(text)


def read_if_there(path: str) -> str:
    """The text of the file; empty if it cannot be read. Never raises."""
    try:
        return read_text(path)
    except OSError:
        return ""


def read_word(path: str) -> str:
    return clean(read_if_there(path))


def read_link(path: str) -> str:
    """The target of a link; empty if it cannot be read."""
    try:
        return os.readlink(path)  # noqa: PTH115 - text, as above
    except OSError:
        return ""


def list_names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - text, as above
    except OSError:
        return []


def explain(error: Exception) -> str:
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0) or f"reading it failed: {error.strerror}"
    return str(error)


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
    """A /proc, seen at `folder`. Another machine's, read over SSH, is a subclass."""

    ticks_per_second = os.sysconf("SC_CLK_TCK")

    def __init__(self, folder: str = "/proc") -> None:
        self._folder = folder

    @property
    def pid_namespace(self) -> str:
        return read_link(f"{self._folder}/self/ns/pid")

    @property
    def hides_others(self) -> bool:
        """Process 1 is always there: who cannot see it is not shown what others run."""
        return bool(self.pid_namespace) and not os.path.exists(f"{self._folder}/1")  # noqa: PTH110 - see the module

    def stat(self, pid: int) -> Stat:
        return parse_stat(self._read(pid, "stat", 1024))

    def uid(self, pid: int) -> int:
        """The real uid: that of the user who started a setuid program."""
        try:
            status = self._read(pid, "status", 4096)
        except FileNotFoundError:
            return self.folder_uid(pid)
        _, found, rest = status.partition(b"\nUid:")
        return int(rest.split(None, 1)[0]) if found else self.folder_uid(pid)

    def folder_uid(self, pid: int) -> int:
        return os.stat(f"{self._folder}/{pid}").st_uid  # noqa: PTH116 - see the module

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
        """The user who logged in, kept through sudo and su. None for a process that the system started."""
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
        with open(f"{self._folder}/stat", "rb") as lines:  # noqa: PTH123 - see the module
            for line in lines:
                if line.startswith(b"btime "):
                    return int(line[6:])
        raise ValueError("no btime in /proc/stat")

    def _read(self, pid: int, name: str, limit: int) -> bytes:
        return read_bytes(f"{self._folder}/{pid}/{name}", limit)
