"""GPU Cluster Status Monitor: the hub asks its nodes as its main did, and answers `GET /get-status` as its main. A node
reports no UUIDs: a GPU is identified by its host and number, until an agent takes over."""

from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from gpudeck.compat import readings
from gpudeck.compat.gpu_cluster_status_node import PATH, describe_gpu, describe_ips, encode, write_time
from gpudeck.compat.node_source import NodeSource
from gpudeck.compat.service import Headers, ReadOnlyRoute
from gpudeck.compat.settings import GpuClusterStatusSettings
from gpudeck.discovery.host_names import is_host_name
from gpudeck.fleet.host import HostState
from gpudeck.fleet.visibility import Visibility
from gpudeck.model.errors import Refused, Temporary
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.model.target import Target
from gpudeck.model.text import show_span

WHO: Final = "gpu-cluster-status"
_PROCESS_KEYS: Final = readings.ProcessKeys("pid", "username", "command", "mem(MiB)")
_FIELDS: Final = {
    "use_mem": ("memory_used_bytes", float(readings.MIB)),
    "tot_mem": ("memory_total_bytes", float(readings.MIB)),
    "utilize": ("utilization_percent", 1.0),
    "temp": ("temperature_celsius", 1.0),
}
_ADVICE: Final = "Does a node of GPU Cluster Status Monitor listen there?"
_FROZEN: Final = "Restart node_info.py on that host: it answers, but has stopped reading its GPUs."
_MIN_AGE: Final = 10.0


class ClusterNodeSource(NodeSource):
    """Asks one node. A node whose reader thread has ended keeps answering its last values, so values that are older
    than three intervals are refused. `last_update` is local time without a zone: if it is not recent as such, no value
    is believed until it changes."""

    def __init__(self, target: Target, settings: GpuClusterStatusSettings) -> None:
        super().__init__(
            target,
            target.url(settings.port, PATH),
            msgspec.json.encode({"passwd": settings.password}),
            "application/json",
            interval=settings.interval,
            deadline=settings.deadline,
            who=WHO,
        )
        self._gpus = readings.GpuReader(WHO, _FIELDS)
        self._max_age = max(_MIN_AGE, 3 * settings.interval)
        self._last_update: object = None
        self._read_at: float | None = None

    async def _ask(self) -> bytes:
        try:
            return await super()._ask()
        except Temporary as error:
            if error.message.startswith(f"{self._url} answers 404"):
                raise Refused(
                    f"{self._url} answers 404: that is what a node says to a wrong password.",
                    "Check compat.gpu_cluster_status.password, and the port of the host.",
                ) from error
            raise

    def _parse(self, body: bytes, now: float) -> tuple[Report, float, str | None]:
        try:
            raw = msgspec.json.decode(body, type=dict[str, Any])
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise Temporary(f"{self._url} answers no JSON of a node.", _ADVICE) from error
        gpus = raw.get("gpus")
        if not isinstance(gpus, list) or len(gpus) > readings.MAX_GPUS:
            raise Temporary(f"{self._url} answers no list of GPUs.", _ADVICE)
        ips = _read_ips(raw.get("ips"))
        report = readings.describe_host(
            [self._read_gpu(number, gpu, len(gpus), now) for number, gpu in enumerate(gpus)],
            WHO,
            self._target,
            addresses=[address for _, address in ips],
            interfaces={address: interface for interface, address in ips if interface},
        )
        hostname = readings.read_word(raw.get("hostname")) or ""
        # If hosts.txt has only its address, the host has the name that its node reports.
        is_own = not self._target.is_named and is_host_name(hostname)
        return report, self._find_time(raw.get("last_update"), now), hostname if is_own else None

    def _read_gpu(self, number: int, raw: object, gpus: int, now: float) -> GpuReading:
        """An invalid entry is a missing GPU. Its number in the list counts: two GPUs with one index would be one."""
        uuid = f"{WHO}/{self._target.name}/{number}"
        if not isinstance(raw, dict):
            return readings.describe_missing_gpu(uuid, number, f"{WHO} reports no fields of it")
        index = raw.get("index")
        index = index if isinstance(index, int) and 0 <= index <= 65535 else number
        return self._gpus.read(uuid, index, raw.get("name"), raw, read_processes(raw.get("users"), gpus), now)

    def _find_time(self, last_update: object, now: float) -> float:
        if last_update != self._last_update:
            is_first, self._last_update = self._last_update is None, last_update
            self._read_at = _read_time(last_update, now, self._max_age) or (None if is_first else now)
        if self._read_at is None:
            raise Temporary(f"{self._url} reports values of another time; the hub waits for newer ones.", _FROZEN)
        if now - self._read_at > self._max_age:
            raise Temporary(f"{self._url} reports values that are {show_span(now - self._read_at)} old.", _FROZEN)
        return self._read_at


def _read_time(last_update: object, now: float, max_age: float) -> float | None:
    """None for a time that is not recent."""
    try:
        at = datetime.fromisoformat(str(last_update)).timestamp()
    except (ValueError, OverflowError):
        return None
    return min(at, now) if abs(now - at) <= max_age else None


def read_processes(users: object, gpus: int) -> list[Process] | str:
    return readings.read_processes(users, WHO, _PROCESS_KEYS, gpus)


def _read_ips(raw: object) -> list[list[str]]:
    pairs = raw[:64] if isinstance(raw, list) else []
    return [
        [str(pair[0])[:64], str(pair[1])[:64]]
        for pair in pairs
        if isinstance(pair, list) and len(pair) == 2 and readings.read_word(pair[1]) is not None
    ]


class ClusterStatusRoute(ReadOnlyRoute):
    """`GET /get-status` for all hosts of the fleet. A host that was never reached has its name alone; one that is
    silent its last report, and `status` false."""

    paths = (PATH,)
    # 401 is never an answer here: its readers know no login.
    refusal = (404, "not_found", "there is nothing here", "")

    async def answer(self, query: bytes, visibility: Visibility) -> tuple[bytes, Headers]:
        nodes = [_describe_node(host, visibility) for host in self._hub.fleet.ordered()]
        return encode({"Nodes": nodes}), [(b"content-type", b"application/json")]


def _describe_node(host: HostState, visibility: Visibility) -> dict[str, Any]:
    if host.status == "never_seen":
        return {"gpus": [], "hostname": host.name, "status": False, "version": ""}
    view = visibility.host(host.view())
    return {
        "gpus": [describe_gpu(gpu, partial(getattr, gpu)) for gpu in view.gpus],
        "hostname": host.name,
        "ips": describe_ips(view.addresses, host.interfaces),
        "last_update": write_time(host.observed_at) if host.observed_at else None,
        "status": host.status == "up",
        "version": view.gpus[0].name if view.gpus else "",
    }
