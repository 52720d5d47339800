"""What stands in the room: each host with its GPUs, as settled by seed and number alone."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.collectors.simulated.chance import dice, draw, hex_name, uuid_name
from gpudeck.collectors.simulated.hardware import MIXED_CUTS, SEVEN_CUTS, Chassis, Cut, Model
from gpudeck.collectors.simulated.mishaps import Life, Mishap, life_of
from gpudeck.collectors.simulated.people import GROUPS

Fault = Literal["none", "hot", "missing", "orphaned"]

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
    salt: int
    fault: Fault = "none"
    parent: str | None = None
    instance: int | None = None
    share: float = 1.0
    has_display: bool = False

    @property
    def takes_jobs(self) -> bool:
        return self.fault in {"none", "hot"}


class Host(Struct, frozen=True):
    """A machine and everything about it that never changes. `in_slurm`: jobs come through the scheduler."""

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


def build_host(seed: int, number: int, name: str, chassis: Chassis, mishap: Mishap) -> Host:
    """Sets one machine up; the same arguments give the same machine."""
    rng = dice(seed, "host", number)
    group = rng.choice(tuple(GROUPS))
    in_slurm = not chassis.workstation and rng.random() < 0.4
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
        os=rng.choice(_SYSTEMS),
        driver_version=rng.choice(_DRIVERS[chassis.model.vendor]),
        labels=_labels(number, chassis, group, in_slurm),
        salt=rng.getrandbits(24),
    )


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
    faults: dict[Mishap, Fault] = {"hot": "hot", "missing": "missing", "orphaned": "orphaned"}
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
        salt=board.salt + cut.instance,
        parent=board.uuid,
        instance=cut.instance,
        share=cut.share,
    )
