"""`gpudeck import vesta FILE`: its settings become a piece of gpudeck.yaml, its database becomes hosts and history."""

import statistics
import time
from collections.abc import Iterator
from datetime import datetime, tzinfo
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from gpudeck.client.client import Busy, NoSuchThing
from gpudeck.compat.importing import Desk, Here, Left, Plan
from gpudeck.compat.vesta.database import MAGIC, Machine, open_database
from gpudeck.compat.vesta.imports import HOSTS, PAST
from gpudeck.compat.vesta.ingest import read_gpus
from gpudeck.compat.vesta.names import fleet_name
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


class PastStep(Struct, frozen=True):
    """What was stored of one host. The newest is sent first, so that the oldest is there only when all of it is; the
    newest is not where the old server has stored more since the last import."""

    file: Path
    zone: tzinfo
    machine: Machine
    rows: int
    first: float
    last: float
    marks: tuple[float, ...]
    """When the oldest and the newest were stored by which the history can be asked: with memory in them."""
    interval: float

    kind = "history"

    @property
    def what(self) -> str:
        return f"keep {self.rows:,} samples of {self.machine.name}, {self._day(self.first)} to {self._day(self.last)}"

    def find(self, desk: Desk) -> str | None:
        is_there = all(self._has(desk, at) for at in self.marks)
        return "the history has them" if is_there and self.marks else None

    def _has(self, desk: Desk, at: float) -> bool:
        """Whether the history of that host has anything at that time."""
        host = fleet_name(self.machine.name, self.machine.id)
        span = {"start": f"{at - 1:.0f}", "end": f"{at + 1:.0f}", "points": "5"}
        try:
            told = msgspec.json.decode(desk.client.history({"host": host, "metric": "memory_total_bytes"} | span))
        except NoSuchThing:
            return False
        return any(point[1] is not None for series in told["series"] for point in series["points"])

    def apply(self, desk: Desk) -> None:
        with open_database(self.file, self.zone) as database:
            rows = ((one.at, one.gpus) for one in database.stored(self.machine.name) if one.gpus and one.at)
            for batch in _batches(rows):
                body = {"id": self.machine.id, "interval": self.interval, "rows": batch}
                _post(desk, PAST, body)

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
            rows = _look_through(database.stored(machine.name), machine.name, here.now, plan)
            if rows:
                plan.steps.append(_make_past(file, here.zone, machine, rows))
    return plan


def _look_through(stored: Iterator[Any], table: str, now: float, plan: Plan) -> list[tuple[float, bool]]:
    """The times of all rows that can be taken, each with whether it tells memory; of the others so many are told one by
    one. A row without a GPU holds nothing to be taken."""
    rows: list[tuple[float, bool]] = []
    untold = 0
    for one in stored:
        problem = one.problem or ("it lies in the future" if one.at > now + 60 else "")
        if not problem:
            rows += [(one.at, _tells_memory(one.gpus))] if one.gpus else []
        elif len([left for left in plan.left if left.place.startswith(f"{table}, row")]) < _TOLD_A_TABLE:
            plan.left.append(Left(f"{table}, row {one.row}", problem))
        else:
            untold += 1
    if untold:
        plan.left.append(Left(table, f"{untold:,} more rows cannot be taken"))
    return rows


def _tells_memory(gpus: dict[str, Any]) -> bool:
    return any("memory_total_bytes" in gpu.metrics for gpu in read_gpus(gpus, "").report.gpus or ())


def _make_past(file: Path, zone: tzinfo, machine: Machine, rows: list[tuple[float, bool]]) -> PastStep:
    times = [at for at, _ in rows]
    told = [at for at, tells_memory in rows if tells_memory]
    gaps = [abs(late - early) for late, early in pairwise(times) if late != early]
    usual = statistics.median(gaps) if gaps else _SHORTEST
    interval = min(max(usual, _SHORTEST), _LONGEST)
    return PastStep(
        file, zone, machine, len(times), min(times), max(times), (min(told), max(told)) if told else (), interval
    )


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
