"""The hosts of the simulated lab: hardware, defects, when a host boots and when it is down. Settled by seed and number.

hot       a GPU whose airflow is blocked
cut       two boards in MIG mode (no defect, but as rare)
missing   a GPU that fell off the bus, but for some minutes every few days
orphaned  memory held without a process
flaky     the whole host goes down every ten minutes
worn      a GPU whose memory makes errors
unlinked  a GPU with one NVLink down
full      a disk for data that is nearly full
unstable  a GPU that faults, throttles and is reset every other day

The first nine hosts of a fleet have one defect each. From host 65 on defects are rare.
"""

from math import floor
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.collectors.simulated.chance import draw, hex_name, seeded_random, uuid_name
from gpudeck.collectors.simulated.work import GROUPS, PROFILES, Kind

Vendor = Literal["nvidia", "amd"]
Defect = Literal["none", "hot", "cut", "missing", "orphaned", "flaky", "worn", "unlinked", "full", "unstable"]

FELL_OFF = "fell off the bus (Xid 79)"
_RARE_DEFECTS: tuple[Defect, ...] = ("hot", "missing", "orphaned", "flaky", "worn", "unlinked", "full")
_OF_GPUS: tuple[Defect, ...] = ("hot", "missing", "orphaned", "worn", "unlinked", "unstable")
"""Defects of one GPU of the host; the others are of the whole host."""

_SYSTEMS = ("Ubuntu 22.04.5 LTS", "Ubuntu 24.04.2 LTS", "Debian GNU/Linux 12", "Rocky Linux 9.5")
_DRIVERS = {"nvidia": ("535.230.02", "550.144.03", "570.133.20", "580.65.06"), "amd": ("6.10.5", "6.12.12")}


class Features(Struct, frozen=True):
    """Features of a model besides memory and clocks. One without `fan` is cooled by the fans of its machine. `states`
    are its performance states (empty, full). `memory_warmth` is its memory's temperature as a share of the chip's."""

    fan: bool = False
    states: tuple[int, int] = (0, 0)
    memory_warmth: float | None = None
    links: int = 0
    has_ecc: bool = False
    remaps_rows: bool = False
    encodes: bool = True
    measures_activity: bool = False
    generation: int = 4


class SimulatedModel(Struct, frozen=True):
    """`ready_watts` is its draw while a program sits on it without working. `cool_celsius` and `hot_celsius` are its
    temperatures empty and at full work. Clocks are (empty, full)."""

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


_HOPPER = Features(
    memory_warmth=0.9,
    links=18,
    has_ecc=True,
    remaps_rows=True,
    encodes=False,
    measures_activity=True,
    generation=5,
)
_AMPERE = Features(memory_warmth=0.95, links=12, has_ecc=True, remaps_rows=True, encodes=False)
_VOLTA = Features(memory_warmth=0.94, links=6, has_ecc=True, generation=3)
_ADA = Features(states=(8, 0), has_ecc=True, remaps_rows=True)
_INSTINCT = Features(memory_warmth=0.8, has_ecc=True)
# Cards for desks compute in state 2; their error correction is off as delivered, or not there at all.
_GEFORCE = Features(fan=True, states=(8, 2))
_RTX = Features(fan=True, states=(8, 2), remaps_rows=True)
_RTX_IN_PAIRS = Features(fan=True, states=(8, 2), remaps_rows=True, links=4)

