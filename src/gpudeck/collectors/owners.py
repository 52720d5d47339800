"""Who is behind a pid: user, command and start, read from /proc.

A process may vanish between any two reads, and pids are used again: an owner is kept for a pid only as long as the
process has the start time it had when it was read.
"""

import os
import pwd
from collections.abc import Callable, Iterable
from pathlib import Path

from msgspec import Struct, field

from gpudeck.collectors.redaction import clean, redact

GONE = "the process is not in /proc"
ALL_HIDDEN = (
    "none of the listed processes is in /proc: this looks like a PID namespace (run the agent on the host, or with the "
    "host's PID namespace), a /proc that hides other users' processes, or a driver struct mismatch in the process list"
)
_UNREADABLE = "not permitted to read it from /proc"

# A program may rename itself (workers of a server do), and an account may be renamed.
_REFRESH_SECONDS = 60.0
_COMMAND_BYTES = 4096
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Owner(Struct, frozen=True):
    """What is known of a process. None is unknown; `reasons` says why, by field. `name` is the kernel's short name."""

    name: str = ""
    user: str | None = None
    command: str | None = None
    started_at: float | None = None
    evidence: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)


class _Kept(Struct, frozen=True):
    owner: Owner
    start_ticks: int
    read_at: float


def find_user_name(uid: int) -> str:
    """The account's name, or the number as text where there is no such account. May ask a directory server."""
    try:
        return clean(pwd.getpwuid(uid).pw_name) or str(uid)
    except KeyError:
        return str(uid)


class Owners:
    """Finds owners, and remembers them while their processes live. Not for several threads at once."""

    def __init__(self, proc: Path = Path("/proc"), user_name: Callable[[int], str] = find_user_name) -> None:
        self._proc = str(proc)
        self._user_name = user_name
        self._kept: dict[int, _Kept] = {}

    def find(self, pids: Iterable[int], now: float) -> dict[int, Owner]:
        """The owner of each pid. Never raises for a process: what cannot be read is None with its reason."""
        found = {pid: self._find(pid, now) for pid in set(pids)}
        self._kept = {pid: kept for pid, kept in self._kept.items() if found.get(pid) is not None}
        reason = GONE if any(found.values()) else ALL_HIDDEN
        return {pid: owner or _unknown_owner(reason) for pid, owner in found.items()}

    def _find(self, pid: int, now: float) -> Owner | None:
        """The owner, or None when there is no such process (any more)."""
        try:
            name, start_ticks = self._read_stat(pid)
        except PermissionError:
            return self._find_user_only(pid)
        except (OSError, ValueError):
            return None
        kept = self._kept.get(pid)
        if kept and kept.start_ticks == start_ticks and abs(now - kept.read_at) < _REFRESH_SECONDS:
            return kept.owner
        owner = self._describe(pid, name, start_ticks)
        # A process that is just being started has no command line yet: look again next time.
        if owner is not None and owner.command != _bracket(name):
            self._kept[pid] = _Kept(owner, start_ticks, now)
        return owner

    def _describe(self, pid: int, name: str, start_ticks: int) -> Owner | None:
        reasons: dict[str, str] = {}
        try:
            uid = os.stat(f"{self._proc}/{pid}").st_uid  # noqa: PTH116 - on every beat; a Path costs more than the call
            command = self._read_command(pid, name, reasons)
            if self._read_stat(pid)[1] != start_ticks:
                return None  # the pid went to another process between the reads
        except (OSError, ValueError):
            return None
        started_at = self._started_at(start_ticks, reasons)
        return Owner(name, self._user_name(uid), command, started_at, _evidence(uid, pid), reasons)

    def _find_user_only(self, pid: int) -> Owner | None:
        """With hidepid=1 the directory's owner is all that other users may see."""
        try:
            uid = os.stat(f"{self._proc}/{pid}").st_uid  # noqa: PTH116 - as above
        except OSError:
            return None
        reasons = {"command": _UNREADABLE, "started_at": _UNREADABLE}
        return Owner(user=self._user_name(uid), evidence=_evidence(uid, pid), reasons=reasons)

    def _read_stat(self, pid: int) -> tuple[str, int]:
        """The kernel's short name (15 bytes, may itself hold spaces and brackets) and the start in clock ticks."""
        before, _, after = _read(f"{self._proc}/{pid}/stat", 1024).rpartition(b")")
        return clean(before.partition(b"(")[2].decode(errors="replace")), int(after.split()[19])

    def _read_command(self, pid: int, name: str, reasons: dict[str, str]) -> str | None:
        try:
            raw = _read(f"{self._proc}/{pid}/cmdline", _COMMAND_BYTES)
        except PermissionError:
            reasons["command"] = _UNREADABLE
            return None
        if len(raw) == _COMMAND_BYTES:
            # The last argument is cut: half a secret may no longer look like one.
            raw = raw.rpartition(b"\0")[0] or raw
        arguments = raw.rstrip(b"\0").decode(errors="replace").split("\0")
        # Zombies and kernel threads have no command line; `ps` shows them the same way.
        return redact(arguments) or _bracket(name)

    def _started_at(self, start_ticks: int, reasons: dict[str, str]) -> float | None:
        try:
            booted_at = read_boot_time(self._proc)
        except (OSError, ValueError):
            reasons["started_at"] = "the time of boot is not in /proc/stat"
            return None
        return booted_at + start_ticks / _TICKS_PER_SECOND


def read_boot_time(proc: str) -> int:
    """When the kernel started, in Unix seconds. Raises OSError or ValueError where /proc/stat does not say."""
    with open(f"{proc}/stat", "rb") as lines:  # noqa: PTH123 - callers hold text, not a Path
        for line in lines:
            if line.startswith(b"btime "):
                return int(line[6:])
    raise ValueError("no btime in /proc/stat")


def _read(path: str, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def _bracket(name: str) -> str:
    return f"[{name}]"


def _evidence(uid: int, pid: int) -> str:
    return f"uid {uid} of /proc/{pid}"


def _unknown_owner(reason: str) -> Owner:
    return Owner(reasons={"user": reason, "command": GONE, "started_at": GONE})
