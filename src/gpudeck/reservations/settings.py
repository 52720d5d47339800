"""Settings of reservations. Imports no database: the base install reads the configuration too."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from gpudeck.model.settings import Duration

HOUR = 3600.0
DAY = 86_400.0


class ReservationSettings(Struct, frozen=True):
    """How much of the fleet one user may reserve. Admins are exempt. gpudeck does not stop processes."""

    longest: Annotated[Duration, Meta(ge=60)] = 7 * DAY
    """The longest time for which GPUs can be reserved."""
    ahead: Annotated[Duration, Meta(ge=0)] = 30 * DAY
    """How far ahead of its beginning a reservation can be made."""
    most_gpus: Annotated[int, Meta(ge=1)] = 8
    """How many GPUs one user can have reserved at the same time."""
    no_show: Literal["off"] | Annotated[Duration, Meta(ge=60)] = HOUR
    """A reservation whose GPUs nobody has used for this long since its beginning is released; `off`: it stays."""
    without_account: bool = False
    """Whether people without an account can reserve too, under a name that they give, and change such reservations.
    Only with `read: open`; the name of an account is refused."""
    warn_before: Annotated[Duration, Meta(ge=0)] = 15 * 60.0
    """How long before that its owner is warned."""
