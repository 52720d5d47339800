"""What somebody who waits sees on the standard error: a line that changes on a terminal, a line a change elsewhere."""

import os
import shutil
import sys
import time

from gpudeck.model.quantity import show_length, show_span
from gpudeck.queueing.place import Place
from gpudeck.views.safe import clean
from gpudeck.views.table import shorten


class Progress:
    """`tell` says a sentence that stays, `show` where somebody stands. `clear` before anything else is written."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._is_live = (
            sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in {None, "", "dumb"}
        )
        self._said = ""
        self._is_drawn = False

    def tell(self, sentence: str) -> None:
        self.clear()
        self._write(f"gpudeck: {clean(sentence)}\n")

    def show(self, place: Place) -> None:
        text = _describe(place)
        if self._is_live:
            waited = show_span(time.time() - self._since)
            line = shorten(f"gpudeck: waiting for {waited}, {text}", max(20, shutil.get_terminal_size().columns - 1))
            self._write(f"\r\x1b[K{line}")
            self._is_drawn = True
        elif text != self._said:
            self._write(f"gpudeck: {text}\n")
        self._said = text

    def clear(self) -> None:
        if self._is_drawn:
            self._write("\r\x1b[K")
            self._is_drawn = False

    def _write(self, text: str) -> None:
        if sys.stderr is not None:
            sys.stderr.write(text)
            sys.stderr.flush()


def _describe(place: Place) -> str:
    position = "in line" if place.position is None else f"place {place.position} of {place.waiting} in line"
    told = [f"{position} for {clean(place.wanted.describe())}"]
    if place.reason is not None:
        told.append(clean(place.reason))
    elif place.estimate_seconds is not None:
        told.append(f"about {show_length(place.estimate_seconds)} by how long programs stayed lately")
    if place.kept:
        told.append(f"{place.kept} of {place.wanted.gpus} kept so far")
    return ", ".join(told)
