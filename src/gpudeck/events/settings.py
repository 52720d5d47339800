"""Settings of events. Imports no database: the base install reads the configuration too."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration

DAY = 86_400.0


class EventSettings(Struct, frozen=True):
    """What happened in the fleet, and for how long it is kept."""

    keep: Annotated[Duration, Meta(ge=DAY)] = 2 * 365 * DAY
    """How long an event is kept. That a host was seen for the first time stays."""
