"""Imports vesta's database, gpu_states.db: its machines and their stored samples. It is never written."""

import bz2
import pickle
import pickletools
import re
import sqlite3
import statistics
import time
from array import array
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from gpudeck.client.errors import Busy, NotFound
from gpudeck.compat.importing import ImportContext, ImportPlan, ImportTarget
from gpudeck.compat.vesta.import_settings import read_settings
from gpudeck.compat.vesta.routes import IMPORT_PATH, VestaImported
from gpudeck.compat.vesta.states import describe_post
from gpudeck.compat.vesta.store import LONGEST, make_name, read_gpus
from gpudeck.model.errors import GpudeckError, ReportRefused, UsageError

MAX_UNPACKED: Final = 1024 * 1024
# Values alone. No tuples: one may be a key, and to hash one that holds others a million times takes forever.
_ALLOWED: Final = frozenset(
    (
        *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
        *("BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM"),
        *("SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"),
    )
)
MAGIC: Final = b"SQLite format 3\0"
MAX_BLOB: Final = 1024 * 1024
MAX_MACHINES: Final = 10_000
_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_LOOK: Final = "vesta keeps it as data/gpu_states.db, with a table `machines`."
ROWS_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 700_000
_LISTED_A_TABLE: Final = 20
_SHORTEST, _LONGEST = 10.0, 600.0
_WAIT_SECONDS: Final = 1.0
FLUSH_ATTEMPTS: Final = 120
Row = tuple[float, dict[str, Any]]
_ENABLE: Final = "Add `compat: {vesta: {token: …}}` to the hub's gpudeck.yaml, and start it again."


class NotPlain(ValueError):
    """A blob that is not a plain value, or too large. The text is the reason, for users."""


def read_blob(blob: bytes) -> Any:
    """The value in `bz2(pickle(value))`. Raises NotPlain."""
    unpacker = bz2.BZ2Decompressor()
    try:
        plain = unpacker.decompress(blob, MAX_UNPACKED + 1)
    except (OSError, ValueError, EOFError) as error:
        raise NotPlain("it is not packed with bz2") from error
    if len(plain) > MAX_UNPACKED:
        raise NotPlain(f"it unpacks to more than {MAX_UNPACKED // 2**20} MiB")
    if not unpacker.eof:
        raise NotPlain("it ends early")
    return load_plain(plain)


def load_plain(packed: bytes) -> Any:
    """The value of a pickle that holds nothing but numbers, texts, lists and dictionaries. Raises NotPlain."""
    try:
        codes = [(code.name, argument) for code, argument, _ in pickletools.genops(packed)]
        # The loader makes room for the highest number under which a value is remembered.
        is_plain = all(
            name in _ALLOWED and (name != "LONG_BINPUT" or int(at or 0) <= len(packed)) for name, at in codes
        )
        value = pickle.loads(packed) if is_plain else None  # noqa: S301 - it holds nothing that loads or runs code
    except Exception as error:
        # A pickle can be wrong in as many ways as there are errors.
        raise NotPlain("it is no whole pickle") from error
    if not is_plain:
        raise NotPlain("it is a pickle that does more than hold values")
    return value


class VestaMachine(Struct, frozen=True):
    id: str
    name: str
    address: str


class Stored(Struct, frozen=True):
    """A row of a host's table: its number there, its time, and its GPUs in vesta's words; or why it cannot be
    imported."""

    row: int
    at: float
    gpus: dict[str, Any]
    problem: str = ""


