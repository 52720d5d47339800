"""Requests for GPUs, the decision which GPUs meet them, watches, and positions in the queue. Pure.

`gpudeck free`, `wait`, `watch` and `reserve`, the bot, the API and the search all decide here whether a GPU is of the
requested kind. GPUs with the least sufficient memory come first. Ties go to the host with the fewest free GPUs, so that
fully free hosts stay free; then to the host's name and the GPU's number. A watch is a request that notifies once.
"""

import math
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gpudeck.model.catalog import HostIdentity
from gpudeck.model.errors import UsageError
from gpudeck.model.gpu_state import Availability, HealthLevel
from gpudeck.model.reservation import GpuReservation
from gpudeck.model.text import parse_memory, show_amount, show_count, show_gib
from gpudeck.model.view import Gpu, Host

MAX_GPUS = 1024
_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "=": operator.eq,
}
_GIB = 2**30
_FLAGS = ("same_host", "mig", "allow_mig")
# PostgreSQL rejects the character 0, and names contain no other character that a terminal interprets.
_Name = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]


def read_memory(amount: int | str | None, name: str = "memory") -> int | None:
    """Bytes of an amount such as `40G`. Raises UsageError, which names the value `name`."""
    try:
        size = parse_memory(amount) if isinstance(amount, str) else amount
    except ValueError as error:
        raise UsageError(f"{name}: {error}.") from error
    if size is not None and size >= 2**60:
        raise UsageError(f"{name}: no GPU has so much memory.")
    return size


class GpuRequest(Struct, frozen=True, kw_only=True):
    """`gpus` GPUs with at least `memory_bytes`, whose model contains `model`; `host` is a name or an id. MIG slices are
    chosen only if requested: `mig` accepts nothing but slices, `allow_mig` with an amount of memory also slices of that
    size. `near` is the id of a preferred host, the one on which the request was made."""

    gpus: Annotated[int, Meta(ge=1, le=MAX_GPUS)] = 1
    memory_bytes: Annotated[int, Meta(ge=0, lt=2**60)] | None = None
    model: _Name | None = None
    same_host: bool = False
    host: _Name | None = None
    near: _Name | None = None
    mig: bool = False
    allow_mig: bool = False

    @property
    def kind(self) -> "GpuRequest":
        """A request for one GPU of the same kind: users who request the same kind compete for the same GPUs."""
        return replace(self, gpus=1, same_host=False, near=None)

    def is_kind(self, gpu: "MatchableGpu") -> bool:
        is_enough = not self.memory_bytes or MemoryBound(">=", self.memory_bytes).fits(gpu.memory_total_bytes)
        return is_enough and self.allows(gpu) and has_model(self.model or "", gpu.name, gpu.display_name)

    def allows(self, gpu: "MatchableGpu") -> bool:
        """Whether this kind of GPU (slice or whole) may be chosen."""
        is_slice_allowed = self.mig or (self.allow_mig and bool(self.memory_bytes))
        return is_slice_allowed if is_slice(gpu) else not self.mig

    def is_on(self, host: str, host_id: str) -> bool:
        """Whether the request allows this host. Names of hosts are case-insensitive, as everywhere."""
        return self.host is None or self.host.lower() in {host.lower(), host_id.lower()}

    def describe(self) -> str:
        """As text: `2 GPUs with 40 GiB on one host`."""
        noun = "MIG slice" if self.mig else "GPU or MIG slice" if self.allow_mig else "GPU"
        count = show_count(self.gpus, noun)
        model = f" called {self.model}" if self.model else ""
        memory = f" with {show_amount(self.memory_bytes)}" if self.memory_bytes else ""
        place = f" on {self.host}" if self.host else " on one host" if self.same_host and self.gpus > 1 else ""
        return f"{count}{model}{memory}{place}"


class MemoryBound(NamedTuple):
    """A comparison of a GPU's memory with an amount; `sign` is one of >, <, >=, <= and =."""

    sign: str
    amount_bytes: float

    def fits(self, memory_bytes: float | None) -> bool:
        """Whether this memory meets the bound; unknown memory never does. Amounts in whole GiB are compared with the
        rounded size as shown, so a card shown as 45G matches 45G."""
        if memory_bytes is None:
            return False
        is_whole = self.amount_bytes > 0 and self.amount_bytes % _GIB == 0
        memory = math.floor(memory_bytes / _GIB + 0.5) * _GIB if is_whole else memory_bytes
        return _COMPARE[self.sign](memory, self.amount_bytes)


def has_model(text: str, name: str, display_name: str) -> bool:
    return text.lower() in f"{name}\n{display_name}".lower()


def to_row(request: GpuRequest) -> dict[str, Any]:
    given = {name: value for name, value in msgspec.structs.asdict(request).items() if value is not None}
    return given | {name: int(given[name]) for name in _FLAGS}


def from_row(row: dict[str, Any]) -> GpuRequest:
    own = {name: row[name] for name in GpuRequest.__struct_fields__ if name in row}
    return GpuRequest(**(own | {name: bool(row[name]) for name in _FLAGS}))


