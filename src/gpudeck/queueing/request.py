"""What somebody waits for, and what they got. Pure."""

from msgspec import Struct

from gpudeck.model.wanted import OfferedGpu, Wanted


class GrantedGpu(Struct, frozen=True):
    """A GPU that somebody got, with the host and the number that it had then."""

    uuid: str
    host: str
    host_id: str
    label: str
    name: str
    vendor: str


class Granted(Struct, frozen=True):
    """What somebody got. The GPUs are kept for them until `until`; `hold` is the reservation that says so."""

    gpus: list[GrantedGpu]
    at: float
    until: float
    hold: int | None = None


class Request(Struct, frozen=True, kw_only=True):
    """Somebody who waits. `user` is the account's name, where there is one, else the login that the waiter told.

    `key` is the waiter's own: whoever asks twice with the same one stands in line once. Times are Unix seconds on the
    hub's clock.
    """

    id: int
    key: str
    user: str
    account: str | None
    wanted: Wanted
    created_at: float
    last_seen_at: float
    granted: Granted | None = None

    @property
    def order(self) -> tuple[float, int]:
        """First come, first served."""
        return self.created_at, self.id


def grant_of(gpu: OfferedGpu) -> GrantedGpu:
    return GrantedGpu(gpu.uuid, gpu.host, gpu.host_id, gpu.label, gpu.name, gpu.vendor)
