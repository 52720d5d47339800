"""Columns of a table that is looked at for long: their widths stay while values change, so that little is redrawn."""

from collections.abc import Sequence

from msgspec import Struct

from gpudeck.views.table import Cell, fit, width_of

Line = list[Cell]
"""Texts and their colours, side by side; all together exactly as wide as the terminal."""


class Column(Struct, frozen=True):
    """`width` is what it needs, `keep` decides who goes first where there is no room, `grow` is its share of the room
    that is left, up to `widest`. `sort` names the order that has this column's values."""

    title: str
    width: int
    keep: int
    align: str = "left"
    grow: int = 0
    widest: int = 300
    sort: str = ""


class Layout:
    """Which columns a terminal of `width` has room for, and how wide each is."""

    def __init__(self, columns: Sequence[Column], width: int) -> None:
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

    def column_at(self, x: int) -> Column | None:
        """The one that stands there."""
        start = 0
        for at in self.shown:
            if start <= x < start + self.widths[at]:
                return self._columns[at]
            start += self.widths[at] + self._gap
        return None

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


def draw_share(share: float | None, width: int) -> str:
    """A bar. What holds anything to speak of is never empty, what has room left never full; a dash when unknown."""
    if share is None:
        return "–"
    filled = round(share * width)
    if share >= 0.01:
        filled = max(1, filled)
    if share <= 0.99:
        filled = min(width - 1, filled)
    return "█" * filled + "░" * (width - filled)
