"""What can be bought: GPU models, how MIG cuts them, and the machines that carry them."""

from typing import Literal

from msgspec import Struct

Vendor = Literal["nvidia", "amd"]


class Features(Struct, frozen=True):
    """What a GPU has beside memory and clocks.

    One without `fan` is cooled by the fans of its machine. `states` are its performance states (empty, full).
    `memory_warmth` is its memory's temperature as a share of the chip's; None where no sensor tells it.
    """

    fan: bool = False
    states: tuple[int, int] = (0, 0)
    memory_warmth: float | None = None
    links: int = 0
    has_ecc: bool = False
    remaps_rows: bool = False
    encodes: bool = True


class Model(Struct, frozen=True):
    """A GPU model. `ready_watts` is its draw while a program sits on it without working.

    `cool_celsius` and `hot_celsius` are its temperatures empty and at full work in a well aired machine. Clocks are
    (empty, full).
    """

    name: str
    memory_mib: int
    limit_watts: int
    idle_watts: float
    ready_watts: float
    clock_sm_mhz: tuple[int, int]
    clock_memory_mhz: tuple[int, int]
    cool_celsius: float
    hot_celsius: float
    features: Features
    vendor: Vendor = "nvidia"


_HOPPER = Features(memory_warmth=0.9, links=18, has_ecc=True, remaps_rows=True, encodes=False)
_AMPERE = Features(memory_warmth=0.95, links=12, has_ecc=True, remaps_rows=True, encodes=False)
_VOLTA = Features(memory_warmth=0.94, links=6, has_ecc=True)
_ADA = Features(states=(8, 0), has_ecc=True, remaps_rows=True)
_INSTINCT = Features(memory_warmth=0.8, has_ecc=True)
# Cards for desks compute in state 2; their error correction is off as delivered, or not there at all.
_GEFORCE = Features(fan=True, states=(8, 2))
_RTX = Features(fan=True, states=(8, 2), remaps_rows=True)
_RTX_IN_PAIRS = Features(fan=True, states=(8, 2), remaps_rows=True, links=4)

H200 = Model("NVIDIA H200", 143_771, 700, 76, 118, (345, 1980), (3201, 3201), 29, 68, _HOPPER)
H100 = Model("NVIDIA H100 80GB HBM3", 81_559, 700, 70, 115, (345, 1980), (2619, 2619), 28, 67, _HOPPER)
A100_80 = Model("NVIDIA A100-SXM4-80GB", 81_920, 400, 58, 84, (210, 1410), (1593, 1593), 30, 66, _AMPERE)
A100_40 = Model("NVIDIA A100-SXM4-40GB", 40_960, 400, 52, 75, (210, 1410), (1215, 1215), 29, 64, _AMPERE)
L40S = Model("NVIDIA L40S", 46_068, 350, 34, 88, (210, 2520), (405, 9001), 31, 74, _ADA)
V100 = Model("Tesla V100-SXM2-32GB", 32_768, 300, 42, 58, (135, 1530), (877, 877), 32, 66, _VOLTA)
MI300X = Model("AMD Instinct MI300X", 196_592, 750, 138, 165, (132, 2100), (900, 1300), 36, 72, _INSTINCT, "amd")
RTX_4090 = Model("NVIDIA GeForce RTX 4090", 24_564, 450, 21, 58, (210, 2745), (405, 10_501), 33, 72, _GEFORCE)
RTX_6000_ADA = Model("NVIDIA RTX 6000 Ada Generation", 49_140, 300, 24, 69, (210, 2505), (405, 10_001), 32, 76, _RTX)
RTX_A6000 = Model("NVIDIA RTX A6000", 49_140, 300, 22, 75, (210, 1800), (405, 8001), 34, 78, _RTX_IN_PAIRS)

BUSES: dict[int, tuple[str, ...]] = {
    2: ("01", "21"),
    4: ("01", "41", "81", "c1"),
    8: ("18", "2a", "3a", "5d", "9a", "ab", "ba", "db"),
}
"""The PCI buses of the GPUs of a machine that has so many."""


class Chassis(Struct, frozen=True):
    """A machine as it is delivered: so many GPUs of one model. A workstation has somebody's screen on its first GPU."""

    model: Model
    gpus: int
    cpu_threads: int
    ram_gib: int
    disk_tib: float
    workstation: bool = False


HGX_H200 = Chassis(H200, 8, 224, 2048, 28)
HGX_H100 = Chassis(H100, 8, 192, 2048, 28)
A100_80_SERVER = Chassis(A100_80, 4, 128, 1024, 15)
A100_40_SERVER = Chassis(A100_40, 8, 128, 1024, 15)
L40S_SERVER = Chassis(L40S, 8, 128, 768, 7.5)
V100_SERVER = Chassis(V100, 4, 80, 384, 3.8)
MI300X_SERVER = Chassis(MI300X, 8, 192, 2304, 28)
RTX_4090_SERVER = Chassis(RTX_4090, 4, 64, 256, 7.5)
RTX_4090_DESK = Chassis(RTX_4090, 2, 32, 128, 3.8, workstation=True)
RTX_6000_DESK = Chassis(RTX_6000_ADA, 2, 64, 256, 7.5, workstation=True)
A6000_SERVER = Chassis(RTX_A6000, 4, 64, 512, 7.5)

COMMON = (
    *(HGX_H100, HGX_H200, A100_80_SERVER, A100_80_SERVER, A100_40_SERVER, L40S_SERVER, L40S_SERVER),
    *(RTX_4090_SERVER, RTX_4090_SERVER, A6000_SERVER, A6000_SERVER, V100_SERVER, RTX_4090_DESK, RTX_6000_DESK),
)
"""What a lab buys again and again, in proportion."""


class Cut(Struct, frozen=True):
    """One MIG instance: its profile's name, its number on the board, its memory and its share of the board."""

    profile: str
    instance: int
    memory_mib: int
    share: float


def _cut(profile: str, instance: int, sevenths: int, memory_mib: int) -> Cut:
    return Cut(profile, instance, memory_mib, sevenths / 7)


SEVEN_CUTS = tuple(_cut("1g.10gb", instance, 1, 9_728) for instance in range(7))
MIXED_CUTS = (
    _cut("3g.40gb", 0, 3, 40_192),
    _cut("2g.20gb", 1, 2, 19_968),
    _cut("1g.10gb", 2, 1, 9_728),
    _cut("1g.10gb", 3, 1, 9_728),
)
"""How the two cut boards of an A100 80 GB server are divided: evenly, and as people asked for it."""
