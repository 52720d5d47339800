"""Tables of top: rows in an order below their group titles, and columns whose widths stay while values change."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from gpudeck.model.view import Gpu, Host, ShownProcess
from gpudeck.views.table import Cell, fit, width_of
from gpudeck.views.users import UserActivity

DASH: Cell = ("–", "grey")
"""What is not known."""
Line = list[Cell]
"""Texts and their colours, side by side; all together exactly as wide as the terminal."""


class TableRow(Struct, frozen=True, gc=False):
    """`key` is the same as long as it is the same thing. `title` is set for the head of a group, and asked when that is
    on the screen: such a row has no cells. It is about its `person`, else its `process`, else its `gpu`, else its
    `host`."""

    key: str
    host: Host | None = None
    gpu: Gpu | None = None
    process: ShownProcess | None = None
    activity: UserActivity | None = None
    title: Callable[[], str] | None = None


class Sort(Struct, frozen=True):
    """`value` is what rows are sorted by; None is unknown and always last. `is_falling`: the largest first."""

    value: Callable[[TableRow], Any]
    is_falling: bool = False


def arrange(rows: Sequence[TableRow], sort: Sort | None, is_turned: bool) -> list[TableRow]:
    """Sorted. Among equals the order stays; None for `sort` means the order in which they come."""
    if sort is None:
        return list(reversed(rows)) if is_turned else list(rows)
    values = [(sort.value(row), row) for row in rows]
    known = [pair for pair in values if pair[0] is not None]
    # Turning a sorted list around would turn equals around, too.
    known.sort(key=lambda pair: pair[0], reverse=sort.is_falling != is_turned)
    return [row for _, row in known] + [row for value, row in values if value is None]


def group(
    rows: Sequence[TableRow],
    names_of: Callable[[TableRow], Sequence[str]],
    title_of: Callable[[str, list[TableRow]], str],
) -> list[TableRow]:
    """The rows below a title a group, the group of the first row first. A row may be in several groups."""
    groups: dict[str, list[TableRow]] = {}
    for row in rows:
        names = names_of(row)
        for name in names:
            own = row if len(names) == 1 else msgspec.structs.replace(row, key=f"{row.key} {name}")
            groups.setdefault(name, []).append(own)
    grouped: list[TableRow] = []
    for name, members in groups.items():
        grouped.append(TableRow(f"group {name}", members[0].host, title=partial(title_of, name, members)))
        grouped += members
    return grouped


class Listing:
    """Which rows of a table are on the screen, and which one the cursor is on.

    The cursor stays on its row wherever that goes, once it was moved; until then it is on the first line.
    """

    def __init__(self) -> None:
        self.rows: Sequence[TableRow] = ()
        self.height = 1
        self.top = 0
        self.at = 0
        self._key: str | None = None

    @property
    def current(self) -> TableRow | None:
        return self.rows[self.at] if self.rows else None

    @property
    def visible(self) -> Sequence[TableRow]:
        return self.rows[self.top : self.top + self.height]

    def take(self, rows: Sequence[TableRow]) -> None:
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

    def find(self, fits: Callable[[TableRow], bool]) -> bool:
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


class TableColumn(Struct, frozen=True):
    """`width` is what it needs, `keep` decides who goes first where there is no room, `grow` is its share of the room
    that is left, up to `widest`. `sort` names the order that has this column's values."""

    title: str
    width: int
    keep: int
    align: str = "left"
    grow: int = 0
    widest: int = 300
    sort: str = ""


class TableLayout:
    """Which columns a terminal of `width` has room for, and how wide each is."""

    def __init__(self, columns: Sequence[TableColumn], width: int) -> None:
        self._columns = columns
        self.width = width
        self._gap = 1 if width < 110 else 2
        self.shown = list(range(len(columns)))
        widths = [column.width for column in columns]
        while len(self.shown) > 2 and self._total(widths) > width:
            self.shown.remove(min(self.shown, key=lambda at: columns[at].keep))
        self._share(widths)
        self.widths = widths

    def head(self, sort: str) -> Line:
        """The titles; the one that rows are sorted by stands out."""
        return self._draw(
            [(column.title, "sorted" if sort and column.sort == sort else "head") for column in self._columns], "head"
        )

    def line(self, cells: Sequence[Cell], colour: str | None = None) -> Line:
        """`colour` is for the whole line, instead of the cells' own."""
        line = self._draw(cells, "")
        return line if colour is None else [(text, colour) for text, _ in line]

    def _draw(self, cells: Sequence[Cell], rest: str) -> Line:
        line: Line = []
        used = 0
        for at in self.shown:
            width = min(self.widths[at], self.width - used)
            if width <= 0:
                break
            text, colour = cells[at]
            gap = min(self._gap, self.width - used - width)
            line.append((fit(text, width, self._columns[at].align) + " " * gap, colour))
            used += width + gap
        return [*line, (" " * (self.width - used), rest)] if used < self.width else line

    def _total(self, widths: Sequence[int]) -> int:
        return sum(widths[at] + self._gap for at in self.shown) - self._gap

    def _share(self, widths: list[int]) -> None:
        """Hand out the room that is left, column by column, until it is used or none can grow."""
        left = self.width - self._total(widths)
        while left > 0:
            growing = [at for at in self.shown if self._columns[at].grow and widths[at] < self._columns[at].widest]
            if not growing:
                return
            for at in growing:
                step = min(self._columns[at].grow, left, self._columns[at].widest - widths[at])
                widths[at] += step
                left -= step


def measure(texts: Sequence[str], least: int, most: int) -> int:
    """How wide a column of these has to be."""
    return min(most, max([least, *map(width_of, set(texts))]))


def text_line(cells: Sequence[Cell], width: int) -> Line:
    """Texts one after the other, cut or filled up to the width."""
    line: Line = []
    used = 0
    for text, colour in cells:
        room = width - used
        if room <= 0:
            break
        shown = text if width_of(text) <= room else fit(text, room)
        line.append((shown, colour))
        used += width_of(shown)
    return [*line, (" " * (width - used), "")] if used < width else line
