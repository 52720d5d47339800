"""Hosts on which a node of GPU Cluster Status Monitor runs: the hub asks it as its main did.

A node tells no UUIDs. A GPU is known by its host and number here, until an agent takes over.
"""

from datetime import datetime
from typing import Any, Final

import msgspec

from gpudeck.collectors.base import IdleWatch
from gpudeck.compat.gpu_cluster_status.node import PATH
from gpudeck.compat.gpu_cluster_status.nodes import NodeFacts, Nodes
from gpudeck.compat.gpu_cluster_status.settings import GpuClusterStatusSettings
from gpudeck.compat.readings import (
    GPUS_AT_MOST,
    MIB,
    Figures,
    describe_process,
    processes_at_most,
    read_word,
)
from gpudeck.discovery.host_names import is_host_name
from gpudeck.fetch import AddressGuard, Fetcher
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.quantity import show_span
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.sources.base import Arrival, EnvelopeSequence

WHO: Final = "gpu-cluster-status"
BYTES_AT_MOST: Final = 1024 * 1024
"""16 GPUs with 100 processes each, whose commands a node cuts at 500 characters."""
_HEADERS: Final = {"Content-Type": "application/json"}
_FIELDS: Final = {
    "use_mem": ("memory_used_bytes", float(MIB)),
    "tot_mem": ("memory_total_bytes", float(MIB)),
    "utilize": ("utilization_percent", 1.0),
    "temp": ("temperature_celsius", 1.0),
}
_ADVICE: Final = "Does a node of GPU Cluster Status Monitor listen there?"
_FROZEN: Final = "Restart node_info.py on that host: it answers, but has stopped reading its GPUs."
_SHORTEST_AGE: Final = 10.0


class NodeSource:
    """Asks one node, over a kept connection, and keeps in `nodes` what it tells of itself.

    See `Source` for what it raises and when it may be called.
    """

    def __init__(self, target: Target, settings: GpuClusterStatusSettings, nodes: Nodes) -> None:
        self._target = target
        self._nodes = nodes
        self._url = target.url(settings.port, PATH)
        self._question = msgspec.json.encode({"passwd": settings.password})
        self._fetcher = Fetcher(deadline=settings.deadline, bytes_at_most=BYTES_AT_MOST, guard=AddressGuard.of(target))
        self._envelopes = EnvelopeSequence(target, settings.interval, WHO)
        self._idle = IdleWatch()
        self._age = _Age(self._url, max(_SHORTEST_AGE, 3 * settings.interval))

    async def read(self, now: float) -> Arrival:
        # An answer as large as it may be takes long to read: others are heard meanwhile.
        report, facts = await parse_in_thread(self._read_answer, await self._ask(), now)
        read_at = self._age.check(facts.last_update, now)
        self._nodes[self._target.name] = facts
        # Where hosts.txt has its address alone, a node is called what it calls itself.
        is_own = not self._target.is_named and is_host_name(facts.hostname)
        return Arrival(self._envelopes.put(report, read_at, host=facts.hostname if is_own else None), now)

    async def close(self) -> None:
        self._nodes.pop(self._target.name, None)
        await self._fetcher.close()

    async def _ask(self) -> bytes:
        try:
            return (await self._fetcher.post(self._url, self._question, _HEADERS)).body
        except Temporary as error:
            if error.message.startswith(f"{self._url} answers 404"):
                raise Refused(
                    f"{self._url} answers 404: that is what a node says to a wrong password.",
                    "Check compat.gpu_cluster_status.password, and the port of the host.",
                ) from error
            raise

    def _read_answer(self, body: bytes, now: float) -> tuple[Report, NodeFacts]:
        told = self._open(body)
        gpus = told.get("gpus")
        if not isinstance(gpus, list) or len(gpus) > GPUS_AT_MOST:
            raise Temporary(f"{self._url} answers no list of GPUs.", _ADVICE)
        ips = _read_ips(told.get("ips"))
        report = Report(
            gpus=[self._read_gpu(number, gpu, processes_at_most(len(gpus)), now) for number, gpu in enumerate(gpus)],
            unknown=Figures(HOST_METRICS, WHO).unknown,
            labels=self._target.labels,
            addresses=[address for _, address in ips],
            interfaces={address: interface for interface, address in ips if interface},
        )
        return report, _read_facts(told, self._target.name)

    def _open(self, body: bytes) -> dict[str, Any]:
        try:
            told = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Temporary(f"{self._url} answers what is no JSON.", _ADVICE) from error
        if not isinstance(told, dict):
            raise Temporary(f"{self._url} answers something else than a node would.", _ADVICE)
        return told

    def _read_gpu(self, number: int, told: object, most: int, now: float) -> GpuReading:
        """A GPU that makes no sense is missing, and costs no other."""
        if not isinstance(told, dict):
            reason = f"{WHO} tells no fields of it"
            return GpuReading(
                f"{WHO}/{self._target.name}/#{number}",
                number,
                "unknown",
                missing=reason,
                unknown=dict.fromkeys(GPU_METRICS, reason),
            )
        index = told.get("index")
        # The number in the list counts: two GPUs of one index would be one.
        uuid = f"{WHO}/{self._target.name}/{number}"
        figures = Figures(GPU_METRICS, WHO)
        for field, (name, factor) in _FIELDS.items():
            if told.get(field) is not None:
                figures.take(name, told[field], factor)
        processes = _read_processes(told.get("users"), most)
        return GpuReading(
            uuid=uuid,
            index=index if isinstance(index, int) and 0 <= index <= 65535 else number,
            name=read_word(told.get("name")) or "NVIDIA GPU",
            vendor="nvidia",
            metrics=figures.metrics,
            unknown=figures.unknown,
            processes=processes,
            processes_reason=None if processes is not None else f"{WHO} does not list this GPU's users",
            idle_seconds=self._idle.track(uuid, figures.metrics.get("utilization_percent"), now),
        )


