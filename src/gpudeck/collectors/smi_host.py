"""The host's figures, its identity and the owners of processes, from the answer to the command of `smi_command.py`.

In a container the disk and the machine id are not the host's. Rates need two answers of one boot. Owners are concluded
as in `owners.py`, with the answer in place of /proc; names of containers and a Slurm job that only the environment
names are not available.
"""

import contextlib
import re
from collections.abc import Callable, Iterable, Mapping

from msgspec import Struct, field

from gpudeck.collectors.base import NEEDS_TWO, CollectorSettings
from gpudeck.collectors.host import (
    NO_INTERFACE,
    RATES,
    derive_machine_id,
    host_name,
    parse_cpu_times,
    parse_interfaces,
    parse_memory,
    percent_between,
    rates_between,
)
from gpudeck.collectors.owners import NOT_SENT, Attributed, Attribution, ProcessOwner
from gpudeck.collectors.proc import FIRST_MOUNT_NAMESPACE, FIRST_PID_NAMESPACE, Proc
from gpudeck.collectors.redaction import clean, show
from gpudeck.collectors.smi_command import LINE_BYTES, MAX_PROCESSES, SmiAnswer, read_number
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.report import Number
from gpudeck.model.text import read_whole

_CONTAINER_KINDS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_MAX_WHOLE = 2**63
_CLOCK = re.compile(r"([0-9]{1,10})(\.[0-9]{9})?")

GONE = "the process is not in /proc: it has ended, or is hidden from this account"
ALL_HIDDEN = (
    "none of the listed processes is in /proc: this looks like a PID namespace (read the host, not a container on it), "
    "or a /proc that hides other users' processes (hidepid)"
)
_NO_START = "the machine did not report its boot time"
_NO_USER = "neither ps nor /proc names its user"
_NOT_ASKED = f"there are more than {MAX_PROCESSES} processes: the owners of the rest were not asked for"
_MAX_PID = 2**32 - 1
_MAX_TICKS = 2**53
_FILE_LINE = re.compile(r"/proc/([0-9]{1,10})/(cmdline|cgroup|loginuid|status):", re.ASCII)
_UID = re.compile(r"Uid:\s*[0-9]{1,10}\s", re.ASCII)
_WORD_LENGTH = 256


class SmiIdentity(Struct, frozen=True):
    """Who answered. `machine_id` is derived as `host.py` does, and empty where there is none to trust."""

    host: str
    boot_id: str
    machine_id: str = ""


