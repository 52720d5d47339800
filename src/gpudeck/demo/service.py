"""The demo in a hub: a past that a child process makes, reservations, maintenance, and users who wait for GPUs."""

import asyncio
import contextlib
import math
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.collectors.simulated import SimulatedFleet, SimulatedJob
from gpudeck.collectors.simulated.chance import draw
from gpudeck.database.engine import Database
from gpudeck.database.schema import name_fleet
from gpudeck.demo.backfill import SEED, Backfill
from gpudeck.events.service import EventLog
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.fleet.state import SIMULATED_PAST
from gpudeck.history.settings import UsageSettings
from gpudeck.maintenance.service import MaintenanceRequest, MaintenanceWindows
from gpudeck.model import clock
from gpudeck.model.allocation import Allocation
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import GpudeckError
from gpudeck.model.event import make_event
from gpudeck.model.gpu_request import GpuRequest
from gpudeck.model.reservation import ReservedGpu
from gpudeck.queueing.queue import WaitQueue
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.requests import ReservationSpan
from gpudeck.reservations.store import ReservationQuery, ReservationStore, new_row
from gpudeck.schedulers.base import Scheduler, SchedulerNode, SchedulerState

_AT_ONCE: Final = 10
_SETTLED_SECONDS: Final = 4.0
"""Until all hosts have reported and the page is open."""
_ASK_SECONDS: Final = 20.0
_AGAIN_SECONDS: Final = 1800.0
"""After a request was met, its user waits for the next GPUs."""
_AHEAD_SECONDS: Final = 240.0
"""A job has its GPUs for some minutes before its program is on them."""
_LIMIT_SECONDS: Final = 6 * 3600
"""Time limits of jobs are multiples of this."""
_NAMES: Final = {
    "training": "train",
    "loader": "preprocess",
    "notebook": "jupyter",
    "inference": "serve",
    "holder": "debug",
}
DAY: Final = 86_400.0
MIN_DAYS: Final = 7.0
"""A shorter history is not generated: the demo then has only the live fleet."""
PRICES: Final = {
    "H200": 3.2,
    "H100": 2.6,
    "MI300X": 2.4,
    "A100": 1.4,
    "MIG 3g.40gb": 0.6,
    "MIG 2g.20gb": 0.4,
    "MIG 1g.10gb": 0.2,
    "L40S": 0.95,
    "RTX 6000 Ada": 0.7,
    "RTX A6000": 0.5,
    "RTX 4090": 0.4,
    "V100": 0.3,
}
_AHEAD_DAYS: Final = 7.0
_MAX_HOSTS: Final = 24
_FEW_MINUTES: Final = 300
_SHORTEST: Final = 3 * 3600.0
_CHOSEN: Final = 0.22
_NOTES: Final = ("paper deadline", "ablation sweep", "camera-ready runs", "thesis experiments", "release candidate", "")


class Demo:
    """Services and settings of a hub with a simulated fleet."""

    def __init__(self, hosts: int, days: float, data_dir: Path, *, until: float, min_free: int) -> None:
        self._fleet = SimulatedFleet(hosts, SEED)
        self._hosts, self._days = hosts, days
        self._has_story = days >= MIN_DAYS
        self._past = Backfill(hosts, data_dir, until=until, days=days, min_free=min_free)
        self.find_group = self._fleet.group_of
        self.wait_for_past = self._past.wait

    def usage(self, settings: UsageSettings) -> UsageSettings:
        return with_default_prices(settings) if self._has_story else settings

    def schedulers(self) -> list[Scheduler]:
        return [DemoScheduler(self._fleet)] if self._has_story else []

    def services(
        self,
        hub: Hub,
        events: EventLog,
        database: Database,
        calendar: ReservationCalendar,
        queue: WaitQueue,
        *,
        maintenance: MaintenanceWindows,
        has_history: bool,
    ) -> list[Service]:
        self._past.report_to(partial(hub.fleet.set_problems, SIMULATED_PAST), events.keep)
        story = DemoScenario(self._hosts, self._days, database, calendar, queue, maintenance=maintenance)
        return [self._past, story] if has_history else [story]


