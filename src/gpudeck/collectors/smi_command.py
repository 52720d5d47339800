"""The one shell command that reads a whole machine through nvidia-smi, ps and /proc, and its answer: its parts, and the
files of that machine for the code that reads /proc here.

It is plain POSIX sh, so that it runs wherever an SSH login leads; it writes nothing there, and needs no Python. Its
script has no single quote, no line break and no `!`: in single quotes it passes sh, bash, zsh, fish and csh alike.

The host's figures come first, so that they are there even if nvidia-smi then hangs; its clock comes last. Every part
of the answer follows a line `#gpudeck NAME`, and every line of data has a space in front: no data, whatever it holds,
looks like such a line. An answer may be anything: cut off, a login banner, an error page.

**Columns.** `nvidia-smi --query-gpu` fails as a whole over one column that the driver does not know, and names it. The
script takes that column out (or uses its older name) and asks again, so an old driver gives all that it has and a new
one is asked once. The answer holds the columns that were understood: asking for these next time saves the retries.
`--help-query-gpu` would cost a call on every machine (24 ms on an H200, driver 580, as much as a failed try does).

**Calls.** Two of nvidia-smi a poll (33 and 27 ms on that H200): the columns, and `-q -d PIDS,ROW_REMAPPER`, which has
compute and graphics processes with their MIG instances. `--query-compute-apps` lacks both; `pmon` takes 73 ms, `-q -x`
98 ms, most of it for PCIe throughput. Only boards in MIG mode cost `-L` and the table too, for UUIDs and memory of
instances. A board that is lost makes nvidia-smi fail for all: the others are then asked one by one.

Names of containers, and Slurm jobs that only the environment names, are not in the answer.
"""

import contextlib
import errno
import logging
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gpudeck.collectors.base import NO_VALUE, UNSUPPORTED, CollectorSettings
from gpudeck.collectors.host import HostFiles
from gpudeck.collectors.owners import Owners, ProcessOwner
from gpudeck.collectors.proc import Proc, Stat, parse_stat
from gpudeck.collectors.redaction import clean
from gpudeck.model.errors import Temporary
from gpudeck.model.text import read_whole

MARK = "#gpudeck "
"""How a line that begins a part of the answer begins."""
SECONDS = 9
"""How long all calls of nvidia-smi together may take by default, where the machine has `timeout`."""
MAX_PROCESSES = 256
MAX_PARENTS = 16
LINE_BYTES = 1100
"""The part of a line of a file in /proc that the answer has."""
LATE_CODES = frozenset({124, 137})
"""Exit codes of `timeout` for a command that did not end in time."""
NO_PROGRAM = 127
"""Exit code of the shell for a command that is not there."""

COLUMNS: tuple[str, ...] = (
    *("index", "uuid", "name", "pci.bus_id", "driver_version", "mig.mode.current", "pstate"),
    *("utilization.gpu", "utilization.memory", "utilization.encoder", "utilization.decoder"),
    *("memory.used", "memory.total", "temperature.gpu", "temperature.memory", "fan.speed"),
    *("power.draw", "enforced.power.limit", "clocks.sm", "clocks.mem", "clocks_event_reasons.active"),
    *("ecc.errors.corrected.volatile.total", "ecc.errors.uncorrected.volatile.total"),
)
KNOWN_COLUMNS = frozenset({*COLUMNS, "clocks_throttle_reasons.active"})

