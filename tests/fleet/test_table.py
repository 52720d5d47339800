"""The fleet's table against the fleet of one value at a time: random sequences, equal views."""

import random
from collections.abc import Iterator
from typing import Any

import msgspec

from fakes.maintenance import make_window
from fakes.random_machine import Machine
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from fakes.scalar.host import HostState as ScalarHost
from fakes.seeds import seeds
from gpudeck.fleet.host import HostState, encode_hosts
from gpudeck.fleet.table import FleetTable
from gpudeck.fleet.visibility import EVERYTHING, Visibility
from gpudeck.model.allocation import Allocation, SchedulerMark
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.reservation import GpuReservation, ReservationMark
from gpudeck.model.text import Names

START = 1_700_000_000.0


def _plain(view: Any) -> dict[str, Any]:
    """Both views as JSON has them, with the fields in one order."""
    plain: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(view, order="sorted"))
    return plain


def _differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from _differences(one.get(key), other.get(key), f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for place, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from _differences(left, right, f"{path}[{place}]")
    elif one != other:
        yield f"{path}: {one!r} is not {other!r}"


@seeds(3, 6)
def test_the_table_says_of_every_host_what_one_value_at_a_time_says(seed: int) -> None:
    chance = random.Random(seed)
    settings, names = FleetSettings(), Names()
    marks: dict[str, ReservationMark] = {}
    table = FleetTable(settings, names, marks)
    machines = [Machine(f"gpu{number:02}", chance) for number in range(6)]
    new = {one.name: HostState(one.name, "push", table) for one in machines}
    old = {
        one.name: ScalarHost(one.name, "push", settings, names, marks, table.maintenance, table.scheduling)
        for one in machines
    }
    now = START
    rejected = 0
    for _ in range(250):
        now += chance.choice((0.0, 1.0, 5.0, 5.0, 30.0, 700.0, -20.0 if chance.random() < 0.1 else 2.0))
        machine = chance.choice(machines)
        one, other = new[machine.name], old[machine.name]
        draw = chance.random()
        if draw < 0.75:
            envelope = machine.report(now)
            may_matter = one.order.is_newer(envelope, is_up=one.status == "up")
            assert may_matter == other.accepts(envelope)
            if not may_matter:
                continue
            observed_at = now - chance.choice((0.0, 0.0, 0.0, 8.0, 400.0))
            rejected += other.take(envelope, observed_at, machine.skew, now)
            one.take(envelope, observed_at, machine.skew, now)
            one.note_report(now)
            other.note_report(now)
        elif draw < 0.78:
            uuid = chance.choice([*old[machine.name].gpus, ""])
            table.scheduling.pop(uuid, None)
            closed, why = chance.choice((None, "drained in Slurm")), chance.choice((None, "Slurm cannot be read"))
            given = chance.choice((None, Allocation("slurm", "7", user="ann"), Allocation("slurm", unknown="hidden")))
            if chance.random() < 0.7:
                table.scheduling[uuid] = SchedulerMark(given, closed, why)
            for host in (one, other):
                host.update_marks([uuid] if uuid else [], now)
        elif draw < 0.8:
            gpu = chance.choice([*old[machine.name].gpus, None])
            end = chance.choice((None, now + 1000.0))
            windows = chance.choice(((), (make_window(host_id=machine.name, host=machine.name, gpu=gpu, end=end),)))
            touched = {name for window in (*windows, *table.maintenance.windows) for name in (window.host_id,)}
            table.maintenance.change(windows, now, frozenset(new))
            for name in touched:
                for host in (new[name], old[name]):
                    host.update_marks(list(old[name].gpus), now, "maintenance")
        elif draw < 0.85:
            uuid = chance.choice([*old[machine.name].gpus, ""])
            mark = chance.choice(
                (
                    None,
                    ReservationMark(GpuReservation(1, "ann", now + 60, "", "reservation"), since=now - 5),
                    ReservationMark(None, is_unknown=True),
                )
            )
            marks.pop(uuid, None)
            if mark is not None:
                marks[uuid] = mark
            for host in (one, other):
                host.update_marks(list(other.gpus) if uuid == "" else [uuid], now)
        elif draw < 0.95:
            for name, host in new.items():
                changed = host.age(now)
                assert changed == old[name].age(now), name
                assert not changed or host in table.find_aged(now, now) or host.status == old[name].status
        if chance.random() < 0.2:
            # As a delta of the stream takes what changed, so that texts of the JSON are kept and used.
            for host in (host for host in new.values() if host.row >= 0):
                host.take_changes()
            table.take_numbers()
        seen = chance.sample(list(new.values()), 2)
        visibility = chance.choice((EVERYTHING, Visibility("none"), Visibility("own", frozenset({"ann"}))))
        for host, text in zip(seen, encode_hosts(table, seen, visibility), strict=True):
            assert text == msgspec.json.encode(visibility.host(host.view()))
        for name in chance.sample(sorted(new), 2):
            assert new[name].status == "never_seen" or not list(
                _differences(_plain(new[name].view()), _plain(old[name].view))
            )
    table.settle()
    assert table.rejected == rejected
    assert sum(host.counts()["free"] for host in new.values()) == table.totals().free


def test_texts_of_processes_do_not_pass_for_their_numbers() -> None:
    """What a report says in words is kept as JSON, and only numbers are written anew."""
    fake = ',"memory_used_bytes":1,"started_at":2,"utilization_percent":3,"container":"},{"pid":4'
    reasons = {"command": fake, "memory_used_bytes": fake, "pid": fake, "events": fake, "utilization_percent": fake}
    table = FleetTable(FleetSettings(), Names(), {})
    host = HostState("gpu01", "push", table)
    for sequence, gib in enumerate((1, 2, 3), 1):
        processes = [
            make_process(pid, user=fake, gib=gib * pid, container=fake, evidence=fake, reasons=reasons)
            for pid in (1, 2, 3)
        ]
        gpus = [make_gpu(0, processes=processes), make_busy_gpu(1), make_gpu(2)]
        host.take(make_envelope(gpus=gpus, sequence=sequence), START + sequence, None, START + sequence)
        texts = encode_hosts(table, [host], EVERYTHING)
        host.take_changes()
        assert texts == encode_hosts(table, [host], EVERYTHING) == [msgspec.json.encode(host.view())]