class DemoInbox:
    """Delivers messages to simulated users as events, so that they are visible."""

    def __init__(self, events: EventLog) -> None:
        self._events = events

    async def send(self, message: Message, account: str | None) -> None:
        detail = " ".join(f"{one.rstrip('.')}." for one in (message.title, *message.lines, message.action) if one)
        self._events.add(make_event(clock.wall(), "message_delivered", f"{account} got a message", detail=detail))

    async def release(self) -> None:
        """Nothing to release."""


class DemoScenario(Service):
    """Adds reservations, maintenance and a queue some seconds after the start. Failures are ignored: the services
    report their own problems."""

    name = "demo story"

    def __init__(
        self,
        hosts: int,
        days: float,
        database: Database,
        calendar: ReservationCalendar,
        queue: WaitQueue,
        *,
        maintenance: MaintenanceWindows,
    ) -> None:
        self._fleet = SimulatedFleet(hosts, SEED)
        self._days = days
        self._store = ReservationStore(database, name_fleet(hosts))
        self._calendar = calendar
        self._queue = queue
        self._maintenance = maintenance
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._days >= MIN_DAYS:
            self._task = asyncio.create_task(self._tell())

    async def close(self) -> None:
        await cancel_tasks(self._task)

    async def _tell(self) -> None:
        await asyncio.sleep(_SETTLED_SECONDS)
        with contextlib.suppress(GpudeckError):
            await self.reserve(clock.wall())
        with contextlib.suppress(GpudeckError):
            await self.drain()
        requests = await asyncio.to_thread(plan_queue, self._fleet, clock.wall())
        await asyncio.gather(*(self._wait(user, wanted) for user, wanted in requests))

    async def reserve(self, now: float) -> None:
        """Write the reservations, unless the demo has some of an earlier start."""
        if await self._store.search(ReservationQuery(limit=1)):
            return
        plan = await asyncio.to_thread(plan_reservations, self._fleet, now, self._days)
        for place in range(0, len(plan), _AT_ONCE):
            async with self._store.write_transaction() as transaction:
                for one in plan[place : place + _AT_ONCE]:
                    span = ReservationSpan(one.start, one.end)
                    row = new_row(one.user, one.user, span, one.note, min(one.start - 3600, now))
                    await transaction.add(row | {"used_at": one.used_at}, one.gpus)
        await self._calendar.load()

    async def drain(self) -> None:
        """One host is in maintenance until tomorrow, unless there are windows of an earlier start."""
        if not self._maintenance.all:
            wanted = plan_maintenance(self._fleet)
            await self._maintenance.plan(wanted, "admin")

    async def _wait(self, user: str, wanted: GpuRequest) -> None:
        """Behaves like `gpudeck wait`: asks while it waits, and leaves when it got its GPUs."""
        while True:
            with contextlib.suppress(GpudeckError):
                position = await self._queue.join(f"demo {user}", user, None, wanted)
                while (one := self._queue.find(position.id)) is not None and one.granted is None:
                    await self._queue.ask(one.id)
                    await asyncio.sleep(_ASK_SECONDS)
            await asyncio.sleep(_AGAIN_SECONDS)


