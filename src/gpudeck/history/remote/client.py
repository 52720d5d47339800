"""HTTP to the store, with credentials and certificates, and queries through its API. Blocks; failures are Temporary."""

import logging
import math
import re
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

import msgspec
import numpy as np
from msgspec import Struct

from gpudeck.agent.push import read_token
from gpudeck.fetch import BlockingFetcher, HttpResponse, content_kind, trust_from
from gpudeck.history.codec import Floats
from gpudeck.history.remote.promql import LATER, Stats, at_once, over
from gpudeck.history.settings import HistorySettings
from gpudeck.history.time_range import Grid
from gpudeck.model.address import show_url
from gpudeck.model.errors import Temporary, UsageError

log = logging.getLogger(__name__)

_SHOWN = 200
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_PIECE = 64 * 1024
SECONDS: Final = 30.0
"""How long the store may take for an answer."""
MAX_BYTES: Final = 32 * 1024 * 1024
PIECE_BYTES: Final = 512 * 1024
"""So much of an answer is decoded at once: meanwhile no other thread runs Python, nor does the event loop."""
_END: Final = 0.001
MAX_STEPS: Final = 11_000
"""What Prometheus answers at once."""
MAX_ROW_BYTES: Final = 64 * MAX_STEPS
_HEADERS: Final = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
_CHECK: Final = "Look at the store, and at history.read_url."


class PromClient:
    """A client of one address of the store. Thread-safe. Raises UsageError. Secrets are read again after a refusal."""

    def __init__(self, url: str, settings: HistorySettings, *, seconds: float, connections: int = 1) -> None:
        self.shown = show_url(url)
        self._url = url.strip().rstrip("/")
        self._settings = settings
        self._headers = self._make_headers()
        trust = trust_from(settings.ca_file) if settings.ca_file else None
        self._fetcher = BlockingFetcher(seconds=seconds, connections=connections, trust=trust)

    def post(self, path: str, body: bytes, headers: Mapping[str, str], *, bytes_at_most: int = _PIECE) -> HttpResponse:
        return self._fetcher.post(self._url + path, body, {**self._headers, **headers}, bytes_at_most=bytes_at_most)

    def read_secrets_again(self) -> None:
        """Call it after a refusal. Raises Temporary if a file cannot be read; then the old secrets stay."""
        try:
            self._headers = self._make_headers()
        except UsageError as error:
            raise Temporary(error.message, error.hint) from error

    def close(self) -> None:
        self._fetcher.close()

    def _make_headers(self) -> dict[str, str]:
        """The operator's own headers override the others."""
        settings = self._settings
        headers: dict[str, str] = {}
        if settings.token_file is not None:
            headers["Authorization"] = f"Bearer {_secret(settings.token_file)}"
        if settings.user is not None:
            password = _secret(settings.password_file) if settings.password_file is not None else ""
            headers["Authorization"] = f"Basic {b64encode(f'{settings.user}:{password}'.encode()).decode()}"
        for name, value in settings.headers.items():
            if not _HEADER.fullmatch(name) or not value.isascii() or not value.isprintable():
                raise UsageError(f"history.headers: {name[:40]!r} is no header that can be sent.", "Correct it.")
        return headers | settings.headers


def describe(reply: HttpResponse) -> str:
    """The status and the content type. The store's own message goes to the log only."""
    log.debug("the store answers %d: %s", reply.status, quote(reply.body))
    kind = content_kind(reply.headers.get("content-type", ""))
    return f"{reply.status} ({kind})" if kind else str(reply.status)


def quote(body: bytes) -> str:
    """The beginning of the store's message, as one line."""
    line = " ".join(body[:4000].decode("utf-8", "replace").split())
    return "".join(letter for letter in line if letter.isprintable())[:_SHOWN].rstrip(" .")


def _secret(file: str) -> str:
    return read_token(Path(file).expanduser(), "Write it into the file, and check who may read it.")


class _Row(Struct):
    metric: dict[str, str]
    values: msgspec.Raw
    """Decoded row by row, for the same reason."""


class _ResultRows(Struct):
    result: list[_Row]


class PromAnswer(Struct):
    data: _ResultRows


class SeriesStats(Struct):
    """The answer for one set of labels: arrays along the steps, NaN where nothing was observed."""

    labels: dict[str, str]
    mean: Floats
    low: Floats
    high: Floats


