"""GPU Cluster Status Monitor: the hub asks its nodes as its main did, and answers `GET /get-status` as its main. A node
reports no UUIDs: a GPU is identified by its host and number, until an agent takes over."""

from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from gpudeck.api.access import Policy
from gpudeck.collectors.base import IdleWatch
from gpudeck.compat import readings
from gpudeck.compat.gpu_cluster_status_node import PATH, describe_gpu, describe_ips, encode, write_time
from gpudeck.compat.service import Headers, Identify, ReadOnlyRoute
from gpudeck.compat.settings import GpuClusterStatusSettings
from gpudeck.discovery.host_names import is_host_name
from gpudeck.fetch import AddressGuard, Fetcher
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.model.text import show_span
from gpudeck.sources.base import EnvelopeSequence, FetchedReport

WHO: Final = "gpu-cluster-status"
MAX_BYTES: Final = 1024 * 1024
"""16 GPUs with 100 processes each, whose commands a node cuts at 500 characters."""
_HEADERS: Final = {"Content-Type": "application/json"}
_FIELDS: Final = {
    "use_mem": ("memory_used_bytes", float(readings.MIB)),
    "tot_mem": ("memory_total_bytes", float(readings.MIB)),
    "utilize": ("utilization_percent", 1.0),
    "temp": ("temperature_celsius", 1.0),
}
_ADVICE: Final = "Does a node of GPU Cluster Status Monitor listen there?"
_FROZEN: Final = "Restart node_info.py on that host: it answers, but has stopped reading its GPUs."
_MIN_AGE: Final = 10.0


class NodeSource:
    """Asks one node, over a kept connection, and keeps its description in `nodes`. See `Source`."""

    def __init__(self, target: Target, settings: GpuClusterStatusSettings, nodes: readings.Nodes) -> None:
        self._target = target
        self._nodes = nodes
        self._url = target.url(settings.port, PATH)
        self._question = msgspec.json.encode({"passwd": settings.password})
        self.fetcher = Fetcher(deadline=settings.deadline, bytes_at_most=MAX_BYTES, guard=AddressGuard.of(target))
        self._envelopes = EnvelopeSequence(target, settings.interval, WHO)
        self._idle = IdleWatch()
        self._age = _Age(self._url, max(_MIN_AGE, 3 * settings.interval))

    async def read(self, now: float) -> FetchedReport:
        # An answer as large as it may be takes long to read: others are served meanwhile.
        report, facts = await parse_in_thread(self._read_answer, await self._fetch(), now)
        read_at = self._age.check(facts.last_update, now)
        self._nodes[self._target.name] = facts
        # Where hosts.txt has its address alone, a node is called what it calls itself.
        is_own = not self._target.is_named and is_host_name(facts.hostname)
        return FetchedReport(self._envelopes.put(report, read_at, host=facts.hostname if is_own else None), now)

    async def close(self) -> None:
        self._nodes.pop(self._target.name, None)
        await self.fetcher.close()

    async def _fetch(self) -> bytes:
        try:
            return (await self.fetcher.post(self._url, self._question, _HEADERS)).body
        except Temporary as error:
            if error.message.startswith(f"{self._url} answers 404"):
                raise Refused(
                    f"{self._url} answers 404: that is what a node says to a wrong password.",
                    "Check compat.gpu_cluster_status.password, and the port of the host.",
                ) from error
            raise

    def _read_answer(self, body: bytes, now: float) -> tuple[Report, readings.NodeFacts]:
        raw = self._open(body)
        gpus = raw.get("gpus")
        if not isinstance(gpus, list) or len(gpus) > readings.MAX_GPUS:
            raise Temporary(f"{self._url} answers no list of GPUs.", _ADVICE)
        ips = _read_ips(raw.get("ips"))
        report = Report(
            gpus=[
                self._read_gpu(number, gpu, readings.processes_at_most(len(gpus)), now)
                for number, gpu in enumerate(gpus)
            ],
            unknown=readings.Figures(HOST_METRICS, WHO).unknown,
            labels=self._target.labels,
            addresses=[address for _, address in ips],
            interfaces={address: interface for interface, address in ips if interface},
        )
        update = raw.get("last_update")
        hostname = readings.read_word(raw.get("hostname")) or self._target.name
        return report, readings.NodeFacts(hostname, update[:64] if isinstance(update, str) else "")

    def _open(self, body: bytes) -> dict[str, Any]:
        try:
            raw = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Temporary(f"{self._url} answers what is no JSON.", _ADVICE) from error
        if not isinstance(raw, dict):
            raise Temporary(f"{self._url} answers something else than a node would.", _ADVICE)
        return raw

    def _read_gpu(self, number: int, raw: object, most: int, now: float) -> GpuReading:
        """A GPU that makes no sense is missing, and costs no other."""
        if not isinstance(raw, dict):
            return readings.describe_missing_gpu(
                f"{WHO}/{self._target.name}/#{number}", number, f"{WHO} reports no fields of it"
            )
        index = raw.get("index")
        # The number in the list counts: two GPUs of one index would be one.
        uuid = f"{WHO}/{self._target.name}/{number}"
        figures = readings.Figures(GPU_METRICS, WHO)
        figures.take_fields(raw, _FIELDS)
        users = raw.get("users")
        return readings.describe_gpu_reading(
            uuid,
            index if isinstance(index, int) and 0 <= index <= 65535 else number,
            readings.read_word(raw.get("name")),
            figures,
            read_processes(users[:most]) if isinstance(users, list) else f"{WHO} does not list this GPU's users",
            idle_seconds=self._idle.track(uuid, figures.metrics.get("utilization_percent"), now),
        )