H200 = SimulatedModel("NVIDIA H200", 143_771, 700, 76, 118, (345, 1980), (3201, 3201), 29, 68, _HOPPER)
H100 = SimulatedModel("NVIDIA H100 80GB HBM3", 81_559, 700, 70, 115, (345, 1980), (2619, 2619), 28, 67, _HOPPER)
A100_80 = SimulatedModel("NVIDIA A100-SXM4-80GB", 81_920, 400, 58, 84, (210, 1410), (1593, 1593), 30, 66, _AMPERE)
A100_40 = SimulatedModel("NVIDIA A100-SXM4-40GB", 40_960, 400, 52, 75, (210, 1410), (1215, 1215), 29, 64, _AMPERE)
L40S = SimulatedModel("NVIDIA L40S", 46_068, 350, 34, 88, (210, 2520), (405, 9001), 31, 74, _ADA)
V100 = SimulatedModel("Tesla V100-SXM2-32GB", 32_768, 300, 42, 58, (135, 1530), (877, 877), 32, 66, _VOLTA)
MI300X = SimulatedModel(
    "AMD Instinct MI300X", 196_592, 750, 138, 165, (132, 2100), (900, 1300), 36, 72, _INSTINCT, "amd"
)
RTX_4090 = SimulatedModel("NVIDIA GeForce RTX 4090", 24_564, 450, 21, 58, (210, 2745), (405, 10_501), 33, 72, _GEFORCE)
RTX_6000_ADA = SimulatedModel(
    "NVIDIA RTX 6000 Ada Generation", 49_140, 300, 24, 69, (210, 2505), (405, 10_001), 32, 76, _RTX
)
RTX_A6000 = SimulatedModel("NVIDIA RTX A6000", 49_140, 300, 22, 75, (210, 1800), (405, 8001), 34, 78, _RTX_IN_PAIRS)


class Chassis(Struct, frozen=True):
    """A machine as it is delivered: so many GPUs of one model. A workstation has a display on its first GPU."""

    model: SimulatedModel
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
"""The machines of further hosts, in proportion."""


class MigProfile(Struct, frozen=True):
    """One MIG instance: its profile's name, its number on the board, its memory and its share of the board."""

    profile: str
    instance: int
    memory_mib: int
    share: float


SEVEN_CUTS = tuple(MigProfile("1g.10gb", instance, 9_728, 1 / 7) for instance in range(7))
MIXED_CUTS = (
    MigProfile("3g.40gb", 0, 40_192, 3 / 7),
    MigProfile("2g.20gb", 1, 19_968, 2 / 7),
    MigProfile("1g.10gb", 2, 9_728, 1 / 7),
    MigProfile("1g.10gb", 3, 9_728, 1 / 7),
)
"""How the two cut boards of an A100 80 GB server are divided: evenly, and as people asked for it."""
_FIRST_HOSTS: tuple[tuple[Chassis, Defect], ...] = (
    (HGX_H100, "worn"),
    (RTX_6000_DESK, "hot"),
    (A100_80_SERVER, "cut"),
    (L40S_SERVER, "missing"),
    (A100_40_SERVER, "orphaned"),
    (V100_SERVER, "flaky"),
    (HGX_H200, "unlinked"),
    (MI300X_SERVER, "full"),
)


def choose_first_hosts(seed: int, hosts: int) -> tuple[tuple[Chassis, Defect], ...]:
    chosen = list(_FIRST_HOSTS[:hosts])
    seeded_random(seed, "cast").shuffle(chosen)
    return tuple(chosen)


def choose_further_host(seed: int, host: int) -> tuple[Chassis, Defect]:
    rng = seeded_random(seed, "extra", host)
    chassis = rng.choice(COMMON)
    if host == len(_FIRST_HOSTS):
        return chassis, "unstable"
    has_defect = host >= 64 and rng.random() < 0.03
    return chassis, rng.choice(_RARE_DEFECTS) if has_defect else "none"


