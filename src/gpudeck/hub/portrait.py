"""A host as far as it makes news: what is compared before and after a report."""

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct

from gpudeck.model.health import HealthLevel
from gpudeck.model.report import GpuEvent

TWIN_FLAGS = ("clone", "rival", "name")
"""The problems that say that two hosts cannot be told apart."""


class GpuPortrait(Struct, frozen=True):
    """`missing` is why it cannot be read, None while it can. `health` is the last one that was known. `faults` are the
    driver's of the last day, with whose process each was."""

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
    """Whether this GPU is among `gpus` under another name: a source that knows no UUIDs calls it source/host/number."""
    is_numbered = uuid.count("/") > 1
    return any(gpu.label == label and (other.count("/") > 1) != is_numbered for other, gpu in gpus.items())


class Portrait(Struct, frozen=True):
    """`is_down` is not so while it is merely late. `silent_since` is when something was last heard of it. `gpus` are by
    UUID, and those of the last time where they could not be read. `twins` are sentences, by kind. `skew` is by how many
    seconds its clock is ahead of the hub's."""

    name: str
    via: str
    is_down: bool
    silent_since: float
    boot_id: str
    driver_version: str | None
    agent_version: str
    twins: dict[str, str]
    gpus: dict[str, GpuPortrait]
    skew: float = 0.0
