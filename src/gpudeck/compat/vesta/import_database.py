"""vesta's own database, gpu_states.db, read and never written: its machines, and what was stored of each."""

import bz2
import contextlib
import io
import pickle
import re
import sqlite3
import statistics
import time
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from gpudeck.client.client import Busy, NotFound
from gpudeck.compat.importing import ImportContext, ImportPlan, ImportTarget
from gpudeck.compat.vesta.import_routes import HOSTS, PAST
from gpudeck.compat.vesta.import_settings import read_settings
from gpudeck.compat.vesta.ingest import read_gpus
from gpudeck.compat.vesta.store import LONGEST, make_name
from gpudeck.model.errors import GpudeckError, ReportRefused, UsageError

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
SECONDS_AT_MOST: Final = 600.0
STEPS_BETWEEN_LOOKS: Final = 100_000
_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_LOOK: Final = "vesta keeps it as data/gpu_states.db, with a table `machines`."
ROWS_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 700_000
_TOLD_A_TABLE: Final = 20
_SHORTEST, _LONGEST = 10.0, 600.0
_WAIT_SECONDS: Final = 1.0
FLUSH_ATTEMPTS: Final = 120
Row = tuple[float, dict[str, Any]]
"""When, and the GPUs of then as they were posted."""
_ENABLE: Final = "Add `compat: {vesta: {token: …}}` to the hub's gpudeck.yaml, and start it again."


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
    unpacker = bz2.BZ2Decompressor()
    try:
        plain = unpacker.decompress(blob, UNPACKED_AT_MOST + 1)
    except (OSError, ValueError, EOFError) as error:
        raise NotPlain("it is not packed with bz2") from error
    if len(plain) > UNPACKED_AT_MOST:
        raise NotPlain(f"it unpacks to more than {UNPACKED_AT_MOST // 2**20} MiB")
    if not unpacker.eof:
        raise NotPlain("it ends early")
    return load_plain(plain)


def load_plain(packed: bytes) -> Any:
    try:
        value = _PlainUnpickler(io.BytesIO(packed)).load()
    except NotPlain:
        raise
    except Exception as error:
        # A pickle can be wrong in as many ways as there are errors.
        raise NotPlain("it is no whole pickle") from error
    return _Copy().take(value, 0)


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


