"""`gpudeck import vesta FILE`: its settings become a piece of gpudeck.yaml, its database becomes hosts and history."""

import statistics
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from gpudeck.client.client import Busy, NoSuchThing
from gpudeck.compat.importing import Here, ImportPlan, ImportTarget, Left
from gpudeck.compat.vesta.database import MAGIC, Stored, VestaMachine, open_database
from gpudeck.compat.vesta.import_routes import HOSTS, PAST
from gpudeck.compat.vesta.ingest import read_gpus
from gpudeck.compat.vesta.settings_import import read_settings
from gpudeck.model.errors import GpudeckError, UsageError

ROWS_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 700_000
_TOLD_A_TABLE: Final = 20
_SHORTEST, _LONGEST = 10.0, 600.0
_WAIT_SECONDS: Final = 1.0
_PATIENCE: Final = 120
Row = tuple[float, dict[str, Any]]
"""When, and the GPUs of then as they were posted."""
_ENABLE: Final = "Add `compat: {vesta: {token: …}}` to the hub's gpudeck.yaml, and start it again."


def read(file: Path, here: Here) -> ImportPlan:
    """Raises UsageError for what is neither settings nor a database of vesta."""
    try:
        with file.open("rb") as opened:
            is_database = opened.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    return _read_database(file, here) if is_database else read_settings(file)


class SenderStep(Struct, frozen=True):
    """A sender that goes on with the id that it has. `gpus` are the UUIDs of those that it told of last."""

    machine: VestaMachine
    gpus: list[str]

    kind = "host"

    @property
    def what(self) -> str:
        return f"take the sender of {self.machine.name} ({self.machine.address or 'no address'})"

    def find(self, desk: ImportTarget) -> str | None:
        return self._read(self._post(desk, only_ask=True))

    def apply(self, desk: ImportTarget) -> str | None:
        return self._read(self._post(desk, only_ask=False))

    def _post(self, desk: ImportTarget, *, only_ask: bool) -> str:
        host = asdict(self.machine) | {"gpus": self.gpus}
        (outcome,) = _post(desk, HOSTS, {"hosts": [host], "only_ask": only_ask})["outcomes"]
        return str(outcome)

    def _read(self, outcome: str) -> str | None:
        name = self.machine.name
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
        """Of what is not there yet; of all where nobody was asked, or where nothing is left to do."""
        young = [at for at in self.times if not self._is_too_old(at)]
        times = [at for at in young if self._is_wanted(at)] or young or self.times
        old = len(self.times) - len(young) if young else 0
        count = f"{len(times):,} sample{'' if len(times) == 1 else 's'}"
        told = f"keep {count} of {self.machine.name}, {self._day(min(times))} to {self._day(max(times))}"
        return f"{told} ({old:,} more are older than the history keeps)" if old else told

    def find(self, desk: ImportTarget) -> str | None:
        self.asked = self._send(desk)
        if any(self._is_wanted(at) for at in self.times if not self._is_too_old(at)):
            return None
        is_old = all(map(self._is_too_old, self.times))
        return "they are older than the history keeps" if is_old else "they were taken before"

    def apply(self, desk: ImportTarget) -> None:
        self.asked = self.asked or self._send(desk)
        with open_database(self.file, self.zone) as database, closing(database.stored(self.machine.name)) as stored:
            for batch in _batches(self._choose(stored), self._is_wanted):
                self._send(desk, batch)

    def _choose(self, stored: Iterator[Stored]) -> Iterator[Row]:
        """Those that the plan has counted: what lies in the future, or was stored since, is not among them."""
        newest = self.times[0]
        return (
            (one.at, one.gpus)
            for one in stored
            if one.gpus and one.at and one.at <= newest and not self._is_too_old(one.at)
        )

    def _send(self, desk: ImportTarget, batch: "VestaBatch | None" = None) -> dict[str, Any]:
        of = {"id": self.machine.id, "name": self.machine.name, "gpus": self.gpus, "interval": self.interval}
        return _post(desk, PAST, of | ({"rows": []} if batch is None else asdict(batch)))

    def _is_too_old(self, at: float) -> bool:
        return self.asked is not None and at < self.asked["kept_since"]

    def _is_wanted(self, at: float) -> bool:
        return self.asked is None or not any(start <= at <= end for start, end in self.asked["spans"])

    def _day(self, at: float) -> str:
        return datetime.fromtimestamp(at, self.zone).strftime("%Y-%m-%d %H:%M")


def _read_database(file: Path, here: Here) -> ImportPlan:
    plan = ImportPlan(
        notes=["What the old server stores from now on is not in this: import it again when that has stopped."]
    )
    machines: dict[str, VestaMachine] = {}
    with open_database(file, here.zone) as database:
        for number, machine in database.machines():
            if isinstance(machine, str):
                plan.left.append(Left(f"machines, row {number}", machine))
            elif machine.name in machines or any(machine.id == other.id for other in machines.values()):
                plan.left.append(Left(f"machines, row {number}", f"{machine.name} stands there twice"))
            else:
                machines[machine.name] = machine
        for machine in machines.values():
            if not database.has_table(machine.name):
                plan.steps.append(SenderStep(machine, []))
                plan.left.append(Left(f"machines, {machine.name}", "there is no table of what was stored of it"))
                continue
            times, gpus = _look_through(database.stored(machine.name), machine.name, here.now, plan)
            plan.steps.append(SenderStep(machine, gpus))
            if times:
                plan.steps.append(PastStep(file, here.zone, machine, gpus, times, _find_interval(times)))
    return plan


def _look_through(
    stored: Iterator[Stored], table: str, now: float, plan: ImportPlan
) -> tuple[Sequence[float], list[str]]:
    """The times of all rows that can be taken, and the UUIDs of the newest; of the other rows so many are told one by
    one. A row without a GPU holds nothing to be taken."""
    times = array("d")
    gpus: list[str] = []
    told = untold = 0
    for one in stored:
        problem = one.problem or ("it lies in the future" if one.at is None or one.at > now + 60 else "")
        if not problem:
            gpus = gpus or _read_uuids(one.gpus or {}, table)
            times.extend([one.at] if one.gpus and one.at else [])
        elif told < _TOLD_A_TABLE:
            told += 1
            plan.left.append(Left(f"{table}, row {one.row}", problem))
        else:
            untold += 1
    if untold:
        plan.left.append(Left(table, f"{untold:,} more rows cannot be taken"))
    return times, gpus


def _read_uuids(posted: dict[str, Any], host: str) -> list[str]:
    """Those that GPUs told themselves: what stands for one that told none begins with the host's name."""
    uuids = (gpu.uuid for gpu in read_gpus(posted, host).report.gpus or ())
    return [uuid for uuid in uuids if not uuid.startswith(f"{host}/")]


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


def _post(desk: ImportTarget, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Waits where the hub is busy with what came before."""
    for attempt in range(_PATIENCE):
        try:
            return desk.client.post(path, body)
        except NoSuchThing as error:
            if "registered" in error.message:
                raise
            raise GpudeckError("this hub takes nothing of vesta.", _ENABLE) from error
        except Busy:
            if attempt == _PATIENCE - 1:
                raise
            time.sleep(_WAIT_SECONDS)
    raise AssertionError("it is answered or raised above")
