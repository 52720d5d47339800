"""Reads the files of gpu-monitor's scripts on one host as a report: its GPUs, their processes and users, and the host
itself."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.compat import readings
from gpudeck.model.catalog import HOST_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Process, Report

KINDS: Final = ("gpus", "processes", "users", "status")
WHO: Final = "gpu-monitor"
DEAD: Final = "its scripts no longer see this process: probably dead"
ORPHAN: Final = "as gpu-monitor says of its child {}: the process itself is probably dead"
LOST: Final = "its scripts no longer list this GPU: nvidia-smi does not find it"
_GPU_COLUMNS: Final = 9
_PROCESS_COLUMNS: Final = 5
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,127}")
_LOAD: Final = re.compile(r"load averages?: *([0-9]+[.,][0-9]+)")
_FIELDS: Final = {
    "memory.used": ("memory_used_bytes", float(readings.MIB)),
    "memory.total": ("memory_total_bytes", float(readings.MIB)),
    "utilization.gpu": ("utilization_percent", 1.0),
    "utilization.memory": ("memory_utilization_percent", 1.0),
    "temperature.gpu": ("temperature_celsius", 1.0),
}
"""The columns of a GPU behind its name."""
_LISTING_SECONDS: Final = 3.0
"""The times of the rows of one listing differ by less, as on gpu-monitor's page. The next one comes 20 s later."""
_LOST_SECONDS: Final = 90.0
"""A GPU that is missing in the listings of so long is gone."""
_ENDED_SECONDS: Final = 60.0
"""Without any process nothing is listed: the last ones have ended after this time, as on the old page."""
_EMPTY_MIB: Final = 10.0
"""With less memory in use, the listed processes of a GPU that `ps` does not know have ended."""
_ZONE_STEP: Final = 900.0

Files = Mapping[str, bytes | str]
"""The files of a host by kind: each its content, or the reason why there is none."""


class GpuRow(Struct, frozen=True):
    """A GPU with its columns as they are written. `at` is the host's local time as if it were UTC."""

    index: int
    uuid: str
    name: str
    fields: dict[str, str]
    at: float | None


class ProcessRow(Struct, frozen=True):
    """A process on a GPU, with its columns as they are written: a process without a valid pid counts too."""

    uuid: str
    memory: str
    name: str
    pid: str


class GpuMonitorOwner(Struct, frozen=True):
    """The user of a process, and its start on the host's clock."""

    user: str
    started_at: float | None


def read_gpus(content: bytes) -> list[GpuRow]:
    """The last row of each GPU, by its number."""
    rows: dict[str, GpuRow] = {}
    for cells in _rows_from_end(content, _GPU_COLUMNS):
        index = readings.read_pid(cells[0])
        if cells[1] not in rows and index is not None and index <= 65535 and _UUID.fullmatch(cells[1]):
            fields = dict(zip(_FIELDS, cells[3:8], strict=True))
            rows[cells[1]] = GpuRow(index, cells[1], cells[2], fields, _parse_timestamp(cells[8]))
    return sorted(rows.values(), key=lambda row: (row.index, row.uuid))


def read_processes(content: bytes, since: float | None = None) -> list[ProcessRow]:
    """The processes of the last listing, each on its GPU. Those in the listings before it, or of a time before `since`,
    have ended."""
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
        rows[cells[1], pid] = ProcessRow(cells[1], cells[2], clean(cells[3]), pid)
    return list(rows.values())[::-1]


def read_owners(content: bytes) -> tuple[dict[int, GpuMonitorOwner], dict[int, int]]:
    """The owners of processes, and the first child of each process. A line of JSON begins the list anew."""
    owners: dict[int, GpuMonitorOwner] = {}
    children: dict[int, int] = {}
    for line in _lines(content[content.rfind(b"\n{") + 1 :]):
        if line.startswith("{"):
            owners, children = {}, _read_children(line)
            continue
        words = [*line.split(None, 2), "", ""]
        pid, user = readings.read_pid(words[0]), readings.read_word(words[1])
        if pid is not None and user is not None:
            owners[pid] = GpuMonitorOwner(user, _parse(words[2].strip(), "%a %b %d %H:%M:%S %Y"))
    return owners, children


def _read_children(line: str) -> dict[int, int]:
    try:
        listed = msgspec.json.decode(line.encode(), type=dict[str, list[str | int]])
    except (msgspec.DecodeError, RecursionError):
        return {}
    pairs = ((readings.read_pid(parent), readings.read_pid(pids[0])) for parent, pids in listed.items() if pids)
    return {parent: child for parent, child in pairs if child is not None and parent is not None}