class PromReader:
    """Queries one store. Thread-safe."""

    def __init__(self, client: PromClient) -> None:
        self._client = client

    def stats(self, stats: Stats, grid: Grid) -> list[SeriesStats]:
        found: dict[frozenset[tuple[str, str]], SeriesStats] = {}
        for labels, values in self.values(at_once(stats), grid):
            stat = labels.pop("stat", "mean")
            key = frozenset(labels.items())
            into = found.get(key)
            if into is None:
                into = found[key] = SeriesStats(labels, *(np.full(grid.count, np.nan) for _ in range(3)))
            setattr(into, stat, values)
        return list(found.values())

    def values(self, query: str, grid: Grid) -> list[tuple[dict[str, str], Floats]]:
        found: dict[frozenset[tuple[str, str]], tuple[dict[str, str], Floats]] = {}
        for begin in range(0, grid.count, MAX_STEPS):
            piece = Grid(grid.start + begin * grid.step, grid.step, min(MAX_STEPS, grid.count - begin))
            for labels, values in self._values(query, piece):
                key = frozenset(labels.items())
                _, into = found.setdefault(key, (labels, np.full(grid.count, np.nan)))
                into[begin : begin + piece.count] = values
        return list(found.values())

    def _values(self, query: str, grid: Grid) -> Iterator[tuple[dict[str, str], Floats]]:
        """A window includes the moment at which it ends, so the query names the last millisecond of each step. Without
        `nocache`, VictoriaMetrics would round these moments."""
        asked = {
            "query": query,
            "start": f"{grid.start + grid.step - _END - LATER:.3f}",
            "end": f"{grid.end - _END - LATER:.3f}",
            "step": str(grid.step),
            "timeout": f"{SECONDS:g}s",
            "nocache": "1",
        }
        body = self._ask("/api/v1/query_range", asked)
        with self._checked():
            for piece in _cut(body, b'"result":[', b']},{"', b"]}}"):
                for row in self.decode(piece):
                    yield row.metric, _read_values(row.values, grid)

    def samples(
        self, selector: str, start: float, end: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """The samples themselves, from `start` until before `end`, of each series, with its name among the labels."""
        asked = {"query": over(selector, math.ceil(end - start)), "time": f"{end - _END - LATER:.3f}", "nocache": "1"}
        body = self._ask("/api/v1/query", asked)
        with self._checked():
            return [
                (row.metric, [(at, float(text)) for at, text in _decode_values(row.values) if start <= at < end])
                for row in self.decode(body)
            ]

    def _ask(self, path: str, form: Mapping[str, str]) -> bytes:
        body = urlencode(form, errors="replace").encode()
        reply = self._client.post(path, body, _HEADERS, bytes_at_most=MAX_BYTES)
        if reply.status in {401, 403}:
            self._client.read_secrets_again()
            reply = self._client.post(path, body, _HEADERS, bytes_at_most=MAX_BYTES)
        if reply.status != 200:
            raise Temporary(f"{self._client.shown} answers {describe(reply)}.", _CHECK)
        return reply.body

    def decode(self, body: bytes) -> list[_Row]:
        return msgspec.json.decode(body, type=PromAnswer).data.result

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except (msgspec.DecodeError, ValueError) as error:
            raise Temporary(f"{self._client.shown} does not answer as a Prometheus would.", _CHECK) from error


_decode_values = msgspec.json.Decoder(list[tuple[float, str]]).decode


def _cut(body: bytes, begin: bytes, between: bytes, end: bytes) -> Iterator[bytes]:
    """The answer as several of the same form, each with a part of the list that begins with `begin`. `between` stands
    between two objects of the list, and in no text: a quote in a text has a backslash before it."""
    at = body.find(begin) + len(begin)
    head = body[:at]
    while head.endswith(begin) and (found := body.find(between, at + PIECE_BYTES)) >= 0:
        comma = body.index(b",", found)
        yield b"".join((head, body[at:comma], end))
        at = comma + 1
    yield b"".join((head, body[at:]))


def _read_values(values: msgspec.Raw, grid: Grid) -> Floats:
    if len(memoryview(values)) > MAX_ROW_BYTES:
        raise ValueError("more steps than were asked for")
    placed = np.full(grid.count, np.nan)
    for at, text in _decode_values(values):
        number = round((at + _END + LATER - grid.start) / grid.step) - 1
        if 0 <= number < grid.count:
            placed[number] = float(text)
    return placed
