"""Which request gets which GPUs now, the position of the others, and an estimate of their wait. Pure.

First come, first served among the requests that can be met: a request for one GPU does not wait behind one for eight.
After the operator's `patience`, the oldest request for a kind of GPU is not overtaken any more: suitable GPUs are
claimed for it as they become free, until there are enough. A request that the fleet can never meet claims nothing.

The estimate: where F GPUs fit and programs run T seconds on average, one becomes free every T/F seconds; a request
that needs D of them, with those before it, waits for D such ends. There is none for several GPUs of one host.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.model.wanted import OfferedGpu, Wanted, by_host, choose, fits, is_usable, rank
from gpudeck.queueing.request import Granted, Request

FEWEST: Final = 10
"""So many programs have to have ended on such GPUs: the mean of fewer says nothing."""


class ScheduledGrant(Struct, frozen=True):
    """What a request gets now."""

    request: int
    gpus: list[OfferedGpu]


class Schedule(Struct, frozen=True):
    """`kept` are the GPUs that are free and wait for a request, by UUID: its id. `impossible` are the requests for what
    the fleet does not have now."""

    grants: list[ScheduledGrant]
    kept: dict[str, int]
    impossible: frozenset[int]


def schedule(
    requests: Iterable[Request], gpus: Sequence[OfferedGpu], now: float, *, patience: float = 600.0
) -> Schedule:
    """`gpus` are all of the fleet. What was granted before and is still kept is nobody else's, whatever the fleet says:
    its process may not have appeared yet."""
    known = list(requests)
    given = {gpu.uuid for one in known if one.granted is not None for gpu in one.granted.gpus}
    waiting = sorted((one for one in known if one.granted is None), key=lambda one: one.order)
    free = {gpu.uuid: gpu for gpu in gpus if gpu.state == "usable" and gpu.uuid not in given}
    line = _Line(free, _Stock(gpus))
    for one in waiting:
        line.serve(one, is_impatient=now - one.created_at >= patience)
    return Schedule(line.grants, line.kept, frozenset(line.impossible))


class _Stock:
    """What the fleet has, whoever is on it. Many want the same: each kind is looked for once."""

    def __init__(self, gpus: Iterable[OfferedGpu]) -> None:
        self._gpus = [gpu for gpu in gpus if gpu.state != "lost"]
        self._kinds: dict[Wanted, list[OfferedGpu]] = {}
        self._found: dict[Wanted, frozenset[str] | None] = {}

    def find(self, wanted: Wanted) -> frozenset[str] | None:
        """The UUIDs of all that could be part of it; None where there are not enough."""
        if wanted not in self._found:
            self._found[wanted] = self._look_for(wanted)
        return self._found[wanted]

    def _look_for(self, wanted: Wanted) -> frozenset[str] | None:
        kind = wanted.kind
        if kind not in self._kinds:
            self._kinds[kind] = [gpu for gpu in self._gpus if fits(gpu, kind)]
        fitting = self._kinds[kind]
        if wanted.same_host:
            fitting = [gpu for gpus in by_host(fitting).values() if len(gpus) >= wanted.gpus for gpu in gpus]
        return frozenset(gpu.uuid for gpu in fitting) if len(fitting) >= wanted.gpus else None


class _Line:
    """Those who wait, one after the other, and what is left for the next."""

    def __init__(self, free: dict[str, OfferedGpu], stock: _Stock) -> None:
        self.grants: list[ScheduledGrant] = []
        self.kept: dict[str, int] = {}
        self.impossible: set[int] = set()
        self._free = free
        self._owners = {gpu.booked_by for gpu in free.values()}
        self._stock = stock
        # By what is wanted: comparing sets of thousands takes longer than all else here.
        self._claims: dict[Wanted, frozenset[str]] = {}
        self._tried: set[tuple[Wanted, str]] = set()

    def serve(self, one: Request, *, is_impatient: bool) -> None:
        wanted = replace(one.wanted, near=None)
        # What is free only becomes less from here on: whoever wants the same as somebody who got nothing gets nothing.
        attempt = (wanted, one.user if one.user in self._owners else "")
        chosen = None if attempt in self._tried else choose(one.wanted, self._usable(one))
        if chosen is not None:
            self.grants.append(ScheduledGrant(one.id, chosen))
            self._take(chosen)
            return
        self._tried.add(attempt)
        fitting = self._stock.find(wanted)
        if fitting is None:
            self.impossible.add(one.id)
            return
        if is_impatient and all(fitting.isdisjoint(claim) for claim in self._claims.values()):
            kept = _keep(one.wanted, self._usable(one), fitting)
            self.kept |= {gpu.uuid: one.id for gpu in kept}
            self._take(kept)
        self._claims[wanted] = fitting

    def _usable(self, one: Request) -> list[OfferedGpu]:
        return [gpu for gpu in self._free.values() if is_usable(gpu, (one.user,))]

    def _take(self, gpus: Iterable[OfferedGpu]) -> None:
        for gpu in gpus:
            del self._free[gpu.uuid]


def _keep(wanted: Wanted, usable: Sequence[OfferedGpu], fitting: frozenset[str]) -> list[OfferedGpu]:
    """What of the usable GPUs brings a request nearer to what it wants. On one host, that which already has the most:
    so what is kept never becomes less by our own doing."""
    ranked = rank((gpu for gpu in usable if gpu.uuid in fitting), wanted.near)
    if not wanted.same_host:
        return ranked[: wanted.gpus]
    best: list[OfferedGpu] = min(by_host(ranked).values(), key=lambda gpus: (-len(gpus), gpus[0].order), default=[])
    return best


class QueuePosition(Struct, frozen=True, kw_only=True):
    """`position` is 1 for whoever comes first, and null once it is granted. `estimate_seconds` is a guess from what the
    history knows; null stands beside the reason why there is none.

    `reason` is what is in the way now, in words. `kept` is how many GPUs are free and wait for this place. `version`
    changes with what a waiter wants to know at once: not with the position, or all would ask again when one is served.
    """

    id: int
    user: str
    wanted: Wanted
    created_at: float
    position: int | None
    waiting: int
    reason: str | None
    kept: int
    estimate_seconds: float | None
    estimate_reason: str | None
    granted: Granted | None
    version: str


class WaitEstimate(NamedTuple):
    """Seconds, or why there are none."""

    seconds: float | None
    reason: str | None


Estimate = Callable[[Sequence[Request], Sequence[OfferedGpu]], dict[int, WaitEstimate]]
"""From those who wait, in their order, and the fleet: by the ids of the requests."""
NO_HISTORY = WaitEstimate(None, "this hub keeps no history of how long GPUs are in use")
_SOON = WaitEstimate(None, "just arrived")
_NOT_THERE = WaitEstimate(None, "the fleet does not have that now")


class PositionFinder:
    """What is known about the line since the last step."""

    def __init__(self, estimate: Estimate | None) -> None:
        self.kept: dict[str, int] = {}
        self._estimate = estimate
        self._impossible: frozenset[int] = frozenset()
        self._positions: dict[int, int] = {}
        self._guesses: dict[int, WaitEstimate] = {}
        self._has_gpus = True

    def arrange(self, requests: Iterable[Request]) -> None:
        """Somebody came or went."""
        waiting = sorted((one for one in requests if one.granted is None), key=lambda one: one.order)
        self._positions = {one.id: at for at, one in enumerate(waiting, 1)}

    def settle(self, requests: Iterable[Request], found: Schedule | None, gpus: Sequence[OfferedGpu]) -> None:
        """What a step found."""
        line = sorted((one for one in requests if one.granted is None), key=lambda one: one.order)
        self.arrange(line)
        self.kept = {} if found is None else found.kept
        self._impossible = frozenset() if found is None else found.impossible
        self._has_gpus = bool(gpus)
        possible = [one for one in line if one.id not in self._impossible]
        known = {} if self._estimate is None else self._estimate(possible, gpus)
        self._guesses = {one.id: known.get(one.id, NO_HISTORY) for one in possible}
        self._guesses |= dict.fromkeys(self._impossible, _NOT_THERE)

    def show(self, one: Request) -> QueuePosition:
        position = self._positions.get(one.id) if one.granted is None else None
        kept = sum(number == one.id for number in self.kept.values())
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
            kept=kept,
            estimate_seconds=guess.seconds,
            estimate_reason=guess.reason,
            granted=one.granted,
            version=f"{kept}/{one.id in self._impossible}/{granted}",
        )

    def _explain(self, one: Request) -> str | None:
        if not self._has_gpus:
            return "no host has reported a GPU yet"
        if one.id in self._impossible:
            return f"the fleet does not have {one.wanted.describe()} now, whoever would go"
        return None


_ONE_HOST: Final = WaitEstimate(None, "when several GPUs of one host become free together cannot be told from the past")
_TOO_FEW: Final = WaitEstimate(None, f"fewer than {FEWEST} programs ended on such GPUs in the last days")


class RunLengths(Struct, frozen=True):
    """How many programs ended on a GPU, and for how many seconds they were there, all together."""

    count: int
    seconds: float


def count_stays(runs: Iterable[tuple[Sequence[str], float]]) -> dict[str, RunLengths]:
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
        """What the history says now (see `count_stays`)."""
        self._stays = stays

    def __call__(self, line: Sequence[Request], gpus: Sequence[OfferedGpu]) -> dict[int, WaitEstimate]:
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
    """All GPUs of one kind. `needed` is how many of them those before want, and whoever is next."""

    def __init__(self, kind: Wanted, gpus: Iterable[OfferedGpu], stays: Mapping[str, RunLengths]) -> None:
        fitting = [gpu for gpu in gpus if gpu.state != "lost" and fits(gpu, kind)]
        found = [stays[gpu.uuid] for gpu in fitting if gpu.uuid in stays]
        self.needed = 0
        self._uuids = frozenset(gpu.uuid for gpu in fitting)
        self._free = sum(gpu.state == "usable" and gpu.booked_by is None for gpu in fitting)
        self._count = sum(one.count for one in found)
        self._seconds = sum(one.seconds for one in found)

    def shares(self, other: "_Pool") -> bool:
        return not self._uuids.isdisjoint(other._uuids)

    def guess(self, wanted: Wanted) -> WaitEstimate:
        if wanted.same_host and wanted.gpus > 1:
            return _ONE_HOST
        if self._count < FEWEST:
            return _TOO_FEW
        return WaitEstimate(
            round(max(0, self.needed - self._free) * self._seconds / self._count / len(self._uuids)), None
        )
