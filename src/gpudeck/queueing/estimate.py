"""How long somebody may have to wait, guessed from how long programs stayed on such GPUs lately. Pure.

Where F GPUs fit and programs stay on one for T seconds in the mean, one of them becomes free every T/F seconds. Whoever
needs D of them, with all that those before want, waits for D such ends. That is a guess, and told as one: nobody knows
when a program ends. For several GPUs of one host it would be a wrong one, so there is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gpudeck.model.wanted import OfferedGpu, Wanted, fits
from gpudeck.queueing.place import NO_HISTORY, Guess
from gpudeck.queueing.request import Request

FEWEST: Final = 10
"""So many programs have to have ended on such GPUs: the mean of fewer says nothing."""
_ONE_HOST: Final = Guess(None, "when several GPUs of one host become free together cannot be told from the past")
_TOO_FEW: Final = Guess(None, f"fewer than {FEWEST} programs ended on such GPUs in the last days")


class Stays(Struct, frozen=True):
    """How many programs ended on a GPU, and for how many seconds they were there, all together."""

    count: int
    seconds: float


def count_stays(runs: Iterable[tuple[Sequence[str], float]]) -> dict[str, Stays]:
    """By UUID, from the GPUs of each program that ended, and how long it was there."""
    found: dict[str, Stays] = {}
    for uuids, seconds in runs:
        for uuid in uuids:
            before = found.get(uuid, Stays(0, 0.0))
            found[uuid] = Stays(before.count + 1, before.seconds + seconds)
    return found


class Estimator:
    """Guesses from how long programs stayed; nothing where no history is kept."""

    def __init__(self) -> None:
        self._stays: Mapping[str, Stays] | None = None

    def learn(self, stays: Mapping[str, Stays]) -> None:
        """What the history says now (see `count_stays`)."""
        self._stays = stays

    def __call__(self, line: Sequence[Request], gpus: Sequence[OfferedGpu]) -> dict[int, Guess]:
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

    def __init__(self, kind: Wanted, gpus: Iterable[OfferedGpu], stays: Mapping[str, Stays]) -> None:
        fitting = [gpu for gpu in gpus if gpu.state != "lost" and fits(gpu, kind)]
        found = [stays[gpu.uuid] for gpu in fitting if gpu.uuid in stays]
        self.needed = 0
        self._uuids = frozenset(gpu.uuid for gpu in fitting)
        self._free = sum(gpu.state == "usable" and gpu.booked_by is None for gpu in fitting)
        self._count = sum(one.count for one in found)
        self._seconds = sum(one.seconds for one in found)

    def shares(self, other: "_Pool") -> bool:
        return not self._uuids.isdisjoint(other._uuids)

    def guess(self, wanted: Wanted) -> Guess:
        if wanted.same_host and wanted.gpus > 1:
            return _ONE_HOST
        if self._count < FEWEST:
            return _TOO_FEW
        return Guess(round(max(0, self.needed - self._free) * self._seconds / self._count / len(self._uuids)), None)
