"""VALID_NETWORK of vesta's settings, a regular expression that readers' addresses are searched with, as networks.

The expression is never matched against an address: its four numbers are found, and each is tried on 0 to 255, which
takes no time whatever it is. `10.0.0.1` then means that address alone; the original also admitted 10.0.0.10 to 19.
"""

import ipaddress
import re
from collections.abc import Iterable
from itertools import product
from typing import Final

_LONGEST: Final = 500
_LONGEST_NUMBER: Final = 64
_REPEATED: Final = re.compile(r"\)[*+?{]")
_MOST: Final = 4096
_ALL: Final = frozenset(range(256))
_ANY: Final = frozenset({"", ".", "*", "+", "?", ".*", ".+", ".*?", ".+?"})
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def read_networks(told: str | Iterable[str]) -> list[str]:
    """The networks that may read; none where everybody may. Raises ValueError for what cannot be told in networks."""
    words = [told] if isinstance(told, str) else list(told)
    found = [network for word in words for network in _read(word)]
    if not words or any(network.prefixlen == 0 for network in found):
        return []
    four = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv4Network))
    six = ipaddress.collapse_addresses(one for one in found if isinstance(one, ipaddress.IPv6Network))
    return [str(network) for network in (*four, *six)]


def _read(text: str) -> list[_Network]:
    if len(text) > _LONGEST:
        raise ValueError("it is too long")
    words = [word for piece in text.split() for word in _split(piece, ",") if word] or [""]
    return [network for word in words for part in _split(_unwrap(word), "|") for network in _read_one(part)]


def _read_one(text: str) -> list[_Network]:
    try:
        return [ipaddress.ip_network(text, strict=False)]
    except ValueError:
        return [*_read_numbers(_unwrap(text.removeprefix("^")))]


def _read_numbers(text: str) -> Iterable[ipaddress.IPv4Network]:
    """`10\\.1\\.[23]\\.`, `10.1.`, `10.1.0.*`: numbers from the first on; those that are left out may be any."""
    is_complete = text.endswith("$") and not text.endswith("\\$")
    text = text.removesuffix("$").replace("[.]", "\\.")
    # With dots that are escaped, the others stand for any sign.
    numbers = _split(text, "\\." if "\\." in text else ".")
    numbers = numbers[:-1] if len(numbers) > 1 and numbers[-1] in _ANY else numbers
    if not text.strip("".join(_ANY)):
        return [ipaddress.IPv4Network("0.0.0.0/0")]
    if len(numbers) > 4 or (is_complete and len(numbers) < 4 and not text.endswith(("*", "+"))):
        raise ValueError("it does not begin with the first number of an address")
    sets = [_fitting(number) for number in numbers]
    while sets and sets[-1] == _ALL:
        sets.pop()
    return _networks(sets)


def _networks(sets: list[frozenset[int]]) -> Iterable[ipaddress.IPv4Network]:
    count = 1
    for one in sets:
        count *= len(one)
    if count > _MOST:
        raise ValueError("it means too many networks")
    for numbers in product(*map(sorted, sets)):
        address = ".".join(map(str, (*numbers, *(0,) * (4 - len(numbers)))))
        yield ipaddress.IPv4Network(f"{address}/{8 * len(numbers)}")


def _fitting(number: str) -> frozenset[int]:
    """The numbers of an address that the piece of an expression matches. Raises ValueError where there are none, and
    for a group that is repeated: only those take long on three signs."""
    if len(number) > _LONGEST_NUMBER or _REPEATED.search(number):
        raise ValueError(f"{number[:40]!r} is too complicated")
    try:
        pattern = re.compile(".*" if number in _ANY else number)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(str(error)) from error
    found = frozenset(one for one in _ALL if pattern.fullmatch(str(one)))
    if not found:
        raise ValueError(f"{number!r} fits no number of an address")
    return found


def _split(text: str, mark: str) -> list[str]:
    """At each mark that stands in no brackets."""
    parts, start, depth, at = list[str](), 0, 0, 0
    while at < len(text):
        if depth == 0 and text.startswith(mark, at):
            parts.append(text[start:at])
            start = at = at + len(mark)
            continue
        if text[at] == "\\":
            at += 1
        else:
            depth += (text[at] in "([{") - (text[at] in ")]}")
        at += 1
    return [*parts, text[start:]]


def _unwrap(text: str) -> str:
    """Without brackets around all of it."""
    inner = text.removeprefix("(").removeprefix("?:").removesuffix(")")
    is_wrapped = text.startswith("(") and text.endswith(")") and ")" not in inner
    return inner if is_wrapped else text
