"""Aligned columns for terminals: by display width, safe for any name, and never wider than requested."""

import re
import textwrap
from collections.abc import Callable, Sequence
from typing import Generic, Literal, TypeVar

from msgspec import Struct

from gpudeck.model.text import clean

T = TypeVar("T")
Cell = tuple[str, str]
"""A text and its colour ("" for none)."""

ANSI = {
    "green": "32",
    "red": "31",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
    "grey": "90",
    "bold": "1",
    "reverse": "7",
}
SEVERITY_SIGNS = {"info": "·", "warning": "▲", "critical": "✗"}
"""Symbols that differ from those of GPU states."""
SEVERITY_COLOURS = {"warning": "yellow", "critical": "red"}
_RESET = "\x1b[0m"
_PAINT = re.compile(r"\x1b\[\d+m")
GAP = 2
_ANY = 10**6
LEAST = 20
"""The narrowest width of a table or a box."""
_OUR_SIGNS = dict.fromkeys(map(ord, "●■◐◇◆⊖▲✗…–·°×µ█░╭╮╰╯│├┤─"), "x")
"""Each of our symbols is one column wide."""
_PLAIN = str.maketrans("●■◐◇◆⊖▲✗…–·×█░╭╮╰╯│├┤─�", "o#+%*-^!~--x#.++++|++-?") | {ord("°"): " ", ord("µ"): "u"}


class Column(Struct, frozen=True):
    """`keep`: if the width is too small, the column with the lowest value is dropped first. `widest` cuts long texts. A
    column with `least` is cut down to that width before any column is dropped."""

    title: str
    keep: int
    align: Literal["left", "right"] = "left"
    widest: int = 40
    least: int | None = None


class CellColumn(Column, Generic[T], frozen=True, kw_only=True):
    """`cell` returns the text of an item, or text and colour; None is unknown, a dash."""

    cell: Callable[[T], str | Cell | None]

    def of(self, item: T) -> Cell:
        found = self.cell(item)
        text, colour = found if isinstance(found, tuple) else ("–" if found is None else found, "")
        return clean(text), colour


def width_of(text: str) -> int:
    """The width in terminal columns. Texts of ASCII and our own symbols need no Unicode tables, whose import takes
    longer than the rest of a table."""
    if text.isascii() or text.translate(_OUR_SIGNS).isascii():
        return len(text)
    from wcwidth import wcswidth  # noqa: PLC0415 - see above

    return max(0, wcswidth(text))


def fit(text: str, width: int, align: str = "left") -> str:
    """The text cut or padded to exactly `width` columns."""
    if text.isascii() and len(text) <= width:
        return text.rjust(width) if align == "right" else text.ljust(width)
    text = shorten(text, width)
    space = " " * (width - width_of(text))
    return space + text if align == "right" else text + space


def shorten(text: str, width: int | None) -> str:
    """The text, cut if it is wider than `width`."""
    return text if width is None or width_of(text) <= width else _cut(text, width)


def wrap(text: str, width: int | None) -> list[str]:
    """The text in lines of at most `width` characters; one line without a width."""
    return textwrap.wrap(text, width or max(1, len(text)))


def end_lines(lines: Sequence[str]) -> str:
    """The lines as one text that ends in a newline."""
    return "".join(f"{line}\n" for line in lines)


def paint(text: str, colour: str, on: bool) -> str:
    return f"\x1b[{ANSI[colour]}m{text}\x1b[0m" if on and colour else text


def in_ascii(text: str) -> str:
    """Our own symbols replaced for ASCII terminals, with the same width. Other characters stay."""
    return text.translate(_PLAIN)


def render(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None, colour: bool) -> list[str]:
    """The lines of a table with its header. Columns are dropped, least important first, until it fits `width`; columns
    that are empty in all rows are always dropped. With `width` None nothing is dropped or cut. The two most important
    columns always stay, cut if necessary: a table needs LEAST columns."""
    return [_without_padding(line) for line in lay_out(columns, rows, width, colour)[0]]