class DemoScheduler:
    """`schedulers.base.Scheduler` of a simulated fleet. Nodes with MIG instances are left out."""

    name = "demo"
    origin = "Slurm (demo)"
    pause = 10.0

    def __init__(self, fleet: SimulatedFleet, now: clock.Clock = clock.wall) -> None:
        self._fleet = fleet
        self._now = now

    async def read(self) -> SchedulerState:
        now, nodes = self._now(), {}
        for simulator in map(self._fleet.simulator, range(len(self._fleet.names))):
            if not simulator.host.in_slurm or any(slot.parent is not None for slot in simulator.host.slots):
                continue
            gpus: dict[int, Allocation] = {}
            for slot in simulator.host.slots:
                jobs = (simulator.timeline.tenure(slot.number, at).run for at in (now, now + _AHEAD_SECONDS))
                job = next((job for job in jobs if job is not None and job.job is not None), None)
                if job is not None:
                    gpus[slot.index] = self._allocate(job, simulator.host.group)
            nodes[simulator.host.name] = SchedulerNode((simulator.host.name,), len(simulator.host.slots), gpus)
        return SchedulerState(nodes)

    def _allocate(self, job: SimulatedJob, group: str) -> Allocation:
        length = (job.end - job.start) // _LIMIT_SECONDS * _LIMIT_SECONDS + _LIMIT_SECONDS
        return Allocation(
            self.name,
            job.job or "",
            name=_NAMES[job.kind],
            user=job.user,
            account=self._fleet.group_of(job.user),
            partition=group,
            since=job.start - _AHEAD_SECONDS,
            until=job.start - _AHEAD_SECONDS + length,
            number=job.job,
        )


def with_default_prices(usage: UsageSettings) -> UsageSettings:
    """Adds the demo's prices, unless prices are configured."""
    return usage if usage.prices else replace(usage, currency=usage.currency or "EUR", prices=PRICES)


class DemoReservation(Struct, frozen=True):
    """`used_at` is None if it has not begun."""

    user: str
    start: float
    end: float
    note: str
    gpus: tuple[ReservedGpu, ...]
    used_at: float | None


def plan_maintenance(fleet: SimulatedFleet) -> MaintenanceRequest:
    """The last host gets new fans."""
    return MaintenanceRequest(host=fleet.names[-1], length=20 * 3600.0, reason="new fans, back tomorrow")


def plan_reservations(fleet: SimulatedFleet, now: float, days: float) -> list[DemoReservation]:
    """Some trainings on several GPUs, of the last `days` and the next week. No two share a GPU at a time."""
    found: list[DemoReservation] = []
    for host in range(min(len(fleet.names), _MAX_HOSTS)):
        spec, taken_until = fleet.simulator(host).host, dict[str, float]()
        if spec.in_slurm:
            continue  # users of a scheduler's hosts reserve nothing
        for job in fleet.runs(host, now - days * DAY, now + _AHEAD_DAYS * DAY):
            start = float(math.floor(job.start / _FEW_MINUTES) * _FEW_MINUTES)
            end = float(math.ceil(job.end / _FEW_MINUTES) * _FEW_MINUTES)
            is_long = job.kind == "training" and len(job.gpus) > 1 and job.end - job.start >= _SHORTEST
            if not is_long or draw(job.work.salt, 2) >= _CHOSEN:
                continue
            if any(taken_until.get(gpu, 0.0) > start for gpu in job.gpus):
                continue
            taken_until |= dict.fromkeys(job.gpus, end)
            note = _NOTES[int(draw(job.work.salt, 1) * len(_NOTES))]
            slots = (spec.slots[number] for number in job.slots)
            gpus = tuple(ReservedGpu(slot.uuid, fleet.names[host], str(slot.index)) for slot in slots)
            used_at = job.start if job.start <= now else None
            found.append(DemoReservation(job.user, start, end, note, gpus, used_at))
    return found


def plan_queue(fleet: SimulatedFleet, now: float) -> list[tuple[str, GpuRequest]]:
    """Requests in the `wait` queue that are seldom met at once, with their users, who used GPUs in the last day."""
    jobs = (job for host in range(min(len(fleet.names), _MAX_HOSTS)) for job in fleet.runs(host, now - DAY, now))
    users = list(dict.fromkeys(job.user for job in jobs))
    wanted = (
        GpuRequest(gpus=8, model="H200", same_host=True),
        GpuRequest(gpus=4, model="H100", same_host=True),
        GpuRequest(gpus=4, memory_bytes=70 << 30, same_host=True),
    )
    return list(zip(users, wanted, strict=False))
