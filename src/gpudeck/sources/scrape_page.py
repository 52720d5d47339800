"""A page of metrics in Prometheus's text format becomes series. Nothing on it is trusted.

Only lines whose names a table knows are parsed, each on its own: a line that cannot be read costs itself alone, and a
page of a hundred thousand other series costs a look at each line's first word. Lines, labels and series are bounded, as
a page may be made to hurt.

Labels are read by prometheus_client's parser, which takes 65 µs a line. The series of one GPU all have the same labels,
so each set of them is parsed once a page: 8 GPUs with 29 series each take 1.4 ms instead of 15.
"""

import re

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from gpudeck.collectors.redaction import clean
from gpudeck.model.errors import Temporary

SERIES_AT_MOST = 20_000
"""More series of interest than 512 GPUs have."""
TEXT_AT_MOST = 1024 * 1024
"""Characters of different labels on a page that are parsed: a thousand processes have half as many."""
_LINE_AT_MOST = 4096
_LABEL_AT_MOST = 256
_NAME = re.compile(r"[ \t]*([A-Za-z_:][A-Za-z0-9_:]*)")
# A line as exporters write it: labels, number, maybe a time. Whatever looks different is left to the parser as a whole.
_LABELS = r"""(?:[^"{}]++|"(?:[^"\\]++|\\.)*+")*+"""
_PLAIN = re.compile(rf"[ \t]*[\w:]+\{{({_LABELS})\}}[ \t]+([^\s_]+)(?:[ \t]+-?[0-9]+)?[ \t\r]*")
_SHOWN = 60


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
    text = body.decode("utf-8", "replace")
    if not text.strip():
        raise Temporary("It answers an empty page.", "An exporter that was just started may need a minute.")
    if text[:200].lstrip("\ufeff \t\r\n")[:1] == "<":
        raise Temporary("It answers a web page, not metrics.", "Check its port and path: exporters use /metrics.")
    # The format ends every line with a line break. What follows the last one was cut off, maybe within its number.
    *lines, rest = text.split("\n")
    samples: list[Sample] = []
    unread: list[str] = []
    left_out = 0
    parser = _Parser()
    for line in lines:
        found = _NAME.match(line)
        if found is None or found[1] not in wanted:
            continue
        if len(samples) + len(unread) >= SERIES_AT_MOST:
            left_out += 1
        elif (sample := parser.parse(line, found[1])) is None:
            unread.append(line)
        else:
            samples.append(sample)
    return Page(samples, _explain(unread, rest, left_out))


class _Parser:
    """Parses the lines of one page. The labels that it has parsed it knows again."""

    def __init__(self) -> None:
        self._known: dict[str, dict[str, str]] = {}
        self._left = TEXT_AT_MOST

    def parse(self, line: str, name: str) -> Sample | None:
        """The line's series, or None where it is none."""
        if len(line) > _LINE_AT_MOST:
            return None
        try:
            plain = _PLAIN.fullmatch(line)
            if plain is None:
                return self._parse(line)
            labels = self._known.get(plain[1])
            if labels is None:
                labels = self._known[plain[1]] = self._parse(f"{name}{{{plain[1]}}} 0").labels
            return Sample(name, labels, float(plain[2]))
        except (ValueError, IndexError, KeyError, OverflowError):
            return None

    def _parse(self, line: str) -> Sample:
        """Raises one of several errors where the line is no series, or enough was parsed."""
        self._left -= len(line)
        if self._left < 0:
            raise ValueError("too many labels")
        # Without its type, as the parser would rename a counter, and as one line, whatever it takes for a line break.
        (family,) = text_string_to_metric_families(line.replace("\r", " "))
        (found,) = family.samples
        labels = {name: clean(text)[:_LABEL_AT_MOST] for name, text in found.labels.items()}
        return Sample(found.name, labels, float(found.value))


def _explain(unread: list[str], rest: str, left_out: int) -> list[str]:
    problems = []
    if unread:
        first = clean(unread[0])[:_SHOWN]
        problems.append(f"{_lines(len(unread))} of its page cannot be read, the first begins with: {first}")
    if rest.strip():
        problems.append(f"its page ends in the middle of a line, which is left out: {clean(rest)[:_SHOWN]}")
    if left_out:
        problems.append(f"its page has more than {SERIES_AT_MOST} series about GPUs; {left_out} are left out")
    return problems


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


def label(sample: Sample, names: list[str]) -> str:
    """The first of these labels that says something, or an empty text."""
    return next((text for name in names if (text := sample.labels.get(name, "").strip())), "")
