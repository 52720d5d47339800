"""`gpudeck import vesta FILE`: its settings become a piece of gpudeck.yaml, its database becomes hosts and history."""

import statistics
import time
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from gpudeck.client.client import Busy, NoSuchThing
from gpudeck.compat.importing import Desk, Here, Left, Plan
from gpudeck.compat.vesta.database import MAGIC, Machine, Stored, open_database
from gpudeck.compat.vesta.imports import HOSTS, PAST
from gpudeck.compat.vesta.yaml_settings import read_settings
from gpudeck.model.errors import GpudeckError, UsageError

ROWS_AT_ONCE: Final = 200
_BYTES_AT_ONCE: Final = 700_000
_TOLD_A_TABLE: Final = 20
_SHORTEST, _LONGEST = 10.0, 600.0
_WAIT_SECONDS: Final = 1.0
_PATIENCE: Final = 120
_ENABLE: Final = "Add `compat: {vesta: {token: …}}` to the hub's gpudeck.yaml, and start it again."


def read(file: Path, here: Here) -> Plan:
    """Raises UsageError for what is neither settings nor a database of vesta."""
    try:
        with file.open("rb") as opened:
            is_database = opened.read(len(MAGIC)) == MAGIC
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    return _read_database(file, here) if is_database else read_settings(file)


class SenderStep(Struct, frozen=True):
    """A sender that goes on with the id that it has."""

    machine: Machine

    kind = "host"

    @property
    def what(self) -> str:
        return f"take the sender of {self.machine.name} ({self.machine.address or 'no address'})"

    def find(self, desk: Desk) -> str | None:
        (outcome,) = _post(desk, HOSTS, {"hosts": [self.machine], "only_ask": True})["outcomes"]
        self._refuse_taken(outcome)
        return f"{self.machine.name} is registered with that id" if outcome == "there" else None

    def apply(self, desk: Desk) -> None:
        (outcome,) = _post(desk, HOSTS, {"hosts": [self.machine]})["outcomes"]
        self._refuse_taken(outcome)

    def _refuse_taken(self, outcome: str) -> None:
        if outcome == "taken":
            raise GpudeckError(
                f"another sender is registered as {self.machine.name}.", "This one registers anew when it posts."
            )


class PastStep(Struct):
    """What was stored of one host, at `times`, the newest first.

    The hub knows from when until when it has all of it. That stays true wherever an import ends, as what is sent always
    adjoins it: at first from the newest back; later what was stored since, the oldest first, and then what is older.
    `asked` is what the hub last said of it.
    """

    file: Path
    zone: tzinfo
    machine: Machine
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
        told = f"keep {len(times):,} samples of {self.machine.name}, {self._day(min(times))} to {self._day(max(times))}"
        return f"{told} ({old:,} more are older than the history keeps)" if old else told

    def find(self, desk: Desk) -> str | None:
        self.asked = self._send(desk, [])
        if any(map(self._is_wanted, self.times)):
            return None
        is_old = all(map(self._is_too_old, self.times))
        return "they are older than the history keeps" if is_old else "they were taken before"

    def apply(self, desk: Desk) -> None:
        asked = self.asked or self._send(desk, [])
        self.asked = asked
        with open_database(self.file, self.zone) as database:
            if asked["end"] is not None:
                self._send_rows(desk, database.stored(self.machine.name, oldest_first=True), after=asked["end"])
            before = float("inf") if asked["start"] is None else asked["start"]
            self._send_rows(desk, database.stored(self.machine.name), before=before)

    def _send_rows(
        self,
        desk: Desk,
        stored: Generator[Stored, None, None],
        *,
        after: float = float("-inf"),
        before: float = float("inf"),
    ) -> None:
        """Those that the plan has counted: what lies in the future, or was stored since, is not among them."""
        newest = self.times[0]
        with closing(stored):
            rows = ((one.at, one.gpus) for one in stored if one.gpus and one.at and one.at <= newest)
            for batch in _batches(row for row in rows if after < row[0] < before and not self._is_too_old(row[0])):
                self._send(desk, batch)

    def _send(self, desk: Desk, rows: list[tuple[float, dict[str, Any]]]) -> dict[str, Any]:
        return _post(desk, PAST, {"id": self.machine.id, "interval": self.interval, "rows": rows})

    def _is_too_old(self, at: float) -> bool:
        return self.asked is not None and at < self.asked["kept_since"]

    def _is_wanted(self, at: float) -> bool:
        if self.asked is None:
            return True
        start, end = self.asked["start"], self.asked["end"]
        return not self._is_too_old(at) and (start is None or not start <= at <= end)

    def _day(self, at: float) -> str:
        return datetime.fromtimestamp(at, self.zone).strftime("%Y-%m-%d %H:%M")


def _read_database(file: Path, here: Here) -> Plan:
    plan = Plan(notes=["What the old server stores from now on is not in this: import it again when that has stopped."])
    machines: dict[str, Machine] = {}
    with open_database(file, here.zone) as database:
        for number, machine in database.machines():
            if isinstance(machine, str):
                plan.left.append(Left(f"machines, row {number}", machine))
            elif machine.name in machines or any(machine.id == other.id for other in machines.values()):
                plan.left.append(Left(f"machines, row {number}", f"{machine.name} stands there twice"))
            else:
                machines[machine.name] = machine
        for machine in machines.values():
            plan.steps.append(SenderStep(machine))
            if not database.has_table(machine.name):
                plan.left.append(Left(f"machines, {machine.name}", "there is no table of what was stored of it"))
                continue
            times = _look_through(database.stored(machine.name), machine.name, here.now, plan)
            if times:
                plan.steps.append(_make_past(file, here.zone, machine, times))
    return plan


def _look_through(stored: Iterator[Stored], table: str, now: float, plan: Plan) -> Sequence[float]:
    """The times of all rows that can be taken; of the others so many are told one by one. A row without a GPU holds
    nothing to be taken."""
    times = array("d")
    told = untold = 0
    for one in stored:
        problem = one.problem or ("it lies in the future" if one.at is None or one.at > now + 60 else "")
        if not problem:
            times.extend([one.at] if one.gpus and one.at else [])
        elif told < _TOLD_A_TABLE:
            told += 1
            plan.left.append(Left(f"{table}, row {one.row}", problem))
        else:
            untold += 1
    if untold:
        plan.left.append(Left(table, f"{untold:,} more rows cannot be taken"))
    return times


def _make_past(file: Path, zone: tzinfo, machine: Machine, times: Sequence[float]) -> PastStep:
    gaps = [late - early for late, early in pairwise(times) if late != early]
    usual = abs(statistics.median(gaps)) if gaps else _SHORTEST
    return PastStep(file, zone, machine, times, min(max(usual, _SHORTEST), _LONGEST))


def _batches(rows: Iterator[tuple[float, dict[str, Any]]]) -> Iterator[list[tuple[float, dict[str, Any]]]]:
    """As many as fit into one request."""
    batch: list[tuple[float, dict[str, Any]]] = []
    size = 0
    for row in rows:
        length = len(msgspec.json.encode(row))
        if batch and (len(batch) >= ROWS_AT_ONCE or size + length > _BYTES_AT_ONCE):
            yield batch
            batch, size = [], 0
        batch.append(row)
        size += length
    if batch:
        yield batch


def _post(desk: Desk, path: str, body: dict[str, Any]) -> dict[str, Any]:
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
