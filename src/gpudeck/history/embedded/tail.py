"""A host's hour while it is still being written.

Rows are written one after another into arrays that are there already. Of a large fleet every few of them are packed
into smaller numbers (`pieces`), because an hour of doubles takes five times the room. Whoever asks gets a picture of
the moment as an ordinary `Hour`.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, Final, TypeVar, cast

import numpy as np

from gpudeck.history.embedded.batch import MOMENT, Layout, Row
from gpudeck.history.embedded.pieces import Company, Loose, Packed, Piece, assemble, pack
from gpudeck.history.hour import Bytes, Floats, Hour

ROWS_IN_PIECE: Final = 60
MOST_WORKED_OUT: Final = 8
"""Answers about one open hour that are kept."""

T = TypeVar("T")


class _Guests:
    """The runs on a host's GPUs while none comes or goes: from the row `begin` on, `count` rows."""

    def __init__(self, runs: tuple[tuple[int, ...] | None, ...], begin: int, rows: Floats) -> None:
        self.runs = runs
        self.begin = begin
        self.count = 0
        self.rows = rows

    def picture(self, gpus: Sequence[int], upto: int) -> Company:
        count = min(self.count, upto - self.begin)
        who = [(run, gpu) for gpu, runs in zip(gpus, self.runs, strict=True) for run in runs or ()]
        return Company(who, self.begin, self.rows[:count])

    def trim(self) -> None:
        self.rows = self.rows[: self.count].copy()


class _Stretch:
    """Rows in a row, of the same GPUs. Whoever reads goes by `count`, which changes last."""

    def __init__(self, row: Row, layout: Layout, room: int) -> None:
        gpus, width = row.table.shape
        self.gpus = row.cast.gpus
        self.layout = layout
        self.room = room
        self.count = 0
        self._own: Floats = np.empty((room, len(row.own)))
        self._states: Bytes = np.empty((room, gpus), dtype=np.uint8)
        self._table: Floats = np.empty((room, gpus, width))
        self._guests: list[_Guests] = []

    def append(self, row: Row) -> None:
        place = self.count
        self._own[place] = row.own
        # Of no GPUs nobody knows how many values each would have.
        if self.gpus:
            self._states[place] = row.states
            self._table[place] = row.table
        if len(row.company):
            self._append_guests(row, place)
        self.count = place + 1

    def _append_guests(self, row: Row, place: int) -> None:
        last = self._guests[-1] if self._guests else None
        runs = row.cast.runs
        if last is None or last.begin + last.count != place or (last.runs is not runs and last.runs != runs):
            if last is not None:
                last.trim()
            last = _Guests(runs, place, np.empty((self.room - place, len(row.company))))
            self._guests.append(last)
        last.rows[last.count] = row.company
        last.count += 1

    def picture(self) -> Loose:
        count = self.count
        return Loose(
            times=self._own[:count, 0],
            intervals=self._own[:count, 1],
            gpus=self.gpus,
            states=self._states[:count].T,
            layout=self.layout,
            table=self._table[:count],
            host=self._own[:count, MOMENT:],
            company=[one.picture(self.gpus, count) for one in list(self._guests) if one.begin < count],
        )

    def trim(self) -> None:
        """Give back the room that nobody will use."""
        self.room = count = self.count
        self._own, self._table = self._own[:count].copy(), self._table[:count].copy()
        self._states = self._states[:count].copy()
        if self._guests:
            self._guests[-1].trim()


class Tail:
    """`before` is when the host was last sampled before this hour. `first_entry` is the oldest journal entry in it.

    `is_late`: the hour was sealed before; what is here comes on top of that. After every `rows_in_piece` rows they are
    packed.
    """

    def __init__(
        self,
        start: int,
        before: float | None,
        first_entry: int,
        *,
        is_late: bool = False,
        rows_in_piece: int = ROWS_IN_PIECE,
    ) -> None:
        self._rows_in_piece = rows_in_piece
        self.start = start
        self.before = before
        self.first_entry = self.last_entry = first_entry
        self.is_late = is_late
        self.touched_at = 0.0
        self.newest = 0.0
        self._layout = Layout()
        self._rows = 0
        self._stretches: list[_Stretch] = []
        self._pieces: list[Packed] = []
        self._appended = 0
        self._worked_out: dict[Hashable, tuple[int, Any]] = {}

    def append(self, row: Row, at: float, entry: int, layout: Layout | None = None) -> None:
        """`layout` is that of the row, if an earlier version wrote it."""
        if layout is not None:
            self._layout = layout
        stretch = self._stretches[-1] if self._stretches else None
        if stretch is None or stretch.count == stretch.room or not self._is_like(stretch, row):
            stretch = self._begin(row, stretch)
        stretch.append(row)
        self.newest = max(self.newest, at)
        self.last_entry = entry
        self._rows += 1
        self._appended += 1
        if self._rows >= self._rows_in_piece:
            self._pack()

    def work_out(self, what: Hashable, work: Callable[[], T]) -> T:
        """What `work` makes of the hour so far: kept until the next row, so that many questions in a row cost one.

        May be called from any thread. `what` names it.
        """
        rows, kept = self._appended, self._worked_out.get(what)
        if kept is not None and kept[0] == rows:
            return cast("T", kept[1])
        if len(self._worked_out) >= MOST_WORKED_OUT:
            self._worked_out = {}
        made = work()
        self._worked_out[what] = rows, made
        return made

    def picture(self, metrics: Collection[str] | None = None, *, runs: bool = True) -> Hour:
        """The hour so far. `metrics` are the names wanted (`host_…` for the host's own); None: all of them.

        May be called from any thread.
        """
        # The stretches first: what is packed in between is then there twice, which the order of times takes out again.
        loose = [stretch.picture() for stretch in list(self._stretches)]
        pieces: list[Piece] = [*self._pieces, *loose]
        return assemble(self.start, pieces, self.before, metrics, runs=runs)

    def _is_like(self, stretch: _Stretch, row: Row) -> bool:
        gpus = row.cast.gpus
        return (stretch.gpus is gpus or stretch.gpus == gpus) and stretch.layout == self._layout

    def _begin(self, row: Row, before: _Stretch | None) -> _Stretch:
        if before is not None and before.count < before.room:
            before.trim()
        stretch = _Stretch(row, self._layout, min(ROWS_IN_PIECE, self._rows_in_piece))
        self._stretches.append(stretch)
        return stretch

    def _pack(self) -> None:
        # Whoever looks meanwhile finds the rows either way, perhaps both ways, never neither.
        self._pieces = [*self._pieces, *(pack(stretch.picture()) for stretch in self._stretches)]
        self._stretches = []
        self._rows = 0
