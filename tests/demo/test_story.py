"""The demo has prices, reservations whose owners come, and users who wait."""

import asyncio
from pathlib import Path

import pytest
from msgspec.structs import replace

from fakes.api_app import make_auth
from fakes.reports import make_envelope
from fakes.waiting import until
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.settings import NotifySettings
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.database.engine import Database
from gpudeck.database.schema import name_fleet
from gpudeck.demo.service import (
    PRICES,
    DemoInbox,
    DemoReservation,
    DemoScenario,
    DemoScheduler,
    plan_queue,
    plan_reservations,
    with_default_prices,
)
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.history.settings import UsageSettings
from gpudeck.maintenance.service import MaintenanceWindows
from gpudeck.queueing.queue import QueueStore, WaitQueue
from gpudeck.queueing.settings import QueueSettings
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationQuery, ReservationStore

NOON = 1_760_356_800.0
HOSTS = 12


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return SimulatedFleet(HOSTS, seed=1)


@pytest.fixture(scope="module")
def plan(fleet: SimulatedFleet) -> list[DemoReservation]:
    return plan_reservations(fleet, NOON, 30)


def test_every_model_has_a_price_and_configured_prices_stay(fleet: SimulatedFleet) -> None:
    lab = SimulatedFleet(64)
    models = {slot.name for host in range(64) for slot in lab.simulator(host).host.slots}
    assert all(any(part in model for part in PRICES) for model in models)
    assert with_default_prices(UsageSettings()).currency == "EUR"
    own = UsageSettings(currency="USD", prices={"H200": 1.0})
    assert with_default_prices(own) == own


def test_some_reservations_are_over_some_run_and_some_are_planned(plan: list[DemoReservation]) -> None:
    assert sum(one.end <= NOON for one in plan) > 10
    assert any(one.start <= NOON < one.end for one in plan)
    assert any(one.start > NOON for one in plan)


def test_no_two_reservations_share_a_gpu(plan: list[DemoReservation]) -> None:
    spans = sorted((gpu.uuid, one.start, one.end) for one in plan for gpu in one.gpus)
    assert all(uuid != before or start >= end for (before, _, end), (uuid, start, _) in zip(spans, spans[1:]))  # noqa: B905, RUF007


def test_owner_of_a_reservation_is_on_its_gpus(fleet: SimulatedFleet, plan: list[DemoReservation]) -> None:
    for one in plan:
        middle = (one.start + one.end) / 2
        jobs = fleet.runs(fleet.names.index(one.gpus[0].host), middle, middle + 1)
        assert any(job.user == one.user and set(job.gpus) == {gpu.uuid for gpu in one.gpus} for job in jobs)
        assert (one.used_at is not None) is (one.start <= NOON)


def test_users_of_the_lab_wait(fleet: SimulatedFleet) -> None:
    waiting = plan_queue(fleet, NOON)
    assert len(waiting) == 3
    assert all(fleet.group_of(user) for user, _ in waiting)


class NoClaims:
    async def claim(self, *_: object) -> int:
        return 1

    async def extend_claim(self, *_: object) -> bool:
        return True

    async def end_claim(self, *_: object) -> None: ...


def make_windows(database: Database, hosts: int) -> MaintenanceWindows:
    """With the last host in the fleet."""
    hub = Hub()
    hub.fleet.apply(make_envelope(SimulatedFleet(hosts).names[-1]), via="simulated", now=NOON)
    return MaintenanceWindows(database, name_fleet(hosts), hub.fleet, lambda: NOON)


def test_one_host_is_in_maintenance_until_tomorrow_and_is_drained_once(database: Database) -> None:
    async def go() -> None:
        windows = make_windows(database, HOSTS)
        calendar = ReservationCalendar(ReservationStore(database, name_fleet(HOSTS)), ReservationSettings())
        queue = WaitQueue(QueueStore(database, name_fleet(HOSTS)), QueueSettings(), NoClaims())
        story = DemoScenario(HOSTS, 30.0, database, calendar, queue, maintenance=windows)
        await story.drain()
        await story.drain()
        (window,) = windows.all
        assert (window.host, window.state_at(NOON), window.state_at(NOON + 86_400)) == (
            SimulatedFleet(HOSTS).names[-1],
            "running",
            "ended",
        )

    asyncio.run(go())


def test_reservations_are_written_once_and_apart_from_real_ones(database: Database) -> None:
    async def go() -> None:
        store = ReservationStore(database, name_fleet(HOSTS))
        calendar = ReservationCalendar(store, ReservationSettings(), lambda: NOON)
        queue = WaitQueue(QueueStore(database, name_fleet(HOSTS)), QueueSettings(), NoClaims())
        story = DemoScenario(HOSTS, 30.0, database, calendar, queue, maintenance=make_windows(database, HOSTS))
        await story.reserve(NOON)
        written = await store.search(ReservationQuery())
        assert len(written) == len(plan_reservations(SimulatedFleet(HOSTS), NOON, 30))
        assert calendar.current()
        await story.reserve(NOON)
        assert await store.search(ReservationQuery()) == written
        assert await ReservationStore(database, name_fleet(None)).search(ReservationQuery()) == []

    asyncio.run(go())


def test_demo_with_a_short_past_has_no_story(database: Database) -> None:
    async def go() -> None:
        calendar = ReservationCalendar(ReservationStore(database, name_fleet(2)), ReservationSettings())
        queue = WaitQueue(QueueStore(database, name_fleet(2)), QueueSettings(), NoClaims())
        story = DemoScenario(2, 1.0, database, calendar, queue, maintenance=make_windows(database, 2))
        story.start()
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await story.close()

    asyncio.run(go())


def test_jobs_of_the_scheduler_are_those_that_run_on_its_nodes(fleet: SimulatedFleet) -> None:
    state = asyncio.run(DemoScheduler(fleet, lambda: NOON).read())
    given = {(name, gpu): one.number for name, node in state.nodes.items() for gpu, one in node.gpus.items()}
    reports = {name: fleet.report(fleet.names.index(name), NOON) for name in state.nodes}
    running = {
        (name, gpu.index): gpu.processes[0].job
        for name, report in reports.items()
        for gpu in (report.gpus if report else None) or ()
        if gpu.processes
    }
    assert running
    assert given.items() >= running.items()


def test_a_message_to_a_simulated_user_can_be_seen(tmp_path: Path) -> None:
    auth = make_auth(tmp_path)
    events = EventLog(auth.database, EventSettings())
    seen: list[str] = []
    events.subscribe(lambda event: seen.append(f"{event.title}: {event.detail}"))
    messages = MessageService(
        Hub(), auth, NotifySettings(), events, inbox=DemoInbox(events), fleet=name_fleet(HOSTS), now=lambda: NOON
    )
    question, alert = (
        Message(key=rule, at=NOON, kind=kind, rule=rule, severity="info", title=f"{rule} it", accounts=("priya",))
        for kind, rule in (("ask", "ask"), ("alert", "gpu_idle"))
    )
    question = replace(question, is_personal=True)

    async def live() -> None:
        await messages.open()
        messages.outbox.put(question)
        messages.outbox.put(alert)
        await messages.outbox.flush()
        messages.outbox.start()
        await until(lambda: bool(seen))
        await messages.close()

    asyncio.run(live())
    assert messages.reaches("priya")
    assert seen == ["priya got a message: ask it."]
