"""Who is behind the processes that nvidia-smi lists, from what the command of `smi_command.py` read of ps and /proc.

The conclusions are those of `attribution.py`, which reads the machine's answer as if it were a /proc. Two things an
agent finds are not there: names of containers (their runtime's socket), and the Slurm job in an environment.
"""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct, field

from gpudeck.collectors.attribution import Attributed, Attribution
from gpudeck.collectors.containers import ContainerNames
from gpudeck.collectors.proc import Proc
from gpudeck.collectors.redaction import clean, show
from gpudeck.collectors.settings import CollectorSettings
from gpudeck.collectors.smi_answer import Answer, read_whole
from gpudeck.collectors.smi_command import LINE_BYTES, PROCESSES_AT_MOST
from gpudeck.collectors.smi_host import Host

GONE = "the process is not in /proc: it has ended, or is hidden from this account"
ALL_HIDDEN = (
    "none of the listed processes is in /proc: this looks like a PID namespace (read the host, not a container on it), "
    "or a /proc that hides other users' processes (hidepid)"
)
_NO_START = "the machine did not tell when it booted"
_NO_USER = "neither ps nor /proc told whose process it is"
_NOT_SENT = "commands are not sent (commands: none)"
_NOT_ASKED = f"there are more than {PROCESSES_AT_MOST} processes: the owners of the rest were not asked for"
_PID_AT_MOST = 2**32 - 1
_TICKS_AT_MOST = 2**53
_FILE_LINE = re.compile(r"/proc/([0-9]{1,10})/(cmdline|cgroup|loginuid|status):", re.ASCII)
_UID = re.compile(r"Uid:\s*[0-9]{1,10}\s", re.ASCII)
_WORD_LENGTH = 256


class Owner(Struct, frozen=True):
    """What is known of a process. None is unknown; `reasons` says why, by field."""

    user: str | None = None
    command: str | None = None
    started_at: float | None = None
    evidence: str | None = None
    container: str | None = None
    job: str | None = None
    is_display_server: bool = False
    reasons: dict[str, str] = field(default_factory=dict)


class _Start(Struct, frozen=True):
    name: str
    ticks: int
    line: str


class _Files(Struct):
    """Lines of the files of one process. After a line of its command that was cut no more of that are taken."""

    command: list[str] = field(default_factory=list)
    others: dict[str, list[str]] = field(default_factory=dict)
    is_cut: bool = False

    def take(self, kind: str, text: str, *, is_cut: bool) -> None:
        if kind != "cmdline":
            self.others.setdefault(kind, []).append(text[:LINE_BYTES])
        elif not self.is_cut:
            # Half a secret may no longer look like one: the argument that was cut goes as a whole.
            self.command.append(text.rpartition("\x01")[0] if is_cut else text)
            self.is_cut = is_cut


class _ToldProc(Proc):
    """A /proc that holds what the machine's answer does, and nothing of the machine this runs on."""

    def __init__(self, starts: Mapping[int, _Start], files: Mapping[int, _Files]) -> None:
        super().__init__("")
        self._starts = starts
        self._files = files

    def folder_uid(self, pid: int) -> int:
        raise FileNotFoundError(f"/proc/{pid} was not read")

    def _read(self, pid: int, name: str, limit: int) -> bytes:
        if name == "stat" and pid in self._starts:
            return self._starts[pid].line.encode(errors="replace")
        lines = self._files[pid].others.get(name) if pid in self._files else None
        if lines is None or (name == "status" and not _UID.match(lines[0])):
            raise FileNotFoundError(f"/proc/{pid}/{name} was not read")
        return ("\n" * (name == "status") + "\n".join(lines)).encode(errors="replace")[:limit]


class _NoNames(ContainerNames):
    """The sockets that know names of containers are on the other machine."""

    def find(self, container: str, uid: int | None = None) -> str | None:
        return None


def read_owners(answer: Answer, host: Host, pids: Iterable[int], settings: CollectorSettings) -> dict[int, Owner]:
    """The owner of each pid; one that has ended, or whose pid went to another process meanwhile, is unknown."""
    wanted = sorted(set(pids))
    before, after = _read_starts(answer.lines("starts")), _read_starts(answer.lines("starts-after"))
    living = {pid for pid, start in before.items() if pid in after and after[pid].ticks == start.ticks}
    finder = _Finder(answer, before, settings)
    missing = Owner(reasons=_reasons_of_missing(wanted, living))
    return {pid: finder.describe(pid, host) if pid in living else missing for pid in wanted}


