"""A request in the queue; which request gets which GPUs now, the position of the others, and an estimate of their wait.
Pure.

First come, first served among the requests that can be met: a request for one GPU does not wait behind one for eight.
After the operator's `patience`, the oldest request for a kind of GPU is not overtaken any more: suitable GPUs are
claimed for it as they become free, until there are enough. A request that the fleet can never meet claims nothing.

The estimate: where F GPUs fit and programs run T seconds on average, one becomes free every T/F seconds; a request
that needs D of them, with those before it, waits for D such ends. There is none for several GPUs of one host.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.model.gpu_request import (
    CandidateGpu,
    GpuRequest,
    Granted,
    GrantedGpu,
    QueuePosition,
    by_host,
    choose,
    explain_impossible,
    is_usable,
    matches,
    rank,
)


class Request(Struct, frozen=True, kw_only=True):
    """A request. `user` is the account's name, where there is one, else the login that the client sent.

    `key` is the client's own: two requests with the same one are one. Times are Unix seconds on the
    hub's clock.
    """

    id: int
    key: str
    user: str
    account: str | None
    wanted: GpuRequest
    created_at: float
    last_seen_at: float
    granted: Granted | None = None

    @property
    def order(self) -> tuple[float, int]:
        """First come, first served."""
        return self.created_at, self.id


def grant_of(gpu: CandidateGpu) -> GrantedGpu:
    return GrantedGpu(gpu.uuid, gpu.host, gpu.host_id, gpu.label, gpu.name, gpu.vendor)


FEWEST: Final = 10
"""So many programs have to have ended on such GPUs: the mean of fewer says nothing."""


class ScheduledGrant(Struct, frozen=True):
    """What a request gets now."""

    request: int
    gpus: list[CandidateGpu]


class Schedule(Struct, frozen=True):
    """`claimed` are the free GPUs that are claimed for a request: its id by their UUID. `impossible` are the requests
    that the fleet cannot meet now."""

    grants: list[ScheduledGrant]
    claimed: dict[str, int]
    impossible: frozenset[int]


def schedule(
    requests: Iterable[Request], gpus: Sequence[CandidateGpu], now: float, *, patience: float = 600.0
) -> Schedule:
    """`gpus` are all of the fleet. What was granted before and is still claimed is not offered, whatever the fleet
    says: its process may not have appeared yet."""
    known = list(requests)
    given = {gpu.uuid for one in known if one.granted is not None for gpu in one.granted.gpus}
    waiting = sorted((one for one in known if one.granted is None), key=lambda one: one.order)
    free = {gpu.uuid: gpu for gpu in gpus if gpu.state == "usable" and gpu.uuid not in given}
    allocation = _Allocation(free, [gpu for gpu in gpus if gpu.state != "unusable"])
    for one in waiting:
        allocation.serve(one, is_impatient=now - one.created_at >= patience)
    return Schedule(allocation.grants, allocation.claimed, frozenset(allocation.impossible))


class _Allocation:
    """Serves requests one after the other with what is left of the free GPUs."""

    def __init__(self, free: dict[str, CandidateGpu], stock: list[CandidateGpu]) -> None:
        """`stock` is what the fleet has, in use or not. Many requests are the same: each kind is matched once."""
        self.grants: list[ScheduledGrant] = []
        self.claimed: dict[str, int] = {}
        self.impossible: set[int] = set()
        self._free = free
        self._owners = {gpu.reserved_by for gpu in free.values()}
        self._of_kind = cache(lambda kind: [gpu for gpu in stock if matches(gpu, kind)])
        self._find = cache(self._find_fitting)
        # By what is wanted: comparing sets of thousands takes longer than all else here.
        self._claims: dict[GpuRequest, frozenset[str]] = {}
        self._tried: set[tuple[GpuRequest, str]] = set()

    def serve(self, one: Request, *, is_impatient: bool) -> None:
        wanted = replace(one.wanted, near=None)
        # What is free only becomes less from here on: the same request as one that got nothing gets nothing.
        attempt = (wanted, one.user if one.user in self._owners else "")
        chosen = None if attempt in self._tried else choose(one.wanted, self._usable(one))
        if chosen is not None:
            self.grants.append(ScheduledGrant(one.id, chosen))
            self._take(chosen)
            return
        self._tried.add(attempt)
        fitting = self._find(wanted)
        if fitting is None:
            self.impossible.add(one.id)
            return
        if is_impatient and all(fitting.isdisjoint(claim) for claim in self._claims.values()):
            claimed = _keep(one.wanted, self._usable(one), fitting)
            self.claimed |= {gpu.uuid: one.id for gpu in claimed}
            self._take(claimed)
        self._claims[wanted] = fitting

    def _find_fitting(self, wanted: GpuRequest) -> frozenset[str] | None:
        """The UUIDs of all that could be part of it; None where there are not enough."""
        fitting = self._of_kind(wanted.kind)
        if wanted.same_host:
            fitting = [gpu for gpus in by_host(fitting).values() if len(gpus) >= wanted.gpus for gpu in gpus]
        return frozenset(gpu.uuid for gpu in fitting) if len(fitting) >= wanted.gpus else None

    def _usable(self, one: Request) -> list[CandidateGpu]:
        return [gpu for gpu in self._free.values() if is_usable(gpu, (one.user,))]

    def _take(self, gpus: Iterable[CandidateGpu]) -> None:
        for gpu in gpus:
            del self._free[gpu.uuid]


def _keep(wanted: GpuRequest, usable: Sequence[CandidateGpu], fitting: frozenset[str]) -> list[CandidateGpu]:
    """What of the usable GPUs brings a request nearer to what it wants. On one host, that which already has the most:
    so the hub itself never takes a claim back."""
    ranked = rank((gpu for gpu in usable if gpu.uuid in fitting), wanted.near)
    if not wanted.same_host:
        return ranked[: wanted.gpus]
    best: list[CandidateGpu] = min(by_host(ranked).values(), key=lambda gpus: (-len(gpus), gpus[0].order), default=[])
    return best


class WaitEstimate(NamedTuple):
    """Seconds, or why there are none."""

    seconds: float | None
    reason: str | None


Estimate = Callable[[Sequence[Request], Sequence[CandidateGpu]], dict[int, WaitEstimate]]
"""From those who wait, in their order, and the fleet: by the ids of the requests."""
NO_HISTORY = WaitEstimate(None, "this hub keeps no history of how long GPUs are in use")
_SOON = WaitEstimate(None, "just arrived")


class PositionFinder:
    """What is known about the line since the last step."""

    def __init__(self, estimate: Estimate | None) -> None:
        self.claimed: dict[str, int] = {}
        self._estimate = estimate
        self._impossible: frozenset[int] = frozenset()
        self._positions: dict[int, int] = {}
        self._guesses: dict[int, WaitEstimate] = {}
        self._has_gpus = True
        self._never: dict[int, str] = {}

    def arrange(self, requests: Iterable[Request]) -> None:
        """The queue has changed."""
        waiting = sorted((one for one in requests if one.granted is None), key=lambda one: one.order)
        self._positions = {one.id: at for at, one in enumerate(waiting, 1)}

    def settle(
        self,
        requests: Iterable[Request],
        found: Schedule | None,
        gpus: Sequence[CandidateGpu],
        awaited: Collection[str] = (),
    ) -> None:
        """`awaited` are hosts whose GPUs are not known yet."""
        line = sorted((one for one in requests if one.granted is None), key=lambda one: one.order)
        self.arrange(line)
        self.claimed = {} if found is None else found.claimed
        self._impossible = frozenset() if found is None else found.impossible
        # While nobody waits, nobody looks for GPUs.
        self._has_gpus = bool(gpus) or not line
        possible = [one for one in line if one.id not in self._impossible]
        known = {} if self._estimate is None else self._estimate(possible, gpus)
        self._guesses = {one.id: known.get(one.id, NO_HISTORY) for one in possible}
        self._guesses |= dict.fromkeys(self._impossible, WaitEstimate(None, "the fleet does not have that now"))
        asked = {one.id: explain_impossible(one.wanted, gpus, awaited) for one in line if one.id in self._impossible}
        self._never = {number: why for number, why in asked.items() if why is not None and gpus}

    def show(self, one: Request) -> QueuePosition:
        position = self._positions.get(one.id) if one.granted is None else None
        claimed = sum(number == one.id for number in self.claimed.values())
        reason = None if one.granted is not None else self._explain(one)
        guess = WaitEstimate(0.0, None) if one.granted is not None else self._guesses.get(one.id, _SOON)
        granted = "" if one.granted is None else f"granted {one.granted.at}"
        return QueuePosition(
            id=one.id,
            user=one.user,
            wanted=one.wanted,
            created_at=one.created_at,
            position=position,
            waiting=len(self._positions),
            reason=reason,
            impossible=None if one.granted is not None else self._never.get(one.id),
            claimed=claimed,
            estimate_seconds=guess.seconds,
            estimate_reason=guess.reason,
            granted=one.granted,
            version=f"{claimed}/{one.id in self._impossible}/{one.id in self._never}/{granted}",
        )

    def _explain(self, one: Request) -> str | None:
        if not self._has_gpus:
            return "no host has reported a GPU yet"
        if one.id in self._impossible:
            return self._never.get(one.id) or f"no host that reports has {one.wanted.describe()} in working order"
        return None


class RunLengths(Struct, frozen=True):
    """How many programs ended on a GPU, and for how many seconds they were there, all together."""

    count: int
    seconds: float


def count_run_lengths(runs: Iterable[tuple[Sequence[str], float]]) -> dict[str, RunLengths]:
    """By UUID, from the GPUs of each program that ended, and how long it was there."""
    found: dict[str, RunLengths] = {}
    for uuids, seconds in runs:
        for uuid in uuids:
            before = found.get(uuid, RunLengths(0, 0.0))
            found[uuid] = RunLengths(before.count + 1, before.seconds + seconds)
    return found


class Estimator:
    """Guesses from how long programs stayed; nothing where no history is kept."""

    def __init__(self) -> None:
        self._stays: Mapping[str, RunLengths] | None = None

    def learn(self, stays: Mapping[str, RunLengths]) -> None:
        """What the history says now (see `count_run_lengths`)."""
        self._stays = stays

    def __call__(self, line: Sequence[Request], gpus: Sequence[CandidateGpu]) -> dict[int, WaitEstimate]:
        if self._stays is None:
            return {one.id: NO_HISTORY for one in line}
        pools = {kind: _Pool(kind, gpus, self._stays) for kind in {one.wanted.kind for one in line}}
        rivals = {kind: [other for other in pools.values() if pool.shares(other)] for kind, pool in pools.items()}
        guesses = {}
        for one in line:
            for pool in rivals[one.wanted.kind]:
                pool.needed += one.wanted.gpus
            guesses[one.id] = pools[one.wanted.kind].guess(one.wanted)
        return guesses


class _Pool:
    """All GPUs of one kind. `needed` is how many of them the requests before and the next one want."""

    def __init__(self, kind: GpuRequest, gpus: Iterable[CandidateGpu], stays: Mapping[str, RunLengths]) -> None:
        fitting = [gpu for gpu in gpus if gpu.state != "unusable" and matches(gpu, kind)]
        found = [stays[gpu.uuid] for gpu in fitting if gpu.uuid in stays]
        self.needed = 0
        self._uuids = frozenset(gpu.uuid for gpu in fitting)
        self._free = sum(gpu.state == "usable" and gpu.reserved_by is None for gpu in fitting)
        self._count = sum(one.count for one in found)
        self._seconds = sum(one.seconds for one in found)

    def shares(self, other: "_Pool") -> bool:
        return not self._uuids.isdisjoint(other._uuids)

    def guess(self, wanted: GpuRequest) -> WaitEstimate:
        if wanted.same_host and wanted.gpus > 1:
            return WaitEstimate(None, "the history does not say when several GPUs of one host become free together")
        if self._count < FEWEST:
            return WaitEstimate(None, f"fewer than {FEWEST} programs ended on such GPUs in the last days")
        return WaitEstimate(
            round(max(0, self.needed - self._free) * self._seconds / self._count / len(self._uuids)), None
        )
