"""The host's metrics, its identity and the owners of processes, from the output of the command in `smi_command`.

In a container, the disk and the machine id are not the host's. Rates need two answers of the same boot. Owners are
found as in `owners`, with the answer in place of /proc; names of containers, and Slurm jobs that only the environment
names, are not available.
"""

import contextlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

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
from gpudeck.collectors.owners import NOT_SENT, Attribution, ProcessOwner
from gpudeck.collectors.proc import FIRST_MOUNT_NAMESPACE, FIRST_PID_NAMESPACE, Proc, Stat, parse_stat
from gpudeck.collectors.redaction import clean, show
from gpudeck.collectors.smi_command import LINE_BYTES, MAX_PROCESSES, SmiAnswer, read_number
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.report import Number
from gpudeck.model.text import read_whole

_CONTAINER_KINDS = {"/.dockerenv": "docker", "/run/.containerenv": "podman"}
_MAX_WHOLE = 2**63
_CLOCK = re.compile(r"([0-9]{1,10})(\.[0-9]{9})?")
_T = TypeVar("_T")

GONE = "the process is not in /proc: it has ended, or is hidden from this account"
ALL_HIDDEN = (
    "none of the listed processes is in /proc: this looks like a PID namespace (read the host, not a container on it), "
    "or a /proc that hides other users' processes (hidepid)"
)
_NO_START = "the machine did not report its boot time"
_NO_USER = "neither ps nor /proc names its user"
_TOO_MANY = f"there are more than {MAX_PROCESSES} processes: the owners of the rest were not read"
_MAX_PID = 2**32 - 1
_MAX_TICKS = 2**53
_FILE_LINE = re.compile(r"/proc/([0-9]{1,10})/(cmdline|cgroup|loginuid|status):", re.ASCII)
_UID = re.compile(r"Uid:\s*[0-9]{1,10}\s", re.ASCII)
_WORD_LENGTH = 256


class SmiIdentity(Struct, frozen=True):
    """`machine_id` is derived as in `host`, and empty if there is none to trust."""

    host: str
    boot_id: str
    machine_id: str = ""


class SmiCounters(Struct, frozen=True):
    """Counters that are useful only as the difference to the next answer. `cpu` is busy ticks and all ticks; `network`
    is bytes received and sent by each interface with a device."""

    boot_id: str = ""
    uptime_seconds: float | None = None
    cpu: tuple[int, int] | None = None
    network: dict[str, tuple[int, int]] = field(default_factory=dict)


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
    """Never raises: what cannot be read is unknown. `before` are the counters of the previous answer, if any."""
    container = _find_container(answer)
    booted = next((line[6:] for line in answer.lines("cpu") if line.startswith("btime ")), "")
    booted_at = read_whole(booted, _MAX_WHOLE)
    boot_id = clean(answer.first("boot"))[:64] or (f"booted-{booted_at}" if booted_at else "unknown")
    machine_id = derive_machine_id(answer.first("machine")) if container is None else ""
    host = SmiHost(
        identity=SmiIdentity(host_name(answer.first("name")), boot_id, machine_id),
        counters=_read_counters(answer),
        booted_at=booted_at,
        ticks_per_second=read_whole(answer.first("ticks"), 100_000) or 100,
        os=clean(answer.first("system").partition("=")[2].strip("\"'"))[:256] or None,
        container=container,
    )
    if before is None or before.boot_id != host.counters.boot_id:
        before = SmiCounters()
    for names, source, read in _readings(answer, host, before):
        try:
            values = read()
        except LookupError:
            host.unknown.update(dict.fromkeys(names, f"{source} was not read"))
        except ValueError as error:
            host.unknown.update(dict.fromkeys(names, str(error)))
        else:
            for name, value in values.items():
                metric = HOST_METRICS[name]
                if metric.low <= value <= metric.high:
                    host.metrics[name] = metric.round(value)
                else:
                    host.unknown[name] = "the machine reported an impossible value"
    return host