class HostLifecycle(Struct, frozen=True):
    """A host's time, cut into blocks that begin at `offset_s` + n · `block_s`. Every `boot_every`-th block begins with
    a boot. With `outage_s` the host is down for about that long at the end of each block."""

    block_s: int
    offset_s: int
    boot_every: int
    outage_s: tuple[int, int] | None = None

    def number(self, t: float) -> int:
        return floor((t - self.offset_s) / self.block_s)

    def opens(self, number: int) -> float:
        return float(self.offset_s + number * self.block_s)

    def closes(self, number: int) -> float:
        """When the host goes down in that block; else the end of the block."""
        end = self.opens(number + 1)
        if self.outage_s is None:
            return end
        shortest, longest = self.outage_s
        return end - shortest - int(draw(self.offset_s, number) * (longest - shortest))

    def boots_at(self, number: int) -> bool:
        return (number + self.offset_s) % self.boot_every == 0

    def booted(self, t: float) -> float:
        number = self.number(t)
        return self.opens(number - (number + self.offset_s) % self.boot_every)

    def is_alive(self, t: float) -> bool:
        return self.outage_s is None or t < self.closes(self.number(t))


class JobArrivals(Struct, frozen=True):
    """`gap_s` is the mean wait for the next job in seconds of full activity, `shortest_s` the least a job lasts,
    `filled` the chance that a free GPU is taken when a block begins."""

    gap_s: float
    shortest_s: int
    filled: float
    weights: dict[Kind, float]
    length_scale: float = 1.0


_ALL_KINDS: dict[Kind, float] = {kind: profile.weight for kind, profile in PROFILES.items()}
_STEADY_KINDS: dict[Kind, float] = {"training": 3.0, "loader": 1.0}
_BLOCK_S = 2 * 86_400

USUAL = JobArrivals(gap_s=5_600, shortest_s=240, filled=0.645, weights=_ALL_KINDS)
RESTLESS = JobArrivals(gap_s=5, shortest_s=240, filled=0.98, weights=_STEADY_KINDS)
INTERRUPTED = JobArrivals(gap_s=25, shortest_s=45, filled=0, weights=_STEADY_KINDS, length_scale=0.04)


def lifecycle_of(seed: int, host: int, defect: Defect) -> HostLifecycle:
    """When the host boots and dies: every 48 days for maintenance, or every 10 minutes for about 2."""
    rng = seeded_random(seed, "life", host)
    if defect == "flaky":
        return HostLifecycle(600, rng.randrange(600), 1, (110, 140))
    return HostLifecycle(_BLOCK_S, rng.randrange(_BLOCK_S), 24)


def arrivals_of(defect: Defect) -> JobArrivals:
    """A hot GPU is always in use; on a host that often goes down jobs are short."""
    return {"hot": RESTLESS, "flaky": INTERRUPTED}.get(defect, USUAL)


class GpuSlot(Struct, frozen=True):
    """One row of a host's report: a GPU, or a MIG instance with its `share` of the board. `number` is its place."""

    number: int
    index: int
    uuid: str
    name: str
    model: SimulatedModel
    memory_mib: int
    pci_address: str
    salt: int
    fault: Defect = "none"
    parent: str | None = None
    instance: int | None = None
    share: float = 1.0
    has_display: bool = False

    @property
    def takes_jobs(self) -> bool:
        return self.fault not in {"missing", "orphaned"}


class Volume(Struct, frozen=True):
    """A file system. `share` is how full it is on the average, `swing` how far that strays. Those with the same
    salt are one file system."""

    mount: str
    tib: float
    share: float
    swing: float
    salt: int


class HostSpec(Struct, frozen=True):
    """A machine and everything about it that never changes. The first of `volumes` is that of `/`."""

    number: int
    name: str
    id: str
    chassis: Chassis
    defect: Defect
    slots: tuple[GpuSlot, ...]
    life: HostLifecycle
    group: str
    in_slurm: bool
    os: str
    driver_version: str
    labels: dict[str, str]
    salt: int
    volumes: tuple[Volume, ...]
    swap_gib: int
    addresses: tuple[str, ...]


