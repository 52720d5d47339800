"""The desk: the newest report, ready for everybody who asks, in the form that they ask for.

A host is read at its interval, not when somebody asks: many hubs may ask one agent, and it costs no more than one.
"""

import gzip
from collections.abc import Mapping
from functools import cached_property

import msgspec
from msgspec import Struct

from gpudeck import __version__
from gpudeck.agent.exposition import write_metrics
from gpudeck.agent.parcel import Moment, Parcel
from gpudeck.model import clock
from gpudeck.model.exposition import CONTENT_TYPE, OPENMETRICS_TYPE, to_openmetrics, wants_openmetrics
from gpudeck.wire import Envelope, decode


class DeskAnswer(Struct, frozen=True):
    """What is answered over HTTP, whole."""

    status: int
    body: bytes
    headers: Mapping[str, str]


def answer_error(status: int, code: str, message: str, hint: str = "", **headers: str) -> DeskAnswer:
    """The one shape of every error, as the hub's API has it. Names of headers are written with underscores."""
    body = msgspec.json.encode({"error": {"code": code, "message": message, "hint": hint}})
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return DeskAnswer(status, body, {"Content-Type": "application/json", **given})


class Desk:
    """The beat puts the newest report here; any number of threads ask for it."""

    def __init__(self, now: clock.Clock = clock.wall, boottime: clock.Clock = clock.boottime) -> None:
        self._now = now
        self._boottime = boottime
        self._newest: _Forms | None = None

    def put(self, parcel: Parcel) -> None:
        self._newest = _Forms(parcel.body, parcel.made)

    @property
    def newest(self) -> Envelope | None:
        """The newest report; None before there is one."""
        return None if self._newest is None else self._newest.envelope

    def health(self) -> DeskAnswer:
        """Good as long as the process answers."""
        return DeskAnswer(200, msgspec.json.encode({"status": "ok", "version": __version__}), _JSON)

    def report(self, accept: str = "", accept_encoding: str | None = None) -> DeskAnswer:
        """The newest report: msgpack in zstd, or as JSON, plain or in gzip, where the caller asks for that."""
        newest = self._newest
        if newest is None:
            return _NOT_READ_YET
        is_json = _prefers_json(accept)
        encoding = _choose_encoding(accept_encoding, "identity" if is_json else "zstd")
        headers = {
            "Content-Type": "application/json" if is_json else "application/msgpack",
            "Gpudeck-Sent-At": repr(newest.made.sent_at(self._now(), self._boottime())),
            "Vary": "Accept, Accept-Encoding",
        }
        if encoding != "identity":
            headers["Content-Encoding"] = encoding
        return DeskAnswer(200, newest.encoded(is_json=is_json, encoding=encoding), headers)

    def metrics(self, accept: str = "") -> DeskAnswer:
        """The newest report for Prometheus, in OpenMetrics where the caller asks for that."""
        newest = self._newest
        if newest is None:
            return _NOT_READ_YET
        page = write_metrics(newest.envelope, newest.made.sent_at(self._now(), self._boottime())).encode()
        if wants_openmetrics(accept):
            return DeskAnswer(200, to_openmetrics(page), {"Content-Type": OPENMETRICS_TYPE, "Vary": "Accept"})
        return DeskAnswer(200, page, {"Content-Type": CONTENT_TYPE, "Vary": "Accept"})


_JSON = {"Content-Type": "application/json"}
_NOT_READ_YET = answer_error(
    503, "unavailable", "this host has not been read yet", "Ask again in a second.", Retry_After="1"
)


class _Forms:
    """One report in all its forms, each made when it is first asked for. Two threads may make the same one twice."""

    def __init__(self, packed: bytes, made: Moment) -> None:
        self.made = made
        self._made: dict[tuple[bool, str], bytes] = {(False, "zstd"): packed}

    @cached_property
    def envelope(self) -> Envelope:
        return decode(self._made[False, "zstd"], "application/msgpack", "zstd")

    def encoded(self, *, is_json: bool, encoding: str) -> bytes:
        form = is_json, encoding
        if form not in self._made:
            self._made[form] = _pack(_encode(self.envelope, is_json=is_json), encoding)
        return self._made[form]


def _encode(envelope: Envelope, *, is_json: bool) -> bytes:
    return msgspec.json.encode(envelope) if is_json else msgspec.msgpack.encode(envelope)


def _pack(plain: bytes, encoding: str) -> bytes:
    if encoding == "gzip":
        return gzip.compress(plain, compresslevel=5, mtime=0)
    if encoding == "zstd":
        import zstandard  # noqa: PLC0415 - the usual form comes packed

        return zstandard.ZstdCompressor(level=3).compress(plain)
    return plain


def _prefers_json(accept: str) -> bool:
    """Whether JSON is asked for before msgpack; browsers, which ask for text, get what they can show."""
    wanted = _preferences(accept)
    asked = max(wanted.get("application/json", 0.0), wanted.get("text/html", 0.0))
    return asked > max(wanted.get("application/msgpack", 0.0), wanted.get("application/x-msgpack", 0.0))


def _choose_encoding(accept_encoding: str | None, unasked: str) -> str:
    if accept_encoding is None:
        return unasked
    wanted = _preferences(accept_encoding)
    return next((name for name in ("zstd", "gzip") if wanted.get(name, 0.0) > 0.0), "identity")


def _preferences(header: str) -> dict[str, float]:
    """What a header of the Accept family names, with its weights; a weight that is none counts as 0."""
    found = {}
    for item in header.split(",")[:20]:
        name, *parameters = (part.strip().lower() for part in item.split(";"))
        weights = [part.removeprefix("q=") for part in parameters if part.startswith("q=")]
        found[name] = _weight(weights[0]) if weights else 1.0
    return found


def _weight(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
