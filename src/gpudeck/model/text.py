"""Text that people read and write: amounts (40G), durations (3h 20m), display names of hosts and models, release
numbers; and `clean`, which makes text from outside safe for a terminal."""

import re
from collections.abc import Iterable
from decimal import Decimal
from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct, field

BYTES_OF_UNIT = {
    "": 1,
    **{prefix: 1000**power for power, prefix in enumerate("kmgtp", 1)},
    **{prefix + "i": 1024**power for power, prefix in enumerate("kmgtp", 1)},
}
AMOUNT = r"^(?:0|[0-9]{1,18}(?:\.[0-9]{1,30})? ?[kKmMgGtTpP][iI]?[bB]?)$"
"""A regular expression for an amount of memory, repeated in the OpenAPI document."""
_AMOUNT = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,30})?) ?([kmgtp]i?)?b?", re.IGNORECASE | re.ASCII)
_MAKERS = ("NVIDIA GeForce ", "NVIDIA ", "AMD Instinct ", "AMD Radeon ", "AMD ", "Intel(R) ", "Intel ", "Tesla ")

_Shown = Annotated[str, Meta(min_length=1, max_length=64)]
_DIGITS = re.compile(r"(\d+)")
_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?$")


def parse_bytes(text: str) -> int:
    """The size of a file in bytes, from `20GB` or `20G` (1000s), `512MiB` (1024s) or `1000`, in upper or lower case;
    raises ValueError. For memory see `parse_memory`."""
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a size such as 20GB or 512MiB")
    return int(Decimal(match[1]) * BYTES_OF_UNIT[(match[2] or "").lower()])


def parse_memory(text: str) -> int:
    """Bytes of memory, from `40G`, `40GiB` or `512M`: always in 1024s. Raises ValueError, also without a unit."""
    typed = text.strip()
    match = _AMOUNT.fullmatch(typed)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not an amount of memory such as 40G or 512M")
    if match[2] is None:
        if typed == "0":
            return 0
        raise ValueError(f"{typed} what? Write {match[1]}G")
    return int(Decimal(match[1]) * BYTES_OF_UNIT[f"{match[2][0].lower()}i"])


@lru_cache(65_536)
def show_gib(value: float | None, digits: int = 1) -> str:
    """Bytes as GiB without the unit; `–` when unknown."""
    return "–" if value is None else f"{value / 2**30:.{digits}f}"


def show_amount(amount: int) -> str:
    """An amount of memory as text: `40 GiB`, `37.5 GiB`, `512 MiB`."""
    if amount < 2**30:
        return f"{amount / 2**20:.0f} MiB"
    return f"{show_gib(amount).removesuffix('.0')} GiB"


def show_span(seconds: float | None) -> str:
    """A duration in its two largest units, at most 6 characters: 12s, 5m, 3h 20m, 9d 4h."""
    if seconds is None:
        return "–"
    seconds = max(0, int(seconds))
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h" if days < 10 else f"{days}d"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m" if minutes else f"{seconds}s"


def show_age(since: float | None, now: float) -> str:
    return show_span(None if since is None else now - since)


def show_length(seconds: float) -> str:
    """A duration rounded to the nearest unit: 4h, 1d 6h. For time in the future: a reservation 5 days away still shows
    as 5d a second later, where `show_span` says 4d 23h."""
    unit = 1 if seconds < 60 else 60 if seconds < 86_400 else 3600 if seconds < 10 * 86_400 else 86_400
    return show_span(round(seconds / unit) * unit).removesuffix(" 0h").removesuffix(" 0m")


def show_exactly(seconds: float) -> str:
    """A duration in all units, to the second: 7d 1m."""
    rest, parts = max(0, round(seconds)), []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return " ".join(parts) or "0s"


def show_count(number: int, one: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"


def read_whole(text: str, at_most: int) -> int | None:
    """A whole number of 0 to `at_most`, or None."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
        return None
    return int(digits) if int(digits) <= at_most else None


def propose(wrong: str, known: Iterable[str]) -> str:
    """`did you mean X?`, or the list of known words if none is similar."""
    import difflib  # noqa: PLC0415 - needed by mistakes alone

    names = list(known)
    near = difflib.get_close_matches(wrong, names, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(names)}"


def clean(text: str) -> str:
    """Replaces each control character."""
    return text if text.isprintable() else "".join(char if char.isprintable() else "�" for char in text)


def escape(text: str) -> str:
    """Escapes each control character, such as `\\x1b`: different texts stay different."""
    return text if text.isprintable() else "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Names(Struct, frozen=True):
    """Display names, where the names of the machines are too long or unclear."""

    hosts: dict[str, _Shown] = field(default_factory=dict)
    """Names to show for hosts, by the names they report under, such as srv-a17: Big one."""
    models: dict[str, _Shown] = field(default_factory=dict)
    """Names to show for GPU models, by those of the driver, such as NVIDIA H100 80GB HBM3: H100."""

    def of_host(self, name: str) -> str:
        return self.hosts.get(name, name)

    def of_model(self, name: str) -> str:
        """Without the vendor unless configured otherwise: an H200 is known without it."""
        return self.models.get(name) or without_maker(name)


@lru_cache(1024)
def without_maker(name: str) -> str:
    for maker in _MAKERS:
        if name.startswith(maker):
            return name[len(maker) :] or name
    return name


@lru_cache(64)
def read_release(version: str) -> int | None:
    """A number that is higher for a newer release; None for text that is not a release."""
    match = _RELEASE.match(version)
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return (major * 10**6 + minor) * 10**6 + patch


def natural(name: str) -> list[tuple[bool, int, str]]:
    """A sort key that compares numbers in names as numbers."""
    parts = (part for part in _DIGITS.split(name.lower()) if part)
    return [(False, int(part), "") if part.isdecimal() else (True, 0, part) for part in parts]