class VestaDatabase:
    """Opened and closed by `open_database`. The next row may take so many seconds: a table can be made to be read
    forever, and a real one may have millions of rows, each of which takes its time here."""

    def __init__(self, file: Path, connection: sqlite3.Connection, zone: tzinfo, seconds: float) -> None:
        self._file = file
        self._connection = connection
        self._zone = zone
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        connection.set_progress_handler(lambda: int(time.monotonic() > self._end), STEPS_BETWEEN_LOOKS)

    def machines(self) -> list[tuple[int, VestaMachine | str]]:
        """Each row with its number: a machine, or why it is none."""
        rows = self._ask(f"SELECT rowid, id, name, ip_address FROM machines ORDER BY rowid LIMIT {MACHINES_AT_MOST}")  # noqa: S608
        return [(row[0], _read_machine(*row[1:])) for row in rows]

    def has_table(self, name: str) -> bool:
        """Whether that host has an ordinary table: a view or a virtual table may do anything when it is read."""
        wanted = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
        found = list(self._ask(wanted, name))
        if not found or not re.match(r"\s*CREATE\s+TABLE\b", str(found[0][0]), re.IGNORECASE):
            return False
        columns = {row[1] for row in self._ask(f"PRAGMA table_info({_quote(name)})")}
        return {"timestamp", "data"} <= columns

    def stored(self, name: str) -> Generator[Stored, None, None]:
        """What was stored of that host, the newest first. To be closed before the database is."""
        rows = self._ask(
            f"SELECT rowid, timestamp, CASE WHEN length(data) <= {BLOB_AT_MOST} THEN data END FROM {_quote(name)} "  # noqa: S608
            "ORDER BY timestamp DESC, rowid DESC"
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
        self._end = time.monotonic() + self._seconds
        try:
            for row in self._connection.execute(question, values):
                yield row
                self._end = time.monotonic() + self._seconds
        except (sqlite3.Error, OverflowError) as error:
            raise UsageError(f"{self._file} cannot be read to its end: {error}.", _LOOK) from error


@contextlib.contextmanager
def open_database(file: Path, zone: tzinfo) -> Iterator[VestaDatabase]:
    """Raises UsageError for what is no database of vesta. `zone` is that of the server's clock."""
    with contextlib.closing(_connect(file)) as connection:
        database = VestaDatabase(file, connection, zone, SECONDS_AT_MOST)
        if not any(database._ask("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'machines'")):
            raise UsageError(f"{file} has no table `machines`: it is no database of vesta.", _LOOK)
        yield database


def _connect(file: Path) -> sqlite3.Connection:
    """For reading alone."""
    try:
        connection = sqlite3.connect(f"file:{quote(str(file.absolute()))}?mode=ro", uri=True)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA query_only = ON")
    except sqlite3.Error as error:
        raise UsageError(f"{file} cannot be opened: {error}.", _LOOK) from error
    connection.text_factory = lambda told: told.decode(errors="replace")
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


def read(file: Path, here: ImportContext) -> ImportPlan:
    """Raises UsageError for what is neither settings nor a database of vesta."""
    try:
        with file.open("rb") as opened:
            is_database = opened.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    return _read_database(file, here) if is_database else read_settings(file)


class SenderStep(Struct, frozen=True):
    """A sender that goes on with the id that it has. `gpus` are the UUIDs of its last report."""

    machine: VestaMachine
    gpus: list[str]

    kind = "host"

    @property
    def what(self) -> str:
        return f"take the sender of {self.machine.name} ({self.machine.address or 'no address'})"

    def find(self, hub: ImportTarget) -> str | None:
        return self._ask(hub, only_ask=True)

    def apply(self, hub: ImportTarget) -> str | None:
        return self._ask(hub, only_ask=False)

    def _ask(self, hub: ImportTarget, *, only_ask: bool) -> str | None:
        host, name = asdict(self.machine) | {"gpus": self.gpus}, self.machine.name
        (outcome,) = _post(hub, HOSTS, {"hosts": [host], "only_ask": only_ask})["outcomes"]
        if outcome == "taken":
            hint = "This one registers anew when it posts. Is it the same? Then import again once it posts to the hub."
            raise GpudeckError(f"another sender is registered as {name}.", hint)
        told = {"there": f"{name} is registered with that id", "anew": f"{name} has registered anew"}
        return told.get(outcome)


class PastStep(Struct):
    """What was stored of one host, at `times`, the newest first.

    The hub knows the spans of which it has all. That stays true wherever an import ends: each batch says how far it
    reaches, up to the rows before and behind it where those are there. `asked` is what the hub last said of it.
    """

    file: Path
    zone: tzinfo
    machine: VestaMachine
    gpus: list[str]
    times: Sequence[float]
    interval: float
    asked: dict[str, Any] | None = None

    kind = "history"

    @property
    def what(self) -> str:
        """Of what is not there yet; of all if no hub was asked, or if nothing is left to do."""
        young = [at for at in self.times if not self._is_too_old(at)]
        times = [at for at in young if self._is_wanted(at)] or young or self.times
        old = len(self.times) - len(young) if young else 0
        count = f"{len(times):,} sample{'' if len(times) == 1 else 's'}"
        told = f"keep {count} of {self.machine.name}, {self._day(min(times))} to {self._day(max(times))}"
        return f"{told} ({old:,} more are older than the history keeps)" if old else told

    def find(self, hub: ImportTarget) -> str | None:
        self.asked = self._send(hub)
        if any(self._is_wanted(at) for at in self.times if not self._is_too_old(at)):
            return None
        is_old = all(map(self._is_too_old, self.times))
        return "they are older than the history keeps" if is_old else "they were taken before"

    def apply(self, hub: ImportTarget) -> None:
        self.asked = self.asked or self._send(hub)
        with open_database(self.file, self.zone) as database, closing(database.stored(self.machine.name)) as stored:
            for batch in _batches(self._choose(stored), self._is_wanted):
                self._send(hub, batch)

    def _choose(self, stored: Iterator[Stored]) -> Iterator[Row]:
        """Those that the plan has counted: what lies in the future, or was stored since, is not among them."""
        newest = self.times[0]
        return (
            (one.at, one.gpus)
            for one in stored
            if one.gpus and one.at and one.at <= newest and not self._is_too_old(one.at)
        )

    def _send(self, hub: ImportTarget, batch: "VestaBatch | None" = None) -> dict[str, Any]:
        of = {"id": self.machine.id, "name": self.machine.name, "gpus": self.gpus, "interval": self.interval}
        return _post(hub, PAST, of | ({"rows": []} if batch is None else asdict(batch)))

    def _is_too_old(self, at: float) -> bool:
        return self.asked is not None and at < self.asked["kept_since"]

    def _is_wanted(self, at: float) -> bool:
        return self.asked is None or not any(start <= at <= end for start, end in self.asked["spans"])

    def _day(self, at: float) -> str:
        return datetime.fromtimestamp(at, self.zone).strftime("%Y-%m-%d %H:%M")


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
            if not database.has_table(machine.name):
                plan.steps.append(SenderStep(machine, []))
                plan.leave(f"machines, {machine.name}", "there is no table of what was stored of it")
                continue
            times, gpus = _look_through(database.stored(machine.name), machine.name, here.now, plan)
            plan.steps.append(SenderStep(machine, gpus))
            if times:
                plan.steps.append(PastStep(file, here.zone, machine, gpus, times, _find_interval(times)))
    return plan


def _look_through(
    stored: Iterator[Stored], table: str, now: float, plan: ImportPlan
) -> tuple[Sequence[float], list[str]]:
    """The times of all rows that can be taken, and the UUIDs of the newest. Of the others some are listed one by one. A
    row without a GPU holds nothing to be taken."""
    times = array("d")
    gpus: list[str] = []
    told = untold = 0
    for one in stored:
        problem = one.problem or ("it lies in the future" if one.at is None or one.at > now + 60 else "")
        if not problem:
            if not gpus:
                uuids = [gpu.uuid for gpu in read_gpus(one.gpus or {}, table).report.gpus or ()]
                # What stands for a GPU that reported no UUID begins with the host's name.
                gpus = [uuid for uuid in uuids if not uuid.startswith(f"{table}/")]
            times.extend([one.at] if one.gpus and one.at else [])
        elif told < _TOLD_A_TABLE:
            told += 1
            plan.leave(f"{table}, row {one.row}", problem)
        else:
            untold += 1
    if untold:
        plan.leave(table, f"{untold:,} more rows cannot be taken")
    return times, gpus


def _find_interval(times: Sequence[float]) -> float:
    gaps = [late - early for late, early in pairwise(times) if late != early]
    usual = abs(statistics.median(gaps)) if gaps else _SHORTEST
    return min(max(usual, _SHORTEST), _LONGEST)


class VestaBatch(Struct, frozen=True):
    """As many rows as fit into one request, and how far they reach."""

    rows: list[Row]
    span: tuple[float, float]


def _batches(rows: Iterator[Row], is_wanted: Callable[[float], bool]) -> Iterator[VestaBatch]:
    """Those that are wanted, of rows that come the newest first. One that is not wanted is there: what lies between it
    and the next one is then known to be nothing."""
    batch: list[Row] = []
    size, newer = 0, None
    for row in rows:
        wanted = is_wanted(row[0])
        length = len(msgspec.json.encode(row)) if wanted else 0
        if batch and (not wanted or len(batch) >= ROWS_AT_ONCE or size + length > _BYTES_AT_ONCE):
            yield _bound(batch, newer, batch[-1][0] if wanted else row[0])
            batch, size, newer = [], 0, batch[-1][0]
        if wanted:
            batch.append(row)
            size += length
        else:
            newer = row[0]
    if batch:
        yield _bound(batch, newer, batch[-1][0])


def _bound(rows: list[Row], newer: float | None, start: float) -> VestaBatch:
    return VestaBatch(rows, (start, rows[0][0] if newer is None else newer))


def _post(hub: ImportTarget, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Waits where the hub is busy with what came before."""
    for attempt in range(FLUSH_ATTEMPTS):
        try:
            return hub.client.post(path, body)
        except NotFound as error:
            if "registered" in error.message:
                raise
            raise GpudeckError("this hub takes nothing of vesta.", _ENABLE) from error
        except Busy:
            if attempt == FLUSH_ATTEMPTS - 1:
                raise
            time.sleep(_WAIT_SECONDS)
    raise AssertionError("it is answered or raised above")
