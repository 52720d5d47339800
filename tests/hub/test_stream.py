"""Snapshot and deltas: whoever applies them in order has exactly what the API answers."""

import asyncio
import gzip
import random
import zlib
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.hub.host import ENCODED_AT_ONCE
from gpudeck.hub.hub import Hub
from gpudeck.hub.sight import EVERYTHING, Sight
from gpudeck.hub.stream import GZIP_HEADER, KEPT_DELTAS, PublishedEvent, Viewer
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


def parse(event: PublishedEvent) -> tuple[str, Any]:
    kind, _, data = event.plain.decode().strip().split("\n")
    return kind.removeprefix("event: "), msgspec.json.decode(data.removeprefix("data: "))


def event_id(event: PublishedEvent) -> str:
    return event.plain.decode().split("\n")[1].removeprefix("id: ")


def drain(viewer: Viewer) -> list[PublishedEvent]:
    """Everything that waits for a viewer."""
    return list(viewer._events)


class Page:
    """What a page does with a snapshot and the deltas after it."""

    def __init__(self, snapshot: dict[str, Any]) -> None:
        self.state = snapshot
        self.hosts = {host["id"]: host for host in snapshot["hosts"]}
        self.places: dict[str, tuple[int, int]] = {}
        self._place(snapshot.pop("rows"))

    def apply(self, delta: dict[str, Any]) -> dict[str, Any]:
        for host_id in delta.get("removed", ()):
            del self.hosts[host_id], self.places[host_id]
        self.hosts |= {host["id"]: host for host in delta.get("hosts", ())}
        self._place(delta.get("rows", ()))
        for patch in delta.get("changes", ()):
            host = self.hosts[patch["id"]]
            gpus = {gpu["uuid"]: gpu for gpu in host["gpus"]}
            for gpu in patch.pop("gpus", ()):
                gpus[gpu["uuid"]] |= gpu
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
                for process, value in zip(gpu_at[row]["processes"], processes[name][number], strict=True):
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
                owners[rows[place]][name] = value


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


@pytest.mark.parametrize("seed", range(12))
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
        quick._events.clear()
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


def test_all_who_ask_in_one_second_share_a_packed_document_and_the_next_second_has_another(stage: Stage) -> None:
    async def ask_twice() -> list[bytes]:
        return list(await asyncio.gather(stage.stream.packed_document(), stage.stream.packed_document()))

    stage.send(make_envelope())
    first, second = asyncio.run(ask_twice())
    document = stage.stream.document()
    stage.send(make_envelope(sequence=2, gpus=[make_busy_gpu(0)]))
    stage.tick()
    third, _ = asyncio.run(ask_twice())
    assert first is second
    assert (gzip.decompress(first), gzip.decompress(third)) == (document, stage.stream.document())
    assert document != stage.stream.document()


def test_a_document_is_made_in_steps_and_each_host_is_shown_as_it_is_in_its_turn(stage: Stage) -> None:
    last = 2 * ENCODED_AT_ONCE
    for number in range(last + 1):
        stage.send(make_envelope(f"gpu{number:03}", host_id=str(number), gpus=[make_gpu(uuid=f"GPU-{number}")]))
    fleet = stage.hub.fleet
    steps = fleet.encode_in_steps(0.0, demo=False)
    next(steps)
    for number in (0, last):
        busy = [make_busy_gpu(uuid=f"GPU-{number}")]
        stage.send(make_envelope(f"gpu{number:03}", 2, busy, host_id=str(number)))
    fleet.remove(str(last - 1))
    hosts = msgspec.json.decode(finish(steps))["hosts"]
    assert [host["id"] for host in hosts] == [str(number) for number in range(last + 1) if number != last - 1]
    assert [hosts[at]["gpus"][0]["availability"] for at in (0, -1)] == ["free", "busy"]


def test_a_document_that_was_begun_before_a_tick_is_not_kept_for_those_who_come_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_while_time_passes() -> bytes:
        asking = asyncio.create_task(stage.stream.fresh_document())
        await asyncio.sleep(0)
        assert not asking.done()
        stage.send(make_envelope(sequence=2, gpus=[make_busy_gpu(0)]))
        stage.tick()
        return await asking

    monkeypatch.setattr("gpudeck.model.cpu_budget._LOOP_SECONDS", 0.0)
    stage.send(make_envelope(gpus=[make_gpu(0)]))
    stage.tick()
    before = asyncio.run(ask_while_time_passes())
    states = [msgspec.json.decode(one)["totals"]["busy"] for one in (before, stage.stream.document())]
    assert states == [0, 1]


def test_a_view_is_made_in_parts_and_tells_what_came_in_between(stage: Stage) -> None:
    for number in range(3 * HOSTS_AT_ONCE):
        stage.send(make_envelope(f"gpu{number:03}", host_id=str(number)))

    async def ask_while_one_reports() -> Fleet:
        asking = asyncio.create_task(stage.stream.fresh_view())
        for _ in range(2):
            await asyncio.sleep(0)
        assert stage.hub.fleet.hosts["0"]._view is not None
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
    less = Sight("none")
    stage.send(make_envelope(gpus=[make_busy_gpu(0)]))
    before = [stage.stream.document(sight) for sight in (EVERYTHING, less)]
    stage.send(make_envelope(sequence=2, gpus=[make_busy_gpu(0), make_gpu(1)]))
    stage.tick()
    after = [stage.stream.document(sight) for sight in (EVERYTHING, less)]
    commands = [[process["command"] for process in read_processes(one)] for one in (*before, *after)]
    assert len({*before, *after}) == 4
    assert commands[0] == commands[2] != [None]
    assert commands[1] == commands[3] == [None]


def read_processes(document: bytes) -> list[dict[str, Any]]:
    (host,) = msgspec.json.decode(document)["hosts"]
    return [process for gpu in host["gpus"] for process in gpu["processes"]]


def test_the_first_real_report_ends_a_demo_that_nobody_asked_for() -> None:
    ended: list[bool] = []
    hub = Hub(now=FakeClock(), demo=True)
    hub.ingest.end_demo_with(lambda: ended.append(True))
    hub.ingest.take(msgspec.msgpack.encode(make_envelope("sim", simulated=True)), "application/msgpack")
    with pytest.raises(ReportRefused) as refused:
        hub.ingest.take(msgspec.msgpack.encode(make_envelope("real")), "application/msgpack")
    assert (refused.value.status, refused.value.code, ended) == (503, "demo_ends", [True])
    assert [host.name for host in hub.fleet.ordered()] == ["sim"]


def begin_tick(stage: Stage) -> Steps[PublishedEvent]:
    """A tick in which the first host that changed is encoded, and others have their turn."""
    stage.clock.advance(1)
    steps = stage.stream.tick_in_steps()
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


def test_who_comes_during_a_tick_has_what_changed_before_it(stage: Stage) -> None:
    stage.send(make_envelope("gpu01", 1))
    stage.send(make_envelope("gpu02", 1, gpus=[make_gpu(uuid="GPU-2")]))
    steps = begin_tick(stage)
    viewer = stage.stream.watch(sight=Sight("none"))
    finish(steps)
    kinds = [(kind, len(said.get("hosts", ()))) for kind, said in map(parse, drain(viewer))]
    assert kinds == [("snapshot", 2), ("delta", 0)]
    stage.send(make_envelope("gpu02", 2, gpus=[make_busy_gpu(uuid="GPU-2")]))
    stage.tick()
    assert parse(drain(viewer)[-1])[1]["changes"][0]["id"] == "gpu02"
