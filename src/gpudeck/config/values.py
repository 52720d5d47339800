"""Durations, sizes and addresses as people write them. Every reader raises ValueError for text it cannot take."""

import re
from decimal import Decimal

_NUMBER = r"(?:0|[1-9][0-9]{0,14})(?:\.[0-9]{1,30})?"

_SECONDS = {
    "y": Decimal(365 * 86400),
    "w": Decimal(7 * 86400),
    "d": Decimal(86400),
    "h": Decimal(3600),
    "m": Decimal(60),
    "s": Decimal(1),
    "ms": Decimal("0.001"),
}
_DURATION_PART = re.compile(rf"({_NUMBER})\s?(ms|[ywdhms])(?![a-z])\s*")
_PLAIN_NUMBER = re.compile(_NUMBER)

# A plain G counts in thousands like GB: a card sold with 80 GB has 79.6 GiB, and a request for 80G means that card.
_BYTES = {
    "": 1,
    "B": 1,
    **{prefix + suffix: 1000**power for power, prefix in enumerate("KMGTP", 1) for suffix in ("", "B")},
    **{prefix + "iB": 1024**power for power, prefix in enumerate("KMGTP", 1)},
}
_BYTES_BY_LOWER_NAME = {unit.lower(): count for unit, count in _BYTES.items()}
_SIZE = re.compile(rf"({_NUMBER})\s?([A-Za-z]*)")

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<host>[^\s:\[\]]*)):(?P<port>0|[1-9][0-9]{0,4})", re.ASCII)
_HOST = re.compile(r"(?!-)[A-Za-z0-9_.-]{1,253}")


def parse_duration(text: str) -> float:
    """Seconds in `10s`, `250ms`, `1d 6h` (largest unit first) or a plain number of seconds."""
    text = text.strip()
    if _PLAIN_NUMBER.fullmatch(text):
        return float(Decimal(text))
    seconds, shortest, position = Decimal(0), Decimal("Infinity"), 0
    while match := _DURATION_PART.match(text, position):
        if _SECONDS[match[2]] >= shortest:
            break
        shortest, position = _SECONDS[match[2]], match.end()
        seconds += Decimal(match[1]) * shortest
    if not text or position < len(text):
        raise ValueError(f"{text!r} is not a duration")
    return float(seconds)


def format_duration(seconds: float) -> str:
    """The shortest exact way to write a duration that `parse_duration` reads back as the same number."""
    left = Decimal(repr(float(seconds)))
    if left % _SECONDS["ms"]:
        return f"{left:f}s"
    if left and not left % _SECONDS["y"]:
        return f"{left / _SECONDS['y']:f}y"
    parts = []
    for unit, length in list(_SECONDS.items())[2:]:  # years and weeks are read, but days are easier to compare
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count:f}".split(".")[0] + unit)
    return " ".join(parts) or "0s"


def parse_size(text: str) -> int:
    """Bytes in `512MiB` (1024s), `20GB` or `20G` (1000s), or a plain number. Upper and lower case are the same."""
    match = _SIZE.fullmatch(text.strip())
    unit = match and _BYTES_BY_LOWER_NAME.get(match[2].lower())
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size")
    return int((Decimal(match[1]) * unit).to_integral_value())


def format_size(size_bytes: float) -> str:
    """The exact way to write a size with the smallest number that `parse_size` reads back as the same."""
    whole = int(size_bytes)
    exact = [(whole // count, unit) for unit, count in _BYTES.items() if len(unit) > 1 and whole % count == 0]
    count, unit = min(exact, default=(whole, "B"))
    return f"{count}{unit}" if whole else "0B"


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`, `:PORT` (host is then empty: every interface) or `[IPV6]:PORT`."""
    match = _ADDRESS.fullmatch(text.strip())
    if match is None or int(match["port"]) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    if match["ipv6"]:
        return _check_ip(match["ipv6"], 6), int(match["port"])
    host = match["host"]
    if host and not _HOST.fullmatch(host):
        raise ValueError(f"{host!r} is not the name of a host")
    if host and not host.strip("0123456789."):
        _check_ip(host, 4)
    return host, int(match["port"])


def _check_ip(text: str, version: int) -> str:
    import ipaddress  # noqa: PLC0415 - few commands read an address, all would pay for the import

    if ipaddress.ip_address(text).version != version:
        raise ValueError(f"{text!r} is not an IPv{version} address")
    return text
