"""A fleet as a hub tells it, from a few reports."""

from typing import Any

import msgspec

from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.hub.hub import Hub
from gpudeck.model.report import GpuReading


def fleet_of(*hosts: tuple[str, list[GpuReading]], silent_for: float = 0, demo: bool = False) -> dict[str, Any]:
    """The JSON of the API, in the order in which a hub has them."""
    clock = FakeClock()
    hub = Hub(now=clock, demo=demo)
    for name, gpus in hosts:
        hub.fleet.apply(make_envelope(name, gpus=gpus), via="push", now=clock())
    clock.advance(silent_for)
    hub.stream.tick()
    fleet: dict[str, Any] = msgspec.json.decode(hub.stream.document())
    return fleet