_HOST = (
    "exec </dev/null 2>/dev/null;",
    "LC_ALL=C; TZ=UTC0; export LC_ALL TZ;",
    # The PATH of a command over SSH is short; WSL keeps nvidia-smi in a place of its own.
    'PATH="$PATH:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin:/usr/lib/wsl/lib"; export PATH;',
    'limit=""; if timeout -k 1 1 true; then limit="timeout -k 1"; fi;',
    # The kernel's uptime is a clock that the shell reads without starting a program.
    "look() { read -r now rest </proc/uptime; now=${now%%.*}; now=${now:-0}; };",
    # It is cut to whole seconds here: one more, so that nothing is ended early.
    "look; end=$((now+seconds+1));",
    # A file need not end with a line break: each mark brings its own.
    'mark() { printf "\\n%s\\n" "#gpudeck $1"; };',
    'indent() { sed "s/^/ /"; };',
    'show() { mark "$1"; cat "$2" | indent; };',
    "mark begin;",
    "show boot /proc/sys/kernel/random/boot_id;",
    "show machine /etc/machine-id;",
    "mark namespaces; for file in self/ns/pid self/ns/mnt 1/ns/mnt; do",
    'printf " %s %s\\n" "$file" "$(readlink /proc/$file)"; done;',
    "mark container; for file in /.dockerenv /run/.containerenv; do",
    'if [ -e "$file" ]; then printf " %s\\n" "$file"; fi; done;',
    "cat /run/systemd/container | indent;",
    'mark cpu; grep -E "^(cpu|btime) " /proc/stat | indent;',
    'mark threads; grep -c "^cpu[0-9]" /proc/stat | indent;',
    "mark ticks; getconf CLK_TCK | indent;",
    "show load /proc/loadavg;",
    'mark memory; grep -E "^(MemTotal|MemAvailable|SwapTotal|SwapFree):" /proc/meminfo | indent;',
    "show uptime /proc/uptime;",
    "mark disk; df -P -k / | indent;",
    "show network /proc/net/dev;",
    "mark cards; ls -d /sys/class/net/*/device | indent;",
    'mark system; grep "^PRETTY_NAME=" /etc/os-release | indent;',
)

_NVIDIA = (
    # Under a limit that all calls share: however many hang, the answer comes in time, and none is left behind.
    'smi() { look; left=$((end-now)); if [ -z "$limit" ]; then nvidia-smi "$@";',
    'elif [ "$left" -lt 1 ]; then return 124; else $limit "$left" nvidia-smi "$@"; fi; };',
    'query() { smi "$@" "--query-gpu=$columns" --format=csv,noheader,nounits 2>&1; };',
    # Drivers without row remapping refuse its name; those that know it may still have GPUs without it.
    'detail() { smi "$@" -q -d PIDS,ROW_REMAPPER 2>&1; case "$?" in 0|124|137) ;;',
    '*) smi "$@" -q -d PIDS 2>&1;; esac; };',
    "uuids() { smi -L |",
    'sed -n "s/^GPU [0-9]*: .*(UUID: \\(GPU-[0-9A-Za-z-]*\\)).*/\\1/p"; };',
    # Asks until the driver understands every column; leaves rows, code and columns.
    'fit() { tries=0; while rows=$(query "$@"); code=$?; tries=$((tries+1));',
    'field=$(printf "%s\\n" "$rows" | sed -n "s/^Field .\\([a-z0-9_.]*\\). is not a valid field.*/\\1/p" | head -n 1);',
    '[ -n "$field" ] && [ "$tries" -le 20 ]; do',
    # Driver 535 renamed throttling to events.
    'other=","; case "$field" in clocks_event_reasons.*) other=",clocks_throttle_reasons.${field#*.},";; esac;',
    'columns=$(printf "%s\\n" ",$columns," | sed "s/,$field,/$other/; s/^,//; s/,\\$//");',
    "done; };",
    'rows=""; details=""; code=127;',
    "if command -v nvidia-smi >/dev/null; then fit; fi;",
    'all="$rows"; result="$code";',
    'case "$result" in',
    "0) details=$(detail);;",
    "124|127|137) ;;",
    '*) boards=$(uuids); for uuid in $boards; do fit -i "$uuid"; all=$(printf "%s\\n" "$all" "$rows"); done;',
    'details=$(for uuid in $boards; do detail -i "$uuid"; done);;',
    "esac;",
    'mark limit; printf "%s\\n" "$seconds" | indent;',
    'mark columns; printf "%s\\n" "$columns" | indent;',
    'mark gpus-code; printf "%s\\n" "$result" | indent;',
    'mark gpus; printf "%s\\n" "$all" | indent;',
    'mark details; printf "%s\\n" "$details" | indent;',
    'case "$all" in *", Enabled,"*)',
    "mark instances; smi -L | indent; mark table; smi | indent;;",
    "esac;",
)

