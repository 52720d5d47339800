"""What goes wrong in the lab, on which machine, and how a machine lives: when it boots and when it is dead.

hot       a GPU whose airflow is blocked
cut       two boards in MIG mode (no mishap, but as rare)
missing   a GPU that fell off the bus, but for some minutes every few days
orphaned  memory held by nobody
flaky     the whole host dies every ten minutes
worn      a GPU whose memory makes errors
unlinked  a GPU with one NVLink down
full      a disk for data that is nearly full

The first eight hosts of a fleet are its cast: one of each mishap is always there to be seen. A smaller fleet has the
first of them. From host 65 on mishaps are sprinkled thinly.
"""

from math import floor
from typing import Literal

from msgspec import Struct

from gpudeck.collectors.simulated.chance import dice, draw
from gpudeck.collectors.simulated.hardware import (
    A100_40_SERVER,
    A100_80_SERVER,
    COMMON,
    HGX_H100,
    HGX_H200,
    L40S_SERVER,
    MI300X_SERVER,
    RTX_6000_DESK,
    V100_SERVER,
    Chassis,
)
from gpudeck.collectors.simulated.kinds import HABITS, Kind

Mishap = Literal["none", "hot", "cut", "missing", "orphaned", "flaky", "worn", "unlinked", "full"]

FELL_OFF = "fell off the bus (Xid 79)"

_CAST: tuple[tuple[Chassis, Mishap], ...] = (
    (HGX_H100, "worn"),
    (RTX_6000_DESK, "hot"),
    (A100_80_SERVER, "cut"),
    (L40S_SERVER, "missing"),
    (A100_40_SERVER, "orphaned"),
    (V100_SERVER, "flaky"),
    (HGX_H200, "unlinked"),
    (MI300X_SERVER, "full"),
)
_SPRINKLED: tuple[Mishap, ...] = ("hot", "missing", "orphaned", "flaky", "worn", "unlinked", "full")


def cast(seed: int, hosts: int) -> tuple[tuple[Chassis, Mishap], ...]:
    """Machine and mishap of the fleet's first hosts, in the seed's order."""
    players = list(_CAST[:hosts])
    dice(seed, "cast").shuffle(players)
    return tuple(players)


def extra(seed: int, host: int) -> tuple[Chassis, Mishap]:
    """Machine and mishap of a host beyond the cast."""
    rng = dice(seed, "extra", host)
    chassis = rng.choice(COMMON)
    is_unlucky = host >= 64 and rng.random() < 0.03
    return chassis, rng.choice(_SPRINKLED) if is_unlucky else "none"


class Life(Struct, frozen=True):
    """A host's time, cut into blocks that begin at `offset_s` + n · `block_s`.

    Every `boot_every`-th block begins with a boot, before which all its jobs have ended. Where `outage_s` is given
    (shortest, longest), each block ends with the host dead for about that long.
    """

    block_s: int
    offset_s: int
    boot_every: int
    outage_s: tuple[int, int] | None = None

    def number(self, t: float) -> int:
        """The block that `t` falls into."""
        return floor((t - self.offset_s) / self.block_s)

    def opens(self, number: int) -> float:
        """When that block begins."""
        return float(self.offset_s + number * self.block_s)

    def closes(self, number: int) -> float:
        """When that block ends for the living: at its end, or when the host dies."""
        end = self.opens(number + 1)
        if self.outage_s is None:
            return end
        shortest, longest = self.outage_s
        return end - shortest - int(draw(self.offset_s, number) * (longest - shortest))

    def boots_at(self, number: int) -> bool:
        """Whether that block begins with a boot."""
        return (number + self.offset_s) % self.boot_every == 0

    def booted(self, t: float) -> float:
        """The last boot before `t`."""
        number = self.number(t)
        return self.opens(number - (number + self.offset_s) % self.boot_every)

    def is_alive(self, t: float) -> bool:
        """Whether the host runs at that moment."""
        return self.outage_s is None or t < self.closes(self.number(t))


class Tempo(Struct, frozen=True):
    """How a host's jobs follow each other.

    `gap_s` is the mean wait for the next job in seconds of full activity, `shortest_s` the least a job lasts, `filled`
    the chance that a free GPU is taken when a block begins.
    """

    gap_s: float
    shortest_s: int
    filled: float
    weights: dict[Kind, float]
    length_scale: float = 1.0


_ALL_KINDS: dict[Kind, float] = {kind: habit.weight for kind, habit in HABITS.items()}
_STEADY_KINDS: dict[Kind, float] = {"training": 3.0, "loader": 1.0}
_BLOCK_S = 2 * 86_400

USUAL = Tempo(gap_s=5_600, shortest_s=240, filled=0.645, weights=_ALL_KINDS)
RESTLESS = Tempo(gap_s=5, shortest_s=240, filled=0.98, weights=_STEADY_KINDS)
INTERRUPTED = Tempo(gap_s=25, shortest_s=45, filled=0, weights=_STEADY_KINDS, length_scale=0.04)


def life_of(seed: int, host: int, mishap: Mishap) -> Life:
    """When the host boots and dies: every 48 days for maintenance, or every 10 minutes for about 2."""
    rng = dice(seed, "life", host)
    if mishap == "flaky":
        return Life(600, rng.randrange(600), 1, (110, 140))
    return Life(_BLOCK_S, rng.randrange(_BLOCK_S), 24)


def tempo_of(mishap: Mishap) -> Tempo:
    """A hot GPU is one that is never left alone; on a host that keeps dying only short jobs are seen."""
    return {"hot": RESTLESS, "flaky": INTERRUPTED}.get(mishap, USUAL)
