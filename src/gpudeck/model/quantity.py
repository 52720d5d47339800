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


def show_amount(amount: int) -> str:
    """Bytes as whoever asked for so many wrote them: what was 40G is 40 GB again, and not 37.3 GiB."""
    for unit, size in (("GiB", 2**30), ("GB", 10**9)):
        figure = f"{amount / size:.1f}".removesuffix(".0")
        if int(float(figure) * size) == amount:
            return f"{figure} {unit}"
    return f"{show_gib(amount)} GiB"


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


def show_length(seconds: float) -> str:
    """How long something takes or how far away it is, to the nearest: 4h, 1d 6h. What was booked as 5d is 5d away also
    a second later, where `show_span`, made for what has lasted so long, says 4d 23h."""
    unit = 1 if seconds < 60 else 60 if seconds < 86_400 else 3600 if seconds < 10 * 86_400 else 86_400
    return show_span(round(seconds / unit) * unit).removesuffix(" 0h").removesuffix(" 0m")


def show_exactly(seconds: float) -> str:
    """A length in all of its units, to the second: 7d 1m."""
    rest, parts = max(0, round(seconds)), []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, size)
        parts += [f"{count}{unit}"] if count else []
    return " ".join(parts) or "0s"


def show_count(number: int, one: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {one}" if number == 1 else f"{number} {one}s"