CandidateState = Literal["usable", "taken", "unusable"]
"""Usable: at least one user can start on it now. Taken: in use or claimed. Unusable: critical, drained, or in an
unknown state."""


class CandidateGpu(Struct, frozen=True, kw_only=True):
    """The part of a GPU that a request depends on. `reserved_by` has reserved it for now: only they can use it. `users`
    are on it now."""

    uuid: str
    host: str
    host_id: str
    label: str
    index: int
    name: str
    display_name: str
    vendor: str
    memory_total_bytes: float | None
    state: CandidateState
    reserved_by: str | None = None
    users: frozenset[str] = frozenset()

    @property
    def order(self) -> tuple[str, str, int, int, str]:
        """By host, then by number, with MIG instances below their board."""
        instance = self.label.partition(".")[2]
        return self.host, self.host_id, self.index, int(instance) if instance.isdecimal() else -1, self.uuid


def candidate_of(host: HostIdentity, gpu: Gpu) -> CandidateGpu:
    found = gpu.reservation
    return CandidateGpu(
        uuid=gpu.uuid,
        host=host.name,
        host_id=host.id,
        label=gpu.label,
        index=gpu.index,
        name=gpu.name,
        display_name=gpu.display_name,
        vendor=gpu.vendor,
        memory_total_bytes=gpu.memory_total_bytes,
        state=_judge(gpu.availability, gpu.health, found) if gpu.maintenance is None else "unusable",
        reserved_by=found.user if found is not None and gpu.availability == "reserved" else None,
        users=frozenset(gpu.users),
    )


def candidates(hosts: Iterable[Host]) -> list[CandidateGpu]:
    return [candidate_of(host, gpu) for host in hosts for gpu in host.gpus]


def is_unusable(availability: Availability, health: HealthLevel) -> bool:
    """Whether nothing can be started on a GPU, now or when it is released: it is broken, or its state is unknown."""
    return availability in {"unknown", "drained"} or health == "critical"


def _judge(availability: Availability, health: HealthLevel, found: GpuReservation | None) -> CandidateState:
    if is_unusable(availability, health):
        return "unusable"
    # A claim is for one start: even its owner cannot use it twice. A scheduler's reservation is for its jobs.
    is_own = found is not None and found.kind == "reservation" and found.scheduler is None
    return "usable" if availability == "free" or (availability == "reserved" and is_own) else "taken"


def is_usable(gpu: CandidateGpu, names: Collection[str]) -> bool:
    """Whether a user with one of these names could start on it now."""
    return gpu.state == "usable" and (gpu.reserved_by is None or gpu.reserved_by in names)


