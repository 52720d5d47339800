"""Who is behind the processes that nvidia-smi lists, from what the command of `smi_command.py` read of ps and /proc."""

from collections.abc import Iterable

from msgspec import Struct, field

from gpudeck.collectors.redaction import clean, redact
from gpudeck.collectors.smi_answer import Answer, read_whole
from gpudeck.collectors.smi_command import LINE_BYTES, PROCESSES_AT_MOST
from gpudeck.collectors.smi_host import Host

GONE = "the process is not in /proc: it has ended, or is hidden from this account"
ALL_HIDDEN = (
    "none of the listed processes is in /proc: this looks like a PID namespace (read the host, not a container on it), "
    "or a /proc that hides other users' processes (hidepid)"
)
_NO_START = "the machine did not tell when it booted or when the process started"
_NOT_ASKED = f"there are more than {PROCESSES_AT_MOST} processes: the owners of the rest were not asked for"
_PID_AT_MOST = 2**32 - 1
_TICKS_AT_MOST = 2**53


class Owner(Struct, frozen=True):
    """What is known of a process. None is unknown; `reasons` says why, by field. `name` is the kernel's short name."""

    name: str = ""
    user: str | None = None
    command: str | None = None
    started_at: float | None = None
    evidence: str | None = None
    cgroup: tuple[str, ...] = ()
    reasons: dict[str, str] = field(default_factory=dict)


class _Files(Struct):
    """Lines of the files of one process. After a line that was cut no more are taken."""

    command: list[str] = field(default_factory=list)
    cgroup: list[str] = field(default_factory=list)
    is_cut: bool = False

    def take(self, kind: str, text: str, *, is_cut: bool) -> None:
        if kind == "cgroup":
            self.cgroup.append(text)
        elif kind == "cmdline" and not self.is_cut:
            # Half a secret may no longer look like one: the argument that was cut goes as a whole.
            self.command.append(text.rpartition("\x01")[0] if is_cut else text)
            self.is_cut = is_cut


def read_owners(answer: Answer, host: Host, pids: Iterable[int]) -> dict[int, Owner]:
    """The owner of each pid; one that has ended, or whose pid went to another process meanwhile, is unknown."""
    wanted = sorted(set(pids))
    before, after = _read_starts(answer.lines("starts")), _read_starts(answer.lines("starts-after"))
    living = {pid for pid, start in before.items() if after.get(pid) == start}
    users, files = _read_users(answer.lines("owners")), _read_files(answer.lines("files"))
    missing = Owner(reasons=_reasons_of_missing(wanted, living))
    return {
        pid: _describe(pid, before[pid], users.get(pid), files.get(pid, _Files()), host) if pid in living else missing
        for pid in wanted
    }


def _reasons_of_missing(wanted: list[int], living: set[int]) -> dict[str, str]:
    reason = GONE if living else ALL_HIDDEN
    return {"user": _NOT_ASKED if len(wanted) > PROCESSES_AT_MOST else reason, "command": GONE, "started_at": GONE}


def _describe(pid: int, start: tuple[str, int], user: tuple[int, str] | None, files: _Files, host: Host) -> Owner:
    reasons: dict[str, str] = {}
    name, ticks = start
    if user is None:
        reasons["user"] = "ps did not list the process"
    if host.booted_at is None:
        reasons["started_at"] = _NO_START
    return Owner(
        name=name,
        user=user[1] if user else None,
        # Zombies and kernel threads have no command line; `ps` shows them the same way.
        command=_read_command(files.command) or f"[{name}]",
        started_at=None if host.booted_at is None else host.booted_at + ticks / host.ticks_per_second,
        evidence=f"uid {user[0]} of /proc/{pid}" if user else None,
        cgroup=tuple(files.cgroup),
        reasons=reasons,
    )


def _read_starts(lines: Iterable[str]) -> dict[int, tuple[str, int]]:
    """Short name and start in ticks since boot by pid, from lines of /proc/<pid>/stat; names may hold brackets."""
    starts = {}
    for line in lines:
        before, _, after = line.rpartition(")")
        number, _, name = before.partition(" (")
        words = after.split()
        pid = read_whole(number, _PID_AT_MOST)
        ticks = read_whole(words[19], _TICKS_AT_MOST) if len(words) > 19 else None
        if pid is not None and ticks is not None:
            starts[pid] = (clean(name), ticks)
    return starts


def _read_users(lines: Iterable[str]) -> dict[int, tuple[int, str]]:
    users = {}
    for line in lines:
        words = line.split(None, 2)
        if len(words) < 2:
            continue
        pid, uid = read_whole(words[0], _PID_AT_MOST), read_whole(words[1], _PID_AT_MOST)
        if pid is not None and uid is not None:
            users[pid] = (uid, clean(words[2]).strip()[:256] if len(words) > 2 else str(uid))
    return users


def _read_files(lines: Iterable[str]) -> dict[int, _Files]:
    """The lines of cmdline and cgroup by pid; every line has its file's path in front."""
    found: dict[int, _Files] = {}
    for line in lines:
        path, _, text = line.partition(":")
        _, _, rest = path.partition("/proc/")
        number, _, kind = rest.partition("/")
        pid = read_whole(number, _PID_AT_MOST)
        if pid is not None:
            is_cut = len(line.encode(errors="replace")) >= LINE_BYTES
            found.setdefault(pid, _Files()).take(kind, text, is_cut=is_cut)
    return found


def _read_command(lines: list[str]) -> str:
    """Arguments end with a byte 1 in place of 0. A line break within one begins a new line."""
    arguments = "\n".join(lines).rstrip("\x01").split("\x01")
    return redact(arguments) if any(arguments) else ""
