"""The old fleet beside the new one, for the followers of a fleet: event detector, recorder and alerts take its hosts as
they take those of the table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from fakes.scalar.gpu import GpuState as ScalarGpu
from fakes.scalar.host import HostState as ScalarHost
from gpudeck.fleet.baseline import HostBaseline
from gpudeck.fleet.host import HostState, ReportOrder
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.table import FleetTable
from gpudeck.model.allocation import SchedulerMark
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.gpu_state import Health
from gpudeck.model.report import GpuReading
from gpudeck.model.reservation import MaintenanceSchedule, ReservationMark
from gpudeck.model.text import Names
from gpudeck.model.view import Gpu, Host
from gpudeck.wire import Envelope


class OldGpu:
    """A GPU of the old fleet, with the names that followers ask the new one for. `shown` is its view."""

    def __init__(self, state: ScalarGpu, shown: Gpu) -> None:
        self._view = shown
        self.uuid, self.index, self.label, self.name = shown.uuid, shown.index, shown.label, shown.name
        self.display_name, self.parent = shown.display_name, shown.parent
        self.missing, self.faults, self.processes = state.missing, state.faults, state.processes
        self.availability, self.is_current = shown.availability, shown.last_seen is None
        self.health = Health(shown.health, shown.health_reason, shown.health_action)

    def view(self) -> Gpu:
        return self._view

    def value(self, metric: str) -> Any:
        return getattr(self._view, metric)

    def numbers(self) -> list[Any]:
        return [getattr(self._view, name) for name in GPU_METRICS]


class OldHost:
    """A host of the old fleet. What followers keep at a host (`baseline`, `sampled_slot`) is kept here."""

    row = -1
    is_forwarded = False

    def __init__(self, state: ScalarHost) -> None:
        self.state = state
        self.baseline: HostBaseline | None = None
        self.sampled_slot = -1.0
        self._shown: tuple[Host, dict[str, OldGpu]] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)

    @property
    def order(self) -> ReportOrder:
        order = ReportOrder()
        order.run = (self.state.boot_id, "")
        return order

    def fork(
        self,
        marks: Mapping[str, ReservationMark],
        maintenance: MaintenanceSchedule,
        scheduling: Mapping[str, SchedulerMark],
    ) -> "OldHost":
        other = OldHost(self.state.fork(marks, maintenance, scheduling))
        other.baseline, other.sampled_slot = self.baseline, self.sampled_slot
        return other

    def change(self) -> ScalarHost:
        """The state, which is about to change."""
        self._shown = None
        return self.state

    @property
    def gpus(self) -> dict[str, OldGpu]:
        return self._show()[1]

    @property
    def facts(self) -> Host:
        return self._show()[0]

    def view(self) -> Host:
        return self._show()[0]

    own_view = view

    def current_gpus(self) -> list[OldGpu]:
        return [gpu for gpu in self.gpus.values() if gpu.is_current]

    def show(self, gpus: list[OldGpu]) -> list[Gpu]:
        return [gpu.view() for gpu in gpus]

    def numbers(self) -> list[Any]:
        return [self.state.view[name] for name in HOST_METRICS]

    def _show(self) -> tuple[Host, dict[str, OldGpu]]:
        if self._shown is None:
            view = msgspec.convert(self.state.view, Host)
            states = self.state.gpus.values()
            gpus = {one.uuid: OldGpu(state, one) for state, one in zip(states, view.gpus, strict=True)}
            self._shown = view, gpus
        return self._shown


class BothHosts(HostState):
    """A host of the table that does everything to its `old` one too."""

    def __init__(self, host_id: str, via: str, table: FleetTable) -> None:
        super().__init__(host_id, via, table)
        self.old = OldHost(
            ScalarHost(host_id, via, table.settings, table.names, table.marks, table.maintenance, table.scheduling)
        )

    def take(
        self, envelope: Envelope, observed_at: float, skew: float | None, now: float, uptime: float | None = None
    ) -> None:
        if self.is_pending:
            self._table.settle()
        old = self.old.change()
        old.id, old.via = self.id, self.via
        old.note_report(now, uptime)
        old.take(envelope, observed_at, skew, now)
        super().take(envelope, observed_at, skew, now, uptime)

    def note_report(self, now: float, uptime: float | None = None) -> None:
        self.old.state.note_report(now, uptime)
        super().note_report(now, uptime)

    def age(self, now: float, uptime: float | None = None, *, may_be_down: bool = True) -> bool:
        assert may_be_down  # of a single hub, which is never cut off from others
        is_changed = super().age(now, uptime)
        assert is_changed == self.old.change().age(now, uptime), f"{self.name} ages otherwise"
        return is_changed

    def flag(self, kind: str, problem: str | None) -> None:
        super().flag(kind, problem)
        self.old.change().flag(kind, problem)

    def expect(self, target: str | None, via: str, labels: dict[str, str]) -> None:
        super().expect(target, via, labels)
        self.old.change().expect(target, via, labels)

    def restore(self, envelope: Envelope, gpus: Sequence[GpuReading], last_report_at: float, *, until: float) -> None:
        super().restore(envelope, gpus, last_report_at, until=until)
        whole = replace(envelope, report=replace(envelope.report, gpus=list(gpus)))
        self.old.change().restore(whole, last_report_at, until=until)

    def release_gpu(self, uuid: str) -> None:
        super().release_gpu(uuid)
        self.old.change().release_gpu(uuid)

    def rename_id(self, host_id: str) -> None:
        super().rename_id(host_id)
        self.old.change().rename_id(host_id)

    def rename(self, names: Names) -> None:
        super().rename(names)
        self.old.change().rename(names)

    def update_marks(self, uuids: Iterable[str], now: float, *fields: str) -> None:
        uuids = list(uuids)
        super().update_marks(uuids, now, *fields)
        self.old.change().update_marks(uuids, now)

    def fork(self, table: FleetTable) -> "BothHosts":
        other = super().fork(table)
        assert isinstance(other, BothHosts)
        other.old = self.old.fork(table.marks, table.maintenance, table.scheduling)
        return other

    def make_empty(self, table: FleetTable) -> "BothHosts":
        return BothHosts(self.id, self.via, table)


class OldFleet:
    """The old hosts of a fleet, as far as `Lookout` and `observe` ask for them."""

    def __init__(self, fleet: FleetState) -> None:
        self._fleet = fleet
        self.table = _OldTable()

    @property
    def hosts(self) -> dict[str, OldHost]:
        return {host_id: host.old for host_id, host in self._fleet.hosts.items()}  # type: ignore[attr-defined]

    def settle(self) -> None:
        self._fleet.settle()

    def ordered(self) -> list[OldHost]:
        return [host.old for host in self._fleet.ordered()]  # type: ignore[attr-defined]

    def power_limits(self) -> dict[str, float]:
        """The limit that most GPUs of a model have, the higher one of two that as many have."""
        limits: dict[str, list[float]] = {}
        for host in self.hosts.values():
            for gpu in host.gpus.values():
                if gpu.value("power_limit_watts"):
                    limits.setdefault(gpu.name, []).append(gpu.value("power_limit_watts"))
        return {model: max(watts, key=lambda one, of=watts: (of.count(one), one)) for model, watts in limits.items()}


class _OldTable:
    """Another number each time: whether a missing GPU is in another host is looked for at every look."""

    def __init__(self) -> None:
        self._looks = 0

    @property
    def regroupings(self) -> int:
        self._looks += 1
        return self._looks
