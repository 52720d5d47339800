"""Plain values out of the pickles in vesta's database, and nothing else: they may have been made to do harm.

A pickle is a program. Here it can build numbers, texts, lists and dictionaries; whatever would load a class, call
something or reserve memory that it does not fill is refused. What it built is then copied within bounds, as a few bytes
can build lists that hold each other a million times.
"""

import bz2
import io
import pickle
from collections.abc import Callable
from typing import Any, ClassVar, Final

UNPACKED_AT_MOST: Final = 1024 * 1024
VALUES_AT_MOST: Final = 100_000
DEPTH_AT_MOST: Final = 8
LONGEST_TEXT: Final = 4096

# No tuples: one may be a key, and to hash one that holds others a million times takes forever.
_ALLOWED: Final = b"".join(
    (
        *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK, pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE),
        *(pickle.BININT, pickle.BININT1, pickle.BININT2, pickle.LONG1, pickle.BINFLOAT),
        *(pickle.BINUNICODE, pickle.SHORT_BINUNICODE),
        *(pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
        *(pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
    )
)


class NotPlain(ValueError):
    """A blob that is no plain value, or too large a one. The text says what about it, for people."""


def _refuse(_: object) -> None:
    raise NotPlain("it is a pickle that does more than hold values")


# The one written in Python: the other gives room to what a pickle only announces.
class _PlainUnpickler(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code: load if code in _ALLOWED else _refuse for code, load in pickle._Unpickler.dispatch.items()
    }

    def find_class(self, module: str, name: str) -> Any:
        raise NotPlain("it is a pickle that loads code")

    def persistent_load(self, pid: object) -> Any:
        raise NotPlain("it is a pickle that refers to something else")


def read_blob(blob: bytes) -> Any:
    """The value in `bz2(pickle(value))`. Raises NotPlain."""
    return load_plain(_unpack(blob))


def load_plain(packed: bytes) -> Any:
    try:
        value = _PlainUnpickler(io.BytesIO(packed)).load()
    except NotPlain:
        raise
    except Exception as error:
        # A pickle can be wrong in as many ways as there are errors.
        raise NotPlain("it is no whole pickle") from error
    return _Copy().take(value, 0)


def _unpack(blob: bytes) -> bytes:
    unpacker = bz2.BZ2Decompressor()
    try:
        plain = unpacker.decompress(blob, UNPACKED_AT_MOST + 1)
    except (OSError, ValueError, EOFError) as error:
        raise NotPlain("it is not packed with bz2") from error
    if len(plain) > UNPACKED_AT_MOST:
        raise NotPlain(f"it unpacks to more than {UNPACKED_AT_MOST // 2**20} MiB")
    if not unpacker.eof:
        raise NotPlain("it ends early")
    return plain


class _Copy:
    """Copies a value, and counts what it holds."""

    def __init__(self) -> None:
        self._left = VALUES_AT_MOST

    def take(self, value: Any, depth: int) -> Any:
        self._left -= 1
        if self._left < 0 or depth > DEPTH_AT_MOST:
            raise NotPlain("it holds too many values within each other")
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return str(value)
        if value is None or isinstance(value, bool | int | float):
            return value
        if isinstance(value, list):
            return [self.take(one, depth + 1) for one in value]
        return {_text(str(key)): self.take(one, depth + 1) for key, one in value.items()}


def _text(value: str) -> str:
    """A pickle holds halves of characters too, and numbers of any length: JSON, in which this goes on, has neither."""
    return value[:LONGEST_TEXT].encode(errors="replace").decode()