class VestaDatabase:
    """Opened and closed by `open_database`. `zone` is that of the server's clock."""

    def __init__(self, file: Path, connection: sqlite3.Connection, zone: tzinfo) -> None:
        self._file = file
        self._connection = connection
        self._zone = zone

    def machines(self) -> list[tuple[int, VestaMachine | str]]:
        rows = self._query(f"SELECT rowid, id, name, ip_address FROM machines ORDER BY rowid LIMIT {MAX_MACHINES}")  # noqa: S608
        return [(row[0], _read_machine(*row[1:])) for row in rows]

    def has_table(self, name: str, *wanted: str) -> bool:
        """Whether there is an ordinary table with these columns: a view may do anything when it is read."""
        found = self._query("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?", name)
        columns = {row[1] for row in self._query(f"PRAGMA table_info({_quote(name)})")}
        return any(found) and set(wanted) <= columns

    def stored(self, name: str) -> Iterator[Stored]:
        """The oldest first."""
        rows = self._query(
            f"SELECT rowid, timestamp, CASE WHEN length(data) <= {MAX_BLOB} THEN data END FROM {_quote(name)} "  # noqa: S608
            "ORDER BY timestamp, rowid"
        )
        return (self._read_row(number, stamp, blob, name) for number, stamp, blob in rows)

    def _read_row(self, number: int, stamp: object, blob: object, name: str) -> Stored:
        at = read_time(stamp, self._zone)
        if at is None:
            return Stored(number, 0.0, {}, f"{str(stamp)[:20]!r} is no time")
        if not isinstance(blob, bytes):
            return Stored(number, at, {}, "it holds no data, or too much")
        try:
            return Stored(number, at, describe_post(read_gpus(read_blob(blob), name)))
        except (NotPlain, ReportRefused) as error:
            return Stored(number, at, {}, str(error))

    def _query(self, question: str, *values: object) -> Iterator[tuple[Any, ...]]:
        try:
            # Not `yield from`: that would close the cursor also after the database was closed.
            for row in self._connection.execute(question, values):  # noqa: UP028
                yield row
        except (sqlite3.Error, OverflowError) as error:
            raise UsageError(f"{self._file} cannot be read to its end: {error}.", _LOOK) from error


@contextmanager
def open_database(file: Path, zone: tzinfo) -> Iterator[VestaDatabase]:
    """Raises UsageError for a file that is not a database of vesta."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)
    except sqlite3.Error as error:
        raise UsageError(f"{file} cannot be opened: {error}.", _LOOK) from error
    with closing(connection):
        connection.text_factory = lambda text: text.decode(errors="replace")
        database = VestaDatabase(file, connection, zone)
        if not database.has_table("machines", "id", "name"):
            raise UsageError(f"{file} has no table `machines`: it is no database of vesta.", _LOOK)
        yield database


def read_time(stamp: object, zone: tzinfo) -> float | None:
    """YYYYMMDDhhmmss on the server's clock as Unix seconds; None for an invalid time."""
    if not isinstance(stamp, int) or isinstance(stamp, bool) or not 19_700_102_000_000 <= stamp < 99_991_231_000_000:
        return None
    try:
        return datetime.strptime(str(stamp), "%Y%m%d%H%M%S").replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        return None


def _read_machine(machine_id: object, name: object, address: object) -> VestaMachine | str:
    if not isinstance(machine_id, str) or not _ID.fullmatch(machine_id):
        return f"{str(machine_id)[:40]!r} is no id of a sender"
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST or not name.isprintable():
        return f"{str(name)[:40]!r} is no name of a host"
    if make_name(name, lambda _: False) != name:
        return f"{name[:40]!r} is no name that a sender gets here: it registers anew when it posts"
    return VestaMachine(machine_id, name, address[:64] if isinstance(address, str) and address.isprintable() else "")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def read(file: Path, here: ImportContext) -> ImportPlan:
    """Raises UsageError for a file that is neither settings nor a database of vesta."""
    try:
        with file.open("rb") as opened:
            is_database = opened.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    return _read_database(file, here) if is_database else read_settings(file)


class SenderStep(Struct, frozen=True):
    """A sender that goes on with the id that it has."""

    machine: VestaMachine

    kind = "host"

    @property
    def what(self) -> str:
        return f"take the sender of {self.machine.name} ({self.machine.address or 'no address'})"

    def run(self, hub: ImportTarget, *, apply: bool) -> str | None:
        return None if _post(hub, self.machine, only_ask=not apply).is_new else f"{self.machine.name} is registered"


