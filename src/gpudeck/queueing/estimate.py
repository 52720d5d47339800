"""How long somebody may have to wait, guessed from how long programs stayed on such GPUs lately. Pure.

Where F GPUs fit and programs stay on one for T seconds in the mean, one of them becomes free every T/F seconds. Whoever
needs D of them, with all that those before want, waits for D such ends. That is a guess, and told as one: nobody knows
when a program ends. For several GPUs of one host it would be a wrong one, so there is none.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

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
    """`stays` is set by whoever asks the history; None where none is kept."""

    def __init__(self) -> None:
        self.stays: Mapping[str, Stays] | None = None

    def __call__(self, line: Sequence[Request], gpus: Sequence[OfferedGpu]) -> dict[int, Guess]:
        if self.stays is None:
            return {one.id: NO_HISTORY for one in line}
        kinds = {kind: _fitting(kind, gpus) for kind in {replace(one.wanted, near=None) for one in line}}
        ahead: dict[Wanted, int] = dict.fromkeys(kinds, 0)
        guesses = {}
        for one in line:
            kind = replace(one.wanted, near=None)
            for other, fitting in kinds.items():
                ahead[other] += 0 if kinds[kind].isdisjoint(fitting) else one.wanted.gpus
            guesses[one.id] = self._guess(one.wanted, ahead[kind], kinds[kind], gpus)
        return guesses

    def _guess(self, wanted: Wanted, needed: int, fitting: frozenset[str], gpus: Sequence[OfferedGpu]) -> Guess:
        if wanted.same_host and wanted.gpus > 1:
            return _ONE_HOST
        stays = [one for one in map((self.stays or {}).get, fitting) if one is not None]
        count = sum(one.count for one in stays)
        if count < FEWEST:
            return _TOO_FEW
        mean = sum(one.seconds for one in stays) / count
        free = sum(gpu.state == "usable" and gpu.booked_by is None for gpu in gpus if gpu.uuid in fitting)
        return Guess(round(max(0, needed - free) * mean / len(fitting)), None)


def _fitting(wanted: Wanted, gpus: Iterable[OfferedGpu]) -> frozenset[str]:
    return frozenset(gpu.uuid for gpu in gpus if gpu.state != "lost" and fits(gpu, wanted))
