"""Versions of gpudeck that can be compared."""

import re
from functools import lru_cache

_RELEASE = re.compile(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?$")


@lru_cache(64)
def read_release(version: str) -> int | None:
    """A number that is higher for a newer release; None for what is no release: it is neither older nor newer."""
    match = _RELEASE.match(version)
    if match is None:
        return None
    major, minor, patch = (int(part or 0) for part in match.groups())
    return (major * 10**6 + minor) * 10**6 + patch
