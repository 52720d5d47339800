"""Asks the store over its HTTP API. Blocks; whatever goes wrong comes as Temporary, with the store's own words."""

from collections.abc import Iterator, Sequence
from typing import Final, TypeVar
from urllib.parse import urlencode

import msgspec
import numpy as np
from msgspec import Struct

from gpudeck.history.hour import Floats
from gpudeck.history.remote.door import Door, describe
from gpudeck.history.remote.promql import LATER, Stats, at_once
from gpudeck.history.steps import Grid
from gpudeck.model.errors import Temporary

SECONDS: Final = 30.0
"""How long the store may take for an answer."""
MOST_BYTES: Final = 32 * 1024 * 1024
_PIECE_BYTES: Final = 512 * 1024
"""So much of an answer is decoded at once: meanwhile no other thread runs Python, nor does the event loop."""
_END: Final = 0.001
MOST_STEPS: Final = 11_000
"""What Prometheus answers at once."""
_MOST_ROW_BYTES: Final = 64 * MOST_STEPS
_HEADERS: Final = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_CHECK: Final = "Look at the store, and at history.read_url."


_T = TypeVar("_T")


class _Row(Struct):
    metric: dict[str, str]
    values: msgspec.Raw
    """Decoded row by row, for the same reason."""


class _Rows(Struct):
    result: list[_Row]


class _Range(Struct):
    data: _Rows


class _Labels(Struct):
    data: list[dict[str, str]]


class Found(Struct):
    """What was found under some labels: arrays along the steps, NaN where nothing was observed."""

    labels: dict[str, str]
    mean: Floats
    low: Floats
    high: Floats


class Reader:
    """Questions to one store. Several threads may ask at once."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def stats(self, stats: Stats, grid: Grid) -> list[Found]:
        """Mean, low and high of each series, by step."""
        found: dict[frozenset[tuple[str, str]], Found] = {}
        for labels, values in self.values(at_once(stats), grid):
            stat = labels.pop("stat", "mean")
            key = frozenset(labels.items())
            into = found.get(key)
            if into is None:
                into = found[key] = Found(labels, *(np.full(grid.count, np.nan) for _ in range(3)))
            setattr(into, stat, values)
        return list(found.values())

    def values(self, query: str, grid: Grid) -> list[tuple[dict[str, str], Floats]]:
        """One value a step and series, NaN where there is none."""
        found: dict[frozenset[tuple[str, str]], tuple[dict[str, str], Floats]] = {}
        for begin in range(0, grid.count, MOST_STEPS):
            piece = Grid(grid.start + begin * grid.step, grid.step, min(MOST_STEPS, grid.count - begin))
            for labels, values in self._values(query, piece):
                key = frozenset(labels.items())
                _, into = found.setdefault(key, (labels, np.full(grid.count, np.nan)))
                into[begin : begin + piece.count] = values
        return list(found.values())

    def _values(self, query: str, grid: Grid) -> Iterator[tuple[dict[str, str], Floats]]:
        """What the store answers at once.

        A window ends at the moment that is asked for, and its end is part of it. A step ends before the next begins, so
        its last millisecond is asked for. VictoriaMetrics would move these moments to round ones, but for `nocache`.
        """
        asked = {
            "query": query,
            "start": f"{grid.start + grid.step - _END - LATER:.3f}",
            "end": f"{grid.end - _END - LATER:.3f}",
            "step": str(grid.step),
            "timeout": f"{SECONDS:g}s",
            "nocache": "1",
        }
        body = self._ask("/api/v1/query_range", [*asked.items()])
        pieces = _cut(body, b'"result":[', b']},{"', b"]}}")
        try:
            for piece in pieces:
                for row in self._decode(piece, _Range).data.result:
                    yield row.metric, _read_values(row.values, grid)
        except ValueError as error:
            raise self._strange() from error

    def labels(self, selectors: Sequence[str], start: float, end: float) -> list[dict[str, str]]:
        """The labels of all series that had samples at some time in between."""
        asked = [*(("match[]", selector) for selector in selectors), ("start", f"{start:.3f}"), ("end", f"{end:.3f}")]
        pieces = _cut(self._ask("/api/v1/series", asked), b'"data":[', b'"},{"', b"]}")
        return [labels for piece in pieces for labels in self._decode(piece, _Labels).data]

    def _ask(self, path: str, form: list[tuple[str, str]]) -> bytes:
        body = urlencode(form, errors="replace").encode()
        reply = self._door.post(path, body, _HEADERS, bytes_at_most=MOST_BYTES)
        if reply.status in {401, 403}:
            self._door.read_secrets_again()
            reply = self._door.post(path, body, _HEADERS, bytes_at_most=MOST_BYTES)
        if reply.status != 200:
            raise Temporary(f"{self._door.shown} answers {describe(reply)}.", _CHECK)
        return reply.body

    def _decode(self, body: bytes, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeError) as error:
            raise self._strange() from error

    def _strange(self) -> Temporary:
        return Temporary(f"{self._door.shown} does not answer as a Prometheus would.", _CHECK)


_decode_values = msgspec.json.Decoder(list[tuple[float, str]]).decode


def _cut(body: bytes, begin: bytes, between: bytes, end: bytes) -> Iterator[bytes]:
    """The answer as several of the same form, each with a part of the list that begins with `begin`.

    `between` stands between two objects of the list, and in no text: a quote in a text has a backslash before it. One
    that is written otherwise, as with spaces, is not cut.
    """
    at = body.find(begin) + len(begin)
    head = body[:at]
    while head.endswith(begin) and (found := body.find(between, at + _PIECE_BYTES)) >= 0:
        comma = body.index(b",", found)
        yield b"".join((head, body[at:comma], end))
        at = comma + 1
    yield b"".join((head, body[at:]))


def _read_values(values: msgspec.Raw, grid: Grid) -> Floats:
    """Raises ValueError."""
    if len(memoryview(values)) > _MOST_ROW_BYTES:
        raise ValueError("more steps than were asked for")
    placed = np.full(grid.count, np.nan)
    for at, text in _decode_values(values):
        number = round((at + _END + LATER - grid.start) / grid.step) - 1
        if 0 <= number < grid.count:
            placed[number] = float(text)
    return placed
