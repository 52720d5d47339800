"""Who is on which GPUs now, as on the page (web/src/state/people.ts).

Whom nobody could name is one row of their own. What a silent host last told is listed, but never counted.
"""

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from gpudeck.model.quantity import show_gib, show_span
from gpudeck.tui.fleet import natural
from gpudeck.tui.layout import Column, Layout, measure
from gpudeck.tui.rows import Row, Sort, arrange
from gpudeck.views.cells import show_number
from gpudeck.views.filter import Json
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell

_NOT_KNOWN = "not known"


class Holding(Struct, frozen=True):
    """A GPU that somebody is on, and their processes there. `memory` is None where a part of it is not known."""

    host: Json
    gpu: Json
    processes: list[Json]
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
        values = [holding.gpu["utilization_percent"] for holding in self.holdings]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def processes(self) -> int | None:
        """One process on several GPUs is one; None where no list could be read."""
        if all(holding.gpu["processes"] is None for holding in self.holdings):
            return None
        return len({(holding.host["id"], own["pid"]) for holding in self.holdings for own in holding.processes})

    @property
    def idle(self) -> list[Holding]:
        return [holding for holding in self.holdings if holding.gpu["availability"] == "held"]

    @property
    def since(self) -> float | None:
        started = [own["started_at"] for holding in self.holdings for own in holding.processes]
        return min((at for at in started if at is not None), default=None)


def _sort(name: str, is_falling: bool = True) -> Sort:
    return Sort(lambda row: getattr(row.subject, name), is_falling)


SORTS: dict[str, Sort | None] = {
    "gpus": Sort(lambda row: len(row.subject.holdings), is_falling=True),
    "user": None,
    "memory": _sort("memory"),
    "utilization": _sort("utilization"),
    "idle": Sort(lambda row: len(row.subject.idle), is_falling=True),
    "time": Sort(lambda row: row.subject.since),
}


def find_people(hosts: Sequence[Json]) -> list[Person]:
    """By name; whom nobody could name last."""
    found: dict[str | None, tuple[list[Holding], list[Holding]]] = {}
    for host in hosts:
        is_past = host["status"] != "up"
        for gpu in host["gpus"]:
            for user, processes in _owners(host, gpu).items():
                holding = Holding(host, gpu, processes, _memory(gpu, processes))
                found.setdefault(user, ([], []))[is_past].append(holding)
    people = [Person(user, *held) for user, held in found.items()]
    return sorted(people, key=lambda person: (person.user is None, natural(person.user or "")))


def people_rows(hosts: Sequence[Json], sort: str, is_turned: bool) -> list[Row]:
    # The name of no login: one may be called "not known".
    rows = [Row(f"person {person.user or chr(0)}", subject=person) for person in find_people(hosts)]
    return arrange(rows, SORTS[sort], is_turned)


def people_columns(people: Sequence[Row]) -> list[Column]:
    names = measure([_name(row.subject) for row in people], 9, 24)
    return [
        Column("USER", names, 100, sort="user"),
        Column("GPUs", 4, 99, "right", sort="gpus"),
        Column("GiB", 9, 90, "right", sort="memory"),
        Column("UTIL", 4, 80, "right", sort="utilization"),
        Column("IDLE", 14, 70, sort="idle"),
        Column("PROCESSES", 9, 30, "right"),
        Column("FOR", 7, 60, "right", sort="time"),
        Column("WHERE", 16, 95, grow=1),
    ]


def person_cells(row: Row, now: float, _: Layout) -> list[Cell]:
    """Of the columns above."""
    person: Person = row.subject
    memory = show_gib(person.memory)
    is_part = person.memory is not None and person.is_memory_part
    more = f"+{len(person.past)}" if person.past else ""
    processes = person.processes
    since = person.since
    idle = person.idle
    told = f"{len(idle)} for {show_span(now - min(held.gpu['since'] for held in idle))}" if idle else ""
    return [
        (_name(person), "grey" if person.user is None else ""),
        (f"{len(person.holdings)}{more}", ""),
        (f"≥ {memory}" if is_part else memory, ""),
        (show_number(person.utilization, "%"), ""),
        (told, "yellow"),
        ("–" if processes is None else str(processes), ""),
        (show_span(None if since is None else now - since), ""),
        (_places(person), "grey"),
    ]


def _name(person: Person) -> str:
    return _NOT_KNOWN if person.user is None else clean(person.user)


def _places(person: Person) -> str:
    places: dict[str, list[str]] = {}
    for holding in (*person.holdings, *person.past):
        name = clean(holding.host["display_name"])
        is_past = holding.host["status"] != "up"
        places.setdefault(f"{name} ({holding.host['status']})" if is_past else name, []).append(holding.gpu["label"])
    return "  ".join(f"{name}:{','.join(labels)}" for name, labels in places.items())


def _owners(host: Json, gpu: Json) -> dict[str | None, list[Json]]:
    """Who is on the GPU with which processes. A display server uses a GPU, but nobody works there."""
    owners: dict[str | None, list[Any]] = {}
    for process in gpu["processes"] or ():
        if not process.get("display"):
            owners.setdefault(process.get("user"), []).append(process)
    state = gpu["availability"] if host["status"] == "up" else gpu["last_seen"]
    if not owners and state in {"busy", "held"}:
        # Some ways in name the people without their processes.
        return {user: [] for user in gpu["users"] or (None,)}
    return owners


def _memory(gpu: Json, processes: list[Json]) -> float | None:
    """What their processes hold; all of the GPU's where they are alone on it and that is not told by process."""
    amounts = [process["memory_used_bytes"] for process in processes]
    known = [amount for amount in amounts if amount is not None]
    if processes and len(known) == len(amounts):
        return float(sum(known))
    is_alone = len(gpu["users"]) <= 1 and (gpu["processes"] is None or len(gpu["processes"]) == len(processes))
    used: float | None = gpu["memory_used_bytes"]
    return used if is_alone else None