class SmiCounters(Struct, frozen=True):
    """What only the difference to the next answer makes useful."""

    boot_id: str = ""
    uptime_seconds: float | None = None
    cpu: tuple[int, int] | None = None
    """Ticks spent working, and ticks altogether."""
    network: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Bytes received and sent, by interface, for those with a device behind them."""


class SmiHost(Struct, frozen=True):
    identity: SmiIdentity
    counters: SmiCounters
    booted_at: int | None
    ticks_per_second: int
    os: str | None
    container: str | None
    metrics: dict[str, Number] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


def read_host(answer: SmiAnswer, before: SmiCounters | None) -> SmiHost:
    """Never raises: what cannot be read is unknown. `before` are the counters of the answer before, if any."""
    container = _find_container(answer)
    booted = next((line[6:] for line in answer.lines("cpu") if line.startswith("btime ")), "")
    booted_at = read_whole(booted, _MAX_WHOLE)
    host = SmiHost(
        identity=_identify(answer, booted_at, container),
        counters=_count(answer),
        booted_at=booted_at,
        ticks_per_second=read_whole(answer.first("ticks"), 100_000) or 100,
        os=clean(answer.first("system").partition("=")[2].strip("\"'"))[:256] or None,
        container=container,
    )
    is_same_boot = before is not None and before.boot_id == host.counters.boot_id
    for names, read in _readings(answer, host, before if is_same_boot else None):
        try:
            values = read()
        except ValueError as error:
            host.unknown.update(dict.fromkeys(names, str(error)))
            continue
        for name, value in values.items():
            metric = HOST_METRICS[name]
            if metric.low <= value <= metric.high:
                host.metrics[name] = metric.round(value)
            else:
                host.unknown[name] = "the machine gives no sensible value"
    return host


def read_clock(answer: SmiAnswer) -> float | None:
    """The machine's own clock when it answered, or None where the answer has none.

    Without `%N`, which not every `date` knows, the middle of the second is taken: at most half a second wrong.
    """
    found = _CLOCK.match(answer.first("clock"))
    if found is None:
        return None
    return float(found[0]) if found[2] else float(found[1]) + 0.5


def _readings(
    answer: SmiAnswer, host: SmiHost, before: SmiCounters | None
) -> tuple[tuple[tuple[str, ...], Callable[[], Mapping[str, float]]], ...]:
    counters = host.counters
    return (
        (("cpu_percent",), lambda: {"cpu_percent": _cpu_percent(before, counters)}),
        (("cpu_count",), lambda: {"cpu_count": _number(answer.first("threads"), "/proc/stat")}),
        (("load_1m",), lambda: {"load_1m": _number(answer.first("load").partition(" ")[0], "/proc/loadavg")}),
        (("memory_used_bytes", "memory_total_bytes"), lambda: _memory(answer, "memory", "Mem", "MemAvailable")),
        (("swap_used_bytes", "swap_total_bytes"), lambda: _memory(answer, "swap", "Swap", "SwapFree")),
        (("disk_used_bytes", "disk_total_bytes"), lambda: _disk(answer, host.container)),
        (RATES, lambda: _network_rates(before, counters)),
        (("uptime_seconds",), lambda: {"uptime_seconds": _known(counters.uptime_seconds, "/proc/uptime")}),
    )


def _identify(answer: SmiAnswer, booted_at: int | None, container: str | None) -> SmiIdentity:
    boot_id = clean(answer.first("boot"))[:64] or (f"booted-{booted_at}" if booted_at else "unknown")
    machine_id = derive_machine_id(answer.first("machine")) if container is None else ""
    return SmiIdentity(host_name(answer.first("name")), boot_id, machine_id)


def _count(answer: SmiAnswer) -> SmiCounters:
    """A counter that cannot be read is not there."""
    lines = {line.split(" ", 1)[0]: line for line in answer.lines("cpu")}
    cards = {line.strip().removesuffix("/device").rpartition("/")[2] for line in answer.lines("cards")}
    cpu, network = None, dict[str, tuple[int, int]]()
    with contextlib.suppress(ValueError):
        cpu = parse_cpu_times(lines.get("cpu", ""))
    with contextlib.suppress(ValueError, IndexError):
        found = parse_interfaces("\n".join(answer.lines("network")))
        network = {name: totals for name, totals in found.items() if name in cards}
    uptime = read_number(answer.first("uptime").partition(" ")[0])
    return SmiCounters(answer.first("boot"), uptime, cpu, network)


def _cpu_percent(before: SmiCounters | None, after: SmiCounters) -> float:
    if after.cpu is None:
        raise ValueError("/proc/stat was not read")
    return percent_between(before.cpu if before else None, after.cpu)


def _network_rates(before: SmiCounters | None, after: SmiCounters) -> Mapping[str, float]:
    """The machine's own uptime is the clock: how long an answer was on its way does not matter."""
    if not after.network:
        raise ValueError(NO_INTERFACE)
    if before is None or before.uptime_seconds is None or after.uptime_seconds is None:
        raise ValueError(NEEDS_TWO)
    return rates_between(before.network, after.network, after.uptime_seconds - before.uptime_seconds)


def _memory(answer: SmiAnswer, what: str, name: str, free: str) -> Mapping[str, float]:
    try:
        return parse_memory("\n".join(answer.lines("memory")), what, name, free)
    except (LookupError, ValueError) as error:
        raise ValueError("/proc/meminfo was not read") from error


def _disk(answer: SmiAnswer, container: str | None) -> Mapping[str, float]:
    if container:
        raise ValueError("the root file system is the container's, not the host's")
    words = (answer.lines("disk") or [""])[-1].split()
    if len(words) < 6 or words[-1] != "/":
        raise ValueError("df gave no figures")
    # A device's name may hold spaces: counted from the end.
    used, total = _number(words[-4], "df"), _number(words[-5], "df")
    return {"disk_used_bytes": used * 1024, "disk_total_bytes": total * 1024}


