"""The folder in which processes of this machine meet without a hub, and files in it that are locked by those who made
them. The kernel drops a lock when its process ends, however it ends."""

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import Final

from gpudeck.model.errors import GpudeckError

VARIABLE: Final = "GPUDECK_LOCK_DIR"
_SHARED: Final = Path("/run/lock")
_NAME: Final = "gpudeck"
_LONGEST: Final = 4096
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def lock_folder() -> Path:
    """Where all users of this machine meet; a folder of one's own where there is none. Raises GpudeckError."""
    places = find_places()
    for place in places:
        with contextlib.suppress(OSError):
            return _make_folder(place)
    raise GpudeckError(
        f"no folder for locks can be written: {', '.join(map(str, places))}.", f"Name another with ${VARIABLE}."
    )


def find_places() -> list[Path]:
    """The folders that may be used, the best first."""
    own = os.environ.get("XDG_RUNTIME_DIR")
    named = os.environ.get(VARIABLE)
    return [Path(named)] if named else [_SHARED / _NAME, *([Path(own) / _NAME] if own else [])]


def _make_folder(place: Path) -> Path:
    if not place.exists():
        place.mkdir(exist_ok=True)
        # Writable for all users, and sticky: none can remove the files of others.
        place.chmod(0o1777)
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        raise PermissionError(place)
    return place


def make_locked(file: Path, text: bytes) -> int:
    """A new file with this text that all may read, locked until the descriptor is closed. Raises OSError."""
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    # Others have to see its lock, whatever this user's umask says.
    os.fchmod(descriptor, 0o644)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.write(descriptor, text)
    return descriptor


def look_at(file: Path) -> tuple[bytes, bool]:
    """Its content, and whether a live process has it locked."""
    try:
        descriptor = os.open(file, _READ)
    except OSError:
        return b"", False
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return b"", False
        text = os.read(descriptor, _LONGEST)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return text, True
        return text, False
    finally:
        os.close(descriptor)
