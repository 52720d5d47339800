"""The same text again and again, in place: for `--watch`."""

import shutil
import sys
import time
from collections.abc import Callable

import click

from gpudeck.views.table import shorten

_SLICE = 0.2
_ENTER = "\x1b[?1049h\x1b[?25l\x1b[?7l"
"""The other screen, no cursor, and long lines cut by the terminal rather than wrapped."""
_LEAVE = "\x1b[?7h\x1b[?25h\x1b[?1049l"
_BEGIN, _END = "\x1b[?2026h\x1b[H", "\x1b[J\x1b[?2026l"
"""A frame as one: terminals that know how show it at once. Nothing is erased before it is written over."""


class Screen:
    """Draws frames, one over the other in a terminal that can, one below the other with `gap` between them elsewhere.

    As a context it gives the terminal back as it was.
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
        """Until it is time for the next frame, or the terminal has another size."""
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
