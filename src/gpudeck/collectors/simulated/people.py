"""Who works in the lab. A few use most of it (Zipf), and each prefers the machines of the own group."""

from bisect import bisect
from itertools import accumulate
from math import log2
from random import Random

from msgspec import Struct

from gpudeck.collectors.simulated.chance import dice

GROUPS: dict[str, tuple[str, ...]] = {
    "vision": ("segmenter", "depthnet", "tracker", "ocr"),
    "language": ("tinylm", "reranker", "summarizer", "tokenizer-study"),
    "robotics": ("grasping", "gait", "worldmodel", "teleop"),
    "biology": ("folding", "cellseg", "docking", "protein-lm"),
    "speech": ("asr", "voices", "diarize", "denoise"),
    "climate": ("nowcast", "downscale", "ocean-emulator", "fire-risk"),
}
"""The groups of the lab and what they work on."""

_FIRST_NAMES = (
    *("mara", "jonas", "aylin", "tomas", "priya", "lukas", "ines", "kenji", "sofia", "emil", "noor", "felix"),
    *("leila", "oskar", "yuki", "clara", "dmitri", "anouk", "rafael", "hanna", "bjorn", "chiara", "malik", "greta"),
    *("ivan", "zeynep", "paul", "amara", "henrik", "linh", "diego", "frieda", "samir", "elif", "mateo", "ruth"),
)


class User(Struct, frozen=True):
    """`projects` are what the user's commands name; `in_container` whether the user works in containers."""

    name: str
    uid: int
    group: str
    projects: tuple[str, ...]
    in_container: bool


class Crowd:
    """Everybody who may be met on a fleet of that many hosts; it grows slowly with the fleet."""

    def __init__(self, seed: int, hosts: int) -> None:
        rng = dice(seed, "people")
        firsts = rng.sample(_FIRST_NAMES, len(_FIRST_NAMES))
        names = [*firsts, *(name + letter for letter in "kmst" for name in firsts)]
        self.users = tuple(_user(rng, uid, name) for uid, name in enumerate(names[: round(12 + 4 * log2(hosts + 1))]))
        self._weights = {group: tuple(accumulate(self._appetite(group))) for group in GROUPS}

    def pick(self, rng: Random, group: str) -> User:
        """Somebody who starts a job on a machine of that group."""
        weights = self._weights[group]
        return self.users[bisect(weights, rng.random() * weights[-1], 0, len(weights) - 1)]

    def _appetite(self, group: str) -> list[float]:
        return [(4.0 if user.group == group else 1.0) / rank for rank, user in enumerate(self.users, start=2)]


def _user(rng: Random, number: int, name: str) -> User:
    group = rng.choice(tuple(GROUPS))
    return User(name, 1001 + number, group, tuple(rng.sample(GROUPS[group], 2)), rng.random() < 0.35)
