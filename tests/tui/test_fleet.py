"""The fleet that follows a stream is the fleet of the hub."""

import msgspec

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu
from gpudeck.hub.hub import Hub
from gpudeck.tui.fleet import LiveFleet, natural


def event_of(plain: bytes) -> tuple[bytes, dict[str, object]]:
    lines = plain.split(b"\n")
    return lines[0], msgspec.json.decode(lines[2].removeprefix(b"data: "))


def test_deltas_lead_to_the_same_fleet_as_a_snapshot() -> None:
    clock = FakeClock()
    hub = Hub(now=clock)
    for name in ("gpu01", "gpu02", "gpu03"):
        hub.fleet.apply(make_envelope(name, gpus=[make_gpu(uuid=f"GPU-{name}")]), via="push", now=clock())
    hub.stream.tick()
    live = LiveFleet()
    live.load(event_of(hub.stream.snapshot().plain)[1])
    clock.advance(2)
    busy = make_busy_gpu(uuid="GPU-gpu01")
    hub.fleet.apply(make_envelope("gpu01", 2, gpus=[busy]), via="push", now=clock())
    hub.fleet.apply(make_envelope("gpu04", gpus=[make_gpu(uuid="GPU-gpu04")]), via="push", now=clock())
    hub.fleet.remove("gpu02")
    live.apply(event_of(hub.stream.tick().plain)[1])
    told = msgspec.json.decode(hub.stream.document())
    assert live.view() == {name: told[name] for name in live.view()}
    assert [host["name"] for host in live.hosts] == ["gpu01", "gpu03", "gpu04"]


def test_change_of_a_host_that_is_not_known_changes_nothing() -> None:
    live = LiveFleet()
    live.load({"demo": False, "time": 1.0, "totals": {}, "problems": [], "hosts": []})
    live.apply({"time": 2.0, "totals": {}, "changes": [{"id": "ghost", "cpu_percent": 5}]})
    assert (live.hosts, live.time) == ([], 2.0)


def test_numbers_in_names_count_as_numbers() -> None:
    assert sorted(["gpu10", "gpu2", "GPU1", "a100", "7"], key=natural) == ["7", "a100", "GPU1", "gpu2", "gpu10"]
