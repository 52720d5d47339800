"""Totals of many steps at once, as questions over weeks read them: all of one metric is picked out of their bytes with
a few calls, where a call for each of them would take several times as long."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.codec import Damaged
from gpudeck.history.hour import Flags, Floats
from gpudeck.history.sample import STATES
from gpudeck.history.sums import HEAD, LINES, UNKNOWN, VERSION, Totals, spread

FLEET: Final = 0
"""Stands for the host where the totals are of all hosts together."""
Row = tuple[int, int, int, bytes]
"""Of a step: the host, the start, the number of the layout, the bytes."""

_Places = NDArray[np.int64]
_HEADS: Final = np.dtype([("version", "u1"), ("start", "<i8"), ("step", "<u4"), ("count", "<u2")])
_STATES: Final = np.dtype(("<f8", len(STATES)))
_SECONDS: Final = np.dtype("<f8")


class Stack(Struct):
    """Steps in any order. `tables` is (steps, names, columns of Totals), `states` is (steps, states)."""

    seconds_per_step: int
    names: tuple[str, ...]
    hosts: _Places
    starts: _Places
    tables: Floats
    states: Floats

    def lines(self, name: str) -> Floats:
        """(steps, columns) of one metric."""
        if name not in self.names:
            return np.tile(np.array(UNKNOWN), (len(self.starts), 1))
        lines: Floats = self.tables[:, self.names.index(name)]
        return lines

    def only(self, which: Flags) -> "Stack":
        hosts, starts = self.hosts[which], self.starts[which]
        return Stack(self.seconds_per_step, self.names, hosts, starts, self.tables[which], self.states[which])


def stack(found: Mapping[tuple[int, int], Totals], names: Collection[str], seconds_per_step: int) -> Stack:
    """Totals by host and start, which have none but these names."""
    count, wanted = len(found), tuple(names)
    return Stack(
        seconds_per_step,
        wanted,
        np.array([host for host, _ in found], dtype=np.int64),
        np.array([start for _, start in found], dtype=np.int64),
        np.array([spread(totals, wanted) for totals in found.values()]).reshape(count, len(wanted), len(UNKNOWN)),
        np.array([totals.states for totals in found.values()]).reshape(count, len(STATES)),
    )


def join(stacks: Sequence[Stack]) -> Stack:
    """Those of the same names and steps, at least one, as one."""
    first, *others = stacks
    if not others:
        return first
    return Stack(
        first.seconds_per_step,
        first.names,
        np.concatenate([one.hosts for one in stacks]),
        np.concatenate([one.starts for one in stacks]),
        np.concatenate([one.tables for one in stacks]),
        np.concatenate([one.states for one in stacks]),
    )


def decode_stack(
    rows: Sequence[Row], layouts: Mapping[int, tuple[str, ...]], names: Collection[str], seconds_per_step: int
) -> Stack:
    """As `sums.decode_totals` of each row. Raises Damaged."""
    hosts, starts, numbers = (np.array([row[column] for row in rows], dtype=np.int64) for column in range(3))
    tables = np.tile(np.array(UNKNOWN), (len(rows), len(names), 1))
    states = np.zeros((len(rows), len(STATES)))
    for number in set(numbers.tolist()):
        at, layout = np.flatnonzero(numbers == number), layouts[number]
        bodies = _Bodies([rows[place][3] for place in at.tolist()], len(layout))
        states[at] = bodies.states()
        for place, name in enumerate(names):
            if name in layout:
                tables[at, place] = bodies.lines(layout.index(name))
    return Stack(seconds_per_step, tuple(names), hosts, starts, tables, states)


class _Bodies:
    """The bytes of many totals of the same layout, one after another, with the places of what is in them."""

    def __init__(self, bodies: Sequence[bytes], names: int) -> None:
        sizes = np.array([len(body) for body in bodies], dtype=np.int64)
        if sizes.min() < HEAD.size:
            raise Damaged(f"totals of {sizes.min()} bytes")
        self._bytes = np.frombuffer(b"".join(bodies), dtype=np.uint8)
        self._begins = np.cumsum(sizes) - sizes
        head = self._read(self._begins, _HEADS)
        if (head["version"] != VERSION).any():
            raise Damaged(f"version {head['version'].max()} of totals; this release reads version {VERSION}")
        self._count = head["count"].astype(np.int64)
        self._seconds = self._begins + HEAD.size + _STATES.itemsize
        at, width = self._seconds + _SECONDS.itemsize * self._count, (names + 7) // 8
        self._first = at + width
        ends = self._begins + sizes
        if (self._first > ends).any():
            raise Damaged(f"totals of {sizes.min()} bytes are too short for a layout of {names} names")
        self._known = np.unpackbits(self._bytes[at[:, None] + np.arange(width)], axis=1, bitorder="little")
        if (self._first + LINES.itemsize * self._known.sum(axis=1, dtype=np.int64) != ends).any():
            raise Damaged(f"totals do not fit a layout of {names} names")

    def states(self) -> Floats:
        return self._read(self._begins + HEAD.size, _STATES)

    def lines(self, place: int) -> Floats:
        """(bodies, columns) of the name at that place of the layout."""
        lines = np.tile(np.array(UNKNOWN), (len(self._begins), 1))
        is_known = self._known[:, place] == 1
        before = self._known[is_known, :place].sum(axis=1, dtype=np.int64)
        found = self._read(self._first[is_known] + LINES.itemsize * before, LINES)
        which = found["which"].astype(np.int64)
        if (which >= self._count[is_known]).any():
            raise Damaged(f"seconds number {which.max()} of {self._count.max()}")
        seconds = self._read(self._seconds[is_known] + _SECONDS.itemsize * which, _SECONDS)
        lines[is_known] = np.column_stack([found["sum"], seconds, found["low"], found["high"], found["total"]])
        return lines

    def _read(self, places: _Places, kind: np.dtype[Any]) -> NDArray[Any]:
        """What is at each of these places."""
        table = self._bytes[places[:, None] + np.arange(kind.itemsize)]
        return np.asarray(table.view(kind.base).reshape(len(places), *kind.shape))
