"""A small file in the data folder with what was last read from the database: a hub that starts while that is away goes
on with it. Only its owner can read it."""

import asyncio
import logging
import threading
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from gpudeck.agent.token_file import replace_file

log = logging.getLogger(__name__)

_T = TypeVar("_T")


class LocalCopy(Generic[_T]):
    """The file holds one struct of the type `kind`, which says itself when it was true."""

    def __init__(self, file: Path, kind: type[_T]) -> None:
        self._file = file
        self._kind = kind
        self._is_failing = False
        self._writing = threading.Lock()

    async def write(self, content: _T) -> None:
        """A copy that cannot be written is logged once."""
        body = msgspec.json.encode(content)
        try:
            await asyncio.to_thread(self._replace, body)
        except OSError as error:
            if not self._is_failing:
                log.warning("%s cannot be written: %s", self._file, error.strerror)
            self._is_failing = True
        else:
            self._is_failing = False

    def _replace(self, body: bytes) -> None:
        # One whose caller was cancelled may still be writing: it is not to come last.
        with self._writing:
            replace_file(self._file, body)

    def read(self) -> _T | None:
        """None where there is none, or none that can be read. Blocks."""
        try:
            return msgspec.json.decode(self._file.read_bytes(), type=self._kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, UnicodeError) as error:
            log.warning("%s cannot be read: %s", self._file, error)
            return None