def build_host(seed: int, number: int, name: str, chassis: Chassis, defect: Defect) -> HostSpec:
    rng = seeded_random(seed, "host", number)
    group = rng.choice(tuple(GROUPS))
    in_slurm = not chassis.workstation and rng.random() < 0.4
    os, driver_version, salt = rng.choice(_SYSTEMS), rng.choice(_DRIVERS[chassis.model.vendor]), rng.getrandbits(24)
    return HostSpec(
        number=number,
        name=name,
        id=hex_name(seed, "machine", number),
        chassis=chassis,
        defect=defect,
        slots=_slots(seed, number, chassis, defect),
        life=lifecycle_of(seed, number, defect),
        group=group,
        in_slurm=in_slurm,
        os=os,
        driver_version=driver_version,
        labels=_labels(number, chassis, group, in_slurm),
        salt=salt,
        volumes=_volumes(chassis, defect, salt),
        swap_gib=32 if chassis.workstation else 8 if draw(salt, 4) < 0.5 else 0,
        addresses=_addresses(number, chassis),
    )


def _volumes(chassis: Chassis, defect: Defect, salt: int) -> tuple[Volume, ...]:
    """Everything on one disk; or a disk for the system, one for data, and the homes that all servers share."""
    share = 0.35 + 0.4 * draw(salt, 2)
    if defect != "full" and (chassis.workstation or draw(salt, 5) > 0.6):
        return (Volume("/", chassis.disk_tib, share, 0.2, salt),)
    data = (0.97, 0.02) if defect == "full" else (0.3 + 0.45 * draw(salt, 6), 0.15)
    return (
        Volume("/", 0.87, 0.2 + 0.4 * share, 0.1, salt),
        Volume("/data", chassis.disk_tib, *data, salt + 1),
        Volume("/home", 180, 0.72, 0.06, 0),
    )


def _addresses(number: int, chassis: Chassis) -> tuple[str, ...]:
    """One in the lab's network; a server has another in that of the storage."""
    hall, row, place = number // 62_500 % 100, number // 250 % 250, number % 250 + 4
    networks = (16,) if chassis.workstation else (16, 132)
    return tuple(f"10.{network + hall}.{row}.{place}" for network in networks)


def _labels(number: int, chassis: Chassis, group: str, in_slurm: bool) -> dict[str, str]:
    if chassis.workstation:
        return {"room": f"office {101 + number % 40}", "group": group}
    labels = {"room": f"hall {'ABC'[number // 60 % 3]}", "rack": f"r{number // 6 + 1:02d}", "group": group}
    return labels | {"scheduler": "slurm"} if in_slurm else labels


def _slots(seed: int, host: int, chassis: Chassis, defect: Defect) -> tuple[GpuSlot, ...]:
    faulty = int(draw(seed, host) * chassis.gpus)
    slots: list[GpuSlot] = []
    for index in range(chassis.gpus):
        board = _board(seed, host, chassis, index, defect if index == faulty and defect in _OF_GPUS else "none")
        cuts = {0: SEVEN_CUTS, 1: MIXED_CUTS}.get(index, ()) if defect == "cut" else ()
        for slot in [
            replace(
                board,
                uuid=f"MIG-{uuid_name(seed, board.uuid, cut.instance)}",
                name=f"{board.name} MIG {cut.profile}",
                memory_mib=cut.memory_mib,
                salt=board.salt + cut.instance,
                parent=board.uuid,
                instance=cut.instance,
                share=cut.share,
            )
            for cut in cuts
        ] or [board]:
            slots.append(replace(slot, number=len(slots)))
    return tuple(slots)


def _board(seed: int, host: int, chassis: Chassis, index: int, fault: Defect) -> GpuSlot:
    model = chassis.model
    digits = uuid_name(seed, "gpu", host, index)
    return GpuSlot(
        number=index,
        index=index,
        uuid=f"GPU-{digits}",
        name=model.name,
        model=model,
        memory_mib=model.memory_mib,
        pci_address=f"0000:{0x18 + 0x19 * index:02x}:00.0",
        salt=int(digits[:6], 16),
        fault=fault,
        has_display=chassis.workstation and index == 0,
    )
