"""Decides which request of the queue gets which GPUs, the position of the others, and an estimate of their wait. Pure.

First come, first served among the requests that can be met: a request for one GPU does not wait behind one for eight.
After `patience` seconds, the oldest request for a kind of GPU is not overtaken any more: suitable GPUs are claimed for
it as they become free, until there are enough. A request that the fleet can never meet claims nothing.

The estimate: if F GPUs fit and programs run T seconds on average, one becomes free every T/F seconds; a request that
needs D of them, including those of earlier requests, waits for D ends. There is none for several GPUs of one host.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from statistics import fmean
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
    """A request. `user` is the account's name, if there is one, else the login that the client sent.

    The client chooses `key`: two requests with the same key are one. Times are Unix seconds on the hub's clock.
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
"""An estimate needs so many ended programs."""


class ScheduledGrant(Struct, frozen=True):
    """The GPUs that a request gets now."""

    request: int
    gpus: list[CandidateGpu]


class Schedule(Struct, frozen=True):
    """`claimed` are free GPUs that are claimed for a request: its id by their UUID. `impossible` are requests that the
    fleet cannot meet now, even if all GPUs were free."""

    grants: list[ScheduledGrant]
    claimed: dict[str, int]
    impossible: frozenset[int]


def schedule(
    requests: Iterable[Request], gpus: Sequence[CandidateGpu], now: float, *, patience: float = 600.0
) -> Schedule:
    """`gpus` are all of the fleet. Granted GPUs are not offered, even if they look free: the process may not have
    started yet."""
    known = list(requests)
    given = {gpu.uuid for one in known if one.granted is not None for gpu in one.granted.gpus}
    waiting = sorted((one for one in known if one.granted is None), key=lambda one: one.order)
    free = {gpu.uuid: gpu for gpu in gpus if gpu.state == "usable" and gpu.uuid not in given}
    allocation = _Allocation(free, [gpu for gpu in gpus if gpu.state != "unusable"])
    for one in waiting:
        allocation.serve(one, is_impatient=now - one.created_at >= patience)
    return Schedule(allocation.grants, allocation.claimed, frozenset(allocation.impossible))


class _Allocation:
    """Serves requests one after the other with the remaining free GPUs."""

    def __init__(self, free: dict[str, CandidateGpu], stock: list[CandidateGpu]) -> None:
        """`stock` are all usable GPUs of the fleet, in use or not. Each kind of request is matched once."""
        self.grants: list[ScheduledGrant] = []
        self.claimed: dict[str, int] = {}
        self.impossible: set[int] = set()
        self._free = free
        self._owners = {gpu.reserved_by for gpu in free.values()}
        self._of_kind = cache(lambda kind: [gpu for gpu in stock if matches(gpu, kind)])
        self._find = cache(self._find_fitting)
        # By request, as comparing large sets is slow.
        self._claims: dict[GpuRequest, frozenset[str]] = {}
        self._tried: set[tuple[GpuRequest, str]] = set()

    def serve(self, one: Request, *, is_impatient: bool) -> None:
        wanted = replace(one.wanted, near=None)
        # Free GPUs only become fewer: a request like one that got nothing gets nothing.
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
        """The UUIDs of all suitable GPUs; None if there are not enough."""
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
    """The usable GPUs to claim for a request. For one host, those of the host with the most: so the claims do not move
    to another host later."""
    ranked = rank((gpu for gpu in usable if gpu.uuid in fitting), wanted.near)
    if not wanted.same_host:
        return ranked[: wanted.gpus]
    best: list[CandidateGpu] = min(by_host(ranked).values(), key=lambda gpus: (-len(gpus), gpus[0].order), default=[])
    return best


class WaitEstimate(NamedTuple):
    """Seconds, or why there is no estimate."""

    seconds: float | None
    reason: str | None


RunLengths = Mapping[str, Sequence[float]]
"""By the UUID of a GPU: how many seconds each program stayed that ended there."""
_NO_HISTORY: Final = WaitEstimate(None, "this hub keeps no history of how long GPUs are in use")
_SOON: Final = WaitEstimate(None, "just arrived")


