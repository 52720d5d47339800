"""A page of metrics in Prometheus's text format becomes series. Nothing on it is trusted.

Only lines whose names a table knows are parsed, each on its own: a line that cannot be read costs itself alone. A
regular expression finds the lines that begin as one of these names does, so a page of 60,000 other series costs 5 ms.
Lines, labels and series are bounded, as a page may be made to hurt.

The series of one GPU all have the same labels, so each set of them is parsed once a page. Labels are parsed here:
prometheus_client's parser takes 16 µs for two of them, which is half a second for a page that was made to hurt; this
takes 3 µs.
"""

import logging
import re
from collections.abc import Iterator
from functools import cache

from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.model.errors import Temporary
from gpudeck.model.text import show_count

SERIES_AT_MOST = 10_000
"""Series of interest. 8 GPUs of dcgm-exporter have 232, 16 boards with 7 MIG instances each 4,500; 256 threads in
node_exporter have 2,000, and 500 processes in nvitop-exporter as many."""
TEXT_AT_MOST = 1024 * 1024
"""Characters of different labels on a page that are parsed: a thousand processes have half as many."""
_STEP_BYTES = 128 * 1024
_LINE_AT_MOST = 4096
_LABEL_AT_MOST = 256
_LOGGED = 120
_NAME = re.compile(rb"[A-Za-z_:][A-Za-z0-9_:]*")
_LABELS = r"""(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+"""
_VALUE = r"([^\s_]++)(?:[ \t]++-?[0-9]++)?[ \t\r]*+"
_LINE = re.compile(rf"[\w:]++[ \t]*+(?:\{{({_LABELS})\}}[ \t]*+|(?<=[ \t])){_VALUE}", re.ASCII)
_LABEL = re.compile(r"""[ \t]*+([A-Za-z_]\w*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|$)""", re.ASCII)
_ESCAPED = re.compile(r'\\([\\n"])')

log = logging.getLogger(__name__)


class Sample(Struct, frozen=True, gc=False):
    """One line: its name, its labels without control characters, its number as it stands there (maybe NaN)."""

    name: str
    labels: dict[str, str]
    value: float


class Page(Struct, frozen=True):
    """The lines of interest. `problems` are sentences about those that could not be read."""

    samples: list[Sample]
    problems: list[str]


def parse_page(body: bytes, wanted: frozenset[str]) -> Page:
    """The series on the page that are `wanted`. Raises Temporary for a web page and for an empty one. A large
    page takes long: use a thread."""
    if not body.strip():
        raise Temporary("It answers an empty page.", "An exporter that was just started may need a minute.")
    if body[:200].decode(errors="replace").lstrip("\ufeff \t\r\n")[:1] == "<":
        raise Temporary("It answers a web page, not metrics.", "Check its port and path: exporters use /metrics.")
    samples: list[Sample] = []
    unread: list[str] = []
    left_out = 0
    parser = _Parser()
    for name, line in _find_lines(body, wanted):
        if len(samples) + len(unread) >= SERIES_AT_MOST:
            left_out += 1
        elif (sample := parser.parse(line, name)) is None:
            unread.append(line)
        else:
            samples.append(sample)
    return Page(samples, _explain(unread, body.rpartition(b"\n")[2], left_out))


def _find_lines(body: bytes, wanted: frozenset[str]) -> Iterator[tuple[str, str]]:
    """The whole lines with a wanted name, each with that name. The format ends every line with a line break: what
    follows the last one was cut off, maybe within its number."""
    names, begin, page = _encode_names(wanted), _begin_of(wanted), b"\n" + body
    start, last = 0, page.rfind(b"\n")
    # Step by step: a single search through a page without any such line would not let other threads work.
    while start < last:
        end = page.find(b"\n", min(start + _STEP_BYTES, last))
        for found in begin.finditer(page, start, end + 1):
            name = _NAME.match(found[1])
            if name is not None and name[0] in names:
                yield names[name[0]], found[1].decode("utf-8", "replace")
        start = end


@cache
def _encode_names(wanted: frozenset[str]) -> dict[bytes, str]:
    return {name.encode(): name for name in wanted}


@cache
def _begin_of(wanted: frozenset[str]) -> "re.Pattern[bytes]":
    """Finds whole lines that begin with the first word of a wanted name: `DCGM_`, `node_`, `nvidia_` and so on."""
    words = sorted({name.partition("_")[0] for name in wanted})
    beginnings = b"|".join(re.escape(word.encode()) for word in words)
    return re.compile(rb"\n[ \t]*+((?:%b)[^\n]*+)(?=\n)" % beginnings)


class _Parser:
    """Parses the lines of one page. The labels that it has parsed it knows again."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}
        self._left = TEXT_AT_MOST

    def parse(self, line: str, name: str) -> Sample | None:
        """The line's series, or None where it is none, or enough labels were parsed."""
        found = _LINE.fullmatch(line) if len(line) <= _LINE_AT_MOST else None
        if found is None:
            return None
        try:
            value = float(found[2])
        except ValueError:
            return None
        labels = self._labels(found[1] or "")
        return None if labels is None else Sample(name, labels, value)

    def _labels(self, text: str) -> dict[str, str] | None:
        known = self._known.get(text)
        if known is not None or not text:
            return known or {}
        self._left -= len(text)
        labels = _parse_labels(text) if self._left >= 0 else None
        if labels is not None:
            self._known[text] = labels
        return labels


def _parse_labels(text: str) -> dict[str, str] | None:
    """What stands between the braces, without control characters; None where it is not as the format says."""
    labels: dict[str, str] = {}
    at = 0
    while at < len(text.rstrip(" \t")):
        found = _LABEL.match(text, at)
        if found is None or found[1] in labels:
            return None
        value = found[2]
        if "\\" in value:
            value = _ESCAPED.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], value)
        labels[found[1]] = clean(value)[:_LABEL_AT_MOST]
        at = found.end()
    return labels


def _explain(unread: list[str], rest: bytes, left_out: int) -> list[str]:
    """Without a word of the page: every viewer of the hub reads it, and the page may be anything."""
    problems = []
    if unread:
        log.debug("the first line that cannot be read: %s", clean(unread[0])[:_LOGGED])
        problems.append(f"{show_count(len(unread), 'line')} of its page cannot be read")
    if rest.strip():
        log.debug("the page ends in the middle of a line: %s", clean(rest[:_LOGGED].decode(errors="replace")))
        problems.append("its page ends in the middle of a line, which is left out")
    if left_out:
        problems.append(f"its page has more than {SERIES_AT_MOST} series about GPUs; {left_out} are left out")
    return problems


def label(sample: Sample, names: list[str]) -> str:
    """The first of these labels that says something, or an empty text."""
    return next((text for name in names if (text := sample.labels.get(name, "").strip())), "")
