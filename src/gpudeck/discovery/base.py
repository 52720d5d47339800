"""What a discovery provider is: it says which hosts there are. Also the types that the settings of providers share.

`service` asks providers again and again, keeps their last good answers and merges them.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Protocol
from urllib.parse import urlsplit

from msgspec import Meta

from gpudeck.model.hub_url import mask_password
from gpudeck.model.report import Word
from gpudeck.model.target import Target

MAX_HOSTS = 20_000
"""More hosts than this are not watched."""

MAX_PROBLEMS = 100
MAX_LABELS = 64
MAX_CHARACTERS = 256

Labels = Annotated[dict[Word, Annotated[str, Meta(max_length=MAX_CHARACTERS)]], Meta(max_length=MAX_LABELS)]
Text = Annotated[str, Meta(min_length=1, max_length=1024)]
Url = Annotated[
    str,
    Meta(
        pattern=r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s/?#]+(?:[/?][^\s#]*)?$(?!\n)",
        extra={"config_words": "a URL that begins with http:// or https://"},
    ),
]


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


class HostFindings:
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


def bound_labels(labels: Mapping[Any, object]) -> tuple[dict[str, str], str]:
    """The labels that fit, and what is to be said of those that do not: nothing where all fit."""
    kept: dict[str, str] = {}
    for name, value in labels.items():
        if _fits(name, value) and len(kept) < MAX_LABELS:
            kept[str(name)] = str(value)
    left_out = len(labels) - len(kept)
    if not left_out:
        return kept, ""
    return kept, f"{left_out} of its labels left out: at most {MAX_LABELS}, of at most {MAX_CHARACTERS} characters each"


def _fits(name: object, value: object) -> bool:
    if not isinstance(name, str) or not isinstance(value, str):
        return False
    return 0 < len(name) <= MAX_CHARACTERS and len(value) <= MAX_CHARACTERS


def check_url(url: str) -> None:
    """Raises ValueError, which names the setting `url`, where the pattern does not see that it is none."""
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good:
        raise ValueError(f"url {mask_password(url)!r} has no valid host and port")
