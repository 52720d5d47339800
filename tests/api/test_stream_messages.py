"""The stream sends what the OpenAPI document says of its messages, no field more and none less: each is read as its
type and written again, which drops unknown fields and fills in missing ones."""

import random
from typing import Any

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope
from gpudeck.api.app import read_routes
from gpudeck.api.schema import OverviewDelta, OverviewSnapshot, StreamDelta, StreamSnapshot, complete_schema
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.stream import Hosts
from gpudeck.model.alert import AlertCounts
from gpudeck.model.event import make_event
from gpudeck.model.reservation import GpuReservation, ReservationMark


def watch_a_lab(hosts: Hosts) -> list[tuple[str, bytes]]:
    """Kind and JSON of the events while hosts report, fall silent, leave and come back, and everything else changes."""
    clock, lab, chance = FakeClock(), SimulatedFleet(hosts=30), random.Random(3)
    hub = Hub(now=clock)
    hub.stream.tick()
    viewer = hub.stream.watch(hosts=hosts)
    said = list[tuple[str, bytes]]()
    for sequence in range(1, 25):
        clock.advance(4)
        for host in range(30):
            report = lab.report(host, clock()) if chance.random() < 0.8 else None
            if report is not None:
                envelope = make_envelope(lab.names[host], sequence, interval_seconds=1.0, report=report)
                hub.fleet.apply(envelope, via="push", now=clock())
        hub.fleet.apply(make_envelope("own", sequence, gpus=[make_busy_gpu(0)]), via="push", now=clock())
        if sequence % 5 == 0:
            hub.fleet.remove(chance.choice(list(hub.fleet.hosts)))
            hub.fleet.set_problems("test", [f"the {sequence}th problem"])
            hub.fleet.show_alerts([], AlertCounts(sequence, 0, 0))
            reserved = GpuReservation(id=sequence, user="ann", until=clock() + 60, note="", kind="reservation")
            hub.fleet.mark({"GPU-0": ReservationMark(reserved, conflict="alice is on it")}, clock())
            hub.stream.announce(make_event(clock(), "host_down", "own has stopped reporting"))
            hub.stream.note_reservations(sequence)
        hub.stream.tick()
        while viewer.events:
            kind, _, data = viewer.events.popleft().plain.strip().split(b"\n")
            said.append((kind.decode().removeprefix("event: "), data.removeprefix(b"data: ")))
    said.append(("snapshot", hub.stream.snapshot(hosts=hosts).plain.strip().split(b"data: ", 1)[1]))
    return said


@pytest.mark.parametrize(
    ("hosts", "types"),
    [
        (None, {"snapshot": StreamSnapshot, "delta": StreamDelta}),
        ("overview", {"snapshot": OverviewSnapshot, "delta": OverviewDelta}),
    ],
    ids=["whole", "overview"],
)
def test_messages_are_as_described(hosts: Hosts, types: dict[str, Any]) -> None:
    said = watch_a_lab(hosts)
    for kind, data in said:
        told = msgspec.json.decode(data, type=types[kind], strict=True)
        assert msgspec.json.decode(msgspec.json.encode(told)) == msgspec.json.decode(data)
    parts = {name for kind, data in said if kind == "delta" for name in msgspec.json.decode(data)}
    assert parts == set(types["delta"].__struct_fields__)


def test_an_answer_has_every_field_and_a_request_may_leave_out_those_with_a_default() -> None:
    schemas = complete_schema(read_routes())["components"]["schemas"]
    assert set(schemas["Host"]["required"]) == set(schemas["Host"]["properties"])
    assert schemas["NewHost"]["required"] == ["name"]
    # Written without what is unset or has its default.
    assert schemas["ShortHost"]["properties"].keys() - schemas["ShortHost"]["required"] == {"model"}
    assert "cost" not in schemas["UsageRow"]["required"]