def _readings(
    answer: SmiAnswer, host: SmiHost, before: SmiCounters
) -> tuple[tuple[tuple[str, ...], str, Callable[[], Mapping[str, float]]], ...]:
    """Metrics, their source, and how to read them: LookupError if the source has none, ValueError with the reason."""
    now = host.counters

    def memory(what: str, name: str, free: str) -> Mapping[str, float]:
        try:
            return parse_memory("\n".join(answer.lines("memory")), what, name, free)
        except ValueError as error:
            raise LookupError from error

    return (
        (("cpu_percent",), "/proc/stat", lambda: {"cpu_percent": percent_between(before.cpu, _known(now.cpu))}),
        (("cpu_count",), "/proc/stat", lambda: {"cpu_count": _known(_first_number(answer, "threads"))}),
        (("load_1m",), "/proc/loadavg", lambda: {"load_1m": _known(_first_number(answer, "load"))}),
        (("memory_used_bytes", "memory_total_bytes"), "/proc/meminfo", lambda: memory("memory", "Mem", "MemAvailable")),
        (("swap_used_bytes", "swap_total_bytes"), "/proc/meminfo", lambda: memory("swap", "Swap", "SwapFree")),
        (("disk_used_bytes", "disk_total_bytes"), "df", lambda: _read_disk(answer, host.container)),
        (RATES, "/proc/net/dev", lambda: _read_rates(before, now)),
        (("uptime_seconds",), "/proc/uptime", lambda: {"uptime_seconds": _known(now.uptime_seconds)}),
    )


def read_clock(answer: SmiAnswer) -> float | None:
    """The machine's own clock at the time of the answer, or None if unknown. Not every `date` knows `%N`: without it,
    the middle of the second is used, at most half a second off."""
    found = _CLOCK.match(answer.first("clock"))
    if found is None:
        return None
    return float(found[0]) if found[2] else float(found[1]) + 0.5


def _read_counters(answer: SmiAnswer) -> SmiCounters:
    lines = {line.split(" ", 1)[0]: line for line in answer.lines("cpu")}
    cards = {line.strip().removesuffix("/device").rpartition("/")[2] for line in answer.lines("cards")}
    cpu, network = None, dict[str, tuple[int, int]]()
    with contextlib.suppress(ValueError):
        cpu = parse_cpu_times(lines.get("cpu", ""))
    with contextlib.suppress(ValueError, IndexError):
        found = parse_interfaces("\n".join(answer.lines("network")))
        network = {name: totals for name, totals in found.items() if name in cards}
    return SmiCounters(answer.first("boot"), _first_number(answer, "uptime"), cpu, network)


def _read_rates(before: SmiCounters, now: SmiCounters) -> Mapping[str, float]:
    """Timed by the machine's uptime: the time that an answer takes to arrive does not matter."""
    if not now.network:
        raise ValueError(NO_INTERFACE)
    if before.uptime_seconds is None or now.uptime_seconds is None:
        raise ValueError(NEEDS_TWO)
    return rates_between(before.network, now.network, now.uptime_seconds - before.uptime_seconds)


def _read_disk(answer: SmiAnswer, container: str | None) -> Mapping[str, float]:
    if container:
        raise ValueError("the root file system is the container's, not the host's")
    # Counted from the end: the device's name may contain spaces.
    words = (answer.lines("disk") or [""])[-1].split()
    if len(words) < 6 or words[-1] != "/":
        raise LookupError
    used, total = (_known(read_number(words[place])) for place in (-4, -5))
    return {"disk_used_bytes": used * 1024, "disk_total_bytes": total * 1024}


def _find_container(answer: SmiAnswer) -> str | None:
    """What kind of container answered, or None for a host. The rules are those of `host.find_container`."""
    links = dict(line.split(" ", 1) for line in answer.lines("namespaces") if " " in line)
    mounts = links.get("self/ns/mnt", "")
    is_first = mounts in {FIRST_MOUNT_NAMESPACE, links.get("1/ns/mnt") or "not permitted"}
    if is_first and links.get("self/ns/pid") == FIRST_PID_NAMESPACE:
        return None
    mark = clean(answer.first("container"))[:64]
    return _CONTAINER_KINDS.get(mark, mark) or None