class PositionFinder:
    """The positions in the queue, as of the last `settle`."""

    def __init__(self) -> None:
        self.claimed: dict[str, int] = {}
        self._run_lengths: RunLengths | None = None
        self._positions: dict[int, int] = {}
        self._estimates: dict[int, WaitEstimate] = {}
        self._reasons: dict[int, str] = {}
        self._never: dict[int, str] = {}

    def estimate_from(self, run_lengths: RunLengths) -> None:
        """Without a history there are no estimates."""
        self._run_lengths = run_lengths

    def arrange(self, requests: Iterable[Request]) -> list[Request]:
        """Number the requests that wait, and return them in their order."""
        waiting = sorted((one for one in requests if one.granted is None), key=lambda one: one.order)
        self._positions = {one.id: at for at, one in enumerate(waiting, 1)}
        return waiting

    def settle(
        self, requests: Iterable[Request], found: Schedule, gpus: Sequence[CandidateGpu], awaited: Collection[str] = ()
    ) -> None:
        """`awaited` are hosts whose GPUs are not known yet."""
        waiting = self.arrange(requests)
        self.claimed = found.claimed
        possible = [one for one in waiting if one.id not in found.impossible]
        self._estimates = estimate_waits(possible, gpus, self._run_lengths)
        self._reasons, self._never = {}, {}
        for one in waiting:
            if one.id in found.impossible:
                self._estimates[one.id] = WaitEstimate(None, "the fleet does not have that now")
                self._reasons[one.id] = f"no host that reports has {one.wanted.describe()} in working order"
                if gpus and (why := explain_impossible(one.wanted, gpus, awaited)) is not None:
                    self._reasons[one.id] = self._never[one.id] = why
            if not gpus:
                self._reasons[one.id] = "no host has reported a GPU yet"

    def show(self, one: Request) -> QueuePosition:
        is_waiting = one.granted is None
        claimed = sum(number == one.id for number in self.claimed.values())
        reason, never = (self._reasons.get(one.id), self._never.get(one.id)) if is_waiting else (None, None)
        estimate = self._estimates.get(one.id, _SOON) if is_waiting else WaitEstimate(0.0, None)
        granted = "" if one.granted is None else f"granted {one.granted.at}"
        return QueuePosition(
            id=one.id,
            user=one.user,
            wanted=one.wanted,
            created_at=one.created_at,
            position=self._positions.get(one.id) if is_waiting else None,
            waiting=len(self._positions),
            reason=reason,
            impossible=never,
            claimed=claimed,
            estimate_seconds=estimate.seconds,
            estimate_reason=estimate.reason,
            granted=one.granted,
            version=f"{claimed}/{reason is not None}/{never is not None}/{granted}",
        )


def estimate_waits(
    waiting: Sequence[Request], gpus: Sequence[CandidateGpu], run_lengths: RunLengths | None
) -> dict[int, WaitEstimate]:
    """By the ids of the requests, which are given in their order."""
    if run_lengths is None:
        return {one.id: _NO_HISTORY for one in waiting}
    pools = {kind: _Pool(kind, gpus, run_lengths) for kind in {one.wanted.kind for one in waiting}}
    rivals = {kind: [other for other in pools.values() if pool.shares(other)] for kind, pool in pools.items()}
    estimates = {}
    for one in waiting:
        for pool in rivals[one.wanted.kind]:
            pool.needed += one.wanted.gpus
        estimates[one.id] = pools[one.wanted.kind].estimate(one.wanted)
    return estimates


class _Pool:
    """All GPUs of one kind. `needed` is how many of them the requests before and the next one want."""

    def __init__(self, kind: GpuRequest, gpus: Iterable[CandidateGpu], run_lengths: RunLengths) -> None:
        fitting = [gpu for gpu in gpus if gpu.state != "unusable" and matches(gpu, kind)]
        self.needed = 0
        self._uuids = frozenset(gpu.uuid for gpu in fitting)
        self._free = sum(gpu.state == "usable" and gpu.reserved_by is None for gpu in fitting)
        lengths = [seconds for gpu in fitting for seconds in run_lengths.get(gpu.uuid, ())]
        self._mean = fmean(lengths) if len(lengths) >= FEWEST else None

    def shares(self, other: "_Pool") -> bool:
        return not self._uuids.isdisjoint(other._uuids)

    def estimate(self, wanted: GpuRequest) -> WaitEstimate:
        if wanted.same_host and wanted.gpus > 1:
            return WaitEstimate(None, "the history does not say when several GPUs of one host become free together")
        if self._mean is None:
            return WaitEstimate(None, f"fewer than {FEWEST} programs ended on such GPUs in the last days")
        ends = max(0, self.needed - self._free)
        return WaitEstimate(round(ends * self._mean / len(self._uuids)), None)
