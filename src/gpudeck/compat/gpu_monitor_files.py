"""The files of one host as a report: who is on which GPU, and what the host itself does."""

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from gpudeck.collectors.base import IdleWatch
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.smi_command import read_number
from gpudeck.compat import readings
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Process, Report

KINDS = ("gpus", "processes", "users", "status")
_GPU_COLUMNS = 9
_PROCESS_COLUMNS = 5
_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9./-]{0,127}")
_LOAD = re.compile(r"load averages?: *([0-9]+[.,][0-9]+)")
_UP = re.compile(r"\bup +(?:([0-9]+) days?, +)?(?:([0-9]+):([0-9]{2})|([0-9]+) min)")
_DAY_ALONE = re.compile(r"\bup +([0-9]+) days?,")
_LISTING_SECONDS = 3.0
"""Rows of one listing differ by less, as gpu-monitor's page has it too. The next one comes 20 s later."""
WHO = "gpu-monitor"
DEAD = "its scripts no longer see this process: probably dead"
ORPHAN = "as gpu-monitor says of its child {}: the process itself is probably dead"
LOST = "its scripts no longer list this GPU: nvidia-smi does not find it"
_FIELDS = (
    ("memory_used_bytes", readings.MIB),
    ("memory_total_bytes", readings.MIB),
    ("utilization_percent", 1),
    ("memory_utilization_percent", 1),
    ("temperature_celsius", 1),
)
_OVER_SECONDS = 90.0
"""The scripts list what is there each 20 s: what they have not listed for four times as long is over."""
_ENDED_SECONDS = 60.0
"""Where all processes have ended nothing more is listed: the last ones are over after this time, as on the old page."""
_EMPTY_MIB = 10.0
"""A GPU with less in use has none of the processes that `ps` does not know, though the file still lists them."""
_ZONE_STEP = 900.0


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


class GpuMonitorOwner(Struct, frozen=True):
    """Whose a process is, and since when on the host's clock."""

    user: str
    started_at: float | None


def read_gpus(content: bytes) -> list[GpuRow]:
    """The last row of each GPU, by its number."""
    rows: dict[str, GpuRow] = {}
    for cells in _rows_from_end(content, _GPU_COLUMNS):
        if cells[1] in rows:
            continue
        index = readings.read_pid(cells[0])
        if index is not None and index <= 65535 and _UUID.fullmatch(cells[1]):
            name = readings.read_word(cells[2]) or "NVIDIA GPU"
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


def read_owners(content: bytes) -> tuple[dict[int, GpuMonitorOwner], dict[int, int]]:
    """Who has which process, and the first child of each. A line of JSON begins the list anew."""
    owners: dict[int, GpuMonitorOwner] = {}
    children: dict[int, int] = {}
    for line in _lines(content[content.rfind(b"\n{") + 1 :]):
        if line.startswith("{"):
            owners, children = {}, _read_children(line)
            continue
        words = line.split(None, 2)
        pid = readings.read_pid(words[0]) if words else None
        user = readings.read_word(words[1]) if len(words) > 1 else None
        if pid is not None and user is not None:
            owners[pid] = GpuMonitorOwner(
                user, _parse((words[2] if len(words) > 2 else "").strip(), "%a %b %d %H:%M:%S %Y")
            )
    return owners, children


def read_status(content: bytes) -> dict[str, float]:
    """Metrics of the host; those that are not reported are not in it."""
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
        elif found := _LOAD.search(line):
            status["load_1m"] = float(found[1].replace(",", "."))
            if (uptime := _parse_uptime(line)) is not None:
                status["uptime_seconds"] = uptime
    return status


def _read_memory(words: list[str]) -> dict[str, float]:
    """What is available to programs is not in use, though the kernel keeps files there: as an agent counts it."""
    numbers = [int(word[:18]) * readings.MIB for word in words[1:] if word.isascii() and word.isdigit()]
    if len(numbers) < 2:
        return {}
    used = numbers[0] - numbers[5] if len(numbers) >= 6 else numbers[1]
    return {"memory_total_bytes": numbers[0], "memory_used_bytes": used}


def _read_children(line: str) -> dict[int, int]:
    try:
        listed = msgspec.json.decode(line.encode(), type=dict[str, list[str | int]])
    except (msgspec.DecodeError, RecursionError):
        return {}
    pairs = (
        (readings.read_pid(parent), readings.read_pid(children[0])) for parent, children in listed.items() if children
    )
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


class GpuMonitorFiles(Struct, frozen=True):
    """The files of a host by kind, each a content or the reason why there is none. `written_at` is when that of its
    GPUs was written, None where that is not known."""

    contents: Mapping[str, bytes | str]
    written_at: float | None

    def get(self, kind: str) -> bytes | None:
        content = self.contents.get(kind)
        return content if isinstance(content, bytes) else None

    def reason(self, kind: str, otherwise: str) -> str:
        content = self.contents.get(kind)
        return content if isinstance(content, str) else otherwise


