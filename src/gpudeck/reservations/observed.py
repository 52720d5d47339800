"""The fleet as far as reservations have to know it: which GPUs there are, and who is on them. Pure."""

from msgspec import Struct

from gpudeck.model.availability import Availability
from gpudeck.model.reservation import BookedGpu


class Occupant(Struct, frozen=True):
    """Somebody's process on a GPU; display servers are none. None is what nobody could tell."""

    user: str | None
    started_at: float | None = None


class ObservedGpu(Struct, frozen=True):
    """`model` is all that it is called, `occupants` None where who is on it is not known, as on a silent host."""

    uuid: str
    host: str
    label: str
    index: int
    model: str
    memory_total_bytes: float | None
    availability: Availability
    occupants: tuple[Occupant, ...] | None

    @property
    def booked(self) -> BookedGpu:
        return BookedGpu(self.uuid, self.host, self.label)

    @property
    def is_in_use(self) -> bool:
        return self.availability in {"busy", "held"}

    def users(self) -> list[str]:
        """Those who are known to be on it, each once."""
        return list(dict.fromkeys(one.user for one in self.occupants or () if one.user is not None))