class _Age:
    """How old a node's values are. A node whose reader has ended goes on answering its last ones.

    `last_update` is local time of the node without a zone. As that of this machine it is right for most; where it is
    not recent as such, zone or clock may differ, and nothing is believed until it changes.
    """

    def __init__(self, url: str, limit: float) -> None:
        self._url = url
        self._limit = limit
        self._told: str | None = None
        self._read_at: float | None = None

    def check(self, told: str, now: float) -> float:
        """When the values were read, on the hub's clock. Raises Temporary where that is too long ago or not known."""
        if told != self._told:
            self._read_at = _recent(told, now, self._limit) if self._told is None else now
            self._told = told
        if self._read_at is None:
            raise Temporary(f"{self._url} tells values of another time: newer ones have to come first.", _FROZEN)
        if now - self._read_at > self._limit:
            raise Temporary(f"{self._url} tells values that are {show_span(now - self._read_at)} old.", _FROZEN)
        return self._read_at


def _recent(told: str, now: float, limit: float) -> float | None:
    """The moment that is told, if it is within the limit of now; None for any other."""
    try:
        at = datetime.fromisoformat(told).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(at, now) if abs(now - at) <= limit else None


def _read_processes(told: object, most: int) -> list[Process] | None:
    """An entry that makes no sense is a process of which nothing is known: its GPU is not free."""
    if not isinstance(told, list):
        return None
    return [_read_process(entry if isinstance(entry, dict) else {}) for entry in told[:most]]


def _read_process(entry: dict[str, Any]) -> Process:
    command = entry.get("command")
    return describe_process(
        pid=entry.get("pid"),
        user=read_word(entry.get("username")),
        name=command if isinstance(command, str) else "",
        memory=entry.get("mem(MiB)"),
        started_at=None,
        who=WHO,
        commands="redacted",
    )


def _read_facts(told: dict[str, Any], name: str) -> NodeFacts:
    update = told.get("last_update")
    return NodeFacts(
        hostname=read_word(told.get("hostname")) or name,
        last_update=update[:64] if isinstance(update, str) else "",
    )


def _read_ips(told: object) -> list[list[str]]:
    """Pairs of interface and address; what is none is left out."""
    pairs = told[:64] if isinstance(told, list) else []
    return [
        [str(pair[0])[:64], str(pair[1])[:64]]
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and read_word(pair[1]) is not None
    ]