class ReportBuilder:
    """Makes reports of one host's files, one after the other: it knows how long GPUs have been idle."""

    def __init__(self) -> None:
        self._idle = IdleWatch()

    def make(self, files: GpuMonitorFiles, changed_at: float, now: float, labels: dict[str, str]) -> Report:
        """`changed_at` is when the files were written, on a clock with a zone. Raises Temporary without any GPU."""
        rows = read_gpus(files.get("gpus") or b"")
        if not rows:
            raise Temporary("has no line of a GPU.", "Does gpu-run.sh run there, and nvidia-smi?")
        newest = max((row.at for row in rows if row.at is not None), default=None)
        processes = self._read_processes(files, rows, newest, changed_at)
        gpus = [
            GpuReading(
                row.uuid, row.index, row.name, vendor="nvidia", missing=LOST, unknown=dict.fromkeys(GPU_METRICS, LOST)
            )
            if (row.at is not None and newest is not None and row.at < newest - _OVER_SECONDS)
            else self._read_gpu(row, processes, files, now)
            for row in rows[: readings.MAX_GPUS]
        ]
        figures = _read_host(files)
        return Report(gpus=gpus, metrics=figures.metrics, unknown=figures.unknown, labels=labels)

    def _read_gpu(
        self, row: GpuRow, processes: dict[str, list[Process]] | None, files: GpuMonitorFiles, now: float
    ) -> GpuReading:
        figures = readings.Figures(GPU_METRICS, WHO)
        for (name, factor), text in zip(_FIELDS, row.fields, strict=True):
            value = read_number(text)
            figures.take(name, text if value is None else value, factor)
        reason = files.reason("processes", f"{WHO} lists no processes")
        listed = reason if processes is None else processes.get(row.uuid, [])
        idle_seconds = self._idle.track(row.uuid, figures.metrics.get("utilization_percent"), now)
        return readings.describe_gpu_reading(row.uuid, row.index, row.name, figures, listed, idle_seconds=idle_seconds)

    def _read_processes(
        self, files: GpuMonitorFiles, gpus: list[GpuRow], newest: float | None, changed_at: float
    ) -> dict[str, list[Process]] | None:
        """Those that run, by GPU; None where they are not listed. `newest` is when a GPU was last listed."""
        content, users = files.get("processes"), files.get("users")
        if content is None:
            return None
        # Seconds from the host's local time to UTC, by quarters of an hour: the files were written when they say.
        offset = 0.0 if newest is None else round((changed_at - newest) / _ZONE_STEP) * _ZONE_STEP
        most = readings.processes_at_most(len(gpus))
        owners, children = read_owners(users) if users is not None else ({}, {})
        used = {} if users is None else {gpu.uuid: read_number(gpu.fields[0]) for gpu in gpus}
        empty = {uuid for uuid, mib in used.items() if mib is not None and mib < _EMPTY_MIB}
        found: dict[str, list[Process]] = {}
        for row in read_processes(content, None if newest is None else newest - _ENDED_SECONDS):
            listed = found.setdefault(row.uuid, [])
            pid = readings.read_pid(row.pid)
            is_over = pid is not None and pid not in owners and row.uuid in empty
            if len(listed) < most and not is_over:
                # One that has ended, and whose children live on, is its child's user's.
                child = 0 if pid in owners else children.get(pid or 0, 0)
                owner = owners.get(child or pid or 0)
                listed.append(self._describe(row, owner, offset, files, child))
        return found

    def _describe(
        self, row: ProcessRow, owner: GpuMonitorOwner | None, offset: float, files: GpuMonitorFiles, child: int
    ) -> Process:
        memory = read_number(row.memory)
        started = None if owner is None or owner.started_at is None else owner.started_at + offset
        why = "" if owner else files.reason("users", "") if files.get("users") is None else DEAD
        process = readings.describe_process(
            pid=row.pid,
            user=owner.user if owner else None,
            name=row.name,
            memory=row.memory if memory is None else memory,
            started_at=started,
            who=WHO,
            why=why,
        )
        return replace(process, evidence=ORPHAN.format(child)) if owner and child else process


def _read_host(files: GpuMonitorFiles) -> readings.Figures:
    figures = readings.Figures(HOST_METRICS, WHO)
    content = files.get("status")
    if content is None:
        figures.unknown = dict.fromkeys(HOST_METRICS, files.reason("status", f"{WHO} does not report it"))
        return figures
    for name, value in read_status(content).items():
        figures.take(name, value)
    _check_share(figures, "memory")
    _check_share(figures, "disk")
    figures.unknown["cpu_percent"] = f"{WHO} reports only the load"
    return figures


def _check_share(figures: readings.Figures, of: str) -> None:
    """More in use than there is cannot be: what is in use is unknown then."""
    used, total = (figures.metrics.get(f"{of}_{which}_bytes") for which in ("used", "total"))
    if used is not None and total is not None and used > total:
        del figures.metrics[f"{of}_used_bytes"]
        figures.unknown[f"{of}_used_bytes"] = f"{WHO} reports more than there is"
