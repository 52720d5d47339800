"""Who is on which GPUs now, as a table: memory, processes, and where. The same for curl and for `gpudeck show`."""

from collections.abc import Sequence

from msgspec import Struct

from gpudeck.model.quantity import show_gib
from gpudeck.model.view import Fleet
from gpudeck.views.people import Person, find_people
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell, Column, render

_COLUMNS = (
    Column("USER", keep=100, widest=32),
    Column("GiB", keep=99, align="right", widest=12),
    Column("PROCESSES", keep=80, align="right", widest=9),
    Column("GPUs", keep=90, widest=400, least=20),
)
NOT_KNOWN = "not known"
NOBODY = "Nobody is on a GPU."


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
