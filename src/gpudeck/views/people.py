"""Who is on which GPUs now, from the fleet, and as a table: memory, processes, and where. The same for curl and for
`gpudeck show`.

Whom nobody could name is one person of their own. What a silent host last told is listed, but never counted.
"""

import re
from collections.abc import Sequence

from msgspec import Struct

from gpudeck.model.printable import clean
from gpudeck.model.quantity import show_gib
from gpudeck.model.view import Fleet, Gpu, Host, ShownProcess
from gpudeck.views.table import Cell, Column, render

_DIGITS = re.compile(r"(\d+)")
_COLUMNS = (
    Column("USER", keep=100, widest=32),
    Column("GiB", keep=99, align="right", widest=12),
    Column("PROCESSES", keep=80, align="right", widest=9),
    Column("GPUs", keep=90, widest=400, least=20),
)
NOT_KNOWN = "not known"
NOBODY = "Nobody is on a GPU."


class Holding(Struct, frozen=True):
    """A GPU that somebody is on, and their processes there. `memory` is None where a part of it is not known."""

    host: Host
    gpu: Gpu
    processes: list[ShownProcess]
    memory: float | None


class Person(Struct, frozen=True):
    """`holdings` are on hosts that report, `past` on silent ones. Sums and means cover what is known."""

    user: str | None
    holdings: list[Holding]
    past: list[Holding]

    @property
    def memory(self) -> float | None:
        known = [holding.memory for holding in self.holdings if holding.memory is not None]
        return sum(known) if known else None

    @property
    def is_memory_part(self) -> bool:
        return any(holding.memory is None for holding in self.holdings)

    @property
    def utilization(self) -> float | None:
        values = [holding.gpu.utilization_percent for holding in self.holdings]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def processes(self) -> int | None:
        """One process on several GPUs is one; None where no list could be read."""
        if all(holding.gpu.processes is None for holding in self.holdings):
            return None
        return len({(holding.host.id, own.pid) for holding in self.holdings for own in holding.processes})

    @property
    def idle(self) -> list[Holding]:
        return [holding for holding in self.holdings if holding.gpu.availability == "held"]

    @property
    def since(self) -> float | None:
        started = [own.started_at for holding in self.holdings for own in holding.processes]
        return min((at for at in started if at is not None), default=None)


def find_people(hosts: Sequence[Host]) -> list[Person]:
    """By name; whom nobody could name last."""
    found: dict[str | None, tuple[list[Holding], list[Holding]]] = {}
    for host in hosts:
        is_past = host.status != "up"
        for gpu in host.gpus:
            for user, processes in _owners(host, gpu).items():
                holding = Holding(host, gpu, processes, _memory(gpu, processes))
                found.setdefault(user, ([], []))[is_past].append(holding)
    people = [Person(user, *held) for user, held in found.items()]
    return sorted(people, key=lambda person: (person.user is None, natural(person.user or "")))


def natural(name: str) -> list[tuple[bool, int, str]]:
    """What to sort names by, so that numbers in them count as numbers."""
    parts = (part for part in _DIGITS.split(name.lower()) if part)
    return [(False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts]


def _owners(host: Host, gpu: Gpu) -> dict[str | None, list[ShownProcess]]:
    """Who is on the GPU with which processes. A display server uses a GPU, but nobody works there."""
    owners: dict[str | None, list[ShownProcess]] = {}
    for process in gpu.processes or ():
        if not process.display:
            owners.setdefault(process.user, []).append(process)
    state = gpu.availability if host.status == "up" else gpu.last_seen
    if not owners and state in {"busy", "held"}:
        # Some ways in name the people without their processes.
        return {user: [] for user in gpu.users or (None,)}
    return owners


def _memory(gpu: Gpu, processes: list[ShownProcess]) -> float | None:
    """What their processes hold; all of the GPU's where they are alone on it and that is not told by process."""
    amounts = [process.memory_used_bytes for process in processes]
    known = [amount for amount in amounts if amount is not None]
    if processes and len(known) == len(amounts):
        return float(sum(known))
    is_alone = len(gpu.users) <= 1 and (gpu.processes is None or len(gpu.processes) == len(processes))
    return gpu.memory_used_bytes if is_alone else None


class Holder(Struct, frozen=True):
    """Somebody on GPUs of hosts that report. `user` is null for all whom nobody could name. `memory_used_bytes` is what
    is known of it, and at least that where `is_memory_part`; `gpus` are host by host, as in `gpu01-0,1`. A null stands
    beside its reason."""

    user: str | None
    memory_used_bytes: int | None
    is_memory_part: bool
    processes: int | None
    gpu_count: int
    gpus: list[str]
    reasons: dict[str, str]


class People(Struct, frozen=True):
    """By memory, then by processes, the most first."""

    time: float
    people: list[Holder]


def rank_people(fleet: Fleet) -> list[Person]:
    """Who is on GPUs of hosts that report, by memory, then by processes, the most first; by name where both are the
    same. What is not known comes after what is."""
    people = [person for person in find_people(fleet.hosts) if person.holdings]
    return sorted(people, key=lambda one: (_fall(one.memory), _fall(one.processes)))


def render_people(fleet: Fleet, *, width: int | None = None, colour: bool = False) -> str:
    """One line a person, ending in a newline."""
    rows = [_row(person) for person in rank_people(fleet)]
    return "\n".join(render(_COLUMNS, rows, width, colour) if rows else [NOBODY]) + "\n"


def describe_people(fleet: Fleet) -> People:
    """The same for programs."""
    return People(fleet.time, [_describe(person) for person in rank_people(fleet)])


def _describe(person: Person) -> Holder:
    return Holder(
        user=person.user,
        memory_used_bytes=None if person.memory is None else int(person.memory),
        is_memory_part=person.is_memory_part,
        processes=person.processes,
        gpu_count=len(person.holdings),
        gpus=list_places(person),
        reasons=_reasons(person),
    )


def list_places(person: Person) -> list[str]:
    """Host by host, as in `gpu01-0,1`."""
    places: dict[str, list[str]] = {}
    for holding in person.holdings:
        places.setdefault(holding.host.name, []).append(holding.gpu.label)
    return [f"{host}-{','.join(labels)}" for host, labels in places.items()]


def _row(person: Person) -> Sequence[Cell]:
    is_part = person.memory is not None and person.is_memory_part
    memory = show_gib(person.memory)
    return [
        (NOT_KNOWN, "grey") if person.user is None else (clean(person.user), ""),
        (f"≥ {memory}" if is_part else memory, ""),
        ("–" if person.processes is None else str(person.processes), ""),
        (clean(" ".join(list_places(person))), ""),
    ]


def _reasons(person: Person) -> dict[str, str]:
    told = {
        "user": "processes without an owner, or lists that could not be read" if person.user is None else "",
        "memory_used_bytes": "the memory of none of their processes is known" if person.memory is None else "",
        "processes": "the lists of processes could not be read" if person.processes is None else "",
    }
    return {name: reason for name, reason in told.items() if reason}


def _fall(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)
