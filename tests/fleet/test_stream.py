"""Snapshot and deltas: whoever applies them in order has exactly what the API answers."""

import asyncio
import random
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from fakes.seeds import seeds
from gpudeck.fleet.host import ENCODED_AT_ONCE
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.overview import SUMMARY_TICKS
from gpudeck.fleet.stream import GZIP_HEADER, KEPT_DELTAS, KEPT_SUBSCRIBED, WHOLE, Hosts, PublishedEvent, Viewer
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE, Steps, finish
from gpudeck.model.errors import ReportRefused
from gpudeck.model.view import Fleet
from gpudeck.views.filter import count
from gpudeck.wire import Envelope


class Stage:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.stream = self.hub.stream

    def send(self, envelope: Envelope) -> None:
        self.hub.fleet.apply(envelope, via="push", now=self.clock())

    def tick(self) -> dict[str, Any]:
        self.clock.advance(1)
        return parse(self.stream.tick())[1]

    def publish(self) -> None:
        """A tick as the hub does it: for those who watch alone."""
        self.clock.advance(1)
        finish(self.stream.publish_in_steps())


def parse(event: PublishedEvent) -> tuple[str, Any]:
    kind, _, data = event.plain.decode().strip().split("\n")
    return kind.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))


def event_id(event: PublishedEvent) -> str:
    return event.plain.decode().split("\n")[1].removeprefix("id: ")


def drain(viewer: Viewer) -> list[PublishedEvent]:
    """Everything that waits for a viewer."""
    return list(viewer.events)


class Page:
    """What a page does with a snapshot and the deltas after it. A snapshot of who comes during a tick may be newer
    than the first delta: what that says of hosts, GPUs and rows that are gone is left out."""

    def __init__(self, snapshot: dict[str, Any]) -> None:
        self.state = snapshot
        self.hosts = {host["id"]: host for host in snapshot["hosts"]}
        self.places: dict[str, tuple[int, int]] = {}
        self._place(snapshot.pop("rows"))

    def apply(self, delta: dict[str, Any]) -> dict[str, Any]:
        for host_id in delta.get("removed", ()):
            self.hosts.pop(host_id, None)
            self.places.pop(host_id, None)
        self.hosts |= {host["id"]: host for host in delta.get("hosts", ())}
        self._place(delta.get("rows", ()))
        for patch in delta.get("changes", ()):
            host = self.hosts.get(patch["id"], {"gpus": []})
            gpus = {gpu["uuid"]: gpu for gpu in host["gpus"]}
            for gpu in patch.pop("gpus", ()):
                gpus.get(gpu["uuid"], {}).update(gpu)
            host |= patch
        gpu_at = {
            first + number: gpu
            for host_id, (_, first) in self.places.items()
            for number, gpu in enumerate(self.hosts[host_id]["gpus"])
        }
        self._write({row: self.hosts[host_id] for host_id, (row, _) in self.places.items()}, delta.get("reports", {}))
        self._write(gpu_at, delta.get("gpus", {}))
        processes = delta.get("processes", {"rows": ()})
        for number, row in enumerate(processes["rows"]):
            for name in ("memory_used_bytes", "utilization_percent"):
                told = gpu_at[row]["processes"] if row in gpu_at else ()
                for process, value in zip(told, processes[name][number], strict=bool(told)):
                    process[name] = value
        ordered = sorted(self.hosts.values(), key=lambda host: (host["name"], host["id"]))
        return self.state | {"time": delta["time"], "totals": delta["totals"], "hosts": ordered}

    def _place(self, rows: Iterable[tuple[str, int, int]]) -> None:
        self.places |= {host_id: (row, first) for host_id, row, first in rows}

    def _write(self, owners: dict[int, dict[str, Any]], columns: dict[str, Any]) -> None:
        rows = columns.pop("rows", [])
        for name, values in columns.items():
            places = values["at"] if isinstance(values, dict) else range(len(rows))
            for place, value in zip(places, values["to"] if isinstance(values, dict) else values, strict=True):
                owners.get(rows[place], {})[name] = value


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_new_host_comes_whole_and_then_in_changes(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1))
    first = stage.tick()
    stage.send(make_envelope(sequence=2, gpus=[make_gpu(metrics={"temperature_celsius": 44})]))
    second = stage.tick()
    assert [host["name"] for host in first["hosts"]] == ["gpu01"]
    assert second["gpus"] == {"rows": [first["rows"][0][2]], "temperature_celsius": [44]}
    assert not {"hosts", "rows", "changes"} & second.keys()


