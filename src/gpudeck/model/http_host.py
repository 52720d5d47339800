"""The header Host of a request, as RFC 9112 has a server check it."""

import re
from collections.abc import Sequence
from typing import Final

_VALID: Final = re.compile(rb"(?:[\w.~%!$&'()*+,;=-]+|\[[0-9A-Za-z:.%_~-]+\])(?::[0-9]{0,5})?")


def find_host_problem(values: Sequence[bytes], version: str) -> str | None:
    """What is wrong with the values of all Host headers in a request of that HTTP version ("1.1"), None for nothing.

    A proxy in front may believe the one and the hub the other of two; HTTP/1.0 has none.
    """
    if not values:
        return None if version in {"0.9", "1.0"} else "the request has no Host header"
    if len(values) > 1:
        return "the request has more than one Host header"
    return None if _VALID.fullmatch(values[0]) else "the request's Host header is not a host name or address"
