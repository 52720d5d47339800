"""What the standard output can show."""

import os
import shutil
import sys


def terminal_width() -> int | None:
    """Of the terminal, or what $COLUMNS says; None for a pipe, which gets every column."""
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        return None
    return shutil.get_terminal_size().columns


def wants_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") not in {None, "", "dumb"}
