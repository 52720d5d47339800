"""A request to be notified once when GPUs are free, and what was free then. Pure."""

from msgspec import Struct, field

from gpudeck.model.gpu_request import GpuRequest


class FoundGpu(Struct, frozen=True):
    """A GPU that was free, with the host and the number that it had then."""

    uuid: str
    host: str
    host_id: str
    label: str
    name: str


class Watch(Struct, frozen=True, kw_only=True):
    """`user` is the account's name, where there is one, else the login that was sent. Times are Unix seconds on the
    hub's clock. `fired_at` is None until `found` was free."""

    id: int
    user: str
    account: str | None
    wanted: GpuRequest
    created_at: float
    expires_at: float
    fired_at: float | None = None
    found: list[FoundGpu] = field(default_factory=list)


class WatchView(Struct, frozen=True, kw_only=True):
    """`fired_at` is null until the GPUs in `found` were free; then the watch has ended. `is_sent`: the user is notified
    by mail or Slack; else by an event alone."""

    id: int
    user: str
    wanted: GpuRequest
    description: str
    created_at: float
    expires_at: float
    fired_at: float | None
    found: list[FoundGpu]
    is_sent: bool


class WatchList(Struct, frozen=True):
    """Those that wait, and for a week those that fired."""

    watches: list[WatchView]
