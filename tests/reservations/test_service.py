"""Reservations in a hub: what is reserved is shown at once, and what is observed has its consequences."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fakes.api_app import make_auth
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from fakes.views import show
from fakes.waiting import until
from gpudeck.database.schema import name_fleet
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import Temporary
from gpudeck.model.event import Event
from gpudeck.model.gpu_request import candidates, is_usable
from gpudeck.model.reservation import Reservation, ReservedGpu
from gpudeck.reservations.conflicts import Conflict
from gpudeck.reservations.requests import Change, Requester, ReservationDraft, ReservationRefused, ReservationRequest
from gpudeck.reservations.service import ReservationService, observe
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationQuery, ReservationStore

NOW = 1_790_000_000.0
HOUR = 3600.0


class Site:
    """A hub with one host of one GPU. Its clock stands still but for `watch`."""

    def __init__(self, folder: Path, *, demo: int | None = None) -> None:
        self.clock = FakeClock(NOW)
        self.hub = Hub(now=self.clock)
        self.auth = make_auth(folder)
        self.told: list[Event] = []
        self.of_schedulers: list[Reservation] = []
        events = EventLog(self.auth.database, EventSettings(), now=self.clock)
        events.subscribe(self.told.append)
        settings = ReservationSettings()
        self.reservations = ReservationService(
            self.hub,
            self.auth,
            settings,
            events,
            data_dir=folder,
            fleet=name_fleet(demo),
            of_schedulers=lambda: self.of_schedulers,
            now=self.clock,
        )
        self.sequence = 0
        self.report(make_gpu())

    def report(self, gpu: Any) -> None:
        self.sequence += 1
        self.hub.fleet.apply(make_envelope(sequence=self.sequence, gpus=[gpu]), via="push", now=self.clock.now)

    async def reserve(self, user: str = "ada", hours: float = 4) -> Reservation:
        draft = ReservationDraft(wanted=ReservationRequest(gpus=("GPU-0",)), length=hours * HOUR, note="training")
        return await self.reservations.calendar.reserve(draft, Requester(user), observe(self.hub.fleet))

    async def watch(self, minutes: int, make: Callable[[], Any]) -> None:
        """A report and a tick a minute, and what follows from each."""
        for _ in range(minutes):
            self.clock.advance(60)
            self.report(make())
            self.reservations.on_second()
            work = self.reservations.task
            assert work is not None
            await work

    @property
    def gpu(self) -> dict[str, Any]:
        (host,) = self.hub.fleet.hosts.values()
        return dict(show(host)["gpus"][0])

    def kinds(self) -> list[str]:
        return [event.kind for event in self.told]


async def threads_are_gone() -> None:
    """A connection that could not be made tells the loop so from a thread of its own, which must still be there."""
    workers = "_connection_worker_thread"
    await until(lambda: all(workers not in thread.name for thread in threading.enumerate()), "the threads' end")


def test_reservation_is_shown_at_once_and_no_longer_than_it_counts(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        await site.reservations.open()
        made = await site.reserve()
        assert site.gpu["availability"] == "reserved"
        assert (site.gpu["reservation"]["id"], site.gpu["reservation"]["until"]) == (made.id, NOW + 4 * HOUR)
        site.clock.advance(4 * HOUR)
        site.reservations.reconcile()
        assert (site.gpu["availability"], site.gpu["reservation"]) == ("free", None)

    asyncio.run(play())


def test_stream_says_that_a_reservation_of_next_week_was_made_and_given_back(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        await site.reservations.open()
        draft = ReservationDraft(wanted=ReservationRequest(gpus=("GPU-0",)), start=NOW + 7 * 24 * HOUR, length=HOUR)
        made = await site.reservations.calendar.reserve(draft, Requester("ada"), observe(site.hub.fleet))
        assert b'"reservations":1' in site.hub.stream.tick().plain
        assert b'"reservations"' not in site.hub.stream.tick().plain
        await site.reservations.calendar.release(made.id, Requester("ada"))
        assert b'"reservations":2' in site.hub.stream.tick().plain

    asyncio.run(play())


def test_stranger_on_a_reserved_gpu_is_told_of(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        await site.reserve()
        await site.watch(3, lambda: make_busy_gpu(user="bob"))
        assert site.gpu["reservation_conflict"] == "bob is on it, though it is reserved by ada"
        assert site.kinds() == ["reservation_conflict"]
        await site.watch(1, make_gpu)
        assert site.gpu["reservation_conflict"] is None

    asyncio.run(play())


def test_owner_who_came_keeps_the_reservation_also_after_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        made = await site.reserve()
        await site.watch(1, lambda: make_busy_gpu(user="ada"))
        again = Site(tmp_path)
        again.clock.advance(120)
        await again.reservations.open()
        await again.watch(90, make_gpu)
        assert again.kinds() == []
        assert (await again.reservations.calendar.find(made.id)).used_at == NOW + 60
        assert again.gpu["availability"] == "reserved"

    asyncio.run(play())


def test_nobody_came_is_warned_of_released_and_written_down(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        made = await site.reserve()
        await site.watch(62, make_gpu)
        assert site.kinds() == ["reservation_unused", "reservation_released"]
        assert site.told[1].title == "ada's reservation of GPU 0 of gpu01 was released: nobody used it"
        assert site.gpu["availability"] == "free"
        released = await site.reservations.calendar.find(made.id)
        assert released.release_reason == "nobody used it"
        (entry,) = await site.auth.audit.list()
        assert (entry.who, entry.action, entry.subject) == ("the hub", "release reservation", "reservation 1")

    asyncio.run(play())


def test_start_without_the_database_takes_reservations_of_the_last_day_and_calls_nothing_free_without_them(
    tmp_path: Path,
) -> None:
    async def restart(later: float) -> tuple[str, str | None]:
        site = Site(tmp_path)
        site.clock.advance(later)

        async def fail(*_: object) -> None:
            raise Temporary("the database does not answer.")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ReservationStore, "search", fail)
            with pytest.raises(Temporary):
                await site.reservations.open()
        site.report(make_gpu())
        return site.gpu["availability"], site.gpu["availability_reason"]

    async def play() -> None:
        assert await restart(0) == ("unknown", "whether it is reserved is not known")
        site = Site(tmp_path)
        await site.reserve()
        await site.reservations.ask_database()
        assert await restart(60) == ("reserved", None)
        assert await restart(18_000) == ("free", None)
        assert (await restart(90_000))[0] == "unknown"

    asyncio.run(play())


def test_database_that_is_away_costs_no_reservation_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        await site.reservations.open()
        await site.reserve()
        (tmp_path / "gpudeck.db").rename(tmp_path / "away.db")
        (tmp_path / "gpudeck.db").mkdir()
        site.clock.advance(1200)
        site.report(make_gpu())
        monkeypatch.setattr("gpudeck.reservations.service.RETRY_SECONDS", 0.0)
        site.reservations.on_second()
        work = site.reservations.task
        assert work is not None
        await work
        (problem,) = site.hub.fleet.problems
        assert problem.startswith("reservations are those of before")
        assert site.gpu["availability"] == "reserved"
        await threads_are_gone()

    asyncio.run(play())


def make_foreign(start: float, end: float) -> Reservation:
    """A reservation of a scheduler, for ada and bob."""
    times = {"created_at": start, "changed_at": start, "used_at": None, "released_at": None, "release_reason": None}
    named = {
        "id": 2**52 + 1,
        "kind": "reservation",
        "user": "ada, bob",
        "note": "Slurm reservation paper",
        "version": 1,
    }
    whose = {"created_by": "slurm", "scheduler": "slurm", "name": "paper"}
    gpus = [ReservedGpu("GPU-0", "gpu01", "0")]
    return msgspec.convert(named | times | whose | {"start": start, "end": end, "gpus": gpus}, Reservation)


def test_a_reservation_of_a_scheduler_is_listed_and_shown_and_is_nobodys_to_change(tmp_path: Path) -> None:
    async def play() -> None:
        site = Site(tmp_path)
        await site.reservations.open()
        foreign = make_foreign(NOW + HOUR, NOW + 2 * HOUR)
        site.of_schedulers = [foreign]
        site.reservations.reconcile()
        calendar = site.reservations.calendar
        assert await calendar.search(ReservationQuery(start=NOW, user="bob")) == [foreign]
        assert await calendar.search(ReservationQuery(start=NOW, user="eve")) == []
        assert await calendar.find(foreign.id) == foreign
        for refused in (
            calendar.release(foreign.id, Requester("root", is_admin=True)),
            calendar.change(foreign.id, Change(note="mine"), Requester("ada"), observe(site.hub.fleet)),
        ):
            with pytest.raises(
                ReservationRefused, match=r"reservation paper of slurm .* cannot be changed here"
            ) as found:
                await refused
            assert found.value.code == "read_only"
        # It is respected before it begins, even by its users: they get the GPU from the scheduler.
        with pytest.raises(Conflict, match=r"reserved by ada, bob .*: reservation paper of slurm") as conflict:
            await site.reserve("ada")
        assert conflict.value.next_free is not None
        assert conflict.value.next_free.start == foreign.end
        with pytest.raises(Conflict):
            await calendar.claim(foreign.gpus, "ada", 2 * HOUR)
        assert site.gpu["availability"] == "free"
        site.clock.advance(HOUR)
        site.reservations.reconcile()
        assert site.gpu["availability"] == "reserved"
        assert (site.gpu["reservation"]["user"], site.gpu["reservation"]["scheduler"]) == ("ada, bob", "slurm")
        (host,) = site.hub.fleet.hosts.values()
        (candidate,) = candidates([host.view()])
        assert not is_usable(candidate, {"ada"})
        site.clock.advance(HOUR)
        site.reservations.reconcile()
        assert site.gpu["availability"] == "free"
        assert site.kinds() == []

    asyncio.run(play())
