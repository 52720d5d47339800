"""Tables as CSV (RFC 4180) for spreadsheets: a text in it is never a formula, and never does anything to a terminal."""

import csv
import io
from collections.abc import Iterable, Sequence

from gpudeck.views.safe import clean

Value = str | float | None

_FORMULAS = tuple("=+-@")


def write_csv(rows: Iterable[Sequence[Value]], line_end: str = "\r\n") -> str:
    """One line a row, each ending in CR and LF unless told otherwise. None is an empty field; numbers stay numbers.

    A text that a spreadsheet would take for a formula, as it does with `=` at the front, gets an apostrophe before it.
    """
    written = io.StringIO(newline="")
    csv.writer(written, lineterminator=line_end).writerows([_field(value) for value in row] for row in rows)
    return written.getvalue()


def _field(value: Value) -> str | float:
    if value is None:
        return ""
    if not isinstance(value, str):
        return value
    # Spreadsheets pass over spaces at the front, of any kind.
    text = clean(value)
    return f"'{text}" if text.lstrip().startswith(_FORMULAS) else text
