"""Settings of digests. Imports no database: the base install reads the configuration too."""

from typing import Annotated

from msgspec import Meta, Struct, field

from gpudeck.alerts.notifiers.settings import ChannelName
from gpudeck.idle_policy.settings import Weekday
from gpudeck.model.settings import Text
from gpudeck.model.times import load_zone
from gpudeck.model.usage import Frequency, NumberFormat

_Account = Annotated[str, Meta(min_length=1, max_length=64)]
_TimeOfDay = Annotated[
    str, Meta(pattern=r"^(?:[01][0-9]|2[0-3]):[0-5][0-9]$(?!\n)", extra={"config_words": "a time such as 07:00"})
]


class DigestSettings(Struct, frozen=True):
    """Recipients and time of the figures of the last week or month. `users.NAME` can differ in `digest`, `zone` and
    `numbers`."""

    every: Frequency = "off"
    """How often users who can be notified get a digest: off, week or month."""
    day: Weekday = "mon"
    """The day on which the digest of the week before, Monday to Sunday, is sent. That of a month is sent on the
    first."""
    at: _TimeOfDay = "07:00"
    """The time of day, in the time zone of each user."""
    zone: str = "UTC"
    """The time zone of users who have none, such as Europe/Berlin. Days, weeks and months begin there."""
    numbers: NumberFormat = "en"
    """The language whose marks for thousands and decimals are used for users who have none."""
    leads: dict[Text, list[_Account]] = field(default_factory=dict)
    """The leads of groups: accounts whose digest shows the members of the group."""
    channels: list[ChannelName] = field(default_factory=list)
    """Channels that get the digest of the fleet, as admins do; with `every: off` weekly."""

    def __post_init__(self) -> None:
        load_zone(self.zone)