class _Finder:
    """Finds owners in one answer."""

    def __init__(self, answer: Answer, starts: Mapping[int, _Start], settings: CollectorSettings) -> None:
        self._starts = starts
        self._commands = settings.commands
        # The kernel keeps 15 bytes of a program's name.
        self._display_names = frozenset(name[:15] for name in settings.display_servers)
        self._files = _read_files(answer.lines("files"))
        self._users = _read_users(answer.lines("owners"))
        self._names = dict(self._users.values()) | _read_accounts(answer.lines("accounts"))
        self._proc = _ToldProc(starts, self._files)
        self._attribution = Attribution(self._proc, _NoNames(), self._name_user)

    def describe(self, pid: int, host: Host) -> Owner:
        start, found = self._starts[pid], self._attribute(pid)
        reasons = {} if found else {"user": _NO_USER}
        if host.booted_at is None:
            reasons["started_at"] = _NO_START
        if self._commands == "none":
            reasons["command"] = _NOT_SENT
        return Owner(
            user=found.user if found else None,
            command=show(_split_arguments(self._files.get(pid, _Files()).command), start.name, self._commands),
            started_at=None if host.booted_at is None else host.booted_at + start.ticks / host.ticks_per_second,
            evidence=clean(found.evidence) if found else None,
            container=_word(found.container) if found else None,
            job=_word(found.job) if found else None,
            is_display_server=start.name[:15] in self._display_names,
            reasons=reasons,
        )

    def _attribute(self, pid: int) -> Attributed | None:
        try:
            uid = self._proc.uid(pid)
        except (OSError, ValueError):
            if pid not in self._users:
                return None
            uid = self._users[pid][0]
        return self._attribution.attribute(pid, uid)

    def _name_user(self, uid: int) -> str:
        return self._names.get(uid) or str(uid)[:_WORD_LENGTH]


def _reasons_of_missing(wanted: list[int], living: set[int]) -> dict[str, str]:
    reason = GONE if living else ALL_HIDDEN
    return {"user": _NOT_ASKED if len(wanted) > PROCESSES_AT_MOST else reason, "command": GONE, "started_at": GONE}


def _read_starts(lines: Iterable[str]) -> dict[int, _Start]:
    """Lines of /proc/<pid>/stat by pid; a name may hold brackets and spaces."""
    starts = {}
    for line in lines:
        before, _, after = line.rpartition(")")
        number, _, name = before.partition(" (")
        words = after.split(None, 20)
        pid = read_whole(number, _PID_AT_MOST)
        ticks = read_whole(words[19], _TICKS_AT_MOST) if len(words) > 19 else None
        if pid is not None and ticks is not None:
            starts[pid] = _Start(clean(name)[:_WORD_LENGTH], ticks, line)
    return starts


def _read_users(lines: Iterable[str]) -> dict[int, tuple[int, str]]:
    """Uid and account by pid, as ps told them."""
    users = {}
    for line in lines:
        words = line.split(None, 2)
        pid = read_whole(words[0], _PID_AT_MOST) if len(words) > 1 else None
        uid = read_whole(words[1], _PID_AT_MOST) if len(words) > 1 else None
        if pid is not None and uid is not None:
            users[pid] = (uid, _word(words[2]) or str(uid) if len(words) > 2 else str(uid))
    return users


def _read_accounts(lines: Iterable[str]) -> dict[int, str]:
    """Names by uid, as the machine's directory of accounts told them."""
    accounts = {}
    for line in lines:
        name, _, number = line.rpartition(":")
        uid, word = read_whole(number, _PID_AT_MOST), _word(name)
        if uid is not None and word:
            accounts[uid] = word
    return accounts


def _read_files(lines: Iterable[str]) -> dict[int, _Files]:
    """The lines of the files that were read, by pid; every line has its file's path in front."""
    found: dict[int, _Files] = {}
    for line in lines:
        if path := _FILE_LINE.match(line):
            is_cut = len(line.encode(errors="replace")) >= LINE_BYTES
            found.setdefault(int(path[1]), _Files()).take(path[2], line[path.end() :], is_cut=is_cut)
    return found


def _split_arguments(lines: list[str]) -> list[str]:
    """Arguments end with a byte 1 in place of 0. A line break within one begins a new line."""
    text = "\n".join(lines).rstrip("\x01")
    return text.split("\x01") if text else []


def _word(text: str | None) -> str | None:
    return clean(text or "").strip()[:_WORD_LENGTH] or None
