"""Maintenance in a hub: what is drained is shown at once and for as long as it counts, whatever becomes of the host."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from fakes.api_app import make_auth
from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from fakes.waiting import until
from gpudeck.events.service import EventLog, EventService
from gpudeck.events.settings import EventSettings
from gpudeck.events.store import EventQuery
from gpudeck.fleet.hub import Hub
from gpudeck.maintenance.service import MaintenanceRequest, MaintenanceService, MaintenanceWindows
from gpudeck.model.cluster import Duty
from gpudeck.model.errors import RequestRefused, Temporary
from gpudeck.model.event import Event
from gpudeck.model.gpu_request import candidates
from gpudeck.model.reservation import GpuReservation, MaintenanceWindow, ReservationMark
from gpudeck.model.view import Gpu, Host

NOW = 1_790_000_000.0
HOUR = 3600.0
RESERVED = ReservationMark(GpuReservation(7, "ada", NOW + HOUR, "", "reservation"))


class Site:
    """A hub with the hosts gpu01 and gpu02, two free GPUs each. Its clock is the test's."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock(NOW)
        self.hub = Hub(now=self.clock)
        self.told: list[Event] = []
        auth = make_auth(folder)
        events = EventLog(auth.database, EventSettings(), now=self.clock)
        events.subscribe(self.told.append)
        self.service = MaintenanceService(self.hub, auth, events, data_dir=folder, now=self.clock)
        self.sequence = 0
        for host in ("gpu01", "gpu02"):
            self.report(host)

    def report(self, host: str, gpus: Sequence[Any] = (), *, host_id: str | None = None) -> None:
        self.sequence += 1
        own = list(gpus) or [make_gpu(index, uuid=f"{host}-{index}") for index in range(2)]
        envelope = make_envelope(host, gpus=own, host_id=host_id or f"id-{host}", sequence=self.sequence)
        self.hub.fleet.apply(envelope, via="push", now=self.clock.now)

    def host(self, name: str = "gpu01") -> Host:
        (found,) = self.hub.fleet.called(name)
        return found.view()

    def gpu(self, name: str = "gpu01", place: int = 0) -> Gpu:
        return self.host(name).gpus[place]

    def states(self, name: str = "gpu01") -> list[str]:
        return [gpu.availability for gpu in self.host(name).gpus]

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.service.update()

    async def drain(self, host: str = "gpu01", **changes: Any) -> MaintenanceWindow:
        wanted = MaintenanceRequest(**{"host": host, "reason": "new fans"} | changes)
        return (await self.service.windows.plan(wanted, "root"))[0]


def play(folder: Path, scene: Any) -> None:
    async def run() -> None:
        site = Site(folder)
        await site.service.open()
        await scene(site)
        await site.service.close()

    asyncio.run(run())


