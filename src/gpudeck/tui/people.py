"""Who is on which GPUs now, a row a person, as on the page (web/src/state/people.ts)."""

from collections.abc import Callable, Sequence

from gpudeck.model.quantity import show_gib, show_span
from gpudeck.model.view import Host
from gpudeck.tui.layout import Column, Layout, measure
from gpudeck.tui.rows import DASH, Row, Sort, arrange
from gpudeck.views.cells import show_number
from gpudeck.views.people import Person, find_people
from gpudeck.views.safe import clean
from gpudeck.views.table import Cell

_NOT_KNOWN = "not known"


def _sort(value: Callable[[Person], float | None], *, is_falling: bool = True) -> Sort:
    return Sort(lambda row: None if row.person is None else value(row.person), is_falling)


SORTS: dict[str, Sort | None] = {
    "gpus": _sort(lambda person: len(person.holdings)),
    "user": None,
    "memory": _sort(lambda person: person.memory),
    "utilization": _sort(lambda person: person.utilization),
    "idle": _sort(lambda person: len(person.idle)),
    "time": _sort(lambda person: person.since, is_falling=False),
}


def people_rows(hosts: Sequence[Host], sort: str, is_turned: bool) -> list[Row]:
    # The name of no login: one may be called "not known".
    rows = [Row(f"person {person.user or chr(0)}", person=person) for person in find_people(hosts)]
    return arrange(rows, SORTS[sort], is_turned)


def people_columns(people: Sequence[Row]) -> list[Column]:
    names = measure([_name(row.person) for row in people if row.person], 9, 24)
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
    person = row.person
    if person is None:
        return [DASH] * 8
    memory = show_gib(person.memory)
    is_part = person.memory is not None and person.is_memory_part
    more = f"+{len(person.past)}" if person.past else ""
    processes = person.processes
    since = person.since
    idle = person.idle
    told = f"{len(idle)} for {show_span(now - min(held.gpu.since for held in idle))}" if idle else ""
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
        name = clean(holding.host.display_name)
        is_past = holding.host.status != "up"
        places.setdefault(f"{name} ({holding.host.status})" if is_past else name, []).append(holding.gpu.label)
    return "  ".join(f"{name}:{','.join(labels)}" for name, labels in places.items())
