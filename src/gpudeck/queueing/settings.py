"""What an operator decides about the queue. Imports no database: a base install reads the configuration too."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration


class QueueSettings(Struct, frozen=True):
    """The queue of `gpudeck wait`: first come, first served among those that can be served."""

    patience: Annotated[Duration, Meta(ge=0)] = 600.0
    """Whoever is first in line for this long has the GPUs that become free kept, until there are enough."""
    hold: Annotated[Duration, Meta(ge=1, le=3600)] = 120.0
    """For how long granted GPUs are kept free until the process of whoever waited appears."""
    longest_hold: Annotated[Duration, Meta(ge=1, le=86_400)] = 1800.0
    """For how long they are kept in all while the command runs and is not on all of them yet: many load for minutes."""
    forget: Annotated[Duration, Meta(ge=2, le=3600)] = 60.0
    """Whoever has not been heard of for this long loses the place in the queue."""