def tabulate(
    columns: Sequence[CellColumn[T]],
    items: Sequence[T],
    width: int | None,
    colour: bool = False,
    *,
    has_total: bool = False,
) -> list[str]:
    """`render` with a row for each item. Text is cleaned for terminals. `has_total`: the last row is a sum, in bold."""
    rows = [[column.of(item) for column in columns] for item in items]
    if has_total:
        rows[-1] = [(text, "bold") for text, _ in rows[-1]]
    return render(columns, rows, width, colour)


def _without_padding(line: str) -> str:
    """Without trailing blanks, painted ones included."""
    kept = line.rstrip(" ")
    while (start := kept.rfind("\x1b[")) >= 0 and _PAINT.fullmatch(kept, start):
        kept = kept[:start].rstrip(" ")
    is_painted = kept.rfind("\x1b[") > kept.rfind(_RESET)
    return f"{kept}{_RESET}" if is_painted else kept


def lay_out(
    columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None, colour: bool
) -> tuple[list[str], int]:
    """`render`, with the width of all lines. Values in a fleet repeat: each distinct text of a column is measured and
    fitted only once."""
    cells = list(zip(*rows, strict=True)) if rows else [()] * len(columns)
    kinds = [set(column) for column in cells]
    texts = [{text for text, _ in found} for found in kinds]
    widths = [
        min(column.widest if width else _ANY, max(map(width_of, {column.title, *found})))
        for column, found in zip(columns, texts, strict=True)
    ]
    shown = _choose(columns, widths, [at for at, found in enumerate(texts) if found != {""}], width)
    _narrow(columns, widths, shown, width)
    fitted = [_fit_all(columns[at], widths[at], cells[at], kinds[at], colour) for at in shown]
    return list(map((" " * GAP).join, zip(*fitted, strict=True))), _total(widths, shown)


def _fit_all(column: Column, width: int, cells: Sequence[Cell], kinds: set[Cell], colour: bool) -> list[str]:
    """The title and its cells; `kinds` are the distinct ones."""
    made = {cell: paint(fit(cell[0], width, column.align), cell[1], colour) for cell in kinds}
    return [paint(fit(column.title, width, column.align), "bold", colour), *map(made.__getitem__, cells)]


def _choose(columns: Sequence[Column], widths: Sequence[int], filled: list[int], width: int | None) -> list[int]:
    shown = list(filled)
    least = [min(own, column.least or own) for column, own in zip(columns, widths, strict=True)]
    while width is not None and len(shown) > 2 and _total(least, shown) > width:
        shown.remove(min(shown, key=lambda at: columns[at].keep))
    return shown


def _narrow(columns: Sequence[Column], widths: list[int], shown: Sequence[int], width: int | None) -> None:
    """Cut columns until they fit: first those with `least`, then the widest."""
    if width is None:
        return
    for at in shown:
        least = columns[at].least or widths[at]
        widths[at] = max(min(widths[at], least), widths[at] - max(0, _total(widths, shown) - width))
    widest = max(shown, key=lambda at: widths[at])
    widths[widest] = max(1, widths[widest] - max(0, _total(widths, shown) - width))


def _total(widths: Sequence[int], shown: Sequence[int]) -> int:
    return sum(widths[at] + GAP for at in shown) - GAP


def _cut(text: str, width: int) -> str:
    """As many characters as fit into `width - 1` columns, and an ellipsis."""
    used, end = 0, 0
    for end, char in enumerate(text):  # noqa: B007
        used += width_of(char)
        if used > width - 1:
            break
    # A combining mark may make the text wider than the sum of its characters.
    while end and width_of(text[:end]) > width - 1:
        end -= 1
    return text[:end] + "…"


def draw_share(share: float | None, width: int) -> str:
    """A bar. Noticeable use is never empty, and remaining room never full; a dash if unknown."""
    if share is None:
        return "–"
    filled = round(share * width)
    if share >= 0.01:
        filled = max(1, filled)
    if share <= 0.99:
        filled = min(width - 1, filled)
    return "█" * filled + "░" * (width - filled)