# The start of each process is read before and after the rest: a pid that went to another process in between shows.
# Parents are read too: they show which user started what runs as root. The shell's own `read` costs no process.
_OWNERS = (
    'pids=$(printf "%s\\n" "$details" | sed -n "s/^ *Process ID *: *\\([0-9][0-9]*\\) *\\$/\\1/p" | sort -u |',
    f"head -n {MAX_PROCESSES});",
    f'climb() {{ pid="$1"; steps=0; while [ "$pid" -gt 1 ] && [ "$steps" -lt {MAX_PARENTS} ]; do',
    'printf "%s\\n" "$pid"; read -r line <"/proc/$pid/stat" || break;',
    'set -- ${line##*) }; pid="$2"; steps=$((steps+1)); done; };',
    f"family=$(for each in $pids; do climb $each; done | sort -u | head -n {2 * MAX_PROCESSES});",
    'starts() { for pid in $family; do if read -r line <"/proc/$pid/stat"; then printf " %s\\n" "$line"; fi; done; };',
    # Without a width, ps shows a long name as a number, or cut.
    'list=$(printf "%s\\n" "$pids" | paste -s -d , -);',
    'names() { ps -ww -o pid= -o ruid= -o ruser:64= -p "$list" || ps -o pid= -o uid= -o user= -p "$list"; };',
    'if [ -n "$pids" ]; then shown="${arguments:+$pids}";',
    'files=""; for pid in $shown; do files="$files /proc/$pid/cmdline"; done;',
    'states=""; groups=""; logins=""; for pid in $family; do states="$states /proc/$pid/status";',
    'groups="$groups /proc/$pid/cgroup"; logins="$logins /proc/$pid/loginuid"; done;',
    "mark starts; starts;",
    "mark owners; names | indent;",
    # Arguments end with a zero byte, which would be lost: they keep their borders, which redaction needs.
    'mark files; { grep -aHs -m 16 "" $files $groups $logins; grep -aHs "^Uid:" $states; } |',
    f'tr "\\000" "\\001" | cut -b1-{LINE_BYTES} | indent;',
    "mark starts-after; starts;",
    'uids=$({ grep -hs "^Uid:" $states | cut -f 2; grep -hs "" $logins;',
    'sed -n "s/.*\\/user-\\([0-9]*\\)\\.slice.*/\\1/p; s/.*\\/uid_\\([0-9]*\\)\\/.*/\\1/p" $groups; } | sort -u |',
    f"head -n {MAX_PROCESSES});",
    "mark accounts; ${limit:+$limit 2} getent passwd $uids | cut -d : -f 1,3 | indent;",
    "fi;",
)
# Last, so that it is the time of the answer. A `date` without %N prints something else there, which is no number.
_END = ("mark clock; date +%s.%N | indent;", "mark end")
log = logging.getLogger(__name__)

LOST = "the GPU is lost: it fell off the bus or stopped answering"
NEEDS_RESET = "the GPU needs a reset"
FATAL = frozenset({LOST, NEEDS_RESET})
"""Reasons that make a whole GPU unreadable."""
_REASONS = (
    ("gpu is lost", LOST),
    ("gpu requires reset", NEEDS_RESET),
    ("not supported", UNSUPPORTED),
    ("n/a", UNSUPPORTED),
    ("not available", NO_VALUE),
    ("no data", NO_VALUE),
    ("insufficient permissions", "not permitted to read it"),
    ("no permission", "not permitted to read it"),
    ("function not found", "the driver is too old to report it"),
    ("deprecated", "the driver no longer reports it"),
    ("unknown error", "the driver reports an unknown error"),
)