class PastStep(Struct):
    """The stored rows of one host, at `times`, the oldest first. The hub takes those that are newer than `since`.
    Rows are sent in order, so an import that ends early goes on there."""

    file: Path
    zone: tzinfo
    machine: VestaMachine
    times: Sequence[float]
    since: float = 0.0

    kind = "history"

    @property
    def what(self) -> str:
        """Of the rows that are not there yet; of all if no hub was asked, or if nothing is left to do."""
        new = [at for at in self.times if at > self.since] or self.times
        count = f"{len(new):,} sample{'' if len(new) == 1 else 's'}"
        rest = len(self.times) - len(new)
        more = f" ({rest:,} older ones are there, or older than the history keeps)" if rest else ""
        return f"keep {count} of {self.machine.name}, {self._day(new[0])} to {self._day(new[-1])}{more}"

    def run(self, hub: ImportTarget, *, apply: bool) -> str | None:
        since = _post(hub, self.machine, only_ask=True).since
        if since is None:
            raise GpudeckError("this hub keeps no history.", "Set history.kind in its gpudeck.yaml.")
        self.since = since
        if self.times[-1] <= since:
            return "they were taken before, or are older than the history keeps"
        if apply:
            interval = _find_interval(self.times)
            with open_database(self.file, self.zone) as database:
                # Rows that were stored since the plan was made are not counted in it.
                stored = database.stored(self.machine.name)
                rows = ((each.at, each.gpus) for each in stored if each.gpus and since < each.at <= self.times[-1])
                for batch in _batches(rows):
                    _post(hub, self.machine, interval=interval, rows=batch)
        return None

    def _day(self, at: float) -> str:
        return datetime.fromtimestamp(at, self.zone).strftime("%Y-%m-%d %H:%M")


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    batch, size = list[Row](), 0
    for row in rows:
        length = len(msgspec.json.encode(row))
        if batch and (len(batch) >= ROWS_AT_ONCE or size + length > _BYTES_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def _read_database(file: Path, here: ImportContext) -> ImportPlan:
    plan = ImportPlan(
        notes=["What the old server stores from now on is not in this: import it again when that has stopped."]
    )
    machines: dict[str, VestaMachine] = {}
    with open_database(file, here.zone) as database:
        for number, machine in database.machines():
            if isinstance(machine, str):
                plan.leave(f"machines, row {number}", machine)
            elif machine.name in machines or any(machine.id == other.id for other in machines.values()):
                plan.leave(f"machines, row {number}", f"{machine.name} is listed twice")
            else:
                machines[machine.name] = machine
        for machine in machines.values():
            plan.steps.append(SenderStep(machine))
            if not database.has_table(machine.name, "timestamp", "data"):
                plan.leave(f"machines, {machine.name}", "there is no table of what was stored of it")
                continue
            times = _scan(database.stored(machine.name), machine.name, here.now, plan)
            if times:
                plan.steps.append(PastStep(file, here.zone, machine, times))
    return plan


def _scan(stored: Iterator[Stored], table: str, now: float, plan: ImportPlan) -> Sequence[float]:
    """The times of all rows that can be imported. A row without a GPU holds nothing to import."""
    times, problems = array("d"), 0
    for each in stored:
        problem = each.problem or ("it lies in the future" if each.at > now + 60 else "")
        if not problem:
            times.extend([each.at] if each.gpus else [])
            continue
        problems += 1
        if problems <= _LISTED_A_TABLE:
            plan.leave(f"{table}, row {each.row}", problem)
    if problems > _LISTED_A_TABLE:
        plan.leave(table, f"{problems - _LISTED_A_TABLE:,} more rows cannot be taken")
    return times


def _find_interval(times: Sequence[float]) -> float:
    gaps = [late - early for early, late in pairwise(times) if late != early]
    return min(max(statistics.median(gaps or [_SHORTEST]), _SHORTEST), _LONGEST)


def _post(hub: ImportTarget, machine: VestaMachine, **fields: Any) -> VestaImported:
    """Repeats the request while the hub is busy with the rows before."""
    for _ in range(FLUSH_ATTEMPTS):
        try:
            return msgspec.json.decode(hub.client.post(IMPORT_PATH, asdict(machine) | fields), type=VestaImported)
        except NotFound as error:
            raise GpudeckError("this hub takes nothing of vesta.", _ENABLE) from error
        except Busy as error:
            busy = error
            time.sleep(_WAIT_SECONDS)
    raise busy