class _Age:
    """How old a node's values are: one whose reader has ended goes on answering its last ones. `last_update` is local
    time without a zone. Where it is not recent as such, nothing is believed until it changes."""

    def __init__(self, url: str, limit: float) -> None:
        self._url = url
        self._limit = limit
        self._last_update: str | None = None
        self._read_at: float | None = None

    def check(self, last_update: str, now: float) -> float:
        if last_update != self._last_update:
            self._read_at = _recent(last_update, now, self._limit) if self._last_update is None else now
            self._last_update = last_update
        if self._read_at is None:
            raise Temporary(f"{self._url} reports values of another time; the hub waits for newer ones.", _FROZEN)
        if now - self._read_at > self._limit:
            raise Temporary(f"{self._url} reports values that are {show_span(now - self._read_at)} old.", _FROZEN)
        return self._read_at


def _recent(last_update: str, now: float, limit: float) -> float | None:
    """The moment, if it is within the limit of now; None for any other."""
    try:
        at = datetime.fromisoformat(last_update).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(at, now) if abs(now - at) <= limit else None


def read_processes(raw: list[object]) -> list[Process]:
    """An entry that makes no sense is a process of which nothing is known: its GPU is not free."""
    return [
        readings.describe_process(
            pid=entry.get("pid"),
            user=readings.read_word(entry.get("username")),
            name=command if isinstance(command := entry.get("command"), str) else "",
            memory=entry.get("mem(MiB)"),
            started_at=None,
            who=WHO,
        )
        for entry in (entry if isinstance(entry, dict) else {} for entry in raw)
    ]


def _read_ips(raw: object) -> list[list[str]]:
    pairs = raw[:64] if isinstance(raw, list) else []
    return [
        [str(pair[0])[:64], str(pair[1])[:64]]
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and readings.read_word(pair[1]) is not None
    ]


class ClusterStatusRoute(ReadOnlyRoute):
    """`GET /get-status` for all of the fleet; `nodes` is what the nodes say of themselves."""

    paths = (PATH,)
    # 401 is never an answer here: its readers know no log-in.
    refusal = (404, "not_found", "there is nothing here", "")

    def __init__(self, hub: Hub, nodes: readings.Nodes, *, identify: Identify, policy: Policy) -> None:
        super().__init__(hub, identify=identify, policy=policy)
        self._nodes = nodes

    async def answer(self, query: bytes, visibility: Visibility) -> tuple[bytes, Headers]:
        return encode(self.describe(visibility)), [(b"content-type", b"application/json")]

    def describe(self, visibility: Visibility) -> dict[str, Any]:
        return {"Nodes": [self._describe_node(host, visibility) for host in self._hub.fleet.ordered()]}

    def _describe_node(self, host: HostState, visibility: Visibility) -> dict[str, Any]:
        """One that was never reached has its name alone; one that is silent its last report, and `status` false."""
        view = visibility.host(host.view())
        if host.status == "never_seen":
            return {"gpus": [], "hostname": host.name, "status": False, "version": ""}
        facts = self._nodes.get(host.target or "") if host.via == WHO else None
        at = view.last_report_at
        return {
            "gpus": [describe_gpu(gpu, partial(getattr, gpu)) for gpu in view.gpus],
            "hostname": host.name if facts is None else facts.hostname,
            "ips": describe_ips(view.addresses, host.interfaces),
            "last_update": (facts.last_update if facts is not None else "") or (write_time(at) if at else None),
            "status": host.status == "up",
            "version": view.gpus[0].name if view.gpus else "",
        }
