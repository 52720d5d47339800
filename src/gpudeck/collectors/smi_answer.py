"""The answer to the command of `smi_command` as the files of that machine, for what reads /proc on this one.

Names of containers, and Slurm jobs that only the environment names, are not available.
"""

import contextlib
import errno
import math
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from gpudeck.collectors.base import CollectorSettings
from gpudeck.collectors.host import HostFiles
from gpudeck.collectors.owners import Owners, ProcessOwner
from gpudeck.collectors.proc import Proc, Stat, parse_stat
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.smi_command import LINE_BYTES, MAX_PROCESSES, SmiAnswer, read_number
from gpudeck.model.text import read_whole

GONE: Final = "the process is not in /proc: it has ended, or is hidden from this account"
ALL_HIDDEN: Final = (
    "none of the listed processes is in /proc: this looks like a PID namespace (read the host, not a container on it), "
    "or a /proc that hides other users' processes (hidepid)"
)
_TOO_MANY: Final = f"there are more than {MAX_PROCESSES} processes: the owners of the rest were not read"
_PARTS: Final = {
    "/etc/machine-id": "machine",
    "/etc/os-release": "system",
    "/proc/loadavg": "load",
    "/proc/meminfo": "memory",
    "/proc/self/net/dev": "network",
    "/proc/sys/kernel/random/boot_id": "boot",
    "/proc/uptime": "uptime",
}
"""The part of the answer that has a file."""
_CLOCK: Final = re.compile(r"([0-9]{1,10})(\.[0-9]{9})?")
_MAX_PID: Final = 2**32 - 1
_MAX_CPUS: Final = 100_000
_MAX_TICKS: Final = 2**53
_FILE_LINE: Final = re.compile(r"/proc/([0-9]{1,10})/(cmdline|cgroup|loginuid|status):", re.ASCII)
_UID: Final = re.compile(r"Uid:\s*[0-9]{1,10}\s", re.ASCII)
_WORD_LENGTH: Final = 256


class AnswerFiles(HostFiles):
    def __init__(self, answer: SmiAnswer) -> None:
        super().__init__()
        self.environment = {}
        self._answer = answer
        self._links = dict(line.split(" ", 1) for line in answer.lines("namespaces") if " " in line)

    def read(self, path: str) -> str:
        lines = self._answer.lines(_PARTS.get(path, ""))
        if path == "/proc/stat":
            lines = self._read_stat()
        elif path == "/run/systemd/container":
            lines = [line for line in self._answer.lines("container") if not line.startswith("/")]
        if not any(lines):
            raise FileNotFoundError(errno.ENOENT, "it was not read", path)
        return "\n".join(lines)

    def exists(self, path: str) -> bool:
        return path in self._answer.lines("container") or path in self._answer.lines("cards")

    def link(self, path: str) -> str:
        return self._links.get(path.removeprefix("/proc/"), "")

    def disk_bytes(self) -> tuple[int, int]:
        # Counted from the end: the device's name may contain spaces.
        words = (self._answer.lines("disk") or [""])[-1].split()
        if len(words) < 6 or words[-1] != "/":
            raise ValueError("df was not read")
        used, total = (read_whole(words[place], 2**53) for place in (-4, -5))
        if used is None or total is None:
            raise ValueError("df was not read")
        return used * 1024, total * 1024

    def uptime_seconds(self) -> float:
        """The clock of rates: the time that an answer takes to arrive does not matter. NaN where it was not read."""
        uptime = read_number(self._answer.first("uptime").partition(" ")[0])
        return math.nan if uptime is None else uptime

    def clock(self) -> float | None:
        """The machine's own clock at the time of the answer, or None if unknown. Not every `date` knows `%N`: without
        it, the middle of the second is used, at most half a second off."""
        found = _CLOCK.match(self._answer.first("clock"))
        if found is None:
            return None
        return float(found[0]) if found[2] else float(found[1]) + 0.5

    def _read_stat(self) -> list[str]:
        times = [line for line in self._answer.lines("cpu") if line.startswith("cpu ")][:1]
        booted = [line for line in self._answer.lines("cpu") if line.startswith("btime ")][:1]
        count = read_whole(self._answer.first("threads"), _MAX_CPUS) or 0
        return [*(times or ["cpu"] * bool(count)), *(["cpu0"] * count), *booted]


