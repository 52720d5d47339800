"""A position in the queue for GPUs, and the GPUs that are granted. Pure."""

from msgspec import Struct

from gpudeck.model.gpu_request import GpuRequest


class GrantedGpu(Struct, frozen=True):
    """A granted GPU, with the host and the number that it had then."""

    uuid: str
    host: str
    host_id: str
    label: str
    name: str
    vendor: str


class Granted(Struct, frozen=True):
    """Granted GPUs, claimed until `until`; `claim` is the reservation that shows it."""

    gpus: list[GrantedGpu]
    at: float
    until: float
    claim: int | None = None


class QueuePosition(Struct, frozen=True, kw_only=True):
    """`position` is 1 for the first request, and null once it is granted. `estimate_seconds` is a guess from what the
    history knows; null stands beside the reason why there is none.

    `reason` is what is in the way now, in words. `impossible` is why the known GPUs can never meet the request; null if
    they could. `claimed` is how many free GPUs are claimed for it. `version` changes with what a waiter wants to know
    at once: not with the position, or all would ask again when one is served.
    """

    id: int
    user: str
    wanted: GpuRequest
    created_at: float
    position: int | None
    waiting: int
    reason: str | None
    impossible: str | None = None
    claimed: int
    estimate_seconds: float | None
    estimate_reason: str | None
    granted: Granted | None
    version: str


class QueueList(Struct, frozen=True):
    """Granted requests that have not started yet, then the queue in its order. `claimed` are the free GPUs that
    are claimed for the first in line, by UUID: the id of the request."""

    requests: list[QueuePosition]
    claimed: dict[str, int]
