"""Polls all schedulers and matches their nodes with the hosts of the fleet. If a scheduler cannot be read, empty
GPUs of its hosts are unknown, because they may be allocated."""

import asyncio
import contextlib
import hashlib
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.database.background import LocalCopy
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model import clock
from gpudeck.model.allocation import NOT_SCHEDULED, Allocation, SchedulerMark
from gpudeck.model.clock import Clock
from gpudeck.model.cluster import Duty
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import PluginError, Temporary, Wrong
from gpudeck.model.reservation import Reservation, ReservedGpu
from gpudeck.schedulers.base import EndedJob, NodeReservation, Scheduler, SchedulerNode, SchedulerState

log = logging.getLogger(__name__)

FILE_NAME: Final = "schedulers.json"
SETTLED_SECONDS: Final = 60.0
"""A job or process that is younger may be missing from the latest reading or report."""
MISSED_READINGS: Final = 3
"""The last known allocations count until more readings than this have failed. Empty GPUs are unknown from the first
failure on."""
RECENT_SECONDS: Final = 5.0
"""No GPU is handed out based on an older reading. Longer than the interval at which clients ask again."""


NoteEnded = Callable[[str, Sequence[EndedJob]], Awaitable[None]]
"""The name of a scheduler, and jobs of it. Raises Temporary."""


class KnownNodes(Struct, frozen=True):
    """By the scheduler's origin, the possible names of the host of each node."""

    nodes: dict[str, list[tuple[str, ...]]]


class SharedReading(Struct, frozen=True):
    """A scheduler as one of several hubs has read it. With a problem, the state is of an earlier reading, or None."""

    state: SchedulerState | None
    problem: str | None
    nodes: list[tuple[str, ...]]


SharedReadings = dict[str, SharedReading]


