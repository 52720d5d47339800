"""`gpudeck history export` and `stats`: samples as rows of a table; how large the file and its tables are."""

from collections.abc import Collection, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from msgspec import Struct

from gpudeck.history.base import HistoryRefused, KnownGpu
from gpudeck.history.embedded.view import HistoryView
from gpudeck.history.hour import ABSENT, Hour
from gpudeck.history.sample import GPU_NAMES, STATES

Cell = str | float | None
_BYTES = "CAST(total(length(body)) AS INTEGER)"
_TABLES = dict.fromkeys(("chunks", "quarters", "host_hours", "fleet_quarters"), _BYTES)
_TABLES |= {"uses": "NULL", "uses_of_all": "NULL", "runs": "NULL", "journal": _BYTES}


class ExportSelection(Struct, frozen=True):
    """`hosts` and `gpus` are names or ids; empty: all. `metrics` are names of the catalog."""

    start: float
    end: float
    hosts: Collection[str] = ()
    gpus: Collection[str] = ()
    metrics: Collection[str] = GPU_NAMES


def export(view: HistoryView, choice: ExportSelection) -> Iterator[list[Cell]]:
    """A head, then a row a GPU and moment, host by host in order of time. Raises HistoryRefused."""
    unknown = [name for name in choice.metrics if name not in GPU_NAMES]
    if unknown:
        raise HistoryRefused("unknown_metric", f"no GPU metric is called {unknown[0]}")
    _check_names(view, choice)
    yield ["time", "unix_seconds", "host", "gpu", "index", "model", "state", "users", *choice.metrics]
    known = view.gpus()
    hosts = sorted(view.hosts().values(), key=lambda host: host.name)
    for host in hosts:
        if not choice.hosts or {host.name, host.host_id} & set(choice.hosts):
            for hour in view.hours(host.key, choice.start, choice.end, choice.metrics, runs=True):
                yield from _rows_of(hour, host.name, known, choice, view)


def _check_names(view: HistoryView, choice: ExportSelection) -> None:
    """Before the head: a table without rows would say that there was nothing."""
    hosts = {name for host in view.hosts().values() for name in (host.name, host.host_id)}
    gpus = {gpu.uuid for gpu in view.gpus().values()}
    for name in choice.hosts:
        if name not in hosts:
            raise HistoryRefused("unknown_host", f"the history knows no host {name}")
    for uuid in choice.gpus:
        if uuid not in gpus:
            raise HistoryRefused("unknown_gpu", f"the history knows no GPU {uuid}")


def _rows_of(
    hour: Hour, host: str, known: dict[int, KnownGpu], choice: ExportSelection, view: HistoryView
) -> Iterator[list[Cell]]:
    owners = {part.run: view.owner(part.run) for part in hour.runs}
    tables = [hour.metric(name) for name in choice.metrics]
    for place in np.flatnonzero((hour.times >= choice.start) & (hour.times < choice.end)).tolist():
        at = float(hour.times[place])
        time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        for row, key in enumerate(hour.gpus):
            gpu = known.get(key)
            if gpu is None:
                view.damage.note(f"GPU {key} of {host}", "its row is missing")
                continue
            if hour.states[row, place] == ABSENT or (choice.gpus and gpu.uuid not in choice.gpus):
                continue
            users = {owners[part.run] or "?" for part in hour.runs if part.gpu == row and part.present[place]}
            numbers = [float(table[row, place]) for table in tables]
            values = [None if np.isnan(number) else round(number, 6) for number in numbers]
            state = STATES[hour.states[row, place]]
            yield [time, at, host, gpu.uuid, gpu.label, gpu.model, state, " ".join(sorted(users)), *values]


class TableSize(Struct, frozen=True):
    name: str
    rows: int
    bytes: int | None


class FileUsage(Struct, frozen=True):
    path: str
    file_bytes: int
    hosts: int
    gpus: int
    oldest: float | None
    newest: float | None
    parts: list[TableSize]


def measure_file(view: HistoryView, path: Path) -> FileUsage:
    hosts = view.hosts().values()
    return FileUsage(
        path=str(path),
        file_bytes=sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*") if file.is_file()),
        hosts=len(hosts),
        gpus=len(view.gpus()),
        oldest=min((host.first for host in hosts), default=None),
        newest=max((host.last for host in hosts), default=None),
        parts=[
            TableSize(name, *view.connection.execute(f"SELECT count(*), {size} FROM {name}").fetchone())  # noqa: S608
            for name, size in _TABLES.items()
        ],
    )
