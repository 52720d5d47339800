"""Reads single values from sysfs, with the reason if one is missing. Every file is opened, read once and closed.

Paths are text: there are dozens of files a card on every beat, and a Path costs more than the reading.
"""

import errno
import os
import re

from gpudeck.collectors.base import NO_VALUE
from gpudeck.collectors.redaction import clean

UNSUPPORTED = "not supported by this GPU or its driver"
NO_NUMBER = "the driver gives something that is no number"

_BYTES = 16384
# Longer ones are no figures, and would not fit into a report.
_NUMBER = re.compile(r"-?[0-9]{1,18}")
_REASONS = {
    errno.ENOENT: UNSUPPORTED,
    errno.ENOTDIR: UNSUPPORTED,
    errno.EOPNOTSUPP: UNSUPPORTED,
    errno.EINVAL: NO_VALUE,
    errno.ENODATA: NO_VALUE,
    errno.EBUSY: NO_VALUE,
    errno.EAGAIN: NO_VALUE,
    errno.EACCES: "not permitted to read it",
    # amdgpu (amdgpu_pm.c) answers so while it resets the GPU or has put it to sleep.
    errno.EPERM: "the driver does not answer now: the GPU is being reset or asleep",
    errno.ENODEV: "the GPU is gone",
}


def read_text(path: str, limit: int = _BYTES) -> str:
    """What the file says, without the blanks around it. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, limit).decode(errors="replace").strip()
    finally:
        os.close(descriptor)


def read_number(path: str) -> int:
    """The whole number that the file holds. Raises OSError, and ValueError where it holds none."""
    text = read_text(path)
    if not text:
        raise ValueError(NO_VALUE)
    if not _NUMBER.fullmatch(text):
        raise ValueError(NO_NUMBER)
    return int(text)


def read_if_there(path: str) -> str:
    """What the file says; empty where it cannot be read. Never raises."""
    try:
        return read_text(path)
    except OSError:
        return ""


def read_word(path: str) -> str:
    return clean(read_if_there(path))


def read_link(path: str) -> str:
    """Where a link leads; empty where it cannot be read."""
    try:
        return os.readlink(path)  # noqa: PTH115 - text, as above
    except OSError:
        return ""


def list_names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))  # noqa: PTH208 - text, as above
    except OSError:
        return []


def explain(error: Exception) -> str:
    if isinstance(error, OSError):
        return _REASONS.get(error.errno or 0) or f"reading it failed: {error.strerror}"
    return str(error)
