"""Aligned columns for terminals: by display width, safe for any name, and never wider than asked."""

from collections.abc import Sequence
from typing import Literal

from msgspec import Struct
from wcwidth import wcswidth, wcwidth

Cell = tuple[str, str]
"""A text and the name of its colour ("" for none)."""

ANSI = {"green": "32", "red": "31", "yellow": "33", "blue": "34", "grey": "90", "bold": "1", "reverse": "7"}
GAP = 2


class Column(Struct, frozen=True):
    """`keep`: where the width does not suffice, the column with the lowest goes first. `widest` cuts long texts."""

    title: str
    keep: int
    align: Literal["left", "right"] = "left"
    widest: int = 40


def clean(text: str) -> str:
    """Without anything a terminal would act upon: control characters, escapes, and marks that turn text around."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


def width_of(text: str) -> int:
    return len(text) if text.isascii() else max(0, wcswidth(text))


def fit(text: str, width: int, align: str = "left") -> str:
    """The text cut or padded to exactly `width` columns."""
    if width_of(text) > width:
        text = _cut(text, width)
    space = " " * (width - width_of(text))
    return space + text if align == "right" else text + space


def paint(text: str, colour: str, on: bool) -> str:
    return f"\x1b[{ANSI[colour]}m{text}\x1b[0m" if on and colour else text


def render(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], width: int | None, colour: bool) -> list[str]:
    """The lines of a table with its header. Columns are dropped, least important first, until it fits `width`."""
    widths = [
        min(column.widest, max([width_of(column.title), *(width_of(row[at][0]) for row in rows)]))
        for at, column in enumerate(columns)
    ]
    shown = _choose(columns, widths, width)
    header: list[Cell] = [(column.title, "bold") for column in columns]
    return [_line(columns, widths, shown, row, colour) for row in [header, *rows]]


def _choose(columns: Sequence[Column], widths: Sequence[int], width: int | None) -> list[int]:
    shown = list(range(len(columns)))
    while width is not None and len(shown) > 1 and sum(widths[at] + GAP for at in shown) - GAP > width:
        shown.remove(min(shown, key=lambda at: columns[at].keep))
    return shown


def _line(
    columns: Sequence[Column], widths: Sequence[int], shown: Sequence[int], row: Sequence[Cell], colour: bool
) -> str:
    cells = [paint(fit(row[at][0], widths[at], columns[at].align), row[at][1], colour) for at in shown]
    return (" " * GAP).join(cells).rstrip()


def _cut(text: str, width: int) -> str:
    """As many characters as fit into `width - 1` columns, and an ellipsis."""
    used, end = 0, 0
    for end, char in enumerate(text):  # noqa: B007
        used += max(0, wcwidth(char))
        if used > width - 1:
            break
    return text[:end] + "…"
