"""The files of one host as a report: who is on which GPU, and what the host itself does."""

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.collectors.idle import IdleWatch
from gpudeck.collectors.redaction import Commands
from gpudeck.collectors.smi_answer import read_number
from gpudeck.compat.gpu_monitor.tables import (
    GpuRow,
    Owner,
    ProcessRow,
    read_gpus,
    read_owners,
    read_processes,
    read_status,
)
from gpudeck.compat.readings import GPUS_AT_MOST, MIB, Figures, describe_process, processes_at_most, read_pid
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Process, Report

WHO = "gpu-monitor"
DEAD = "its scripts no longer see this process: probably dead"
ORPHAN = "as gpu-monitor says of its child {}: the process itself is probably dead"
LOST = "its scripts no longer list this GPU: nvidia-smi does not find it"
_FIELDS = (
    ("memory_used_bytes", MIB),
    ("memory_total_bytes", MIB),
    ("utilization_percent", 1),
    ("memory_utilization_percent", 1),
    ("temperature_celsius", 1),
)
_OVER_SECONDS = 90.0
"""The files keep GPUs that were lost. The scripts list what is there each 20 s: what they have not listed for four
times as long is over."""
_ENDED_SECONDS = 60.0
"""Where all processes have ended nothing more is listed: the last ones are over after this time, as on the old page."""
_EMPTY_MIB = 10.0
"""A GPU with less in use has none of the processes that `ps` does not know, though the file still lists them."""
_ZONE_STEP = 900.0


class Files(Struct, frozen=True):
    """The content of a host's files. None where there is no such file: `reasons` says why, by its kind."""

    gpus: bytes
    processes: bytes | None
    users: bytes | None
    status: bytes | None
    reasons: dict[str, str]


class Reporter:
    """Makes reports of one host's files, one after the other: it knows how long GPUs have been idle."""

    def __init__(self, commands: Commands) -> None:
        self._commands: Commands = commands
        self._idle = IdleWatch()

    def make(self, files: Files, changed_at: float, now: float, labels: dict[str, str]) -> Report:
        """`changed_at` is when the files were written, on a clock with a zone. Raises Temporary without any GPU."""
        rows = read_gpus(files.gpus)
        if not rows:
            raise Temporary("has no line of a GPU.", "Does gpu-run.sh run there, and nvidia-smi?")
        newest = max((row.at for row in rows if row.at is not None), default=None)
        processes = self._read_processes(files, rows, newest, changed_at)
        gpus = [
            _miss(row) if _is_over(row, newest) else self._read_gpu(row, processes, files, now)
            for row in rows[:GPUS_AT_MOST]
        ]
        figures = _read_host(files)
        return Report(gpus=gpus, metrics=figures.metrics, unknown=figures.unknown, labels=labels)

    def _read_gpu(
        self, row: GpuRow, processes: dict[str, list[Process]] | None, files: Files, now: float
    ) -> GpuReading:
        figures = Figures(GPU_METRICS, WHO)
        for (name, factor), text in zip(_FIELDS, row.fields, strict=True):
            value = read_number(text)
            figures.take(name, text if value is None else value, factor)
        reason = files.reasons.get("processes", f"{WHO} lists no processes") if processes is None else None
        return GpuReading(
            uuid=row.uuid,
            index=row.index,
            name=row.name,
            vendor="nvidia",
            metrics=figures.metrics,
            unknown=figures.unknown,
            processes=None if processes is None else processes.get(row.uuid, []),
            processes_reason=reason,
            idle_seconds=self._idle.track(row.uuid, figures.metrics.get("utilization_percent"), now),
        )

    def _read_processes(
        self, files: Files, gpus: list[GpuRow], newest: float | None, changed_at: float
    ) -> dict[str, list[Process]] | None:
        """Those that run, by GPU; None where they are not listed. `newest` is when a GPU was last listed."""
        if files.processes is None:
            return None
        offset, most = _find_offset(newest, changed_at), processes_at_most(len(gpus))
        owners, children = read_owners(files.users) if files.users is not None else ({}, {})
        empty = set() if files.users is None else {gpu.uuid for gpu in gpus if _is_empty(gpu)}
        found: dict[str, list[Process]] = {}
        for row in read_processes(files.processes, None if newest is None else newest - _ENDED_SECONDS):
            listed = found.setdefault(row.uuid, [])
            pid = read_pid(row.pid)
            is_over = pid is not None and pid not in owners and row.uuid in empty
            if len(listed) < most and not is_over:
                # One that has ended, and whose children live on, is its child's user's.
                child = 0 if pid in owners else children.get(pid or 0, 0)
                owner = owners.get(child or pid or 0)
                listed.append(self._describe(row, owner, offset, files, child))
        return found

    def _describe(self, row: ProcessRow, owner: Owner | None, offset: float, files: Files, child: int) -> Process:
        memory = read_number(row.memory)
        started = None if owner is None or owner.started_at is None else owner.started_at + offset
        why = "" if owner else DEAD if files.users is not None else files.reasons.get("users", "")
        process = describe_process(
            pid=row.pid,
            user=owner.user if owner else None,
            name=row.name,
            memory=row.memory if memory is None else memory,
            started_at=started,
            who=WHO,
            commands=self._commands,
            why=why,
        )
        return replace(process, evidence=ORPHAN.format(child)) if owner and child else process


def _is_empty(row: GpuRow) -> bool:
    used = read_number(row.fields[0])
    return used is not None and used < _EMPTY_MIB


def _is_over(row: GpuRow, newest: float | None) -> bool:
    return row.at is not None and newest is not None and row.at < newest - _OVER_SECONDS


def _miss(row: GpuRow) -> GpuReading:
    """One of which the scripts tell no more, though the file keeps what it was like."""
    return GpuReading(
        row.uuid, row.index, row.name, vendor="nvidia", missing=LOST, unknown=dict.fromkeys(GPU_METRICS, LOST)
    )


def _find_offset(newest: float | None, changed_at: float) -> float:
    """Seconds from the host's local time to UTC, by quarters of an hour: the files were written when they say."""
    return 0.0 if newest is None else round((changed_at - newest) / _ZONE_STEP) * _ZONE_STEP


def _read_host(files: Files) -> Figures:
    figures = Figures(HOST_METRICS, WHO)
    if files.status is None:
        figures.unknown = dict.fromkeys(HOST_METRICS, files.reasons.get("status", f"{WHO} does not tell"))
        return figures
    status = read_status(files.status)
    told = {
        "memory_total_bytes": status.memory_total,
        "memory_used_bytes": status.memory_used,
        "disk_total_bytes": status.disk_total,
        "disk_used_bytes": status.disk_used,
        "cpu_count": status.cpus,
        "load_1m": status.load,
        "uptime_seconds": status.uptime,
    }
    for name, value in told.items():
        if value is not None:
            figures.take(name, value)
    _check_share(figures, "memory")
    _check_share(figures, "disk")
    figures.unknown["cpu_percent"] = f"{WHO} tells the load only"
    return figures


def _check_share(figures: Figures, of: str) -> None:
    """More in use than there is cannot be: then nobody knows how much is."""
    used, total = (figures.metrics.get(f"{of}_{which}_bytes") for which in ("used", "total"))
    if used is not None and total is not None and used > total:
        del figures.metrics[f"{of}_used_bytes"]
        figures.unknown[f"{of}_used_bytes"] = f"{WHO} tells more than there is"