def test_a_quiet_tick_is_a_heartbeat_with_nothing_in_it(stage: Stage) -> None:
    stage.send(make_envelope())
    stage.tick()
    assert set(stage.tick()) == {"time", "totals"}


def test_several_reports_in_a_tick_become_one_change(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_gpu(0), make_gpu(1)]))
    ((_, _, first),) = stage.tick()["rows"]
    stage.send(make_envelope(sequence=2, gpus=[make_gpu(0, metrics={"power_watts": 33.5}), make_gpu(1)]))
    stage.send(make_envelope(sequence=3, gpus=[make_gpu(0, metrics={"power_watts": 33.5}), make_busy_gpu(1)]))
    delta = stage.tick()
    assert delta["gpus"]["rows"] == [first, first + 1]
    assert delta["gpus"]["power_watts"][0] == 33.5
    ((change,),) = (one["gpus"] for one in delta["changes"])
    assert (change["uuid"], change["availability"], change["users"]) == ("GPU-1", "busy", ["alice"])


def test_another_set_of_gpus_sends_the_host_whole(stage: Stage) -> None:
    stage.send(make_envelope(sequence=1, gpus=[make_gpu(0)]))
    stage.tick()
    stage.send(make_envelope(sequence=2, gpus=[make_gpu(0), make_gpu(1)]))
    assert [len(host["gpus"]) for host in stage.tick()["hosts"]] == [2]


@seeds(6, 16)
def test_snapshot_and_deltas_add_up_to_the_document(seed: int) -> None:
    """Random reports, silences, losses and returns; the one who watched knows what the one who asks is told, as JSON
    or, within the hub, as structs."""
    rng, stage = random.Random(seed), Stage()
    stage.tick()
    page = Page(parse(stage.stream.snapshot())[1])
    for step in range(60):
        for name in rng.sample(["a", "b", "c", "d"], rng.randrange(4)):
            count = rng.choice([2, 2, 2, 3])
            gpus = [
                rng.choice([make_gpu, make_busy_gpu])(n, metrics={"temperature_celsius": rng.randrange(30, 99)})
                for n in range(count)
            ]
            stage.send(make_envelope(name, sequence=step, gpus=gpus, run_id=f"run-{step // 30}"))
        stage.clock.advance(rng.choice([0, 0, 3, 70]))
        watched, document = page.apply(stage.tick()), msgspec.json.decode(stage.stream.document())
        assert watched == document == msgspec.to_builtins(asyncio.run(stage.stream.fresh_view()))


