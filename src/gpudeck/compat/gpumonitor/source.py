"""Hosts on which a node of gpumonitor runs: the hub asks it as gpumonitor's own page did.

A node tells neither UUIDs nor its clock. A GPU is known by its host and number here, until an agent takes over.
"""

import logging
import re
from typing import Any
from xml.parsers import expat

import msgspec
from msgspec import Struct, field

from gpudeck.collectors.base import IdleWatch, ProcessStarts
from gpudeck.collectors.smi_command import explain, quote
from gpudeck.compat.gpumonitor.settings import GpumonitorSettings
from gpudeck.compat.readings import (
    GPUS_AT_MOST,
    MIB,
    Figures,
    describe_process,
    processes_at_most,
    read_pid,
    read_word,
)
from gpudeck.fetch import AddressGuard, Fetcher
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.sources.base import Arrival, EnvelopeSequence

log = logging.getLogger(__name__)

CALL = b"<?xml version='1.0'?>\n<methodCall><methodName>gpu_stats</methodName><params></params></methodCall>\n"
BYTES_AT_MOST = 1024 * 1024
"""A node with 16 GPUs and 100 processes on each answers 200 kB."""
_DEEPEST = 16
_ANSWER = ["methodResponse", "params", "param", "value"]
_FAULT = ["methodResponse", "fault"]
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


class NodeStats(Struct, frozen=True):
    """`gpus` and `procs` as the node sent them: whatever stands in a field, as NVML's errors are put there too."""

    gpus: list[Any]
    procs: list[Any] = field(default_factory=list)


def read_answer(body: bytes) -> NodeStats:
    """Raises Temporary, with a sentence that goes on after the node's address."""
    try:
        return msgspec.json.decode(_read_string(body), type=NodeStats)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Temporary(f"answers no gpu_stats() in JSON: {quote(str(error))}.", "Is that a node of it?") from error


def _read_string(body: bytes) -> str:
    """The one string in the answer."""
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.open
    parser.EndElementHandler = reader.close
    parser.CharacterDataHandler = reader.take
    parser.StartDoctypeDeclHandler = _refuse_doctype
    parser.EntityDeclHandler = _refuse_doctype
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, UnicodeError, ValueError) as error:
        raise Temporary(f"answers what is no XML: {quote(str(error))}.", "Is that a node of it?") from error
    if reader.fault:
        log.debug("a node of gpumonitor answers with a fault: %s", quote(reader.fault))
        raise Temporary("answers with a fault of XML-RPC.", "See its log on that host.")
    if not reader.has_answer:
        raise Temporary("answers XML, but no string of gpu_stats().", "Is that a node of it?")
    return "".join(reader.answer)


def _refuse_doctype(*_: object) -> None:
    raise Temporary("answers XML with a document type, which no node does: it is not read.")


class _Reader:
    """Follows the elements, and keeps the text of the answer or of a fault."""

    def __init__(self) -> None:
        self.answer: list[str] = []
        self.has_answer = False
        self._fault: list[str] = []
        self._path: list[str] = []

    @property
    def fault(self) -> str:
        return " ".join("".join(self._fault).split())

    def open(self, name: str, _: dict[str, str]) -> None:
        self._path.append(name)
        if len(self._path) > _DEEPEST:
            raise Temporary("answers XML that is nested too deep.")
        # In XML-RPC a value without a type is a string too, with white space around it where it has one.
        if self._path in (_ANSWER, [*_ANSWER, "string"]):
            self.has_answer, self.answer = True, []

    def close(self, _: str) -> None:
        self._path.pop()

    def take(self, text: str) -> None:
        if self._path == [*_ANSWER, "string"] or (self._path == _ANSWER and text.strip()):
            self.answer.append(text)
        elif self._path[:2] == _FAULT and self._path[-1] in {"string", "int"}:
            self._fault.append(f" {text}")


class GpumonitorSource:
    """Asks one node, over a kept connection. See `Source` for what it raises and when it may be called."""

    def __init__(self, target: Target, settings: GpumonitorSettings) -> None:
        self._target = target
        self._settings = settings
        self._url = target.url(settings.port, "/")
        self._fetcher = Fetcher(deadline=settings.deadline, bytes_at_most=BYTES_AT_MOST, guard=AddressGuard.of(target))
        self._envelopes = EnvelopeSequence(target, settings.interval, WHO)
        self._idle = IdleWatch()
        self._starts = ProcessStarts(jitter_seconds=5.0)

    async def read(self, now: float) -> Arrival:
        answer = await self._fetcher.post(self._url, CALL, _HEADERS)
        # An answer as large as it may be takes half a second to read: others are heard meanwhile.
        report = await parse_in_thread(self._read_report, answer.body, now)
        return Arrival(self._envelopes.put(report, now))

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

    def _make_report(self, stats: NodeStats, now: float) -> Report:
        gpus = [self._read_gpu(index, stats, now) for index in range(min(len(stats.gpus), GPUS_AT_MOST))]
        self._starts.end_reading()
        return Report(gpus=gpus, unknown=Figures(HOST_METRICS, WHO).unknown, labels=self._target.labels)

    def _read_gpu(self, index: int, stats: NodeStats, now: float) -> GpuReading:
        told, figures = stats.gpus[index], Figures(GPU_METRICS, WHO)
        uuid = f"{WHO}/{self._target.name}/{index}"
        if not isinstance(told, dict):
            # Its nodes put NVML's errors in the place of a GPU.
            reason = f"{WHO} tells no fields of it{f': {quote(told)}' if isinstance(told, str) else ''}"
            return GpuReading(uuid, index, "unknown", missing=reason, unknown=dict.fromkeys(GPU_METRICS, reason))
        for key, (name, factor) in _FIELDS.items():
            if key in told:
                figures.take(name, told[key], factor)
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
