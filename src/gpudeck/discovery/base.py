"""What a discovery provider is: something that says which hosts there are.

A provider is one function. `refresh` calls it again and again, keeps its last good answer, and tells what changed;
`roster` puts the answers of all providers together.
"""

from collections.abc import Sequence
from typing import Protocol

from gpudeck.model.target import Target

MAX_HOSTS = 20_000
"""More hosts than this are not watched, whoever names them."""

MAX_PROBLEMS = 100


class Provider(Protocol):
    """Says which hosts there are. `origin` names it for people ("hosts.txt", "consul gpu-nodes").

    `find` returns all hosts that it knows now. It may wait for a change (`pause` is then 0) and may be cancelled. It
    raises Temporary when it cannot tell now, Refused when credentials are not accepted, and never returns part of a
    list because the rest could not be read. `pause` is how many seconds lie between two calls.

    A single entry that makes no sense is left out; `problems` then holds a sentence about it that names its place.
    They belong to what `find` returned last.
    """

    origin: str
    pause: float

    @property
    def problems(self) -> Sequence[str]: ...

    async def find(self) -> list[Target]: ...

    async def close(self) -> None: ...


class Findings:
    """Targets and problems as a provider gathers them, both bounded."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.problems: list[str] = []
        self._untold = 0

    @property
    def is_full(self) -> bool:
        return len(self.targets) >= MAX_HOSTS

    def add(self, targets: Sequence[Target], place: str) -> None:
        """Take what fits; `place` is where the rest stands."""
        room = MAX_HOSTS - len(self.targets)
        self.targets += targets[:room]
        if len(targets) > room:
            self.tell_full(place)

    def tell_full(self, place: str) -> None:
        self.tell(f"{place}: from here on hosts are left out, as there are more than {MAX_HOSTS}.")

    def tell(self, problem: str) -> None:
        """Keep a sentence; past a hundred they are only counted."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
            return
        self._untold += 1
        self.problems[-1] = f"{self._untold + 1} more problems are not shown."
