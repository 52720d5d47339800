"""Who gets which GPUs now. Pure: who waits, the fleet and a time in, grants out.

First come, first served among those that can be served: a request for one GPU does not wait behind one for eight. But
whoever has waited for the operator's patience and comes first of all who want the same GPUs is not overtaken any more:
the GPUs that fit and become free are kept for them, until there are enough. So everybody comes first at last, and
nobody waits forever for what the fleet has.

A request for what the fleet does not have, whoever would go, keeps nothing and holds nobody up.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.model.wanted import OfferedGpu, Wanted, by_host, choose, fits, is_usable, rank
from gpudeck.queueing.request import Request


class Grant(Struct, frozen=True):
    """What a request gets now."""

    request: int
    gpus: list[OfferedGpu]


class Schedule(Struct, frozen=True):
    """`kept` are the GPUs that are free and wait for a request, by UUID: its id. `impossible` are the requests for what
    the fleet does not have now."""

    grants: list[Grant]
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
        self.grants: list[Grant] = []
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
            self.grants.append(Grant(one.id, chosen))
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
