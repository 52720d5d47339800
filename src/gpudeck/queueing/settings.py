"""Settings of the queue. Imports no database: the base install reads the configuration too."""

from typing import Annotated

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration


class QueueSettings(Struct, frozen=True):
    """The queue of `gpudeck wait`: first come, first served among those that can be served."""

    patience: Annotated[Duration, Meta(ge=0)] = 600.0
    """After this time, GPUs that become free are claimed for the first request in the queue until there are enough."""
    claim: Annotated[Duration, Meta(ge=1, le=3600)] = 120.0
    """For how long granted GPUs stay claimed until the user's process appears."""
    longest_claim: Annotated[Duration, Meta(ge=1, le=86_400)] = 1800.0
    """For how long they stay claimed in all while the command runs and does not use all of them yet."""
    forget: Annotated[Duration, Meta(ge=2, le=3600)] = 60.0
    """A request whose client has not asked for this long leaves the queue."""
