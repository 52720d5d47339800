"""Hosts on which a node of gpumonitor runs: the hub asks it as gpumonitor's own page did.

A node tells neither UUIDs nor its clock. A GPU is known by its host and number here, until an agent takes over.
"""

import re
from typing import Any

from gpudeck.collectors.idle import IdleWatch
from gpudeck.collectors.smi_answer import explain, quote
from gpudeck.compat.gpumonitor.answer import BYTES_AT_MOST, CALL, Stats, read_answer
from gpudeck.compat.gpumonitor.settings import GpumonitorSettings
from gpudeck.compat.readings import (
    GPUS_AT_MOST,
    MIB,
    Figures,
    Sealer,
    Starts,
    describe_process,
    processes_at_most,
    read_pid,
    read_word,
)
from gpudeck.fetch import AddressGuard, Fetcher
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.model.turns import parse_aside
from gpudeck.sources.base import Arrival

WHO = "gpumonitor"
_HEADERS = {"Content-Type": "text/xml"}
_FIELDS = {
    "memory_used": ("memory_used_bytes", float(MIB)),
    "memory_total": ("memory_total_bytes", float(MIB)),
    "utilization": ("utilization_percent", 1.0),
    "temperature": ("temperature_celsius", 1.0),
}
# How Python writes a timedelta: 0:16:00, 1 day, 2:03:04, 12 days, 0:00:00.500000.
_TIME = re.compile(r"(?:([0-9]{1,6}) days?, )?([0-9]{1,2}):([0-9]{2}):([0-9]{2})(?:\.[0-9]{1,6})?")


class GpumonitorSource:
    """Asks one node, over a kept connection. See `Source` for what it raises and when it may be called."""

    def __init__(self, target: Target, settings: GpumonitorSettings) -> None:
        self._target = target
        self._settings = settings
        self._url = target.url(settings.port, "/")
        self._fetcher = Fetcher(deadline=settings.deadline, bytes_at_most=BYTES_AT_MOST, guard=AddressGuard.of(target))
        self._sealer = Sealer(target, WHO, settings.interval)
        self._idle = IdleWatch()
        self._starts = Starts()

    async def read(self, now: float) -> Arrival:
        answer = await self._fetcher.post(self._url, CALL, _HEADERS)
        # An answer as large as it may be takes half a second to read: others are heard meanwhile.
        report = await parse_aside(self._read_report, answer.body, now)
        return Arrival(self._sealer.seal(report, now))

    async def close(self) -> None:
        await self._fetcher.close()

    def _read_report(self, body: bytes, now: float) -> Report:
        try:
            stats = read_answer(body)
        except Temporary as error:
            raise Temporary(f"{self._url} {error.message}", error.hint) from error
        if not stats.gpus:
            raise Temporary(f"{self._url} lists no GPU.", "See its log on that host.")
        return self._make_report(stats, now)

    def _make_report(self, stats: Stats, now: float) -> Report:
        gpus = [self._read_gpu(index, stats, now) for index in range(min(len(stats.gpus), GPUS_AT_MOST))]
        self._starts.turn()
        return Report(gpus=gpus, unknown=Figures(HOST_METRICS, WHO).unknown, labels=self._target.labels)

    def _read_gpu(self, index: int, stats: Stats, now: float) -> GpuReading:
        told, figures = stats.gpus[index], Figures(GPU_METRICS, WHO)
        uuid = f"{WHO}/{self._target.name}/{index}"
        if not isinstance(told, dict):
            # Its nodes put NVML's errors in the place of a GPU.
            reason = f"{WHO} tells no fields of it{f': {quote(told)}' if isinstance(told, str) else ''}"
            return GpuReading(uuid, index, "unknown", missing=reason, unknown=dict.fromkeys(GPU_METRICS, reason))
        for field, (name, factor) in _FIELDS.items():
            if field in told:
                figures.take(name, told[field], factor)
        most = processes_at_most(len(stats.gpus))
        processes = self._read_processes(stats.procs[index] if index < len(stats.procs) else None, most, now)
        return GpuReading(
            uuid=uuid,
            index=index,
            name=read_word(told.get("model")) or "NVIDIA GPU",
            vendor="nvidia",
            metrics=figures.metrics,
            unknown=figures.unknown,
            processes=processes if isinstance(processes, list) else None,
            processes_reason=None if isinstance(processes, list) else processes,
            idle_seconds=self._idle.track(uuid, figures.metrics.get("utilization_percent"), now),
        )

    def _read_processes(self, listed: object, most: int, now: float) -> list[Process] | str:
        """The processes of one GPU, `most` of them, or why they are not known."""
        if not isinstance(listed, list):
            return explain(listed) if isinstance(listed, str) else f"{WHO} does not list this GPU's processes"
        # An entry that makes no sense is a process of which nothing is known: its GPU is not free.
        entries = (entry if isinstance(entry, dict) else {} for entry in listed[:most])
        return [self._read_process(entry, now) for entry in entries]

    def _read_process(self, entry: dict[str, Any], now: float) -> Process:
        pid, user, running = entry.get("pid"), read_word(entry.get("userid")), _parse_time(entry.get("time"))
        return describe_process(
            pid=pid,
            user=user,
            name=read_word(entry.get("process_name")) or "",
            memory=entry.get("used_memory") if entry.get("unit", "MiB") == "MiB" else None,
            started_at=None if running is None else round(self._starts.settle(read_pid(pid) or 0, user, now - running)),
            who=WHO,
            commands=self._settings.commands,
        )


def _parse_time(text: object) -> float | None:
    """Seconds of a timedelta as Python writes it; None for anything else."""
    found = _TIME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return days * 86_400.0 + hours * 3600 + minutes * 60 + seconds
