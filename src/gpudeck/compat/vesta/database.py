"""vesta's own database, gpu_states.db, read and never written: its machines, and what was stored of each."""

import bz2
import contextlib
import io
import pickle
import re
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

from msgspec import Struct

from gpudeck.compat.vesta.ingest import read_gpus
from gpudeck.compat.vesta.register import LONGEST, make_name
from gpudeck.model.errors import ReportRefused, UsageError

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
MAGIC: Final = b"SQLite format 3\0"
BLOB_AT_MOST: Final = 1024 * 1024
MACHINES_AT_MOST: Final = 10_000
_SECONDS_AT_MOST: Final = 600.0
_STEPS_BETWEEN_LOOKS: Final = 100_000
_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_LOOK: Final = "vesta keeps it as data/gpu_states.db, with a table `machines`."


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


class VestaMachine(Struct, frozen=True):
    """A row of `machines`."""

    id: str
    name: str
    address: str


class Stored(Struct, frozen=True):
    """A row of a host's table: its number there, when it was stored, and the GPUs of then; or why it cannot be taken,
    in which case the time may be unknown too."""

    row: int
    at: float | None
    gpus: dict[str, Any] | None
    problem: str = ""


class Patience:
    """How long SQLite may look for the next row: a table can be made to be read forever, and an honest one may have
    millions of rows, each of which takes its time here."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        self._end = time.monotonic() + self._seconds

    def is_over(self) -> bool:
        return time.monotonic() > self._end


class VestaDatabase:
    """Opened by `open_database`; whoever opened it closes it."""

    def __init__(self, file: Path, connection: sqlite3.Connection, zone: tzinfo, patience: Patience) -> None:
        self._file = file
        self._connection = connection
        self._zone = zone
        self._patience = patience

    def close(self) -> None:
        self._connection.close()

    def machines(self) -> list[tuple[int, VestaMachine | str]]:
        """Each row with its number: a machine, or why it is none."""
        rows = self._ask(f"SELECT rowid, id, name, ip_address FROM machines ORDER BY rowid LIMIT {MACHINES_AT_MOST}")  # noqa: S608
        return [(row[0], _read_machine(*row[1:])) for row in rows]

    def has_table(self, name: str) -> bool:
        """Whether that host has an ordinary table: what a view or a virtual table does when it is read, who knows."""
        wanted = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
        found = list(self._ask(wanted, name))
        if not found or not re.match(r"\s*CREATE\s+TABLE\b", str(found[0][0]), re.IGNORECASE):
            return False
        columns = {row[1] for row in self._ask(f"PRAGMA table_info({_quote(name)})")}
        return {"timestamp", "data"} <= columns

    def stored(self, name: str, *, oldest_first: bool = False) -> Generator[Stored, None, None]:
        """What was stored of that host, the newest first unless told otherwise. To be closed before the database is."""
        table, order = _quote(name), "ASC" if oldest_first else "DESC"
        rows = self._ask(
            f"SELECT rowid, timestamp, CASE WHEN length(data) <= {BLOB_AT_MOST} THEN data END FROM {table} "  # noqa: S608
            f"ORDER BY timestamp {order}, rowid {order}"
        )
        for number, stamp, blob in rows:
            yield self._read_row(number, stamp, blob, name)

    def _read_row(self, number: int, stamp: object, blob: object, name: str) -> Stored:
        at = read_time(stamp, self._zone)
        if at is None:
            return Stored(number, None, None, f"{str(stamp)[:20]!r} is no time")
        if not isinstance(blob, bytes):
            return Stored(number, at, None, "it holds no data, or too much")
        try:
            gpus = read_blob(blob)
            read_gpus(gpus, name)
        except NotPlain as error:
            return Stored(number, at, None, str(error))
        except ReportRefused as error:
            return Stored(number, at, None, error.message)
        return Stored(number, at, gpus)

    def _ask(self, question: str, *values: object) -> Iterator[tuple[Any, ...]]:
        self._patience.begin()
        try:
            for row in self._connection.execute(question, values):
                yield row
                self._patience.begin()
        except (sqlite3.Error, OverflowError) as error:
            raise UsageError(f"{self._file} cannot be read to its end: {error}.", _LOOK) from error


@contextlib.contextmanager
def open_database(file: Path, zone: tzinfo) -> Iterator[VestaDatabase]:
    """Raises UsageError for what is no database of vesta. `zone` is that of the server's clock."""
    patience = Patience(_SECONDS_AT_MOST)
    with contextlib.closing(_connect(file, patience)) as connection:
        database = VestaDatabase(file, connection, zone, patience)
        if not any(database._ask("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'machines'")):
            raise UsageError(f"{file} has no table `machines`: it is no database of vesta.", _LOOK)
        yield database


def _connect(file: Path, patience: Patience) -> sqlite3.Connection:
    """For reading alone, with limited patience."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise UsageError(f"{file} cannot be opened: {error}.", _LOOK) from error
    connection.text_factory = lambda told: told.decode(errors="replace")
    connection.set_progress_handler(lambda: int(patience.is_over()), _STEPS_BETWEEN_LOOKS)
    return connection


def read_time(stamp: object, zone: tzinfo) -> float | None:
    """YYYYMMDDhhmmss on the server's clock as Unix seconds; None for what is none."""
    if not isinstance(stamp, int) or isinstance(stamp, bool) or not 19_700_102_000_000 <= stamp < 99_991_231_000_000:
        return None
    try:
        return datetime.strptime(str(stamp), "%Y%m%d%H%M%S").replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None


def _read_machine(told_id: object, name: object, address: object) -> VestaMachine | str:
    if not isinstance(told_id, str) or not _ID.fullmatch(told_id):
        return f"{str(told_id)[:40]!r} is no id of a sender"
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable():
        return f"{str(name)[:40]!r} is no name of a host"
    if make_name(name, lambda _: False) != name:
        return f"{name[:40]!r} is no name that a sender gets here: it registers anew when it posts"
    return VestaMachine(told_id, name, address[:64] if isinstance(address, str) and address.isprintable() else "")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
