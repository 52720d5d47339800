"""The interface of discovery providers, which list hosts.

`service` asks providers again and again, keeps their last good answers and merges them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol

from msgspec import Meta

from gpudeck.model.report import Word
from gpudeck.model.target import Target

MAX_HOSTS = 20_000
"""More hosts than this are not watched."""

MAX_PROBLEMS = 100
MAX_LABELS = 64
MAX_CHARACTERS = 256

Labels = Annotated[dict[Word, Annotated[str, Meta(max_length=MAX_CHARACTERS)]], Meta(max_length=MAX_LABELS)]


class Provider(Protocol):
    """Says which hosts there are. `origin` names it for people ("hosts.txt", "consul gpu-nodes").

    `find` returns all hosts that it knows now. It may wait for a change (`pause` is then 0) and may be cancelled. It
    raises Temporary when it cannot answer now, Refused when credentials are not accepted, and never returns part of a
    list because the rest could not be read. `pause` is how many seconds lie between two calls.

    A single entry that makes no sense is left out; `problems` then holds a sentence about it that names its place.
    They belong to what `find` returned last.
    """

    origin: str
    pause: float

    @property
    def problems(self) -> Sequence[str]:
        return ()

    async def find(self) -> list[Target]: ...

    async def close(self) -> None:
        return


class HostFindings:
    """Targets and problems as a provider gathers them, both bounded."""

    def __init__(self) -> None:
        self.targets: list[Target] = []
        self.problems: list[str] = []
        self._uncounted = 0

    def add(self, targets: Sequence[Target], place: str) -> bool:
        """Take what fits; `place` is where the rest stands. False where there is more: no more can be taken."""
        room = MAX_HOSTS - len(self.targets)
        self.targets += targets[:room]
        if len(targets) > room:
            self.add_problem(f"{place}: from here on hosts are left out, as there are more than {MAX_HOSTS}.")
        return len(targets) <= room

    def add_problem(self, problem: str) -> None:
        """Keep a sentence; past a hundred they are only counted."""
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(problem)
            return
        self._uncounted += 1
        self.problems[-1] = f"{self._uncounted + 1} more problems are not shown."


def bound_labels(labels: Mapping[Any, object]) -> tuple[dict[str, str], str]:
    """The labels that fit, and what is to be said of those that do not: nothing where all fit."""
    kept: dict[str, str] = {}
    for name, value in labels.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        if is_text and 0 < len(name) <= MAX_CHARACTERS >= len(str(value)) and len(kept) < MAX_LABELS:
            kept[name] = str(value)
    left_out = len(labels) - len(kept)
    if not left_out:
        return kept, ""
    return kept, f"{left_out} of its labels left out: at most {MAX_LABELS}, of at most {MAX_CHARACTERS} characters each"
