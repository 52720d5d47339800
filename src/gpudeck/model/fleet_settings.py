"""What an operator decides about how the fleet is judged.

Here and not in the hub's room, so that reading the configuration file needs no hub to be installed.
"""

from typing import Annotated

from msgspec import Meta, Struct, field

from gpudeck.model.availability import AvailabilitySettings
from gpudeck.model.health import HealthSettings
from gpudeck.model.settings import Duration


class FleetSettings(Struct, frozen=True):
    """When a host counts as gone, and where the lines between GPU states are drawn."""

    down_after: Annotated[Duration, Meta(gt=0)] = 60.0
    """A host that has not reported for this long is down. It is late after three missed beats."""
    forget_after: Annotated[Duration, Meta(gt=0)] = 30 * 86_400.0
    """A host that has not reported for this long is removed from the fleet."""
    max_hosts: Annotated[int, Meta(ge=1)] = 20_000
    """Reports of further hosts are refused."""
    availability: AvailabilitySettings = field(default_factory=AvailabilitySettings)
    health: HealthSettings = field(default_factory=HealthSettings)