_MIB = 1024 * 1024
_SCALES = {"kib": 1024, "mib": _MIB, "gib": 1024 * _MIB}
# nvidia-smi follows the locale in nothing that is known, but a wrapper may: a comma is taken for the point.
_NUMBER = re.compile(r"(-?[0-9]{1,20}(?:[.,][0-9]{1,12})?)\s*(%|[A-Za-z]{1,3})?")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_BUS_ID = re.compile(r"(?<![0-9a-fA-F])([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\b")
_QUOTED = 160


def shell_command(
    columns: Iterable[str] = COLUMNS, *, with_arguments: bool = True, with_gpus: bool = True, seconds: int = SECONDS
) -> str:
    """The command. `columns` are those of `--query-gpu` to ask for; one that is not in KNOWN_COLUMNS is left out: what
    a machine answered never becomes part of a command. A process that hangs in the kernel is ended by nothing: the
    caller needs a deadline."""
    wanted = ",".join(column for column in columns if column in KNOWN_COLUMNS)
    choices = (f"seconds={seconds};", f"columns={wanted};", f"arguments={'yes' if with_arguments else ''};")
    gpus = (*_NVIDIA, *_OWNERS) if with_gpus else ()
    return f"exec /bin/sh -c '{' '.join((*choices, *_HOST, *gpus, *_END))}'"


class SmiAnswer(Struct, frozen=True):
    """The parts of an answer by name. `cut_in` is the part in which it broke off, None when it is whole."""

    parts: Mapping[str, Sequence[str]]
    cut_in: str | None

    def lines(self, name: str) -> Sequence[str]:
        return self.parts.get(name, ())

    def first(self, name: str) -> str:
        return next((line.strip() for line in self.lines(name) if line.strip()), "")


def split_answer(text: str) -> SmiAnswer:
    """Raises Temporary if the text is not an answer to our command. Text before the answer, such as a banner, is
    ignored."""
    parts: dict[str, list[str]] = {}
    name = None
    # Not splitlines(): that also breaks at characters which a command line may hold.
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if line.startswith(MARK):
            name = line[len(MARK) :].strip()
            parts.setdefault(name, [])
        elif name is not None and line.startswith(" "):
            parts[name].append(line[1:])
        if name == "end":
            break
    if "begin" not in parts:
        # A login banner or a forced command may say anything: its words go to the log only.
        log.info("a machine did not run the command; it said: %s", quote(text[: 4 * _QUOTED]) or "nothing")
        said = f"{len(text)} characters of something else" if text.strip() else "nothing"
        raise Temporary(
            f"The machine did not run the command; it answered {said}.",
            "Log in there and run: sh -c 'echo ok'. The hub's log has the beginning of the answer.",
        )
    return SmiAnswer(parts, None if name == "end" else name)


def quote(text: str) -> str:
    return " ".join(clean(text).split())[:_QUOTED]


def read_number(text: str) -> float | None:
    """A number with or without its unit; KiB, MiB and GiB become bytes. None for anything else."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1].replace(",", ".")) * _SCALES.get((found[2] or "").lower(), 1)


def read_bits(text: str) -> int | None:
    return int(text.strip(), 16) if _HEX.fullmatch(text.strip()) else None


def read_bus_id(text: str) -> str | None:
    """The first PCI address in a text, as the kernel writes it (0000:18:00.0): nvidia-smi gives the domain 4 digits in
    some places and 8 in others."""
    found = _BUS_ID.search(text)
    return f"{int(found[1], 16):04x}:{found[2].lower()}" if found else None


def explain(text: str) -> str:
    """The reason for a field without a number, such as `[N/A]`, `[Not Supported]` or `[GPU is lost]`."""
    said = text.strip().strip("[]").lower()
    if not said:
        return NO_VALUE
    return next((why for mark, why in _REASONS if mark in said), f"nvidia-smi says: {quote(text)}")


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
