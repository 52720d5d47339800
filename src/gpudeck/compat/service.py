"""The routes of the monitors that came before, each only where the settings name it."""

from collections.abc import Awaitable, Callable, Sequence

from gpudeck.api.access import Authenticator
from gpudeck.api.app import ForeignRoutes
from gpudeck.api.services import ApiServices
from gpudeck.compat.readings import Nodes
from gpudeck.compat.settings import CompatSettings
from gpudeck.model import clock
from gpudeck.server.admission import ReportSenders

OpenPart = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class CompatRoutes:
    """`open` before the hub serves. `nodes` holds what nodes of GPU Cluster Status Monitor say of themselves: their
    source puts it there. `senders` are those routes whose callers the limits have to know."""

    def __init__(self, settings: CompatSettings, *, forget_after: float, history_kept: float) -> None:
        """`forget_after` is after how long without a report a host is forgotten, `history_kept` how long the longest
        kept history is, both in seconds."""
        self.nodes: Nodes = {}
        self.senders: list[ReportSenders] = []
        self._settings = settings
        self._forget_after = forget_after
        self._history_kept = history_kept

    async def open(self, services: ApiServices, keeper: Authenticator, open_part: OpenPart) -> Sequence[ForeignRoutes]:
        """`open_part` loads now what is in the database, or when that answers. What no setting names is not even
        imported."""
        compat, routes = self._settings, list[ForeignRoutes]()
        if compat.vesta is not None:
            routes += await self._open_vesta(services, keeper, open_part)
        if compat.gpu_cluster_status is not None:
            from gpudeck.compat.gpu_cluster_status import ClusterStatusRoute  # noqa: PLC0415 - see above

            routes.append(
                ClusterStatusRoute(services.hub, self.nodes, identify=keeper.identify, policy=services.policy)
            )
        if compat.gpumonitor is not None:
            from gpudeck.compat.gpumonitor import GpusPageRoute  # noqa: PLC0415 - see above

            routes.append(GpusPageRoute(services.hub, identify=keeper.identify, policy=services.policy))
        return routes

    async def _open_vesta(
        self, services: ApiServices, keeper: Authenticator, open_part: OpenPart
    ) -> list[ForeignRoutes]:
        from gpudeck.compat.vesta.import_routes import ImportStorage, VestaImportRoutes  # noqa: PLC0415 - see above
        from gpudeck.compat.vesta.routes import VestaRoutes  # noqa: PLC0415 - see above
        from gpudeck.compat.vesta.store import ImportedSpans, Samples, VestaRegister  # noqa: PLC0415 - as above

        assert self._settings.vesta is not None  # noqa: S101 - the caller has looked
        register = VestaRegister(
            services.auth.database, clock.wall, forget_after=self._forget_after, retention=services.hub.retention
        )
        await open_part(register.load)
        samples = Samples(services.auth.database)
        vesta = VestaRoutes(
            services.hub,
            register,
            samples,
            self._settings.vesta,
            identify=keeper.identify,
            policy=services.policy,
            history=services.history,
            now=clock.wall,
        )
        self.senders.append(vesta)
        storage = ImportStorage(
            services.history,
            samples,
            ImportedSpans(services.auth.database),
            has_room=lambda: bool(getattr(services.history, "has_room", True)),
            settle=lambda: bool(getattr(services.history, "settle", lambda: True)()),
            keeps=self._history_kept,
        )
        return [
            vesta,
            VestaImportRoutes(services.hub.fleet, register, storage, identify=keeper.identify, now=clock.wall),
        ]
