"""What the standard output can show."""

import os
import shutil
import sys

from gpudeck.model.errors import GpudeckError
from gpudeck.views.table import LEAST


def check_output() -> None:
    """Raises GpudeckError where there is no standard output."""
    if sys.stdout is None:
        raise GpudeckError("the standard output is closed: there is nowhere to show anything.")


def terminal_width() -> int | None:
    """Of the terminal, or what $COLUMNS says; None for a pipe, which gets every column. Never below
    what a table needs. Raises GpudeckError where there is no output, as do all of these."""
    check_output()
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        return None
    return max(LEAST, shutil.get_terminal_size().columns)


def wants_colour(wanted: str = "auto") -> bool:
    """`wanted` is always, never or auto, which looks at the terminal and at $NO_COLOR."""
    if wanted != "auto":
        return wanted == "always"
    return moves_cursor() and not os.environ.get("NO_COLOR")


def moves_cursor() -> bool:
    """Whether it is a terminal that knows escapes."""
    check_output()
    return sys.stdout.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}


def knows_our_signs() -> bool:
    """Whether its encoding has the signs of the text views."""
    check_output()
    try:
        "●█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
