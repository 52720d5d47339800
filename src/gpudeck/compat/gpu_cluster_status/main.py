"""`GET /get-status` of the hub: what the main of GPU Cluster Status Monitor told of its nodes, for all of the fleet."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from litestar.exceptions import HTTPException

from gpudeck.api.access import Policy
from gpudeck.api.callers import Refusal
from gpudeck.api.errors import describe_trouble
from gpudeck.auth.caller import Caller
from gpudeck.compat.gpu_cluster_status.node import LONGEST_COMMAND, PATH, encode, write_time
from gpudeck.compat.gpu_cluster_status.nodes import Nodes
from gpudeck.hub.host import HostState
from gpudeck.hub.hub import Hub
from gpudeck.hub.sight import Sight
from gpudeck.model.errors import Temporary
from gpudeck.model.view import Gpu, ShownProcess
from gpudeck.server.asgi import Receive, Scope, Send, send_error, send_json

log = logging.getLogger(__name__)

Identify = Callable[[Scope], Awaitable[Caller]]
_MIB: Final = 1024 * 1024


class MainDoor:
    """A side door of the hub. `identify` says who reads, `policy` whether they may."""

    def __init__(self, hub: Hub, nodes: Nodes, *, identify: Identify, policy: Policy) -> None:
        self._hub = hub
        self._nodes = nodes
        self._identify = identify
        self._policy = policy

    def takes(self, path: str, query: bytes) -> bool:
        return path == PATH

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            # 401 is never an answer here: its readers know no log-in.
            await send_error(send, 405, "method_not_allowed", "this is only read", "", (b"allow", b"GET, HEAD"))
            return
        try:
            caller = await self._identify(scope)
            self._policy.check("read", caller)
        except Temporary as error:
            await send_error(send, 503, "unavailable", *describe_trouble(error), (b"retry-after", b"5"))
            return
        except (Refusal, HTTPException):
            await send_error(send, 404, "not_found", "there is nothing here")
            return
        body = encode(self.describe(self._policy.sight(caller)))
        await send_json(send, 200, body, (b"cache-control", b"no-store"))

    def describe(self, sight: Sight) -> dict[str, Any]:
        return {"Nodes": [self._describe_node(host, sight) for host in self._hub.fleet.ordered()]}

    def _describe_node(self, host: HostState, sight: Sight) -> dict[str, Any]:
        """One that was never reached has its name alone; one that is silent what it told last, and `status` false."""
        view = sight.host(host.view())
        if host.status == "never":
            return {"gpus": [], "hostname": host.name, "status": False, "version": ""}
        facts = self._nodes.get(host.target or "") if host.via == "gpu-cluster-status" else None
        at = view.last_report_at
        return {
            "gpus": [_describe_gpu(gpu) for gpu in view.gpus],
            "hostname": host.name if facts is None else facts.hostname,
            "ips": _describe_ips(view.addresses, host.interfaces),
            "last_update": (facts.last_update if facts is not None else "") or (write_time(at) if at else None),
            "status": host.status == "up",
            "version": view.gpus[0].name if view.gpus else "",
        }


def _describe_ips(addresses: list[str], interfaces: dict[str, str]) -> list[list[str]]:
    """Pairs of interface and address as a node lists them: IPv4, the first address of each interface, by address."""
    pairs: dict[str, str] = {}
    for address in addresses:
        if ":" not in address:
            pairs.setdefault(interfaces.get(address) or address, address)
    return [[interfaces.get(address, ""), address] for address in sorted(pairs.values())]


def _describe_gpu(gpu: Gpu) -> dict[str, Any]:
    """What is unknown is null."""
    return {
        "index": gpu.index,
        "name": gpu.name,
        "use_mem": _mebibytes(gpu.memory_used_bytes),
        "tot_mem": _mebibytes(gpu.memory_total_bytes),
        "utilize": _whole(gpu.utilization_percent),
        "temp": _whole(gpu.temperature_celsius),
        "users": [_describe_user(process) for process in gpu.processes or ()],
    }


def _describe_user(process: ShownProcess) -> dict[str, Any]:
    command = process.command
    return {
        "pid": process.pid,
        "username": process.user,
        "mem(MiB)": _mebibytes(process.memory_used_bytes),
        "command": None if command is None else command[:LONGEST_COMMAND],
    }


def _mebibytes(size: float | None) -> int | None:
    return None if size is None else int(size // _MIB)


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)
