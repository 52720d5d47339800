"""Reading a fleet again and again for `--watch`: a hub that goes away is waited for, and its last word is not believed
for longer than it was there."""

import signal
import sys
import time
from collections.abc import Callable

from gpudeck.cli.redraw import Screen
from gpudeck.model.errors import GpudeckError, UsageError
from gpudeck.views.filter import join
from gpudeck.views.lost import forget_states
from gpudeck.views.reading import Reading


class Watching:
    """`read` gives what is shown of the fleet and blocks, `present` makes it text."""

    def __init__(
        self, read: Callable[[], Reading], present: Callable[[Reading], str], seconds: float, words: tuple[str, ...]
    ) -> None:
        self._read = read
        self._present = present
        self._seconds = seconds
        self._words = words
        # What fails here fails as without `--watch`: an address may be wrong.
        self._reading, self._read_at = read(), time.time()
        self._lost: GpudeckError | None = None

    def run(self, screen: Screen, *, has_title: bool) -> None:
        """Until Ctrl-C, which raises KeyboardInterrupt here. SIGTERM leaves the terminal as it was, too."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        while True:
            if has_title or self._lost is None:
                screen.draw(f"{self._title()}\n{self._text()}" if has_title else self._text())
            screen.wait(self._seconds)
            self._read_again(is_told=not has_title)

    def _read_again(self, *, is_told: bool) -> None:
        try:
            self._reading, self._read_at, self._lost = self._read(), time.time(), None
        except UsageError:
            raise
        except GpudeckError as error:
            if is_told and self._lost is None:
                print(f"gpudeck: {error}", file=sys.stderr)
            self._lost = error

    def _text(self) -> str:
        if self._lost is None:
            return self._present(self._reading)
        fleet = forget_states(self._reading.fleet, "the hub is out of reach")
        fleet.time += time.time() - self._read_at
        return self._present(Reading(fleet, self._reading.document))

    def _title(self) -> str:
        clock = time.strftime("%H:%M:%S")
        if self._lost is not None:
            since = time.strftime("%H:%M:%S", time.localtime(self._read_at))
            return f"OUT OF REACH since {since}, asked again at {clock}: {self._lost.message}"
        return f"gpudeck show {join(self._words)}".rstrip() + f"   every {self._seconds:g} s   {clock}"