class MatchableGpu(Protocol):
    """The part of a GPU that a request is compared with."""

    @property
    def host(self) -> str: ...
    @property
    def host_id(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def display_name(self) -> str: ...
    @property
    def memory_total_bytes(self) -> float | None: ...


def matches(gpu: MatchableGpu, request: GpuRequest) -> bool:
    """Whether a GPU is of the requested kind and on an allowed host, whether it is in use or not."""
    return request.is_on(gpu.host, gpu.host_id) and request.is_kind(gpu)


def is_slice(gpu: MatchableGpu) -> bool:
    """Whether it is a MIG instance. Their labels are the board's and their own number, such as 0.5."""
    return "." in gpu.label


def explain_impossible(request: GpuRequest, gpus: Sequence[MatchableGpu], awaited: Collection[str] = ()) -> str | None:
    """Why these GPUs, all that are known, can never meet a request; None if they could. `awaited` are the names and ids
    of hosts whose GPUs are not known yet: one of them may have suitable GPUs."""
    if awaited and (request.host is None or request.host.lower() in {name.lower() for name in awaited}):
        return None
    if count_matching(request, gpus) >= request.gpus:
        return None
    return f"{_find_shortage(request, gpus)}, so this request can never be met"


def count_matching(request: GpuRequest, gpus: Iterable[MatchableGpu]) -> int:
    """How many match, whether in use or not; with `same_host`, on the host that has the most."""
    fitting = [gpu for gpu in gpus if matches(gpu, request)]
    return max(Counter(gpu.host_id for gpu in fitting).values(), default=0) if request.same_host else len(fitting)


def _find_shortage(request: GpuRequest, gpus: Sequence[MatchableGpu]) -> str:
    known = [gpu for gpu in gpus if request.is_on(gpu.host, gpu.host_id)]
    if not known:
        return "no GPU is known" if request.host is None else f"there is no host {request.host} with GPUs"
    place = "the fleet" if request.host is None else known[0].host
    allowed = [gpu for gpu in known if request.allows(gpu)]
    if not allowed:
        return f"{place} has no MIG slices" if request.mig else f"{place} has only MIG slices, chosen with --mig alone"
    noun = "MIG slice" if request.mig else "GPU"
    named = [gpu for gpu in allowed if has_model(request.model or "", gpu.name, gpu.display_name)]
    if not named:
        return f"no {noun} of {place} is called {request.model}"
    fitting = [gpu for gpu in named if matches(gpu, request)]
    if not fitting:
        most = max((gpu.memory_total_bytes for gpu in named if gpu.memory_total_bytes), default=None)
        largest = "" if most is None else f" (the largest has {show_gib(most, 0)} GiB)"
        return f"no {noun} of {place} has {show_amount(request.memory_bytes or 0)}{largest}"
    such = f"such {noun}" if len(fitting) < len(known) else noun
    if request.same_host and request.host is None and len({gpu.host_id for gpu in known}) > 1:
        return f"no host has more than {show_count(count_matching(request, fitting), such)}"
    return f"{place} has only {show_count(len(fitting), such)}"


def rank(gpus: Iterable[CandidateGpu], near: str | None = None) -> list[CandidateGpu]:
    """Best first, as described above. Unknown memory comes last."""
    ordered = sorted(gpus, key=lambda gpu: gpu.order)
    left: dict[str, int] = defaultdict(int)
    for gpu in ordered:
        left[gpu.host_id] += 1
    return sorted(ordered, key=lambda gpu: (gpu.host_id != near, memory_order(gpu), left[gpu.host_id], gpu.order))


def choose(request: GpuRequest, gpus: Iterable[CandidateGpu]) -> list[CandidateGpu] | None:
    """The GPUs for a request; None if there are too few, or too few on one host. One host is preferred if that needs no
    larger GPUs."""
    ranked = rank((gpu for gpu in gpus if matches(gpu, request)), request.near)
    if len(ranked) < request.gpus:
        return None
    spread = ranked[: request.gpus]
    together = _choose_host(request, ranked)
    if request.same_host or (together is not None and _cost(together, request) <= _cost(spread, request)):
        return together
    return spread


def by_host(gpus: Iterable[CandidateGpu]) -> dict[str, list[CandidateGpu]]:
    hosts: dict[str, list[CandidateGpu]] = defaultdict(list)
    for gpu in gpus:
        hosts[gpu.host_id].append(gpu)
    return hosts


def _choose_host(request: GpuRequest, ranked: Sequence[CandidateGpu]) -> list[CandidateGpu] | None:
    count = request.gpus
    hosts = [found for found in by_host(ranked).values() if len(found) >= count]
    best = min(hosts, key=lambda found: (_cost(found[:count], request), len(found), found[0].order), default=None)
    return None if best is None else best[:count]


def _cost(gpus: Sequence[CandidateGpu], request: GpuRequest) -> tuple[bool, float]:
    return any(gpu.host_id != request.near for gpu in gpus), max(map(memory_order, gpus))


def memory_order(gpu: MatchableGpu) -> float:
    """Its memory as a sort key: unknown comes last."""
    return float("inf") if gpu.memory_total_bytes is None else gpu.memory_total_bytes


class FoundGpu(Struct, frozen=True):
    """A GPU that was free, with its host and number at that time."""

    uuid: str
    host: str
    host_id: str
    label: str
    name: str


class Watch(Struct, frozen=True, kw_only=True):
    """`user` is the name of the account, if there is one, else the login that was sent. Times are Unix seconds on the
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
    by mail or Slack, not only by an event."""

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
    """The waiting watches, and those that fired within a week."""

    watches: list[WatchView]


class GrantedGpu(FoundGpu, frozen=True):
    """A granted GPU, with its host and number at that time."""

    vendor: str


_VARIABLES = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}
_NAMED = ("GPU-", "MIG-")


def visible_devices(gpus: Sequence[CandidateGpu | GrantedGpu]) -> tuple[str, str]:
    """The environment variable and its value. Raises UsageError for GPUs that cannot be named by UUID."""
    vendors = {gpu.vendor for gpu in gpus}
    if len(vendors) > 1:
        raise UsageError(
            f"these GPUs are from several vendors ({', '.join(sorted(vendors))}): no variable names them all."
        )
    for gpu in gpus:
        if gpu.vendor not in _VARIABLES or not gpu.uuid.startswith(_NAMED):
            raise UsageError(f"GPU {gpu.label} of {gpu.host} has no UUID that a program can be given.")
    return _VARIABLES[gpus[0].vendor], ",".join(gpu.uuid for gpu in gpus)


class Granted(Struct, frozen=True):
    """Granted GPUs, claimed until `until`; `claim` is the reservation that shows the claim."""

    gpus: list[GrantedGpu]
    at: float
    until: float
    claim: int | None = None


class QueuePosition(Struct, frozen=True, kw_only=True):
    """`position` is 1 for the first request, and null once it is granted. `estimate_seconds` is a guess from the
    history; null with the reason if there is none. `reason` is what the request waits for. `impossible` is why the
    known GPUs can never meet the request; null if they could. `claimed` is how many free GPUs are claimed for it.
    `version` changes with everything a waiter must know at once, but not with the position: otherwise all would ask
    again whenever one is served."""

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
    """Granted requests that have not started yet, then the queue in its order. `claimed` are the free GPUs claimed for
    the first requests, by UUID, with the id of the request."""

    requests: list[QueuePosition]
    claimed: dict[str, int]
