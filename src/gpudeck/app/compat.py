"""The side doors of a hub: paths of the monitors that came before, each only where the settings name it."""

from collections.abc import Awaitable, Callable, Sequence

from gpudeck.api.app import SideDoor
from gpudeck.api.callers import Doorkeeper
from gpudeck.api.house import House
from gpudeck.compat.gpu_cluster_status.nodes import Nodes
from gpudeck.model import clock
from gpudeck.server.admission import ReportSenders
from gpudeck.settings import Settings

OpenPart = Callable[[Callable[[], Awaitable[None]]], Awaitable[None]]


class SideDoors:
    """`open` before the hub serves. What nodes tell of themselves is in `nodes`: whoever reads them puts it there.
    `senders` are those of the doors whose callers the limits have to know."""

    def __init__(self, settings: Settings) -> None:
        self.nodes: Nodes = {}
        self.senders: list[ReportSenders] = []
        self._settings = settings

    async def open(self, house: House, keeper: Doorkeeper, open_part: OpenPart) -> Sequence[SideDoor]:
        """`open_part` loads now what is in the database, or when that answers. What no setting names is not even
        imported."""
        compat, doors = self._settings.compat, list[SideDoor]()
        if compat.vesta is not None:
            doors += await self._open_vesta(house, keeper, open_part)
        if compat.gpu_cluster_status is not None:
            from gpudeck.compat.gpu_cluster_status.main import MainDoor  # noqa: PLC0415 - see above

            doors.append(MainDoor(house.hub, self.nodes, identify=keeper.identify, policy=house.policy))
        if compat.gpumonitor is not None:
            from gpudeck.compat.gpumonitor.page import PageDoor  # noqa: PLC0415 - see above

            doors.append(PageDoor(house.hub, identify=keeper.identify, policy=house.policy))
        return doors

    async def _open_vesta(self, house: House, keeper: Doorkeeper, open_part: OpenPart) -> list[SideDoor]:
        from gpudeck.compat.vesta.import_routes import ImportDoor, Shelf  # noqa: PLC0415 - see above
        from gpudeck.compat.vesta.register import VestaRegister  # noqa: PLC0415 - see above
        from gpudeck.compat.vesta.routes import VestaDoor  # noqa: PLC0415 - see above
        from gpudeck.compat.vesta.samples import ImportedSpans, Samples  # noqa: PLC0415 - see above

        assert self._settings.compat.vesta is not None  # noqa: S101 - whoever calls has looked
        register = VestaRegister(
            house.auth.database,
            clock.wall,
            forget_after=self._settings.fleet.forget_after,
            retention=house.hub.retention,
        )
        await open_part(register.load)
        samples = Samples(house.auth.database)
        door = VestaDoor(
            house.hub,
            register,
            samples,
            self._settings.compat.vesta,
            identify=keeper.identify,
            policy=house.policy,
            history=house.history,
            now=clock.wall,
        )
        self.senders.append(door)
        history = self._settings.history
        shelf = Shelf(
            house.history,
            samples,
            ImportedSpans(house.auth.database),
            has_room=lambda: bool(getattr(house.history, "has_room", True)),
            settle=lambda: bool(getattr(house.history, "settle", lambda: True)()),
            keeps=max(history.raw, history.quarter_hour, history.hour),
        )
        return [door, ImportDoor(house.hub.fleet, register, shelf, identify=keeper.identify, now=clock.wall)]
