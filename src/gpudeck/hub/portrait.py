"""A host as far as it makes news: what is compared before and after a report."""

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
