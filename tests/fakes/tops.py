"""A top in front of a feed that a test fills by hand."""

from typing import Any

import msgspec

from fakes.fleets import fleet_of
from fakes.reports import GIB, make_busy_gpu, make_gpu
from gpudeck.client.live_fleet import Delta, read_delta
from gpudeck.model.view import Fleet
from gpudeck.tui.feed import Take, Update
from gpudeck.tui.top import Top


class FakeFeed:
    """Tells what a test says, when it says it."""

    place = "http://hub:8042"

    def __init__(self, *, is_local: bool = False) -> None:
        self.is_local = is_local
        self.is_stopped = False
        self._take: Take | None = None

    def first(self) -> Fleet:
        return some_fleet()

    def start(self, take: Take) -> None:
        self._take = take

    def stop(self) -> None:
        self.is_stopped = True

    def tell(self, news: Update) -> None:
        assert self._take is not None
        self._take(news)


def some_fleet() -> Fleet:
    """Three hosts, six GPUs: bob works hardest, alice is on two, one GPU fell off the bus, one host is gpu10."""
    bob = make_busy_gpu(1, "bob", uuid="GPU-b", metrics={"utilization_percent": 99, "memory_used_bytes": 10 * GIB})
    return fleet_of(
        ("gpu02", [make_gpu(0, uuid="GPU-a"), bob, make_gpu(2, uuid="GPU-c", missing="fell off the bus")]),
        ("gpu10", [make_busy_gpu(0, "alice", uuid="GPU-d", name="NVIDIA H200", metrics={"utilization_percent": 40})]),
        (
            "gpu1",
            [
                make_gpu(0, uuid="GPU-e", metrics={"temperature_celsius": 77}),
                make_busy_gpu(1, "alice", uuid="GPU-f", metrics={"utilization_percent": 70}),
            ],
        ),
    )


def make_top(fleet: Fleet | None = None, **others: Any) -> Top:
    """A top that does nothing beyond its own screen."""
    top = Top("http://hub:8042", lambda: None, **others)
    top.take(some_fleet() if fleet is None else fleet)
    top.arrange()
    return top


def delta_of(top: Top, after: float = 1.0, **parts: Any) -> Delta:
    """A delta for this top as a hub's stream has it, `after` its last news."""
    told = {"time": top.fleet.time + after, "totals": top.fleet.totals, **parts}
    return read_delta(msgspec.json.encode(told))


def press(top: Top, *keys: str) -> None:
    """Keys by name, as Textual calls them; single characters type themselves."""
    for key in keys:
        top.press(key, key if len(key) == 1 else None)
        top.arrange()
