"""The state of a host that events are derived from: compared before and after a report (events/detector.py)."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from gpudeck.model.gpu_state import HealthLevel
from gpudeck.model.report import GpuEvent

DUPLICATE_FLAGS = ("clone", "rival", "name")


class GpuBaseline(Struct, frozen=True):
    """`missing` is why it cannot be read, None if it can. `health` is the last known one. `faults` are driver faults of
    the last day, each with the user of its process."""

    label: str
    model: str
    parent: str | None
    missing: str | None
    health: HealthLevel
    reason: str | None
    action: str | None
    faults: dict[GpuEvent, str | None]


class _Labelled(Protocol):
    @property
    def label(self) -> str: ...


def has_other_name(uuid: str, label: str, gpus: Mapping[str, _Labelled]) -> bool:
    """Whether this GPU is among `gpus` under another UUID: a source without UUIDs names it source/host/number."""
    is_numbered = uuid.count("/") > 1
    return any(gpu.label == label and (other.count("/") > 1) != is_numbered for other, gpu in gpus.items())


class HostBaseline(Struct, frozen=True):
    """`is_down` is false for a late host. `gpus` are by UUID; if they could not be read, those of the last reading.
    `duplicates` are messages by kind. `skew` is how many seconds its clock is ahead."""

    name: str
    via: str
    is_down: bool
    silent_since: float
    boot_id: str
    driver_version: str | None
    agent_version: str
    duplicates: dict[str, str]
    gpus: dict[str, GpuBaseline]
    skew: float = 0.0
