"""What an operator decides about how the fleet is judged.

Here and not in the hub's room, so that reading the configuration file needs no hub to be installed.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct, field

from gpudeck.model.availability import AvailabilitySettings
from gpudeck.model.health import HealthSettings
from gpudeck.model.settings import Duration

STUCK_SECONDS: Final = 20.0
"""Where a second took longer than this, it was the hub that was away, and all that it believes to know is old."""
RETURN_SECONDS: Final = 120.0
"""Seconds after a start, and after a hub that was away goes on, in which agents return: they try again after pauses of
up to a minute. No host is said to have stopped reporting before that."""


class FleetSettings(Struct, frozen=True):
    """When a host counts as gone, and where the lines between GPU states are drawn."""

    down_after: Annotated[Duration, Meta(gt=0)] = 60.0
    """A host that has not reported for this long is down. It is late after three missed beats."""
    forget_after: Annotated[Duration, Meta(gt=0)] = 30 * 86_400.0
    """A host that has not reported for this long is removed from the fleet."""
    max_hosts: Annotated[int, Meta(ge=1)] = 20_000
    """Reports of further hosts are refused."""
    max_hosts_per_token: Annotated[int, Meta(ge=1)] = 2_000
    """Reports of further hosts with the same agent token are refused: a stolen token cannot fill the fleet. A fleet of
    more hosts that share one token needs a higher number."""
    availability: AvailabilitySettings = field(default_factory=AvailabilitySettings)
    health: HealthSettings = field(default_factory=HealthSettings)