def _first_number(answer: SmiAnswer, part: str) -> float | None:
    return read_number(answer.first(part).partition(" ")[0])


def _known(value: _T | None) -> _T:
    if value is None:
        raise LookupError
    return value


class _ParsedProc(Proc):
    """A /proc with the contents of the machine's answer. `files` are lines by pid and name, `uids` those of ps."""

    def __init__(
        self, starts: Mapping[int, Stat], files: Mapping[tuple[int, str], list[str]], uids: Mapping[int, int]
    ) -> None:
        super().__init__("")
        self._starts, self._files, self._uids = starts, files, uids

    def stat(self, pid: int) -> Stat:
        if pid not in self._starts:
            raise FileNotFoundError(f"/proc/{pid}/stat was not read")
        return self._starts[pid]

    def folder_uid(self, pid: int) -> int:
        if pid not in self._uids:
            raise FileNotFoundError(f"ps did not list {pid}")
        return self._uids[pid]

    def _read(self, pid: int, name: str, limit: int) -> bytes:
        lines = self._files.get((pid, name))
        if lines is None or (name == "status" and not _UID.match(lines[0])):
            raise FileNotFoundError(f"/proc/{pid}/{name} was not read")
        return ("\n" * (name == "status") + "\n".join(lines)).encode(errors="replace")[:limit]


def read_owners(
    answer: SmiAnswer, host: SmiHost, pids: Iterable[int], settings: CollectorSettings
) -> dict[int, ProcessOwner]:
    """The owner of each pid. It is unknown if the process has ended, or its pid was reused between the reads."""
    wanted = sorted(set(pids))
    before, after = _read_starts(answer.lines("starts")), _read_starts(answer.lines("starts-after"))
    living = {pid for pid, stat in before.items() if pid in after and after[pid].start_ticks == stat.start_ticks}
    files, users = _read_files(answer.lines("files")), _read_users(answer.lines("owners"))
    names = dict(users.values()) | _read_accounts(answer.lines("accounts"))
    proc = _ParsedProc(before, files, {pid: uid for pid, (uid, _) in users.items()})
    # The sockets that know the names of containers are on the other machine.
    attribution = Attribution(proc, lambda *_: None, lambda uid: names.get(uid) or str(uid)[:_WORD_LENGTH])

    def describe(pid: int) -> ProcessOwner:
        stat, found = before[pid], None
        with contextlib.suppress(OSError, ValueError):
            found = attribution.attribute(pid, proc.uid(pid))
        reasons = {} if found else {"user": _NO_USER}
        if host.booted_at is None:
            reasons["started_at"] = _NO_START
        if settings.commands == "none":
            reasons["command"] = NOT_SENT
        return ProcessOwner(
            name=stat.name,
            user=found.user if found else None,
            command=show(_split_arguments(files.get((pid, "cmdline"), [])), stat.name, settings.commands),
            started_at=None if host.booted_at is None else host.booted_at + stat.start_ticks / host.ticks_per_second,
            evidence=clean(found.evidence) if found else None,
            container=_word(found.container) if found else None,
            job=_word(found.job) if found else None,
            reasons=reasons,
        )

    why = _TOO_MANY if len(wanted) > MAX_PROCESSES else GONE if living else ALL_HIDDEN
    missing = ProcessOwner(reasons={"user": why, "command": GONE, "started_at": GONE})
    return {pid: describe(pid) if pid in living else missing for pid in wanted}


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


def _split_arguments(lines: list[str]) -> list[str]:
    """Arguments end with a byte 1 in place of 0. A line break within one begins a new line."""
    text = "\n".join(lines).rstrip("\x01")
    return text.split("\x01") if text else []


def _word(text: str | None) -> str | None:
    return clean(text or "").strip()[:_WORD_LENGTH] or None
