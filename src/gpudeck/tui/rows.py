"""What stands in a table of top: rows in an order, below the titles of their groups."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from gpudeck.model.view import Gpu, Host, ShownProcess
from gpudeck.views.people import Person
from gpudeck.views.table import Cell

DASH: Cell = ("–", "grey")
"""What is not known."""


class Row(Struct, frozen=True, gc=False):
    """`key` is the same as long as it is the same thing. `title` is set for the head of a group, and asked when that is
    on the screen: such a row has no cells. It is about its `person`, else its `process`, else its `gpu`, else its
    `host`."""

    key: str
    host: Host | None = None
    gpu: Gpu | None = None
    process: ShownProcess | None = None
    person: Person | None = None
    title: Callable[[], str] | None = None


class Sort(Struct, frozen=True):
    """`value` is what rows are sorted by; None is unknown and always last. `is_falling`: the largest first."""

    value: Callable[[Row], Any]
    is_falling: bool = False


def arrange(rows: Sequence[Row], sort: Sort | None, is_turned: bool) -> list[Row]:
    """Sorted. Among equals the order stays; None for `sort` means the order in which they come."""
    if sort is None:
        return list(reversed(rows)) if is_turned else list(rows)
    values = [(sort.value(row), row) for row in rows]
    known = [pair for pair in values if pair[0] is not None]
    # Turning a sorted list around would turn equals around, too.
    known.sort(key=lambda pair: pair[0], reverse=sort.is_falling != is_turned)
    return [row for _, row in known] + [row for value, row in values if value is None]


def group(
    rows: Sequence[Row], names_of: Callable[[Row], Sequence[str]], title_of: Callable[[str, list[Row]], str]
) -> list[Row]:
    """The rows below a title a group, the group of the first row first. A row may be in several groups."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        names = names_of(row)
        for name in names:
            own = row if len(names) == 1 else msgspec.structs.replace(row, key=f"{row.key} {name}")
            groups.setdefault(name, []).append(own)
    grouped: list[Row] = []
    for name, members in groups.items():
        grouped.append(Row(f"group {name}", members[0].host, title=partial(title_of, name, members)))
        grouped += members
    return grouped


class Listing:
    """Which rows of a table are on the screen, and which one the cursor is on.

    The cursor stays on its row wherever that goes, once it was moved; until then it is on the first line.
    """

    def __init__(self) -> None:
        self.rows: Sequence[Row] = ()
        self.height = 1
        self.top = 0
        self.at = 0
        self._key: str | None = None

    @property
    def current(self) -> Row | None:
        return self.rows[self.at] if self.rows else None

    @property
    def visible(self) -> Sequence[Row]:
        return self.rows[self.top : self.top + self.height]

    def take(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        if self._key is not None:
            found = next((at for at, row in enumerate(rows) if row.key == self._key), None)
            self.at = self.at if found is None else found
        self._settle()

    def resize(self, height: int) -> None:
        self.height = max(1, height)
        self._settle()

    def move(self, steps: int) -> None:
        self.go(self.at + steps)

    def go(self, at: int) -> None:
        self.at = at
        self._settle()
        self._key = self.rows[self.at].key if self.rows and self.at else None

    def find(self, fits: Callable[[Row], bool]) -> bool:
        """Go to the next row that fits, from the top again behind the end. False where none does."""
        order = [*range(self.at + 1, len(self.rows)), *range(self.at + 1)]
        found = next((at for at in order if fits(self.rows[at])), None)
        if found is not None and self.rows:
            self.go(found)
        return found is not None

    def _settle(self) -> None:
        self.at = max(0, min(self.at, len(self.rows) - 1))
        self.top = max(0, min(self.top, len(self.rows) - self.height, self.at))
        self.top = max(self.top, self.at - self.height + 1)
