"""What stands in the room: each host with its GPUs, as settled by seed and number alone."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.collectors.simulated.chance import dice, draw, hex_name, uuid_name
from gpudeck.collectors.simulated.hardware import BUSES, MIXED_CUTS, SEVEN_CUTS, Chassis, Cut, Model
from gpudeck.collectors.simulated.mishaps import Life, Mishap, life_of
from gpudeck.collectors.simulated.people import GROUPS

Fault = Literal["none", "hot", "missing", "orphaned", "worn", "unlinked"]

_SYSTEMS = ("Ubuntu 22.04.5 LTS", "Ubuntu 24.04.2 LTS", "Debian GNU/Linux 12", "Rocky Linux 9.5")
_DRIVERS = {"nvidia": ("535.230.02", "550.144.03", "570.133.20", "580.65.06"), "amd": ("6.10.5", "6.12.12")}


class Slot(Struct, frozen=True):
    """One row of a host's report: a GPU, or a MIG instance with its `share` of the board. `number` is its place."""

    number: int
    index: int
    uuid: str
    name: str
    model: Model
    memory_mib: int
    pci_address: str
    salt: int
    fault: Fault = "none"
    parent: str | None = None
    instance: int | None = None
    share: float = 1.0
    has_display: bool = False

    @property
    def takes_jobs(self) -> bool:
        return self.fault not in {"missing", "orphaned"}


class Volume(Struct, frozen=True):
    """A file system. `share` is how full it is on the average, `swing` how far that strays; both of 1.

    Volumes of the same salt are one, seen from several hosts.
    """

    mount: str
    tib: float
    share: float
    swing: float
    salt: int


class Host(Struct, frozen=True):
    """A machine and everything about it that never changes. `in_slurm`: jobs come through the scheduler.

    The first of `volumes` is that of `/`.
    """

    number: int
    name: str
    id: str
    chassis: Chassis
    mishap: Mishap
    slots: tuple[Slot, ...]
    life: Life
    group: str
    in_slurm: bool
    os: str
    driver_version: str
    labels: dict[str, str]
    salt: int
    volumes: tuple[Volume, ...]
    swap_gib: int
    addresses: tuple[str, ...]


def build_host(seed: int, number: int, name: str, chassis: Chassis, mishap: Mishap) -> Host:
    """Sets one machine up; the same arguments give the same machine."""
    rng = dice(seed, "host", number)
    group = rng.choice(tuple(GROUPS))
    in_slurm = not chassis.workstation and rng.random() < 0.4
    os, driver_version, salt = rng.choice(_SYSTEMS), rng.choice(_DRIVERS[chassis.model.vendor]), rng.getrandbits(24)
    return Host(
        number=number,
        name=name,
        id=hex_name(seed, "machine", number),
        chassis=chassis,
        mishap=mishap,
        slots=_slots(seed, number, chassis, mishap),
        life=life_of(seed, number, mishap),
        group=group,
        in_slurm=in_slurm,
        os=os,
        driver_version=driver_version,
        labels=_labels(number, chassis, group, in_slurm),
        salt=salt,
        volumes=_volumes(chassis, mishap, salt),
        swap_gib=_swap_gib(chassis, salt),
        addresses=_addresses(number, chassis),
    )


def _volumes(chassis: Chassis, mishap: Mishap, salt: int) -> tuple[Volume, ...]:
    """Everything on one disk; or a disk for the system, one for data, and the homes that all servers share."""
    share = 0.35 + 0.4 * draw(salt, 2)
    if mishap != "full" and (chassis.workstation or draw(salt, 5) > 0.6):
        return (Volume("/", chassis.disk_tib, share, 0.2, salt),)
    data = (0.97, 0.02) if mishap == "full" else (0.3 + 0.45 * draw(salt, 6), 0.15)
    return (
        Volume("/", 0.87, 0.2 + 0.4 * share, 0.1, salt),
        Volume("/data", chassis.disk_tib, *data, salt + 1),
        Volume("/home", 180, 0.72, 0.06, 0),
    )


def _swap_gib(chassis: Chassis, salt: int) -> int:
    """Desks have swap; of the servers every other has none."""
    return 32 if chassis.workstation else 8 if draw(salt, 4) < 0.5 else 0


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


def _slots(seed: int, host: int, chassis: Chassis, mishap: Mishap) -> tuple[Slot, ...]:
    faulty = int(draw(seed, host) * chassis.gpus)
    slots: list[Slot] = []
    for index in range(chassis.gpus):
        board = _board(seed, host, chassis, index, _fault(mishap, index == faulty))
        cuts = {0: SEVEN_CUTS, 1: MIXED_CUTS}.get(index, ()) if mishap == "cut" else ()
        for slot in [_instance(seed, board, cut) for cut in cuts] or [board]:
            slots.append(replace(slot, number=len(slots)))
    return tuple(slots)


def _fault(mishap: Mishap, is_chosen: bool) -> Fault:
    faults: dict[Mishap, Fault] = {
        "hot": "hot",
        "missing": "missing",
        "orphaned": "orphaned",
        "worn": "worn",
        "unlinked": "unlinked",
    }
    return faults.get(mishap, "none") if is_chosen else "none"


def _board(seed: int, host: int, chassis: Chassis, index: int, fault: Fault) -> Slot:
    model = chassis.model
    digits = uuid_name(seed, "gpu", host, index)
    return Slot(
        number=index,
        index=index,
        uuid=f"GPU-{digits}",
        name=model.name,
        model=model,
        memory_mib=model.memory_mib,
        pci_address=f"0000:{BUSES[chassis.gpus][index]}:00.0",
        salt=int(digits[:6], 16),
        fault=fault,
        has_display=chassis.workstation and index == 0,
    )


def _instance(seed: int, board: Slot, cut: Cut) -> Slot:
    return Slot(
        number=0,
        index=board.index,
        uuid=f"MIG-{uuid_name(seed, board.uuid, cut.instance)}",
        name=f"{board.name} MIG {cut.profile}",
        model=board.model,
        memory_mib=cut.memory_mib,
        pci_address=board.pci_address,
        salt=board.salt + cut.instance,
        parent=board.uuid,
        instance=cut.instance,
        share=cut.share,
    )
