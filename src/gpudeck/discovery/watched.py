"""A file that is looked at again and again, and read when it has changed. Blocks: called in a thread."""

import asyncio
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from gpudeck.model.errors import Temporary

MAX_FILE_BYTES = 4 * 1024 * 1024
RESTLESS_LOOKS = 5
"""A file that changes between any two looks is read at the latest now, finished or not."""


LOOK_TIMEOUT = 5.0

T = TypeVar("T")


class Looks:
    """Looks at files in a thread, one at a time: a look that was given up goes on there as long as the files hang."""

    def __init__(self) -> None:
        self._is_looking = threading.Lock()

    async def look(self, work: Callable[[], T]) -> T:
        """Raises Temporary when the look before this one has still not come back."""
        return await asyncio.to_thread(self._look, work)

    def _look(self, work: Callable[[], T]) -> T:
        if not self._is_looking.acquire(timeout=LOOK_TIMEOUT):
            raise Temporary("the files do not answer.", "Is their file system there?")
        try:
            return work()
        finally:
            self._is_looking.release()


class _Stamp(NamedTuple):
    modified_ns: int
    size: int
    inode: int
    device: int


class WatchedFile:
    """One file. Editors write it in place or put a new one there; either way its stamp changes.

    A file that has just changed may be half written: it is read once it is the same at two looks one after the other.
    `named` is how messages call it, where that is not its path.
    """

    def __init__(self, path: Path, named: str = "") -> None:
        self.path = path
        self._named = named or str(path)
        self._read: _Stamp | None = None
        self._seen: _Stamp | None = None
        self._restless = 0

    def read_if_changed(self) -> bytes | None:
        """What is in it, if that is not what was read last and is finished; else None. Raises Temporary."""
        try:
            stamp = self._look()
            if stamp == self._read or not self._is_settled(stamp):
                return None
            content = self._read_all()
        except OSError as error:
            self._read = None
            reason = (error.strerror or "unknown reason").lower()
            raise Temporary(f"{self._named} cannot be read: {reason}.") from error
        self._read, self._restless = stamp, 0
        return content

    def _is_settled(self, stamp: _Stamp) -> bool:
        is_same = stamp == self._seen or self._read is None
        self._restless = 0 if is_same else self._restless + 1
        self._seen = stamp
        return is_same or self._restless >= RESTLESS_LOOKS

    def _look(self) -> _Stamp:
        found = self.path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise Temporary(f"{self._named} cannot be read: it is no file.")
        if found.st_size > MAX_FILE_BYTES:
            raise Temporary(f"{self._named} cannot be read: it is larger than {MAX_FILE_BYTES // 2**20} MiB.")
        return _Stamp(found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev)

    def _read_all(self) -> bytes:
        with self.path.open("rb") as file:
            return file.read(MAX_FILE_BYTES)


def find_path(named: str) -> Path:
    """The path that a setting means. Raises Temporary where `~` means nothing."""
    try:
        return Path(named).expanduser()
    except RuntimeError as error:
        raise Temporary(f"{named} cannot be read: this user has no home folder.", "Give the whole path.") from error
