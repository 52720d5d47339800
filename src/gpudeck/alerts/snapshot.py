"""The fleet and its recent past as rules see them. Pure."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct, field

from gpudeck.fleet.columns import Flags
from gpudeck.model.history_trouble import HistoryTrouble
from gpudeck.model.view import Gpu, Host, HostStatus


class Board(Protocol):
    """A GPU of the live fleet. `missing` is why it cannot be read, None where it can."""

    missing: str | None

    def view(self) -> Gpu: ...


class GoneGpu(Struct, frozen=True):
    """A GPU that a host had and no longer tells of."""

    uuid: str
    label: str
    model: str


class SeenHost(Struct, frozen=True, kw_only=True):
    """`view` is its metrics and facts, without GPUs. `boards` are all of its GPUs, by UUID, `gpus` those to look
    at, and whose values are of now, `chosen` their UUIDs, None for all. `has_gpus`: the values of some are of now.
    `silent_since` is when it last reported, `late_times` how often it came late within the last hour.

    `failure` is why the hub cannot read it. `is_expected`: it is configured. `is_recalled`: it is known from before
    this start of the hub, and has not reported since."""

    id: str
    name: str
    status: HostStatus
    view: Host
    gpus: Sequence[Gpu] = ()
    has_gpus: bool = False
    boards: Mapping[str, Board] = field(default_factory=dict)
    silent_since: float = 0.0
    late_times: int = 0
    failure: str | None = None
    is_expected: bool = False
    is_recalled: bool = False
    gone: tuple[GoneGpu, ...] = ()
    chosen: Collection[str] | None = None

    def is_gone(self, gpu: str) -> bool:
        """Whether it is one of those that are gone."""
        return any(gpu == one.uuid for one in self.gone)

    def is_chosen(self, gpu: str) -> bool:
        """Whether alerts of that GPU, or with "" of the host, are to be looked at."""
        if not gpu or gpu not in self.boards:
            return True
        return self.has_gpus and (self.chosen is None or gpu in self.chosen)

    @property
    def labels(self) -> dict[str, str]:
        return self.view.labels


class Selection(NamedTuple):
    """Hosts and GPUs, by row, to look at: each time, or (`steady_`) only after a report or when a metric of `reads` is
    another. `is_anew`: rules have changed, and what they said of those before counts for nothing. It is of one moment:
    rows are given to others whenever reports come in."""

    hosts: Flags
    gpus: Flags
    steady_hosts: Flags
    steady_gpus: Flags
    reads: tuple[str, ...]
    is_anew: bool


class LateBooking(Struct, frozen=True):
    """A booking that has begun and that nobody uses; `deadline` is when it is released."""

    id: int
    user: str
    gpus: str
    host: str | None
    deadline: float


class Around(Struct, frozen=True, kw_only=True):
    """What concerns the fleet as a whole. `power_limits` is the usual limit of each GPU model in watts.

    `free` and `known` are how many GPUs are free, and of how many it is known what they do.
    """

    now: float
    version: str = ""
    critical_celsius: float = 95.0
    power_limits: Mapping[str, float] = field(default_factory=dict)
    late_bookings: tuple[LateBooking, ...] = ()
    history: HistoryTrouble | None = None
    free: int = 0
    known: int = 0


HUB = SeenHost(id="", name="", status="up", view=Host(id="", name="", display_name="", status="up", via=""))
"""The subject of what is no single host's."""
