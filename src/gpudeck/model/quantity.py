"""Amounts as people write and read them: 40G, 512MiB, 3h. Pure, and the same in API, command line and text views."""

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
AMOUNT = r"^([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([kKmMgGtT]i?)?[bB]?$"
"""How an amount of memory is written, as a regular expression that the API's document repeats."""
_BYTES = re.compile(AMOUNT)


def parse_bytes(text: str) -> int:
    """Bytes from `40G`, `40GB`, `37.5GiB` or `1000`; raises ValueError.

    G means 10^9, as on the label of a card: what is sold as 80 GB holds 79.6 GiB, and `80G` has to find it.
    """
    match = _BYTES.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text[:40]!r} is not an amount of memory such as 40G or 512MiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").lower()])


def show_gib(value: float | None, digits: int = 1) -> str:
    """Bytes as GiB without the unit; `–` when unknown."""
    return "–" if value is None else f"{value / 2**30:.{digits}f}"


def show_span(seconds: float | None) -> str:
    """A span of time in its two largest units, at most 6 characters: 12s, 5m, 3h 20m, 9d 4h."""
    if seconds is None:
        return "–"
    seconds = max(0, int(seconds))
    days, hours, minutes = seconds // 86_400, seconds // 3600 % 24, seconds // 60 % 60
    if days:
        return f"{days}d {hours}h" if days < 10 else f"{days}d"
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m" if minutes else f"{seconds}s"


def show_count(number: int, one: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"
