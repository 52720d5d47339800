"""Takes the answer to the command of `smi_command.py` apart, and reads the words and numbers that nvidia-smi uses.

An answer may be anything: cut off, a login banner, an error page. Everything here takes time in proportion to its
length, and gives an unknown or a `Temporary` for what makes no sense.
"""

import logging
import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from gpudeck.collectors.redaction import clean
from gpudeck.collectors.smi_command import MARK
from gpudeck.model.errors import Temporary

log = logging.getLogger(__name__)

UNSUPPORTED = "not supported by this GPU"
NO_VALUE = "the driver gives no value"
LOST = "the GPU is lost: it fell off the bus or stopped answering"
NEEDS_RESET = "the GPU needs a reset"
FATAL = frozenset({LOST, NEEDS_RESET})
"""Reasons that make a whole GPU unreadable."""
_REASONS = (
    ("gpu is lost", LOST),
    ("gpu requires reset", NEEDS_RESET),
    ("not supported", UNSUPPORTED),
    ("n/a", UNSUPPORTED),
    ("not available", NO_VALUE),
    ("no data", NO_VALUE),
    ("insufficient permissions", "not permitted to read it"),
    ("no permission", "not permitted to read it"),
    ("function not found", "the driver is too old to tell"),
    ("deprecated", "the driver no longer tells"),
    ("unknown error", "the driver reports an unknown error"),
)

_MIB = 1024 * 1024
_SCALES = {"kib": 1024, "mib": _MIB, "gib": 1024 * _MIB}
# nvidia-smi follows the locale in nothing that is known, but a wrapper may: a comma is taken for the point.
_NUMBER = re.compile(r"(-?[0-9]{1,20}(?:[.,][0-9]{1,12})?)\s*(%|[A-Za-z]{1,3})?")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")
_BUS_ID = re.compile(r"(?<![0-9a-fA-F])([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-9a-fA-F])\b")
_QUOTED = 160


class Answer(Struct, frozen=True):
    """The parts of an answer by name. `cut_in` is the part in which it broke off, None when it is whole."""

    parts: Mapping[str, Sequence[str]]
    cut_in: str | None

    def lines(self, name: str) -> Sequence[str]:
        """The lines of a part that is there; none for one that is not."""
        return self.parts.get(name, ())

    def first(self, name: str) -> str:
        """The first line of a part that says something, without the spaces around it; empty where there is none."""
        return next((line.strip() for line in self.lines(name) if line.strip()), "")


def split_answer(text: str) -> Answer:
    """Raises Temporary where this is no answer to our command. What stands before it, a banner say, is left out."""
    parts: dict[str, list[str]] = {}
    name = None
    # Not splitlines(): that also breaks at characters which a command line may hold.
    for raw in text.split("\n"):
        line = raw.removesuffix("\r")
        if line.startswith(MARK):
            name = line[len(MARK) :].strip()
            parts.setdefault(name, [])
        elif name is not None and line.startswith(" "):
            parts[name].append(line[1:])
        if name == "end":
            break
    if "begin" not in parts:
        # A login banner or a forced command may say anything: the words are for the log, and the message for everybody.
        log.info("a machine did not run the command; it said: %s", quote(text[: 4 * _QUOTED]) or "nothing")
        said = f"{len(text)} characters of something else" if text.strip() else "nothing"
        raise Temporary(
            f"The machine did not run the command; it answered {said}.",
            "Log in there and run: sh -c 'echo ok'. The hub's log has the beginning of the answer.",
        )
    return Answer(parts, None if name == "end" else name)


def quote(text: str) -> str:
    """The beginning of a text from outside, fit for a message."""
    return " ".join(clean(text).split())[:_QUOTED]


def read_number(text: str) -> float | None:
    """A number with or without its unit; KiB, MiB and GiB become bytes. None for anything else."""
    found = _NUMBER.fullmatch(text.strip())
    if found is None:
        return None
    return float(found[1].replace(",", ".")) * _SCALES.get((found[2] or "").lower(), 1)


def read_whole(text: str, at_most: int) -> int | None:
    """A whole number of 0 to `at_most`, or None."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
        return None
    return int(digits) if int(digits) <= at_most else None


def read_bits(text: str) -> int | None:
    """A set of flags as nvidia-smi writes it, `0x0000000000000004`, or None."""
    return int(text.strip(), 16) if _HEX.fullmatch(text.strip()) else None


def read_bus_id(text: str) -> str | None:
    """The first PCI address in a text, as the kernel writes it (0000:18:00.0): nvidia-smi gives the domain 4 digits in
    some places and 8 in others."""
    found = _BUS_ID.search(text)
    return f"{int(found[1], 16):04x}:{found[2].lower()}" if found else None


def explain(text: str) -> str:
    """Why there is no number in a field, in words: `[N/A]`, `[Not Supported]`, `[GPU is lost]` and so on."""
    said = text.strip().strip("[]").lower()
    if not said:
        return NO_VALUE
    return next((why for mark, why in _REASONS if mark in said), f"nvidia-smi says: {quote(text)}")
