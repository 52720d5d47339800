"""A fleet as a hub tells it, from a few reports; and any struct of an answer, with what a test does not care about
filled in."""

from typing import Any, TypeVar, get_args

import msgspec

from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.fleet.hub import Hub
from gpudeck.model.report import GpuReading
from gpudeck.model.view import Fleet

T = TypeVar("T")


def fleet_of(*hosts: tuple[str, list[GpuReading]], silent_for: float = 0, demo: bool = False) -> Fleet:
    """In the order in which a hub has them."""
    clock = FakeClock()
    hub = Hub(now=clock, is_simulated=demo)
    for name, gpus in hosts:
        hub.fleet.apply(make_envelope(name, gpus=gpus), via="push", now=clock())
    clock.advance(silent_for)
    hub.stream.tick()
    return hub.fleet.view(hub.stream.time)


def make(kind: type[T], /, **fields: Any) -> T:
    """A struct with these fields, as an answer has them. Those that are needed and not given are null, zero or empty,
    whatever fits first."""
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in fields:
            fields[field.encode_name] = _blank(field.type)
    return msgspec.convert(msgspec.to_builtins(fields), kind)


def _blank(kind: Any) -> Any:
    for value in (None, 0, False, "", []):
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            continue
        return value
    return make(kind) if isinstance(kind, type) else get_args(kind)[0]