class _SchedulerReading:
    """One scheduler. `nodes` are those of the last successful reading, also from before a restart; `gpus` are those
    that it may give to jobs. `wanted` triggers a reading at once."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state: SchedulerState | None = None
        self.reservations: tuple[NodeReservation, ...] = ()
        self.nodes: list[tuple[str, ...]] = []
        self.failures = 0
        self.problem: str | None = f"{scheduler.origin} has not been read yet"
        self.gpus: Set[str] = frozenset()
        self.succeeded_at = -math.inf
        self.wanted = asyncio.Event()

    def succeed(self, state: SchedulerState, now: float) -> None:
        if self.failures:
            log.info("%s can be read again", self.scheduler.origin)
        self.succeeded_at = now
        self.state, self.failures, self.problem = state, 0, None
        self.reservations = state.reservations
        self.nodes = [node.names for node in state.nodes.values()]

    def shared(self) -> SharedReading:
        state = self.state and replace(self.state, ended=())
        return SharedReading(state, self.problem, self.nodes)

    def adopt(self, shared: SharedReading) -> None:
        self.state, self.problem, self.nodes = shared.state, shared.problem, shared.nodes
        self.failures = 0 if shared.problem is None else MISSED_READINGS + 1
        if shared.state is not None:
            self.reservations = shared.state.reservations

    def fail(self, error: PluginError) -> None:
        self.failures += 1
        self.problem = f"{self.scheduler.origin} cannot be read: {error.message.rstrip('.')}"
        if self.failures == 1:
            log.warning("%s", self.problem, exc_info=error if isinstance(error, Wrong) else None)
        if self.failures > MISSED_READINGS:
            self.state = None


class SchedulerService(Service):
    """`reservations` are those of all schedulers, with their GPUs. Reservations of a scheduler that cannot be read
    stay."""

    name = "schedulers"

    def __init__(
        self,
        hub: Hub,
        schedulers: Sequence[Scheduler],
        *,
        data_dir: Path | None = None,
        note_ended: NoteEnded | None = None,
        now: Clock = clock.wall,
        monotonic: Clock = time.monotonic,
        duty: Duty | None = None,
        share: Callable[[SharedReadings], None] | None = None,
    ) -> None:
        """`data_dir` has a copy of the known nodes. `note_ended` is called with jobs that have ended. Of several
        hubs, the one with the `duty` reads the schedulers and shares the result with the others."""
        self._duty = duty or Duty("schedulers")
        self._share = share
        self._shared_at = now()
        self._note_ended = note_ended
        self._hub = hub
        self._now = now
        self._monotonic = monotonic
        self._readings = [_SchedulerReading(scheduler) for scheduler in schedulers]
        self._copy = None if data_dir is None else LocalCopy(data_dir / FILE_NAME, KnownNodes)
        self._tasks: list[asyncio.Task[None]] = []
        self._joined: object = None
        self.reservations: Sequence[Reservation] = ()

    async def open(self) -> None:
        known = await asyncio.to_thread(self._copy.read) if self._copy is not None and self._readings else None
        for reading in self._readings:
            reading.nodes = known.nodes.get(reading.scheduler.origin, []) if known is not None else []
        self._join()

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._run(one), name=one.scheduler.origin) for one in self._readings]

    def on_second(self) -> None:
        if self._readings:
            self._expire_shared()
            self._join()

    def use_shared(self, shared: SharedReadings) -> None:
        if self._duty.is_held:
            return
        self._shared_at = self._now()
        for reading in self._readings:
            found = shared.get(reading.scheduler.name)
            if found is not None:
                reading.adopt(found)
        self._join()

    def _expire_shared(self) -> None:
        """A shared reading expires like an own one."""
        for reading in [] if self._duty.is_held else self._readings:
            if self._now() - self._shared_at > max(60.0, (MISSED_READINGS + 1) * reading.scheduler.pause):
                reading.adopt(SharedReading(None, f"{reading.scheduler.origin} is read by no hub now", reading.nodes))

    def find_outdated(self, gpus: Set[str]) -> Set[str]:
        """The GPUs that a scheduler may have allocated since its last reading. A new reading is started, so the
        caller can ask again after a second."""
        outdated: set[str] = set()
        for reading in self._readings:
            age = self._monotonic() - reading.succeeded_at if self._duty.is_held else math.inf
            if age > RECENT_SECONDS and (found := gpus & reading.gpus):
                reading.wanted.set()
                outdated |= found
        return outdated

    async def close(self) -> None:
        await cancel_tasks(*self._tasks)

    async def _run(self, reading: _SchedulerReading) -> None:
        while True:
            if not self._duty.is_held:
                await asyncio.sleep(1.0)
                continue
            before = reading.nodes
            reading.wanted.clear()
            await self._read(reading)
            self._joined = None
            self._join()
            if self._share is not None:
                self._share({one.scheduler.name: one.shared() for one in self._readings})
            if reading.state is not None and reading.state.ended and self._note_ended is not None:
                # What is missed here is read again a few minutes later.
                with contextlib.suppress(Temporary):
                    await self._note_ended(reading.scheduler.name, reading.state.ended)
            if self._copy is not None and reading.nodes != before:
                await self._copy.write(KnownNodes({one.scheduler.origin: one.nodes for one in self._readings}))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reading.wanted.wait(), reading.scheduler.pause)

    async def _read(self, reading: _SchedulerReading) -> None:
        try:
            reading.succeed(await reading.scheduler.read(), self._monotonic())
        except PluginError as error:
            reading.fail(error)
        except Exception as error:  # noqa: BLE001 - whatever one scheduler does, the others go on
            reading.fail(Wrong(f"{type(error).__name__}: {error}"))

    def _join(self) -> None:
        """Apply allocations to the fleet, unless nothing has changed: neither a scheduler, nor the GPUs of a host,
        nor which reservations are in force."""
        fleet, now = self._hub.fleet, self._now()
        known = tuple(
            (one.state, one.problem, tuple(one.nodes), *(kept.counts_at(now) for kept in one.reservations))
            for one in self._readings
        )
        key = (fleet.table.regroupings, len(fleet.hosts), known)
        if key == self._joined:
            return
        self._joined = key
        hosts = FleetHosts(fleet.hosts.values())
        marks: dict[str, SchedulerMark] = {}
        for reading in self._readings:
            found = find_marks(reading.state, reading.nodes, reading.problem, hosts, now)
            reading.gpus = found.keys()
            marks |= found
        fleet.allocate(marks, now)
        reserved = [one for reading in self._readings for one in _find_reservations(reading, hosts)]
        if reserved != self.reservations:
            self.reservations = reserved
        fleet.set_problems(
            "schedulers", [f"{one.problem}." for one in self._readings if one.problem is not None and one.failures]
        )


class FleetHosts:
    """The hosts of a fleet by their names, whole and without their domains, in lower case."""

    def __init__(self, hosts: Iterable[HostState]) -> None:
        self.all = list(hosts)
        self._named: dict[str, list[HostState]] = {}
        for host in self.all:
            name = host.name.lower()
            for one in {name, name.partition(".")[0]}:
                self._named.setdefault(one, []).append(host)

    def find(self, names: Iterable[str]) -> HostState | None:
        """The host of the first name that exactly one host has."""
        found = (self._named.get(name.lower()) or self._named.get(name.lower().partition(".")[0]) for name in names)
        return next((hosts[0] for hosts in found if hosts and len(hosts) == 1), None)


def find_marks(
    state: SchedulerState | None, nodes: Sequence[tuple[str, ...]], problem: str | None, hosts: FleetHosts, now: float
) -> Mapping[str, SchedulerMark]:
    """The mark of each GPU on the hosts of a scheduler, by UUID. If it has never been read, any host may be one of
    its hosts."""
    marks: dict[str, SchedulerMark] = {}
    if state is not None:
        maintenance = [one for one in state.reservations if one.is_maintenance and one.counts_at(now)]
        closed = {name: one.note for one in maintenance for name in one.nodes}
        for name, node in state.nodes.items():
            host = hosts.find(node.names)
            known = replace(node, closed=closed[name]) if node.closed is None and name in closed else node
            known = known if problem is None else replace(known, uncertain=problem)
            marks |= {} if host is None else mark_host(known, host, now)
        return marks
    unread = SchedulerMark(unknown=problem)
    named = (hosts.find(names) for names in nodes)
    for host in (host for host in named if host is not None) if nodes else hosts.all:
        marks |= dict.fromkeys(host.gpus, unread)
    return marks


def mark_host(node: SchedulerNode, host: HostState, now: float) -> Mapping[str, SchedulerMark]:
    others = SchedulerMark(closed=node.closed, unknown=node.uncertain)
    others = NOT_SCHEDULED if others == NOT_SCHEDULED else others
    marks = dict.fromkeys(host.gpus, others)
    if not node.gpus:
        return marks
    order = list(_in_order(node, host))
    if any(index >= len(order) for index in node.gpus):
        seen = len(_boards(host))
        why = f"{len(node.gpus)} of the {node.count} GPUs that its scheduler counts are allocated; {seen} are seen here"
        return dict.fromkeys(host.gpus, SchedulerMark(closed=node.closed, unknown=why))
    for index, allocation in node.gpus.items():
        board = order[index]
        # The instances of a board that was given away as a whole are given away with it.
        for gpu in host.gpus.values():
            if board in {gpu.uuid, gpu.parent}:
                conflict = _find_conflict(gpu, allocation, now)
                shown = allocation if conflict is None else replace(allocation, conflict=conflict)
                marks[gpu.uuid] = SchedulerMark(shown, node.closed)
    return marks


def _find_conflict(gpu: GpuState, allocation: Allocation, now: float) -> str | None:
    """A process of another job or user, if process and allocation are both old enough to be in reports and readings."""
    if allocation.number is None or allocation.since is None or now - allocation.since < SETTLED_SECONDS:
        return None
    for one in gpu.reported_processes or ():
        is_other = not one.display and not allocation.is_of(one.job, one.user)
        if is_other and one.started_at is not None and now - one.started_at >= SETTLED_SECONDS:
            return f"process {one.pid} of {f'job {one.job}' if one.job else one.user} is on it"
    return None


def _find_reservations(reading: _SchedulerReading, hosts: FleetHosts) -> Iterator[Reservation]:
    """Reservations of hosts of the fleet. Ids are stable, and far above those of the hub's own reservations."""
    scheduler = reading.scheduler.name
    names = {one[0]: one for one in reading.nodes}
    for one in reading.reservations:
        nodes = (hosts.find(names.get(node, (node,))) for node in one.nodes)
        gpus = [ReservedGpu(gpu.uuid, host.name, gpu.label) for host in nodes if host for gpu in host.gpus.values()]
        digest = hashlib.blake2b(f"{scheduler}:{one.name}".encode(), digest_size=6).digest()
        if gpus:
            yield Reservation(
                id=2**52 + int.from_bytes(digest, "big"),
                kind="reservation",
                user=", ".join(one.users) or scheduler,
                gpus=gpus,
                start=one.start,
                end=one.end,
                note=one.note,
                version=1,
                created_at=one.start,
                created_by=scheduler,
                changed_at=one.start,
                used_at=None,
                released_at=None,
                release_reason=None,
                scheduler=scheduler,
                name=one.name,
            )


def _in_order(node: SchedulerNode, host: HostState) -> Iterator[str]:
    """The UUIDs of boards or MIG instances in the scheduler's order: from the host if it reports the order, else by
    index if their number is the same."""
    boards = _boards(host)
    if host.slurm_gpus:
        by_address = {_short_address(gpu.pci_address or ""): board for board, gpu in boards.items()}
        by_address |= {_short_address(uuid): uuid for uuid in host.gpus if uuid.startswith("MIG-")}
        addresses = [_short_address(address) for address in host.slurm_gpus]
        if all(address in by_address for address in addresses):
            yield from (by_address[address] for address in addresses)
    elif len(boards) == node.count:
        yield from sorted(boards, key=lambda board: boards[board].index)


def _short_address(address: str) -> str:
    """NVML writes a PCI domain with eight digits, the kernel with four. Slurm names MIG instances by their UUIDs."""
    return address if address.startswith("MIG-") else address.lower()[-12:]


def _boards(host: HostState) -> dict[str, GpuState]:
    """By UUID. A board in MIG mode is represented by one of its instances."""
    return {gpu.parent or gpu.uuid: gpu for gpu in host.gpus.values()}
