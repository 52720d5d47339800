"""The routes, sources and host lists of the older monitors that the settings name."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from gpudeck.api.access import Authenticator, Policy
from gpudeck.api.answers import RequestRefused, send_refusal
from gpudeck.api.app import ForeignRoutes
from gpudeck.api.services import ApiServices
from gpudeck.auth.caller import Caller
from gpudeck.compat.settings import (
    NODES_NOT_READABLE,
    CompatSettings,
    GpuClusterStatusSettings,
    GpuMonitorSettings,
    GpumonitorSettings,
)
from gpudeck.discovery.inputs import Provider
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.model import clock
from gpudeck.model.errors import Temporary, UsageError
from gpudeck.model.target import Target
from gpudeck.server.admission import ReportSenders
from gpudeck.server.asgi import Receive, Scope, Send, send_error
from gpudeck.sources.base import Source
from gpudeck.sources.poller import PollMethod
from gpudeck.sources.registry import imported

OpenPart = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class CompatRoutes:
    """Call `open` before the hub serves. `senders` are the routes whose senders have their own limits."""

    def __init__(self, settings: CompatSettings, *, forget_after: float, history_kept: float) -> None:
        """`forget_after` is the time without a report after which a host is forgotten, `history_kept` the longest
        retention of the history, both in seconds."""
        self.senders: list[ReportSenders] = []
        self._settings = settings
        self._forget_after = forget_after
        self._history_kept = history_kept

    async def open(self, services: ApiServices, keeper: Authenticator, open_part: OpenPart) -> Sequence[ForeignRoutes]:
        """`open_part` runs a load from the database now, or when it answers. Only configured monitors are imported."""
        compat, routes = self._settings, list[ForeignRoutes]()
        if compat.vesta is not None:
            routes += await self._open_vesta(services, keeper, open_part)
        if compat.gpu_cluster_status is not None:
            from gpudeck.compat.gpu_cluster_status import ClusterStatusRoute  # noqa: PLC0415 - see above

            routes.append(ClusterStatusRoute(services.hub, identify=keeper.identify, policy=services.policy))
        if compat.gpumonitor is not None:
            from gpudeck.compat.gpumonitor import GpusPageRoute  # noqa: PLC0415 - see above

            routes.append(GpusPageRoute(services.hub, identify=keeper.identify, policy=services.policy))
        return routes

    async def _open_vesta(
        self, services: ApiServices, keeper: Authenticator, open_part: OpenPart
    ) -> list[ForeignRoutes]:
        from gpudeck.compat.vesta.routes import VestaImportRoute, VestaRoutes  # noqa: PLC0415 - see above
        from gpudeck.compat.vesta.store import Samples, VestaRegister  # noqa: PLC0415 - see above

        assert self._settings.vesta is not None  # noqa: S101 - the caller has looked
        history, samples = services.history, Samples(services.auth.database)
        register = VestaRegister(
            services.auth.database, clock.wall, forget_after=self._forget_after, retention=services.hub.retention
        )
        await open_part(register.load)
        vesta = VestaRoutes(
            services.hub,
            register,
            samples,
            self._settings.vesta,
            identify=keeper.identify,
            policy=services.policy,
            now=clock.wall,
        )
        self.senders.append(vesta)
        imports = VestaImportRoute(
            register,
            samples,
            history,
            has_room=lambda: bool(getattr(history, "has_room", True)),
            settle=lambda: bool(getattr(history, "settle", lambda: True)()),
            keeps=self._history_kept,
            identify=keeper.identify,
            now=clock.wall,
        )
        return [vesta, imports]


Identify = Callable[[Scope], Awaitable[Caller]]
Headers = list[tuple[bytes, bytes]]


class ReadOnlyRoute:
    """A page for callers with read access. A subclass has its `paths`, the `refusal` (status, code, message, hint) for
    other callers, and the answer."""

    paths: ClassVar[tuple[str, ...]]
    refusal: ClassVar[tuple[int, str, str, str]]

    def __init__(self, hub: Hub, *, identify: Identify, policy: Policy) -> None:
        self._hub = hub
        self._identify = identify
        self._policy = policy

    def takes(self, path: str, query: bytes) -> bool:
        return path in self.paths

    async def answer(self, query: bytes, visibility: Visibility) -> tuple[bytes, Headers]:
        """The body and its headers, without its length."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            await send_error(send, 405, "method_not_allowed", "this is only read", "", (b"allow", b"GET, HEAD"))
            return
        try:
            caller = await self._identify(scope)
            self._policy.check("read", caller)
        except Temporary as error:
            await send_refusal(send, error)
            return
        except RequestRefused:
            await send_error(send, *self.refusal)
            return
        body, headers = await self.answer(scope["query_string"], self._policy.visibility(caller))
        headers = [*headers, (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def make_poll_methods(settings: CompatSettings) -> dict[str, PollMethod]:
    """The poll methods of the older monitors. Without settings of a monitor its defaults apply."""
    status = settings.gpu_cluster_status or GpuClusterStatusSettings(password="")
    node, files = settings.gpumonitor or GpumonitorSettings(), settings.gpu_monitor or GpuMonitorSettings()
    cluster_source = imported("gpudeck.compat.gpu_cluster_status:ClusterNodeSource", status)

    def make_cluster_source(target: Target) -> Source:
        if not status.password:
            raise UsageError(f"{NODES_NOT_READABLE}.")
        return cluster_source(target)

    served = imported("gpudeck.compat.gpu_monitor:ServedSource", files)
    folder = imported("gpudeck.compat.gpu_monitor:FolderSource", files)
    asked = imported("gpudeck.compat.gpumonitor:GpumonitorSource", node)
    return {
        "gpu-cluster-status": PollMethod(make_cluster_source, status.interval, status.deadline, status.port),
        "gpumonitor": PollMethod(asked, node.interval, node.deadline, node.port),
        "gpu-monitor": PollMethod(served, files.interval, files.deadline, files.port),
        "gpu-monitor-files": PollMethod(folder, files.interval, files.deadline),
    }


def make_providers(settings: CompatSettings) -> list[Provider]:
    files = settings.gpu_monitor
    if files is None:
        return []
    from gpudeck.compat.gpu_monitor import ConsulNodes, FolderHosts  # noqa: PLC0415 - see above

    folder: list[Provider] = [FolderHosts(files.folder)] if files.folder else []
    return [*folder, *([ConsulNodes(files.consul)] if files.consul else [])]


def names_hosts(settings: CompatSettings) -> bool:
    files = settings.gpu_monitor
    return files is not None and (files.folder is not None or files.consul is not None)