@pytest.mark.parametrize("seed", range(6))
def test_hosts_that_come_all_at_once_are_sent_a_few_at_a_time_and_add_up_too(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpudeck.fleet.state.MAX_WHOLE_HOSTS", 1)
    rng, stage = random.Random(seed), Stage()
    stage.tick()
    page = Page(parse(stage.stream.snapshot())[1])
    for step in range(40):
        for name in rng.sample(["a", "b", "c", "d"], rng.randrange(5)):
            gpus = [
                make_gpu(n, metrics={"temperature_celsius": rng.randrange(30, 99)}) for n in range(rng.choice([2, 3]))
            ]
            stage.send(make_envelope(name, sequence=step, gpus=gpus))
        delta = stage.tick()
        assert len(delta.get("hosts", [])) <= 1
        page.apply(delta)
    for _ in range(4):
        watched = page.apply(stage.tick())
    assert watched == msgspec.json.decode(stage.stream.document())


def test_a_host_that_had_to_wait_and_reports_an_earlier_value_again_is_shown_with_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def report(sequence: int, gpus: int, celsius: int) -> None:
        for name in ("a", "b"):
            there = [make_gpu(n, metrics={"temperature_celsius": celsius}) for n in range(gpus)]
            stage.send(make_envelope(name, sequence=sequence, gpus=there))

    report(1, 2, 49)
    stage.tick()
    page = Page(parse(stage.stream.snapshot())[1])
    monkeypatch.setattr("gpudeck.fleet.state.MAX_WHOLE_HOSTS", 1)
    report(2, 3, 71)
    page.apply(stage.tick())
    page.apply(stage.tick())
    report(3, 3, 49)
    assert page.apply(stage.tick()) == msgspec.json.decode(stage.stream.document())


def test_deltas_that_are_kept_for_those_who_come_back_have_a_bound(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.tick()
    last = event_id(drain(stage.stream.watch())[0])
    monkeypatch.setattr("gpudeck.fleet.stream.KEPT_BYTES", 1000)
    stage.send(make_envelope())
    stage.tick()
    stage.tick()
    assert parse(drain(stage.stream.watch(last))[0])[0] == "snapshot"


def test_a_viewer_starts_with_a_snapshot(stage: Stage) -> None:
    stage.send(make_envelope())
    stage.tick()
    kind, fleet = parse(drain(stage.stream.watch())[0])
    assert (kind, fleet["totals"]["gpus"], fleet["demo"]) == ("snapshot", 1, False)


def test_a_viewer_resumes_with_what_it_missed(stage: Stage) -> None:
    stage.tick()
    last = event_id(drain(stage.stream.watch())[0])
    missed = [stage.tick() for _ in range(3)]
    assert [parse(event) for event in drain(stage.stream.watch(last))] == [("delta", delta) for delta in missed]


def test_a_viewer_that_missed_nothing_gets_nothing_twice(stage: Stage) -> None:
    stage.tick()
    last = event_id(drain(stage.stream.watch())[0])
    assert drain(stage.stream.watch(last)) == []


@pytest.mark.parametrize(
    "last", ["", "x", "deadbeef-1", "-1", "{epoch}--1", "{epoch}-99999", "{epoch}-1e3", "{epoch}-" + "9" * 99]
)
def test_a_foreign_or_wrong_event_id_gets_a_snapshot(stage: Stage, last: str) -> None:
    stage.tick()
    epoch = event_id(stage.stream.snapshot()).partition("-")[0]
    assert parse(drain(stage.stream.watch(last.format(epoch=epoch)))[0])[0] == "snapshot"


def test_a_viewer_may_miss_as_many_deltas_as_are_kept(stage: Stage) -> None:
    stage.tick()
    last = event_id(stage.stream.snapshot())
    for _ in range(KEPT_DELTAS):
        stage.tick()
    viewer = stage.stream.watch(last)
    assert (len(drain(viewer)), viewer.is_open) == (KEPT_DELTAS, True)


def test_a_viewer_away_for_too_long_gets_a_snapshot(stage: Stage) -> None:
    stage.tick()
    last = event_id(stage.stream.snapshot())
    for _ in range(KEPT_DELTAS + 1):
        stage.tick()
    assert parse(drain(stage.stream.watch(last))[0])[0] == "snapshot"


def test_a_viewer_that_does_not_read_is_cut_off_and_others_are_not(stage: Stage) -> None:
    slow, quick = stage.stream.watch(), stage.stream.watch()
    for _ in range(KEPT_DELTAS + 1):
        stage.tick()
        quick.events.clear()
    assert (slow.is_open, quick.is_open) == (False, True)


def test_closing_ends_a_waiting_viewer(stage: Stage) -> None:
    async def wait_and_close() -> PublishedEvent | None:
        viewer = stage.stream.watch()
        await viewer.next()
        waiting = asyncio.ensure_future(viewer.next())
        await asyncio.sleep(0)
        stage.stream.close()
        return await asyncio.wait_for(waiting, 5)

    assert asyncio.run(wait_and_close()) is None


def test_deflated_events_of_any_order_make_one_gzip_stream(stage: Stage) -> None:
    stage.send(make_envelope(gpus=[make_busy_gpu(n) for n in range(8)]))
    events = [stage.stream.tick() for _ in range(3)]
    chosen = [stage.stream.snapshot(), events[2], events[0], events[0]]
    packed = GZIP_HEADER + b"".join(event.deflated() for event in chosen)
    assert zlib.decompressobj(wbits=31).decompress(packed) == b"".join(event.plain for event in chosen)


def test_a_document_is_made_in_parts_and_each_host_is_shown_as_it_is_in_its_turn(stage: Stage) -> None:
    last = 2 * ENCODED_AT_ONCE
    for number in range(last + 1):
        stage.send(make_envelope(f"gpu{number:03}", host_id=str(number), gpus=[make_gpu(uuid=f"GPU-{number}")]))
    fleet = stage.hub.fleet
    parts = fleet.encode_in_parts(0.0)
    begun = [next(parts), next(parts)]
    for number in (0, last):
        busy = [make_busy_gpu(uuid=f"GPU-{number}")]
        stage.send(make_envelope(f"gpu{number:03}", 2, busy, host_id=str(number)))
    fleet.remove(str(last - 1))
    hosts = msgspec.json.decode(b"".join([*begun, *parts]))["hosts"]
    assert [host["id"] for host in hosts] == [str(number) for number in range(last + 1) if number != last - 1]
    assert [hosts[at]["gpus"][0]["availability"] for at in (0, -1)] == ["free", "busy"]


def test_a_view_is_made_in_parts_and_tells_what_came_in_between(stage: Stage) -> None:
    for number in range(3 * HOSTS_AT_ONCE):
        stage.send(make_envelope(f"gpu{number:03}", host_id=str(number)))

    async def ask_while_one_reports() -> Fleet:
        asking = asyncio.create_task(stage.stream.fresh_view())
        for _ in range(2):
            await asyncio.sleep(0)
        assert not asking.done()
        stage.send(make_envelope("gpu000", 2, [make_busy_gpu(0)], host_id="0"))
        return await asking

    view = asyncio.run(ask_while_one_reports())
    assert view.hosts[0].gpus[0].availability == "busy"
    assert view.totals == count(view.hosts)


def test_all_who_ask_the_same_in_one_second_share_an_answer(stage: Stage) -> None:
    made: list[float] = []

    def add_up(fleet: Fleet, addend: int) -> int:
        made.append(fleet.time)
        return fleet.totals.gpus + addend

    async def ask(*addends: int) -> list[int]:
        questions = [asyncio.create_task(stage.stream.answer(EVERYTHING, add_up, addend)) for addend in addends]
        await asyncio.sleep(0)
        # One who goes away does not take it from the others.
        questions[0].cancel()
        return await asyncio.gather(*questions[1:])

    stage.send(make_envelope())
    assert asyncio.run(ask(0, 0, 0, 100)) == [1, 1, 101]
    assert len(made) == 2
    stage.send(make_envelope(sequence=2, gpus=[make_gpu(0), make_gpu(1)]))
    stage.tick()
    assert asyncio.run(ask(0, 0)) == [2]


def test_who_may_see_less_gets_a_document_of_its_own_which_changes_too(stage: Stage) -> None:
    less = Visibility("none")
    stage.send(make_envelope(gpus=[make_busy_gpu(0)]))
    before = [stage.stream.document(visibility) for visibility in (EVERYTHING, less)]
    stage.send(make_envelope(sequence=2, gpus=[make_busy_gpu(0), make_gpu(1)]))
    stage.tick()
    after = [stage.stream.document(visibility) for visibility in (EVERYTHING, less)]
    commands = [[process["command"] for process in read_processes(one)] for one in (*before, *after)]
    assert len({*before, *after}) == 4
    assert commands[0] == commands[2] != [None]
    assert commands[1] == commands[3] == [None]


def read_processes(document: bytes) -> list[dict[str, Any]]:
    (host,) = msgspec.json.decode(document)["hosts"]
    return [process for gpu in host["gpus"] for process in gpu["processes"]]


def test_the_first_real_report_ends_a_demo_that_nobody_asked_for() -> None:
    ended: list[bool] = []
    hub = Hub(now=FakeClock(), is_simulated=True)
    hub.ingest.end_simulation_with(lambda: ended.append(True))
    hub.ingest.take(msgspec.msgpack.encode(make_envelope("sim", simulated=True)), "application/msgpack")
    with pytest.raises(ReportRefused) as refused:
        hub.ingest.take(msgspec.msgpack.encode(make_envelope("real")), "application/msgpack")
    assert (refused.value.status, refused.value.code, ended) == (503, "demo_ends", [True])
    assert [host.name for host in hub.fleet.ordered()] == ["sim"]


def begin_tick(stage: Stage) -> Steps[None]:
    """A tick in which the first host that changed is encoded, and others have their turn."""
    stage.clock.advance(1)
    steps = stage.stream.publish_in_steps()
    next(steps)
    return steps


def test_hosts_that_change_or_leave_during_a_tick_are_right_with_the_next_one(stage: Stage) -> None:
    names = ["gpu01", "gpu02", "gpu03"]
    for name in names:
        stage.send(make_envelope(name, 1, gpus=[make_gpu(uuid=f"GPU-{name}")]))
    viewer = stage.stream.watch()
    page = Page(parse(drain(viewer)[0])[1])
    steps = begin_tick(stage)
    stage.hub.fleet.remove("gpu02")
    stage.send(make_envelope("gpu04", 1, gpus=[make_gpu(uuid="GPU-gpu04")]))
    for name in ("gpu01", "gpu03"):
        busy = make_busy_gpu(uuid=f"GPU-{name}")
        stage.send(make_envelope(name, 2, gpus=[busy]))
    finish(steps)
    stage.tick()
    for event in drain(viewer)[1:]:
        state = page.apply(parse(event)[1])
    assert state == msgspec.json.decode(stage.stream.document())
    assert [host["name"] for host in state["hosts"]] == ["gpu01", "gpu03", "gpu04"]


@pytest.mark.parametrize("hosts", [None, frozenset({"gpu02"})])
def test_who_comes_during_a_tick_misses_nothing(stage: Stage, hosts: frozenset[str] | None) -> None:
    def report(sequence: int, make: Any, celsius: int) -> None:
        for number in (1, 2):
            gpu = make(uuid=f"GPU-{number}", metrics={"temperature_celsius": celsius})
            stage.send(make_envelope(f"gpu{number:02}", sequence, gpus=[gpu]))

    report(1, make_gpu, 40)
    stage.tick()
    report(2, make_busy_gpu, 50)
    steps = begin_tick(stage)
    viewer = stage.stream.watch(visibility=Visibility("none"), hosts=hosts)
    report(3, make_gpu, 60)
    finish(steps)
    stage.tick()
    snapshot, *deltas = (parse(event)[1] for event in drain(viewer))
    page = Page(snapshot)
    for delta in deltas:
        state = page.apply(delta)
    assert state == restrict(msgspec.json.decode(stage.stream.document(Visibility("none"))), hosts)


SHORT_HOST = ("id", "name", "display_name", "status", "via", "labels", "problems")
SHORT_GPU = (
    *("uuid", "index", "label", "name", "display_name", "vendor", "memory_total_bytes", "availability", "last_seen"),
    *("since", "health", "health_reason", "health_action", "users", "reservation", "reservation_conflict"),
)
OMITTED = {"health": "ok", "users": [], "last_seen": None, "health_reason": None, "health_action": None} | {
    "reservation": None,
    "reservation_conflict": None,
}


def expand(host: dict[str, Any]) -> dict[str, Any]:
    """A host of the overview with all of its fields."""
    model = host.pop("model", {})
    return host | {"gpus": [OMITTED | model | gpu for gpu in host["gpus"]]}


def shorten(host: dict[str, Any]) -> dict[str, Any]:
    """A host as a viewer of the overview has to know it. While it is up the time of its last report is not told."""
    short = {name: host[name] for name in SHORT_HOST}
    if host["status"] != "up":
        short["last_report_at"] = host["last_report_at"]
    return short | {"gpus": [{name: gpu[name] for name in SHORT_GPU} for gpu in host["gpus"]]}


def restrict(fleet: dict[str, Any], hosts: frozenset[str] | str | None) -> dict[str, Any]:
    if hosts == "overview":
        return fleet | {"hosts": [shorten(host) for host in fleet["hosts"]]}
    return fleet if hosts is None else fleet | {"hosts": [host for host in fleet["hosts"] if host["id"] in hosts]}


class Watcher:
    """Somebody who watches some hosts, and whose connection breaks now and then."""

    def __init__(self, stage: Stage, visibility: Visibility, hosts: str | None) -> None:
        self._stream, self._visibility = stage.stream, visibility
        self._hosts: Hosts = "overview" if hosts == "overview" else None if hosts is None else frozenset(hosts)
        self._opening = self._watch("")
        self._page: Page | None = None
        self._last = ""

    async def reconnect(self) -> None:
        self._stream.unwatch(await self._opening)
        self._opening = self._watch(self._last)

    def _watch(self, last: str) -> asyncio.Task[Viewer]:
        return asyncio.create_task(self._stream.watch_in_steps(last, self._visibility, self._hosts))

    async def ready(self) -> None:
        await self._opening

    async def check(self) -> None:
        state: Any = None
        viewer = await self._opening
        for event in drain(viewer):
            kind, said = parse(event)
            self._last = event_id(event)
            if self._hosts == "overview" and "hosts" in said:
                said["hosts"] = [expand(host) for host in said["hosts"]]
            if kind == "snapshot":
                self._page = Page(said)
            elif self._page is not None:
                state = self._page.apply(said)
        viewer.events.clear()
        if self._hosts == "overview":
            state = restrict(state, "overview")
        assert state == restrict(msgspec.json.decode(self._stream.document(self._visibility)), self._hosts)


@seeds(6, 16)
def test_a_subscribed_viewer_has_the_state_of_a_whole_one_restricted_to_its_hosts(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random reports, silences, removals and returns, also during a tick and while a snapshot is made; hosts wait until
    it is their turn, and viewers come and lose their connections at any time."""
    monkeypatch.setattr("gpudeck.fleet.state.MAX_WHOLE_HOSTS", 2)
    monkeypatch.setattr("gpudeck.fleet.stream.ENCODED_AT_ONCE", 1)
    monkeypatch.setattr("gpudeck.model.cpu_budget.LOOP_SECONDS", 0.0)
    asyncio.run(compare_viewers(random.Random(seed), Stage()))


async def compare_viewers(rng: random.Random, stage: Stage) -> None:

    def report(sequence: int, most: int) -> None:
        for name in rng.sample("abcd", rng.randrange(most + 1)):
            makes = rng.choices([make_gpu, make_busy_gpu], k=rng.choice([2, 2, 2, 3]))
            gpus = [
                make(number, uuid=f"{name}-{number}", metrics={"temperature_celsius": rng.randrange(30, 99)})
                for number, make in enumerate(makes)
            ]
            stage.send(make_envelope(name, sequence=sequence, gpus=gpus))

    publish = rng.choice([stage.tick, stage.publish])
    watchers: list[Watcher] = []
    for step in range(60):
        report(2 * step, 3)
        if stage.hub.fleet.hosts and rng.random() < 0.1:
            stage.hub.fleet.remove(rng.choice([*stage.hub.fleet.hosts]))
        stage.clock.advance(rng.choice([1, 1, 3, 70]))
        steps = stage.stream.publish_in_steps()
        for _ in range(rng.randrange(3)):
            next(steps, None)
            await asyncio.sleep(0)
        report(2 * step + 1, 1)
        if rng.random() < 0.3:
            visibility = rng.choice([EVERYTHING, Visibility("none")])
            watchers.append(Watcher(stage, visibility, rng.choice([None, "", "ab", "bc", "ax", "d", "overview"])))
        for watcher in watchers:
            if stage.hub.fleet.hosts and rng.random() < 0.1:
                await watcher.reconnect()
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        finish(steps)
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
            publish()
        for watcher in watchers:
            await watcher.ready()
        for _ in range(2):
            publish()
        for watcher in watchers:
            await watcher.check()


def test_nothing_is_encoded_while_nobody_watches(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    viewer = stage.stream.watch()
    stage.stream.unwatch(viewer)
    for _ in range(KEPT_DELTAS + 1):
        stage.publish()
    assert not stage.stream.channels
    with monkeypatch.context() as patched:
        patched.setattr("gpudeck.fleet.stream.encode_hosts", lambda _, hosts, __: pytest.fail(str(hosts)))
        for sequence in range(3):
            stage.send(make_envelope("a", sequence, gpus=[make_gpu(metrics={"power_watts": 100 + sequence})]))
            stage.publish()
    viewer = stage.stream.watch()
    page = Page(parse(drain(viewer)[0])[1])
    stage.send(make_envelope("a", 9, gpus=[make_busy_gpu()]))
    stage.publish()
    assert page.apply(parse(drain(viewer)[-1])[1]) == msgspec.json.decode(stage.stream.document())


def test_viewers_of_the_same_hosts_share_bytes(stage: Stage) -> None:
    stage.send(make_envelope("a"))
    one, other = (stage.stream.watch(hosts=frozenset(hosts)) for hosts in ("ab", "ba"))
    stage.tick()
    assert len(one.events) == 2
    assert all(mine is yours for mine, yours in zip(one.events, other.events, strict=True))


def test_what_is_sent_to_a_subscribed_viewer_does_not_grow_with_the_fleet(stage: Stage) -> None:
    def measure(hosts: int, sequence: int) -> list[int]:
        for number in range(hosts):
            gpu = make_gpu(uuid=f"GPU-{number}", metrics={"power_watts": 100 + sequence})
            stage.send(make_envelope(f"gpu{number:03}", sequence, [gpu]))
        stage.tick()
        return [len(drain(viewer)[-1].plain) for viewer in viewers]

    viewers = [stage.stream.watch(hosts=hosts) for hosts in (None, frozenset({"gpu000", "gpu001"}))]
    measure(10, 1)
    few = measure(10, 2)
    measure(100, 3)
    many = measure(100, 4)
    assert many[0] > 2 * few[0]
    assert many[1] < few[1] + 50


def test_an_overview_does_not_have_what_only_details_show(stage: Stage) -> None:
    stage.send(make_envelope("a", 1, [make_busy_gpu(uuid="GPU-a")]))
    stage.tick()
    viewer = stage.stream.watch(hosts="overview")
    stage.send(make_envelope("a", 2, [make_busy_gpu(uuid="GPU-a", metrics={"power_watts": 123})]))
    stage.tick()
    stage.send(make_envelope("a", 3, [make_gpu(uuid="GPU-a")]))
    stage.tick()
    snapshot, same, other = (parse(event)[1] for event in drain(viewer))
    assert "processes" not in snapshot["hosts"][0]["gpus"][0]
    assert same.keys() == {"time", "totals", "summaries"}
    assert other["changes"][0]["gpus"][0] | {"availability": "free", "users": []} == other["changes"][0]["gpus"][0]
    assert other["changes"][0]["gpus"][0].keys() <= set(SHORT_GPU)


def test_an_overview_has_the_load_and_heat_of_each_host_once_in_ten_ticks(stage: Stage) -> None:
    for number in range(25):
        metrics = [{"utilization_percent": number}, {"utilization_percent": number + 5}, {}]
        gpus = [make_busy_gpu(at, uuid=f"{number}-{at}", metrics=of) for at, of in enumerate(metrics[: number % 4])]
        stage.send(make_envelope(f"gpu{number:02}", 1, gpus))
    stage.tick()
    viewer = stage.stream.watch(hosts="overview")
    for _ in range(SUMMARY_TICKS):
        stage.tick()
    snapshot, *deltas = (parse(event)[1] for event in drain(viewer))
    names = {row: host_id for host_id, row, _ in snapshot["rows"]}
    told = [
        (names[row], percent, celsius)
        for delta in deltas
        for row, percent, celsius in zip(*(delta["summaries"][name] for name in SUMMARY), strict=True)
    ]
    fleet = msgspec.json.decode(stage.stream.document())
    assert sorted(told) == [(host["id"], *summarize(host["gpus"])) for host in fleet["hosts"]]


SUMMARY = ("rows", "utilization_percent", "temperature_celsius")


def summarize(gpus: list[dict[str, Any]]) -> tuple[float | None, float | None]:
    percents, celsius = ([gpu[name] for gpu in gpus if gpu[name] is not None] for name in SUMMARY[1:])
    return round(sum(percents) / len(percents), 1) if percents else None, max(celsius, default=None)


def test_totals_only(stage: Stage) -> None:
    viewer = stage.stream.watch(hosts=frozenset())
    stage.send(make_envelope())
    stage.hub.fleet.set_problems("database", ["it is away"])
    stage.tick()
    snapshot, delta = (parse(event)[1] for event in drain(viewer))
    assert (snapshot["hosts"], snapshot["rows"]) == ([], [])
    assert (delta.keys(), delta["totals"]["gpus"]) == ({"time", "totals", "problems"}, 1)


def test_nobody_resumes_with_the_id_of_another_subscription(stage: Stage) -> None:
    stage.send(make_envelope("a"))
    stage.tick()
    ids = [event_id(stage.stream.snapshot(hosts=hosts)) for hosts in (None, frozenset("a"), frozenset("b"))]
    for last in ids[:2]:
        assert parse(drain(stage.stream.watch(last, hosts=frozenset("b")))[0])[0] == "snapshot"
    assert drain(stage.stream.watch(ids[2], hosts=frozenset("b"))) == []


def test_what_was_kept_for_a_subscription_is_let_go_after_its_last_viewer(stage: Stage) -> None:
    viewer = stage.stream.watch(hosts=frozenset("a"))
    for _ in range(2 * KEPT_SUBSCRIBED):
        stage.tick()
        viewer.events.clear()
    assert len(stage.stream.channels) == 2
    stage.stream.unwatch(viewer)
    for _ in range(KEPT_SUBSCRIBED + 1):
        stage.tick()
    assert list(stage.stream.channels) == [WHOLE]
