"""Terminal output of commands: width and colours, redrawing for `--watch`, and writing a page to a file."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from gpudeck.model.errors import GpudeckError
from gpudeck.model.text import show_span
from gpudeck.views.table import LEAST, CellColumn, in_ascii, shorten, tabulate

T = TypeVar("T")
_SLICE = 0.2
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""Alternate screen, hidden cursor, and no line wrapping."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
"""A synchronized update: terminals that support it show the frame at once. Old text is overwritten, not erased
first."""


def check_output() -> None:
    """Raises GpudeckError if standard output is closed."""
    if sys.stdout is None:
        raise GpudeckError("the standard output is closed: there is nowhere to show anything.")


def terminal_width() -> int | None:
    """The width of the terminal, or $COLUMNS; None for a pipe, which gets all columns. At least LEAST. All functions
    here raise GpudeckError if standard output is closed."""
    check_output()
    if not sys.stdout.isatty() and not os.environ.get("COLUMNS", "").isdigit():
        return None
    return max(LEAST, shutil.get_terminal_size().columns)


def wants_colour(wanted: str = "auto") -> bool:
    """`wanted` is always, never or auto: auto depends on the terminal and $NO_COLOR."""
    if wanted != "auto":
        return wanted == "always"
    return moves_cursor() and not os.environ.get("NO_COLOR")


def moves_cursor() -> bool:
    """Whether standard output is a terminal that understands escape sequences."""
    check_output()
    return sys.stdout.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}


def supports_symbols() -> bool:
    """Whether the output's encoding has the symbols of the text views."""
    check_output()
    try:
        "●█".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def show(text: str) -> None:
    """Print a text view. Colours are decided already: click would remove them from anything but a terminal."""
    click.echo(text if supports_symbols() else in_ascii(text), nl=False, color=True)


def show_answer(body: bytes, as_json: bool, render: Callable[..., str], *about: Any) -> None:
    """Print the hub's answer as it was sent, or a text view of `about`."""
    if as_json:
        click.echo(body)
    else:
        show(render(*about, width=terminal_width(), colour=wants_colour()))


def show_table(columns: Sequence[CellColumn[T]], items: Sequence[T]) -> None:
    click.echo("\n".join(tabulate(columns, items, terminal_width(), wants_colour())), color=True)


def show_ago(at: float | None, now: float) -> str:
    return "never" if at is None else f"{show_span(now - at)} ago"


class Screen:
    """Draws frames: in place if possible, otherwise one below the other with `gap` between them.

    As a context manager, it restores the terminal at the end.
    """

    def __init__(self, *, in_place: bool, gap: str = "\n") -> None:
        self._in_place = in_place
        self._gap = gap
        self._size = shutil.get_terminal_size()
        self._is_first = True

    def __enter__(self) -> "Screen":
        self._write(_ENTER if self._in_place else "")
        return self

    def __exit__(self, *_: object) -> None:
        self._write(_LEAVE if self._in_place else "")

    def draw(self, text: str) -> None:
        self._size = shutil.get_terminal_size()
        if not self._in_place:
            self._write(text if self._is_first else f"{self._gap}{text}")
        else:
            lines = _cut(text.splitlines(), self._size.lines, self._size.columns)
            self._write(f"{_BEGIN}{chr(10).join(f'{line}{chr(27)}[K' for line in lines)}{_END}")
        self._is_first = False

    def wait(self, seconds: float, now: Callable[[], float] = time.monotonic) -> None:
        """Wait until the next frame is due, or the terminal is resized."""
        deadline = now() + seconds
        while (left := deadline - now()) > 0:
            time.sleep(min(_SLICE, left))
            if self._in_place and shutil.get_terminal_size() != self._size:
                return

    def _write(self, text: str) -> None:
        click.echo(text, nl=False, color=True)
        sys.stdout.flush()


def _cut(lines: list[str], height: int, width: int) -> list[str]:
    if len(lines) <= height:
        return lines
    kept = lines[: max(1, height - 1)]
    return [*kept, shorten(f"… {len(lines) - len(kept)} more lines: choose with words", width)]


def write_page(file: str, page: str) -> None:
    """Write atomically: readers see the old page or the new one. Raises GpudeckError."""
    # A link is kept, and its target replaced.
    target = Path(os.path.realpath(file))
    try:
        if target.exists() and not target.is_file():
            target.write_text(page, encoding="utf-8")
        else:
            _replace(target, page)
    except OSError as error:
        reason = error.strerror or str(error)
        raise GpudeckError(
            f"{file} could not be written: {reason}.", "Give another file, or - for the output."
        ) from error


def _replace(target: Path, page: str) -> None:
    fresh = target.with_name(f".{target.name[:200]}.{os.getpid()}.new")
    try:
        fresh.write_text(page, encoding="utf-8")
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)
