"""The picture on a real terminal. Of each new picture only the pieces that differ from the last one are sent, so that
top is usable over a slow line."""

from collections.abc import Callable, Sequence

from rich.console import Console, RenderableType
from rich.control import Control
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from gpudeck.tui.details import STEPS_IN_ASCII
from gpudeck.tui.tables import Line
from gpudeck.views.table import in_ascii, width_of

# The sixteen colours of the terminal: it knows whether its background is dark, and they are short to send.
_STYLES = {
    "": Style(),
    "green": Style(color="green"),
    "red": Style(color="red"),
    "yellow": Style(color="yellow"),
    "blue": Style(color="blue"),
    "grey": Style(color="bright_black"),
    "bold": Style(bold=True),
    "reverse": Style(reverse=True),
    "cursor": Style(reverse=True),
    "alarm": Style(color="red", bold=True, reverse=True),
    "head": Style(bold=True),
    "sorted": Style(bold=True, reverse=True),
}


class Canvas(Widget):
    """`draw` makes the lines of a width and a height. `plain` is for terminals that know ASCII alone."""

    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"
    ALLOW_SELECT = False

    def __init__(self, draw: Callable[[int, int], list[Line]], *, plain: bool = False) -> None:
        super().__init__()
        self._draw = draw
        self._plain = plain
        self._lines: list[Line] = []

    def redraw(self) -> None:
        """Draw anew, and send what changed."""
        before, self._lines = self._lines, self._draw(self.size.width, self.size.height)
        regions = list(find_changes(before, self._lines))
        if regions:
            self.refresh(*regions)

    def on_resize(self) -> None:
        self._lines = self._draw(self.size.width, self.size.height)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else []
        return Strip([Segment(self._shown(text), _STYLES[colour]) for text, colour in line])

    def _shown(self, text: str) -> str:
        return in_ascii(text.translate(STEPS_IN_ASCII)) if self._plain else text


class NarrowUpdate(ChopsUpdate):
    """Textual (8.2) sends a line from its first column on when a piece in its middle changes: this sends the piece."""

    def render_segments(self, console: Console) -> str:
        sent: list[str] = []
        for y, x1, x2 in self.spans:
            for end, (x, strip) in zip(self.chop_ends[y], self.chops[y].items(), strict=False):
                start, stop = max(x, x1), min(end, x2)
                if strip is not None and start < stop:
                    sent += [Control.move_to(start, y).segment.text, strip.crop(start - x, stop - x).render(console)]
        return "".join(sent)


def narrow(update: RenderableType | None) -> RenderableType | None:
    """The update with the least to send, where it is one of pieces."""
    return NarrowUpdate(update.chops, update.spans, update.chop_ends) if isinstance(update, ChopsUpdate) else update


def find_changes(before: Sequence[Line], after: Sequence[Line]) -> list[Region]:
    """The pieces of the new picture that are other than in the old one."""
    regions: list[Region] = []
    for y, line in enumerate(after):
        old = before[y] if y < len(before) else []
        if line != old:
            regions += _find_in_line(old, line, y)
    return regions


def _find_in_line(old: Line, new: Line, y: int) -> list[Region]:
    regions: list[Region] = []
    x = old_x = 0
    for at, cell in enumerate(new):
        width = width_of(cell[0])
        if at >= len(old) or x != old_x or cell != old[at]:
            regions.append(Region(x, y, width, 1))
        x += width
        old_x += width_of(old[at][0]) if at < len(old) else 0
    return regions