def test_drained_host_is_not_free_until_the_end(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        made = await site.drain(end=NOW + HOUR)
        assert (site.states(), site.states("gpu02")) == (["drained", "drained"], ["free", "free"])
        assert site.host().maintenance == made.shown == site.gpu().maintenance
        totals = site.hub.fleet.totals()
        assert (totals.free, totals.drained, totals.gpus) == (2, 2, 4)
        assert [gpu.state for gpu in candidates([site.host()])] == ["unusable", "unusable"]
        site.pass_time(HOUR)
        assert (site.states(), site.host().maintenance) == (["free", "free"], None)
        assert [event.kind for event in site.told] == ["maintenance_started", "maintenance_ended"]

    play(tmp_path, scene)


def test_planned_window_begins_by_itself_and_is_shown_to_viewers(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        site.hub.stream.tick()
        await site.drain(gpu="1", start=NOW + 5)
        assert site.states() == ["free", "free"]
        site.pass_time(5)
        assert site.states() == ["free", "drained"]
        assert site.host().maintenance is None
        delta = site.hub.stream.tick().plain
        assert b'"availability":"drained"' in delta
        assert b'"reason":"new fans"' in delta
        site.report("gpu01")
        assert site.states() == ["free", "drained"]

    play(tmp_path, scene)


def test_begin_and_end_are_kept_once_by_two_hubs_of_which_one_dies(tmp_path: Path) -> None:
    """All hubs find them, and the one with the duty of events keeps them."""

    async def scene(site: Site) -> None:
        owner = ["a"]
        hubs: dict[str, tuple[EventService, MaintenanceService]] = {}
        for name in ("a", "b"):
            hub, auth = Hub(now=site.clock), make_auth(tmp_path)
            duty = Duty("events", lambda name=name: owner == [name])
            log = EventService(hub, auth.database, EventSettings(), now=site.clock, duty=duty)
            own = MaintenanceService(hub, auth, log.events, now=site.clock, add_found=log.add_found)
            await log.open()
            hubs[name] = (log, own)
        await site.drain(start=NOW + 5, end=NOW + 65)

        async def pass_time(seconds: float, *names: str) -> None:
            site.clock.advance(seconds)
            for name in names:
                await hubs[name][1].open()
                hubs[name][1].update()
                hubs[name][0].on_second()

        await pass_time(1, "a", "b")
        await pass_time(5, "a", "b")
        await hubs["a"][0].close()
        await pass_time(60, "b")
        owner[0] = "b"
        await pass_time(10, "b")

        async def kept() -> list[str]:
            found = await hubs["b"][0].events.find(EventQuery())
            return sorted(event.kind for event in found if event.kind.startswith("maintenance"))

        await until(lambda: _is(kept, ["maintenance_ended", "maintenance_started"]), "both events", 10)
        await hubs["b"][0].close()
        assert await kept() == ["maintenance_ended", "maintenance_started"]

    play(tmp_path, scene)


async def _is(find: Callable[[], Awaitable[list[str]]], wanted: list[str]) -> bool:
    return await find() == wanted


def test_gpu_in_use_stays_busy_and_says_why_it_will_not_become_free(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        site.report("gpu01", [make_busy_gpu(0, uuid="gpu01-0"), make_gpu(1, uuid="gpu01-1")])
        made = await site.drain()
        assert site.states() == ["busy", "drained"]
        assert site.gpu().maintenance == made.shown
        assert {gpu.state for gpu in candidates([site.host()])} == {"unusable"}
        site.report("gpu01")
        assert site.states() == ["drained", "drained"]

    play(tmp_path, scene)


def test_drained_wins_over_reserved_and_over_reservations_that_are_not_known(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        unknown = ReservationMark(None, is_unknown=True)
        site.hub.fleet.mark({"gpu01-0": RESERVED, "gpu01-1": unknown}, NOW)
        assert site.states() == ["reserved", "unknown"]
        made = await site.drain()
        assert site.states() == ["drained", "drained"]
        await site.service.windows.end(made.id)
        assert site.states() == ["reserved", "unknown"]

    play(tmp_path, scene)


def test_host_that_is_installed_anew_or_comes_back_is_still_drained(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        await site.drain()
        site.hub.fleet.remove("id-gpu01")
        site.service.update()
        assert [one.is_there for one in site.service.windows.show_all().maintenance] == [False]
        site.report("gpu01", host_id="another-id")
        assert site.states() == ["drained", "drained"]
        assert [one.is_there for one in site.service.windows.show_all().maintenance] == [True]

    play(tmp_path, scene)


def test_gpu_that_moves_and_new_instances_of_a_board_are_drained(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        slices = [make_gpu(0, instance=number, uuid=f"MIG-{number}", parent="BOARD") for number in (1, 2)]
        site.report("gpu01", slices)
        made = await site.drain(gpu="0")
        assert (made.gpu, made.label, site.states()) == ("BOARD", "0", ["drained", "drained"])
        site.report("gpu01", [make_gpu(0, instance=5, uuid="MIG-5", parent="BOARD")])
        assert site.states() == ["drained"]
        site.report("gpu02", [make_gpu(3, uuid="BOARD")])
        assert site.states("gpu02") == ["drained"]

    play(tmp_path, scene)


def test_second_drain_changes_the_window_that_runs_and_leaves_planned_ones(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        planned = await site.drain(start=NOW + 50 * HOUR, end=NOW + 60 * HOUR)
        first = await site.drain(end=NOW + HOUR)
        again = await site.drain(reason="  the fans\nare late ")
        assert (again.id, again.start, again.end, again.reason) == (first.id, first.start, None, "the fans are late")
        assert [one.id for one in site.service.windows.all] == [first.id, planned.id]
        await site.service.windows.end(again.id)
        assert site.states() == ["free", "free"]
        site.pass_time(50 * HOUR)
        assert site.states() == ["drained", "drained"]

    play(tmp_path, scene)


def test_windows_survive_a_restart_and_a_database_that_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def away(*_: object) -> list[MaintenanceWindow]:
        raise Temporary("the database does not answer.")

    async def scene(site: Site) -> None:
        await site.drain()
        site.service.on_second()
        assert site.service.task is not None
        await site.service.task
        again = Site(tmp_path)
        await again.service.open()
        assert (again.states(), again.told) == (["drained", "drained"], [])
        monkeypatch.setattr(MaintenanceWindows, "load", away)
        without = Site(tmp_path)
        with pytest.raises(Temporary):
            await without.service.open()
        assert without.states() == ["drained", "drained"]

    play(tmp_path, scene)


@pytest.mark.parametrize(
    ("wanted", "status", "told"),
    [
        ({"host": "gpu1"}, 404, "there is no host 'gpu1'. Did you mean gpu01"),
        ({"host": "elsewhere"}, 404, "there is no host 'elsewhere'. `gpudeck show` lists the hosts."),
        ({"gpu": "7"}, 404, "gpu01 has no GPU '7'. It has 0, 1."),
        ({"start": NOW - HOUR}, 400, "start: that is 1h ago. Leave it out to begin now."),
        ({"end": NOW - 1}, 400, "end: that is 1s ago. End later than now."),
        ({"start": NOW + 2, "end": NOW + 1}, 400, "end: it would end before it begins. Give a later end."),
        ({"end": NOW + 1e9}, 400, "that is more than ten years away. Leave the end out to drain until it is ended."),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_next_step(
    tmp_path: Path, wanted: dict[str, Any], status: int, told: str
) -> None:
    async def scene(site: Site) -> None:
        with pytest.raises(RequestRefused) as refused:
            await site.drain(**wanted)
        assert refused.value.status == status
        assert f"{refused.value.message} {refused.value.hint}".startswith(told)
        assert site.service.windows.all == []

    play(tmp_path, scene)


def test_two_hosts_of_one_name_are_not_guessed(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        site.report("gpu01", [make_gpu(0, uuid="other")], host_id="twin")
        with pytest.raises(RequestRefused, match="2 hosts are called gpu01"):
            await site.drain()
        await site.drain("twin")
        drained = {host.id for host in site.hub.fleet.hosts.values() if host.maintenance is not None}
        assert drained == {"twin"}

    play(tmp_path, scene)


def test_note_stays_with_a_host_that_is_installed_anew_and_after_a_restart(tmp_path: Path) -> None:
    async def scene(site: Site) -> None:
        await site.service.notes.write("id-gpu01", "gpu01", "loud fan", "root")
        site.hub.fleet.remove("id-gpu01")
        site.report("gpu01", host_id="another-id")
        site.service.update()
        assert site.host().note is not None
        again = Site(tmp_path)
        await again.service.open()
        note = again.host().note
        assert note is not None
        assert (note.text, note.by, note.at) == ("loud fan", "root", NOW)
        await site.service.notes.write("another-id", "gpu01", "quiet", "root")
        assert [one.text for one in site.service.notes.all.values()] == ["quiet"]
        await site.service.notes.write("another-id", "gpu01", "", "root")
        assert site.host().note is None

    play(tmp_path, scene)
