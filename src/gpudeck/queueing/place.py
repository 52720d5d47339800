"""Where somebody stands in line, as it is told: the position, how long it may take, what is in the way."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from msgspec import Struct

from gpudeck.model.wanted import OfferedGpu, Wanted
from gpudeck.queueing.request import Granted, Request
from gpudeck.queueing.scheduler import Schedule


class Place(Struct, frozen=True, kw_only=True):
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


class Guess(NamedTuple):
    """Seconds, or why there are none."""

    seconds: float | None
    reason: str | None


Estimate = Callable[[Sequence[Request], Sequence[OfferedGpu]], dict[int, Guess]]
"""From those who wait, in their order, and the fleet: by the ids of the requests."""
NO_HISTORY = Guess(None, "this hub keeps no history of how long GPUs are in use")
_SOON = Guess(None, "just arrived")
_NOT_THERE = Guess(None, "the fleet does not have that now")


class Places:
    """What is known about the line since the last step."""

    def __init__(self, estimate: Estimate | None) -> None:
        self.kept: dict[str, int] = {}
        self._estimate = estimate
        self._impossible: frozenset[int] = frozenset()
        self._positions: dict[int, int] = {}
        self._guesses: dict[int, Guess] = {}
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

    def show(self, one: Request) -> Place:
        position = self._positions.get(one.id) if one.granted is None else None
        kept = sum(number == one.id for number in self.kept.values())
        reason = None if one.granted is not None else self._explain(one)
        guess = Guess(0.0, None) if one.granted is not None else self._guesses.get(one.id, _SOON)
        granted = "" if one.granted is None else f"granted {one.granted.at}"
        return Place(
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
