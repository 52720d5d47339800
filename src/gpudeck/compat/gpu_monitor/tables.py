"""The files that gpu-monitor's scripts write, taken apart. Each is appended to: what stands last counts.

    <host>_gpus.csv       index, uuid, name, memory.used, memory.total, utilization.gpu, utilization.memory,
                          temperature.gpu, timestamp
    <host>_processes.csv  timestamp, gpu_uuid, used_gpu_memory, process_name, pid
    <host>_users.csv      {"pid": ["child", …]}, then lines of pid, user and start
    <host>_status.csv     the line of / out of `df -l`, that of Mem: out of `free -m`, `nproc --all`, `uptime`

Lines of another shape are passed over, and so is a last one that does not end: the file is being written. Times are
local ones of the host, without a zone. A file grows for two hours: it is read from its end.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.compat.readings import read_pid, read_word

KINDS = ("gpus", "processes", "users", "status")
_GPU_COLUMNS = 9
_PROCESS_COLUMNS = 5
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,127}")
_LOAD = re.compile(r"load averages?: *([0-9]+[.,][0-9]+)")
_UP = re.compile(r"\bup +(?:([0-9]+) days?, +)?(?:([0-9]+):([0-9]{2})|([0-9]+) min)")
_DAY_ALONE = re.compile(r"\bup +([0-9]+) days?,")
_KIB, _MIB = 1024, 1024 * 1024
_LISTING_SECONDS = 3.0
"""Rows of one listing differ by less, as gpu-monitor's page has it too. The next one comes 20 s later."""


class GpuRow(Struct, frozen=True):
    """One GPU; `fields` are memory.used, memory.total, utilization.gpu, utilization.memory and temperature.gpu, as they
    are written. `at` is the host's local time as if it were UTC, None where it is none."""

    index: int
    uuid: str
    name: str
    fields: tuple[str, ...]
    at: float | None


class ProcessRow(Struct, frozen=True):
    """A process on a GPU. `pid` is its number as it is written: what is none belongs to a process all the same."""

    uuid: str
    memory: str
    name: str
    pid: str
    at: float | None


class Owner(Struct, frozen=True):
    """Whose a process is, and since when on the host's clock."""

    user: str
    started_at: float | None


class Status(Struct):
    """What is known of the host. None: not told."""

    memory_total: int | None = None
    memory_used: int | None = None
    disk_total: int | None = None
    disk_used: int | None = None
    cpus: int | None = None
    load: float | None = None
    uptime: float | None = None


def read_gpus(content: bytes) -> list[GpuRow]:
    """The last row of each GPU, by its number."""
    rows: dict[str, GpuRow] = {}
    for cells in _rows_from_end(content, _GPU_COLUMNS):
        if cells[1] in rows:
            continue
        index = read_pid(cells[0])
        if index is not None and index <= 65535 and _UUID.fullmatch(cells[1]):
            name = read_word(cells[2]) or "NVIDIA GPU"
            rows[cells[1]] = GpuRow(index, cells[1], name, tuple(cells[3:8]), _parse_timestamp(cells[8]))
    return sorted(rows.values(), key=lambda row: (row.index, row.uuid))


def read_processes(content: bytes, since: float | None = None) -> list[ProcessRow]:
    """The processes of the last listing, each on its GPU. What stands before a row of another listing, or of one
    earlier than `since`, has ended."""
    rows: dict[tuple[str, str], ProcessRow] = {}
    newest: float | None = None
    for cells in _rows_from_end(content, _PROCESS_COLUMNS):
        pid = clean(cells[4])[:64]
        if (cells[1], pid) in rows or not _UUID.fullmatch(cells[1]):
            continue
        at = _parse_timestamp(cells[0])
        newest = at if newest is None else newest
        if at is not None and ((since is not None and at < since) or abs(at - (newest or at)) > _LISTING_SECONDS):
            break
        rows[cells[1], pid] = ProcessRow(cells[1], cells[2], clean(cells[3]), pid, at)
    return list(rows.values())[::-1]


def read_owners(content: bytes) -> tuple[dict[int, Owner], dict[int, int]]:
    """Who has which process, and the first child of each. A line of JSON begins the list anew."""
    owners: dict[int, Owner] = {}
    children: dict[int, int] = {}
    for line in _lines(content[content.rfind(b"\n{") + 1 :]):
        if line.startswith("{"):
            owners, children = {}, _read_children(line)
            continue
        words = line.split(None, 2)
        pid = read_pid(words[0]) if words else None
        user = read_word(words[1]) if len(words) > 1 else None
        if pid is not None and user is not None:
            owners[pid] = Owner(user, _parse_start(words[2] if len(words) > 2 else ""))
    return owners, children


def read_status(content: bytes) -> Status:
    status = Status()
    # Its last line is of use without its end too.
    for line in _lines(content + b"\n"):
        words = line.split()
        if line.startswith("Mem:"):
            _read_memory(words, status)
        elif len(words) >= 6 and words[-1] == "/" and words[1].isdigit() and words[2].isdigit():
            status.disk_total, status.disk_used = int(words[1][:18]) * _KIB, int(words[2][:18]) * _KIB
        elif len(words) == 1 and words[0].isascii() and words[0].isdigit():
            status.cpus = int(words[0][:9])
        elif found := _LOAD.search(line):
            status.load, status.uptime = float(found[1].replace(",", ".")), _parse_uptime(line)
    return status


def _read_memory(words: list[str], status: Status) -> None:
    """What is available to programs is not in use, though the kernel keeps files there: as an agent counts it."""
    numbers = [int(word[:18]) * _MIB for word in words[1:] if word.isascii() and word.isdigit()]
    if len(numbers) >= 2:
        status.memory_total = numbers[0]
        status.memory_used = numbers[0] - numbers[5] if len(numbers) >= 6 else numbers[1]


def _read_children(line: str) -> dict[int, int]:
    try:
        told = msgspec.json.decode(line.encode(), type=dict[str, list[str | int]])
    except (msgspec.DecodeError, RecursionError):
        return {}
    pairs = ((read_pid(parent), read_pid(children[0])) for parent, children in told.items() if children)
    return {parent: child for parent, child in pairs if child is not None and parent is not None}


def _rows_from_end(content: bytes, columns: int) -> Iterator[list[str]]:
    for line in reversed(_lines(content)):
        if line.count(",") == columns - 1:
            yield [cell.strip() for cell in line.split(",")]


def _lines(content: bytes) -> list[str]:
    whole = content[: content.rfind(b"\n") + 1]
    return [stripped for line in whole.decode(errors="replace").split("\n") if (stripped := line.strip())]


def _parse_timestamp(text: str) -> float | None:
    return _parse(text, "%Y/%m/%d %H:%M:%S.%f")


def _parse_start(text: str) -> float | None:
    """As `ps -o lstart` writes it in the locale C."""
    return _parse(text.strip(), "%a %b %d %H:%M:%S %Y")


def _parse(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _parse_uptime(line: str) -> float | None:
    found = _UP.search(line)
    if found is None:
        alone = _DAY_ALONE.search(line)
        return None if alone is None else int(alone[1][:6]) * 86_400.0
    days, hours, minutes, only_minutes = (int((part or "0")[:6]) for part in found.groups())
    return days * 86_400.0 + hours * 3600 + minutes * 60 + only_minutes * 60