def _find_container(answer: SmiAnswer) -> str | None:
    """What kind of container answered, or None for a host; by the same signs as in `host.py`."""
    links = dict(line.split(" ", 1) for line in answer.lines("namespaces") if " " in line)
    mounts = links.get("self/ns/mnt", "")
    is_first = mounts in {FIRST_MOUNT_NAMESPACE, links.get("1/ns/mnt") or "not permitted"}
    if is_first and links.get("self/ns/pid") == FIRST_PID_NAMESPACE:
        return None
    mark = clean(answer.first("container"))[:64]
    return _CONTAINER_KINDS.get(mark, mark) or None


def _number(text: str, source: str) -> float:
    return _known(read_number(text), source)


def _known(value: float | None, source: str) -> float:
    if value is None:
        raise ValueError(f"{source} was not read")
    return value


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


class _ParsedProc(Proc):
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


def read_owners(
    answer: SmiAnswer, host: SmiHost, pids: Iterable[int], settings: CollectorSettings
) -> dict[int, ProcessOwner]:
    """The owner of each pid; one that has ended, or whose pid went to another process meanwhile, is unknown."""
    wanted = sorted(set(pids))
    before, after = _read_starts(answer.lines("starts")), _read_starts(answer.lines("starts-after"))
    living = {pid for pid, start in before.items() if pid in after and after[pid].ticks == start.ticks}
    finder = _OwnerFinder(answer, before, settings)
    why = _NOT_ASKED if len(wanted) > MAX_PROCESSES else GONE if living else ALL_HIDDEN
    missing = ProcessOwner(reasons={"user": why, "command": GONE, "started_at": GONE})
    return {pid: finder.describe(pid, host) if pid in living else missing for pid in wanted}


class _OwnerFinder:
    def __init__(self, answer: SmiAnswer, starts: Mapping[int, _Start], settings: CollectorSettings) -> None:
        self._starts = starts
        self._commands = settings.commands
        self._files = _read_files(answer.lines("files"))
        self._users = _read_users(answer.lines("owners"))
        self._names = dict(self._users.values()) | _read_accounts(answer.lines("accounts"))
        self._proc = _ParsedProc(starts, self._files)
        # The sockets that know names of containers are on the other machine.
        self._attribution = Attribution(self._proc, lambda *_: None, self._name_user)

    def describe(self, pid: int, host: SmiHost) -> ProcessOwner:
        start, found = self._starts[pid], self._attribute(pid)
        reasons = {} if found else {"user": _NO_USER}
        if host.booted_at is None:
            reasons["started_at"] = _NO_START
        if self._commands == "none":
            reasons["command"] = NOT_SENT
        return ProcessOwner(
            name=start.name,
            user=found.user if found else None,
            command=show(_split_arguments(self._files.get(pid, _Files()).command), start.name, self._commands),
            started_at=None if host.booted_at is None else host.booted_at + start.ticks / host.ticks_per_second,
            evidence=clean(found.evidence) if found else None,
            container=_word(found.container) if found else None,
            job=_word(found.job) if found else None,
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


def _read_starts(lines: Iterable[str]) -> dict[int, _Start]:
    """Lines of /proc/<pid>/stat by pid; a name may hold brackets and spaces."""
    starts = {}
    for line in lines:
        before, _, after = line.rpartition(")")
        number, _, name = before.partition(" (")
        words = after.split(None, 20)
        pid = read_whole(number, _MAX_PID)
        ticks = read_whole(words[19], _MAX_TICKS) if len(words) > 19 else None
        if pid is not None and ticks is not None:
            starts[pid] = _Start(clean(name)[:_WORD_LENGTH], ticks, line)
    return starts


def _read_users(lines: Iterable[str]) -> dict[int, tuple[int, str]]:
    users = {}
    for line in lines:
        words = line.split(None, 2)
        pid = read_whole(words[0], _MAX_PID) if len(words) > 1 else None
        uid = read_whole(words[1], _MAX_PID) if len(words) > 1 else None
        if pid is not None and uid is not None:
            users[pid] = (uid, _word(words[2]) or str(uid) if len(words) > 2 else str(uid))
    return users


def _read_accounts(lines: Iterable[str]) -> dict[int, str]:
    accounts = {}
    for line in lines:
        name, _, number = line.rpartition(":")
        uid, word = read_whole(number, _MAX_PID), _word(name)
        if uid is not None and word:
            accounts[uid] = word
    return accounts


def _read_files(lines: Iterable[str]) -> dict[int, _Files]:
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
