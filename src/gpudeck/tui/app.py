"""Top as a Textual application: passes keys, sizes and updates to `Top`, and draws its screen. Threads do blocking
work. Only changed lines are sent, so top works over a slow connection."""

import asyncio
import signal
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.events import Key, Paste
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from gpudeck.model.view import Fleet
from gpudeck.tui.details import STEPS_IN_ASCII
from gpudeck.tui.feed import Feed, Update
from gpudeck.tui.renderer import ScreenRenderer
from gpudeck.tui.table_views import Line
from gpudeck.tui.top import Top
from gpudeck.views.table import in_ascii, width_of

# The terminal's sixteen colours: it knows whether its background is dark, and they are short to send.
_STYLES = {
    "": Style(),
    "green": Style(color="green"),
    "red": Style(color="red"),
    "yellow": Style(color="yellow"),
    "blue": Style(color="blue"),
    "magenta": Style(color="magenta"),
    "cyan": Style(color="cyan"),
    "grey": Style(color="bright_black"),
    "bold": Style(bold=True),
    "reverse": Style(reverse=True),
    "cursor": Style(reverse=True),
    "alarm": Style(color="red", bold=True, reverse=True),
    "head": Style(bold=True),
    "sorted": Style(bold=True, reverse=True),
}


class Canvas(Widget):
    """`draw` makes the lines for a width and a height. `plain` is for ASCII terminals."""

    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"
    ALLOW_SELECT = False

    def __init__(self, draw: Callable[[int, int], list[Line]], *, plain: bool = False) -> None:
        super().__init__()
        self._draw = draw
        self._plain = plain
        self._lines: list[Line] = []

    def redraw(self) -> None:
        """Draw again and send the changes."""
        before, self._lines = self._lines, self._draw(self.size.width, self.size.height)
        if regions := find_changes(before, self._lines):
            self.refresh(*regions)

    def on_resize(self) -> None:
        self._lines = self._draw(self.size.width, self.size.height)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        line = self._lines[y] if y < len(self._lines) else []
        if self._plain:
            line = [(in_ascii(text.translate(STEPS_IN_ASCII)), colour) for text, colour in line]
        return Strip([Segment(text, _STYLES[colour]) for text, colour in line])


def find_changes(before: Sequence[Line], after: Sequence[Line]) -> list[Region]:
    """The changed lines, each up to its last changed cell: Textual sends a line from its first column on, and again for
    every further region in it."""
    empty: Line = []
    pairs = zip_longest(before[: len(after)], after, fillvalue=empty)
    return [Region(0, y, _changed_width(old, new), 1) for y, (old, new) in enumerate(pairs) if old != new]


def _changed_width(old: Line, new: Line) -> int:
    same = 0
    if sum(width_of(text) for text, _ in old) == (width := sum(width_of(text) for text, _ in new)):
        for before, after in zip(reversed(old), reversed(new), strict=False):
            if before != after:
                break
            same += width_of(after[0])
    return width - same


class FeedUpdate(Message):
    def __init__(self, update: Update) -> None:
        super().__init__()
        self.update = update


class TopApp(App[None]):
    """`first` is drawn at once; the feed is then started, and stopped at the end."""

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = []
    CSS = "Screen { layout: vertical; overflow: hidden; }"

    def __init__(self, feed: Feed, first: Fleet, *, words: str = "", own_id: str = "", plain: bool = False) -> None:
        # The terminal's own colours: see Canvas.
        super().__init__(ansi_color=True)
        self.animation_level = "none"
        self.top = Top(feed.place, self.exit, words=words, own_id=own_id, is_local=feed.is_local)
        self.top.take(first)
        self.top.arrange()
        self._feed = feed
        self._artist = ScreenRenderer(self.top)
        self._canvas = Canvas(self._artist.draw, plain=plain)

    def compose(self) -> ComposeResult:
        yield self._canvas

    def on_mount(self) -> None:
        # Without it SIGTERM would leave the terminal as it is.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.exit)
        self._feed.start(lambda update: self.post_message(FeedUpdate(update)))  # in the feed's thread
        # While a hub is away no updates arrive, but the clock and notices must go on.
        self.set_interval(1.0, self._tick)

    def on_unmount(self) -> None:
        self._feed.stop()

    def on_feed_update(self, message: FeedUpdate) -> None:
        self.top.take(message.update)
        self._show()

    def on_key(self, event: Key) -> None:
        event.stop()
        event.prevent_default()
        if event.key == "ctrl+z":
            self.action_suspend_process()
            return
        self.top.press(event.key, event.character)
        self._show()

    def on_paste(self, event: Paste) -> None:
        self.top.paste(event.text)
        self._show()

    def _tick(self) -> None:
        if self.top.lost is not None:
            self._show()

    def _show(self) -> None:
        self.top.arrange()
        self._canvas.redraw()
