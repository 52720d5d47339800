"""The fleet that follows a stream is the fleet of the hub."""

from typing import Any

import msgspec
import pytest

from fakes.clock import FakeClock
from fakes.fleets import fleet_of, make
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.client.live_fleet import LiveFleet, read_delta, read_snapshot
from gpudeck.fleet.hub import Hub
from gpudeck.model.text import natural
from gpudeck.model.view import Fleet, Totals


def data_of(plain: bytes) -> bytes:
    return plain.split(b"\n")[2].removeprefix(b"data: ")


def test_deltas_lead_to_the_same_fleet_as_a_snapshot() -> None:
    clock = FakeClock()
    hub = Hub(now=clock)
    for name in ("gpu01", "gpu02", "gpu03"):
        hub.fleet.apply(make_envelope(name, gpus=[make_gpu(uuid=f"GPU-{name}")]), via="push", now=clock())
    hub.stream.tick()
    live = LiveFleet()
    live.load(read_snapshot(data_of(hub.stream.snapshot().plain)))
    clock.advance(2)
    busy = make_busy_gpu(uuid="GPU-gpu01")
    hub.fleet.apply(make_envelope("gpu01", 2, gpus=[busy]), via="push", now=clock())
    hub.fleet.apply(make_envelope("gpu04", gpus=[make_gpu(uuid="GPU-gpu04")]), via="push", now=clock())
    hub.fleet.remove("gpu02")
    live.apply(read_delta(data_of(hub.stream.tick().plain)))
    shown = msgspec.to_builtins(live.fleet)
    del shown["rows"]
    assert shown == msgspec.to_builtins(hub.fleet.view(hub.stream.time))
    assert [host.name for host in live.fleet.hosts] == ["gpu01", "gpu03", "gpu04"]


def delta(**parts: Any) -> bytes:
    return msgspec.json.encode({"time": 2.0, "totals": make(Totals), **parts})


def test_fields_of_a_newer_hub_are_left_out_and_a_value_that_does_not_fit_is_refused() -> None:
    live = LiveFleet()
    live.load(fleet_of(("gpu01", [make_gpu(uuid="GPU-0")])))
    host = live.fleet.hosts[0]
    newer = {"id": host.id, "colour": "red", "gpus": [{"uuid": "GPU-0", "taste": 1, "users": ["ann"]}]}
    live.apply(read_delta(delta(changes=[newer])))
    assert host.gpus[0].users == ["ann"]
    with pytest.raises(msgspec.ValidationError, match="lent"):
        read_delta(delta(changes=[{"id": host.id, "gpus": [{"uuid": "GPU-0", "availability": "lent"}]}]))


def test_change_of_a_host_that_is_not_known_changes_nothing() -> None:
    live = LiveFleet()
    live.load(make(Fleet, time=1.0))
    live.apply(read_delta(delta(changes=[{"id": "ghost", "cpu_percent": 5}])))
    assert (live.fleet.hosts, live.fleet.time) == ([], 2.0)


def test_numbers_in_names_count_as_numbers() -> None:
    assert sorted(["gpu10", "gpu2", "GPU1", "a100", "7"], key=natural) == ["7", "a100", "GPU1", "gpu2", "gpu10"]