def read_status(content: bytes) -> dict[str, float]:
    """Metrics of the host: those that are reported."""
    status: dict[str, float] = {}
    # Its last line is of use without its end too.
    for line in _lines(content + b"\n"):
        words = line.split()
        if line.startswith("Mem:"):
            status |= _read_memory(words)
        elif len(words) >= 6 and words[-1] == "/" and words[1].isdigit() and words[2].isdigit():
            status |= {"disk_total_bytes": int(words[1][:18]) * 1024, "disk_used_bytes": int(words[2][:18]) * 1024}
        elif len(words) == 1 and words[0].isascii() and words[0].isdigit():
            status["cpu_count"] = int(words[0][:9])
        elif match := _LOAD.search(line):
            status["load_1m"] = float(match[1].replace(",", "."))
    return status


def _read_memory(words: list[str]) -> dict[str, float]:
    """Memory that is available to programs is not in use, as an agent counts it."""
    numbers = [int(word[:18]) * readings.MIB for word in words[1:] if word.isascii() and word.isdigit()]
    if len(numbers) < 2:
        return {}
    used = numbers[0] - numbers[5] if len(numbers) >= 6 else numbers[1]
    return {"memory_total_bytes": numbers[0], "memory_used_bytes": used}


def _rows_from_end(content: bytes, columns: int) -> Iterator[list[str]]:
    for line in reversed(_lines(content)):
        if line.count(",") == columns - 1:
            yield [cell.strip() for cell in line.split(",")]


def _lines(content: bytes) -> list[str]:
    whole = content[: content.rfind(b"\n") + 1]
    return [stripped for line in whole.decode(errors="replace").split("\n") if (stripped := line.strip())]


def _parse_timestamp(text: str) -> float | None:
    return _parse(text, "%Y/%m/%d %H:%M:%S.%f")


def _parse(text: str, form: str) -> float | None:
    try:
        return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def make_reader() -> readings.GpuReader:
    return readings.GpuReader(WHO, _FIELDS)


def read_report(
    files: Files, reader: readings.GpuReader, written_at: float, now: float, labels: dict[str, str]
) -> Report:
    """`written_at` is when the files were written, on a clock with a zone. Raises Temporary without any GPU."""
    rows = read_gpus(_content(files, "gpus") or b"")[: readings.MAX_GPUS]
    if not rows:
        raise Temporary("has no line of a GPU.", "Does gpu-run.sh run there, and nvidia-smi?")
    newest = max((row.at for row in rows if row.at is not None), default=None)
    processes = _read_processes(files, rows, newest, written_at)
    gpus = list[GpuReading]()
    for row in rows:
        if row.at is not None and newest is not None and row.at < newest - _LOST_SECONDS:
            gpus.append(readings.describe_missing_gpu(row.uuid, row.index, LOST, row.name))
        else:
            listed = processes if isinstance(processes, str) else processes.get(row.uuid, [])
            gpus.append(reader.read(row.uuid, row.index, row.name, row.fields, listed, now))
    figures = readings.Figures(HOST_METRICS, WHO)
    status = files.get("status", b"")
    for name, value in read_status(status).items() if isinstance(status, bytes) else ():
        figures.take(name, value)
    figures.unknown |= dict.fromkeys(figures.unknown, status) if isinstance(status, str) else {}
    return Report(gpus=gpus, metrics=figures.metrics, unknown=figures.unknown, labels=labels)


def _content(files: Files, kind: str) -> bytes | None:
    content = files.get(kind)
    return content if isinstance(content, bytes) else None


def _read_processes(
    files: Files, gpus: list[GpuRow], newest: float | None, written_at: float
) -> dict[str, list[Process]] | str:
    """The running processes by GPU, or why they are unknown. `newest` is when a GPU was last listed."""
    content, users = files.get("processes", f"{WHO} lists no processes"), _content(files, "users")
    if isinstance(content, str):
        return content
    # Seconds from the host's local time to UTC, by quarters of an hour.
    offset = 0.0 if newest is None else round((written_at - newest) / _ZONE_STEP) * _ZONE_STEP
    no_owner = DEAD if users is not None else str(files.get("users", ""))
    owners, children = read_owners(users or b"")
    used = {row.uuid: readings.read_number(row.fields["memory.used"]) for row in gpus}
    empty = {uuid for uuid, mib in used.items() if users is not None and mib is not None and mib < _EMPTY_MIB}
    by_gpu: dict[str, list[Process]] = {}
    for row in read_processes(content, None if newest is None else newest - _ENDED_SECONDS):
        listed, pid = by_gpu.setdefault(row.uuid, []), readings.read_pid(row.pid)
        has_ended = pid is not None and pid not in owners and row.uuid in empty
        if has_ended or len(listed) >= readings.max_processes(len(gpus)):
            continue
        # A process that has ended, and whose child lives on, belongs to its child's user.
        child = 0 if pid in owners else children.get(pid or 0, 0)
        owner = owners.get(child or pid or 0)
        start = None if owner is None or owner.started_at is None else owner.started_at + offset
        process = readings.describe_process(
            pid=row.pid,
            user=owner.user if owner else None,
            name=row.name,
            memory=row.memory,
            started_at=start,
            who=WHO,
            why="" if owner else no_owner,
            evidence=ORPHAN.format(child) if owner and child else "",
        )
        listed.append(process)
    return by_gpu