class AnswerProc(Proc):
    """A process whose pid was reused between the reads is not in it."""

    def __init__(self, answer: SmiAnswer) -> None:
        super().__init__("")
        before, after = _read_starts(answer.lines("starts")), _read_starts(answer.lines("starts-after"))
        self._stats = {
            pid: stat for pid, stat in before.items() if pid in after and after[pid].start_ticks == stat.start_ticks
        }
        self._files = _read_files(answer.lines("files"))
        self._users = _read_users(answer.lines("owners"))
        self._names = dict(self._users.values()) | _read_accounts(answer.lines("accounts"))
        booted = next((line[6:] for line in answer.lines("cpu") if line.startswith("btime ")), "")
        self._booted_at = read_whole(booted, 2**53)
        self.ticks_per_second = read_whole(answer.first("ticks"), 100_000) or 100

    @property
    def pid_namespace(self) -> str:
        return ""

    def user_name(self, uid: int) -> str:
        return self._names.get(uid) or str(uid)

    def stat(self, pid: int) -> Stat:
        if pid not in self._stats:
            raise FileNotFoundError(f"/proc/{pid}/stat was not read")
        return self._stats[pid]

    def folder_uid(self, pid: int) -> int:
        if pid not in self._users:
            raise FileNotFoundError(f"ps did not list {pid}")
        return self._users[pid][0]

    def boot_time(self) -> int:
        if self._booted_at is None:
            raise ValueError("no btime in /proc/stat")
        return self._booted_at

    def _read(self, pid: int, name: str, limit: int) -> bytes:
        # A process without arguments has none in the answer.
        lines = self._files.get((pid, name), [""] if name == "cmdline" else None)
        if lines is None or (name == "status" and not _UID.match(lines[0])):
            raise FileNotFoundError(f"/proc/{pid}/{name} was not read")
        text = "\n" * (name == "status") + "\n".join(lines)
        # Arguments end with a byte 1 in place of 0. A line break within one begins a new line.
        return (text.replace("\x01", "\0") if name == "cmdline" else text).encode(errors="replace")[:limit]


def read_owners(answer: SmiAnswer, pids: Iterable[int], settings: CollectorSettings) -> dict[int, ProcessOwner]:
    """The owner of each pid. It is unknown if the process has ended, or its pid was reused between the reads."""
    wanted = set(pids)

    def describe_missing(has_others: bool) -> ProcessOwner:
        why = _TOO_MANY if len(wanted) > MAX_PROCESSES else GONE if has_others else ALL_HIDDEN
        return ProcessOwner(reasons={"user": why, "command": GONE, "started_at": GONE})

    proc = AnswerProc(answer)
    # The sockets that know the names of containers are on the other machine.
    owners = Owners(
        proc,
        proc.user_name,
        commands=settings.commands,
        container_name=lambda *_: None,
        describe_missing=describe_missing,
    )
    return owners.find(wanted, 0.0)


def _read_starts(lines: Iterable[str]) -> dict[int, Stat]:
    """Lines of /proc/<pid>/stat, by pid."""
    starts = {}
    for line in lines:
        pid = read_whole(line.partition(" (")[0], _MAX_PID)
        with contextlib.suppress(ValueError):
            stat = parse_stat(line.encode(errors="replace"))
            if pid is not None and 0 <= stat.start_ticks < _MAX_TICKS:
                starts[pid] = stat
    return starts


def _read_users(lines: Iterable[str]) -> dict[int, tuple[int, str]]:
    users = {}
    for line in lines:
        pid, uid, name = (*line.split(None, 2), "", "", "")[:3]
        number, owner = read_whole(pid, _MAX_PID), read_whole(uid, _MAX_PID)
        if number is not None and owner is not None:
            users[number] = (owner, _word(name) or str(owner))
    return users


def _read_accounts(lines: Iterable[str]) -> dict[int, str]:
    accounts = {}
    for line in lines:
        name, _, number = line.rpartition(":")
        uid, word = read_whole(number, _MAX_PID), _word(name)
        if uid is not None and word:
            accounts[uid] = word
    return accounts


def _read_files(lines: Iterable[str]) -> dict[tuple[int, str], list[str]]:
    """Lines by pid and file. Nothing follows a line of a command that was cut."""
    found: defaultdict[tuple[int, str], list[str]] = defaultdict(list)
    cut: set[int] = set()
    for line in lines:
        if (path := _FILE_LINE.match(line)) is None:
            continue
        pid, kind, text = int(path[1]), path[2], line[path.end() :]
        if kind != "cmdline":
            found[pid, kind].append(text[:LINE_BYTES])
        elif pid not in cut:
            if len(line.encode(errors="replace")) >= LINE_BYTES:
                # Half a secret may no longer look like one: drop the argument that was cut.
                text = text.rpartition("\x01")[0]
                cut.add(pid)
            found[pid, kind].append(text)
    return found


def _word(text: str | None) -> str | None:
    return clean(text or "").strip()[:_WORD_LENGTH] or None
