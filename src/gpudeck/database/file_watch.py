"""Notices that the database's file was moved away, deleted or replaced while the hub has it open.

SQLite goes on with the file that it opened, whatever has become of its name: nothing fails, and what is changed is lost
when the hub ends.
"""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger(__name__)

_GONE = "is gone, and what is changed now will be lost: put it back, or start the hub again"
_REPLACED = "was replaced while the hub runs, and what is changed now will be lost: start the hub again"


class DatabaseFile:
    """The file as it was when this was made. `look` calls `tell` with what is wrong with it, for everybody who may look
    at the hub, and with None when it is the same file again; each once. Made after the database was opened."""

    def __init__(self, file: Path, tell: Callable[[str | None], None]) -> None:
        self._file = file
        self._tell = tell
        self._opened = _identify(file)
        self._trouble: str | None = None

    async def look(self) -> None:
        # In a thread: a disk that hangs is not to hold up the hub.
        trouble = await asyncio.to_thread(self._find_trouble)
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble is None:
            log.info("the database %s is the file again that the hub has open", self._file)
        else:
            log.error("the database %s %s", self._file, trouble)
        # Without the path: it is shown to everybody who may look.
        self._tell(None if trouble is None else f"the hub's database {trouble}.")

    def _find_trouble(self) -> str | None:
        found = _identify(self._file)
        if found is None:
            return _GONE
        return None if found == self._opened else _REPLACED


def _identify(file: Path) -> tuple[int, int] | None:
    """What tells a file from another with the same name; None where none can be seen."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
