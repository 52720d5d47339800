"""The three tables of top, by name: how each gets its rows, its columns and its cells."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gpudeck.model.view import Host
from gpudeck.tui import gpus, people, processes
from gpudeck.tui.layout import Column, Layout
from gpudeck.tui.rows import Row, Sort
from gpudeck.views.table import Cell


class Table(Struct, frozen=True):
    """`sorts` begins with the order that a person finds."""

    name: str
    sorts: Mapping[str, Sort | None]
    columns: Callable[[Sequence[Host], Sequence[Row]], list[Column]]
    cells: Callable[[Row, float, Layout], list[Cell]]


GPUS = Table("fleet", gpus.SORTS, lambda hosts, _: gpus.gpu_columns(hosts), gpus.gpu_cells)
PROCESSES = Table(
    "processes", processes.SORTS, lambda hosts, _: processes.process_columns(hosts), processes.process_cells
)
PEOPLE = Table("people", people.SORTS, lambda _, rows: people.people_columns(rows), people.person_cells)
TABLES = {table.name: table for table in (GPUS, PROCESSES, PEOPLE)}


class Order(Struct):
    """How a table is sorted now."""

    sort: str
    is_turned: bool = False


def make_rows(table: Table, hosts: Sequence[Host], order: Order, grouping: str, uuid: str | None) -> list[Row]:
    """`uuid` is for the processes of one GPU alone."""
    if table is GPUS:
        return gpus.gpu_rows(hosts, order.sort, order.is_turned, grouping)
    if table is PEOPLE:
        return people.people_rows(hosts, order.sort, order.is_turned)
    return processes.process_rows(hosts, order.sort, order.is_turned, uuid=uuid)


def next_sort(table: Table, now: str, step: int) -> str:
    """The sort beside this one, in the order of the columns."""
    names = list(table.sorts)
    return names[(names.index(now) + step) % len(names)]
