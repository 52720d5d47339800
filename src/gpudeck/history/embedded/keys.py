"""Integer keys of hosts, GPUs, runs and words in the file, and samples translated into them.

Only the writer's thread assigns new numbers. Everything here is in the file too, or will be with the current
transaction: after a failed one, everything is read again.
"""

import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Struct, field, structs

from gpudeck.history.base import KnownGpu, KnownHost
from gpudeck.history.embedded.journal import GpuRuns, SampleBatch, make_batch
from gpudeck.history.embedded.tables import checksum, convert_rows
from gpudeck.history.recorder import Devices, Sample, as_batch
from gpudeck.history.sample import ProcessSample

log = logging.getLogger(__name__)

_Time = float | None
_HostRow = tuple[int, str, str, _Time, _Time]
_GpuRow = tuple[int, str, int, str, str, _Time, _Time]
_RunRow = tuple[int, int, int, _Time, str, _Time, _Time]
_TextRow = tuple[int, str]
_HOST_COLUMNS: Final = "id, host_id, name, first, last"
_GPU_COLUMNS: Final = "id, uuid, host, label, model, first, last"
_RUN_COLUMNS: Final = "id, host, pid, started_at, gpus, first, last"
_NO_SUMS: Final = (0.0,) * 10
"""Of a run before its first hour is sealed: the columns after `ended`."""
_LAST: Final = 7e9
_SAME_START = 2.0
"""Seconds by which the start of one process may differ after its host corrected its clock."""
_AHEAD: Final = 60.0
"""Seconds: a sample so far ahead of the hub's clock was taken while that clock was wrong."""


class OpenRun(Struct):
    key: int
    pid: int
    started_at: float | None
    gpus: set[int]
    first: float
    last: float


class HostKeys(KnownHost):
    """`runs` are the open runs by pid, `past_runs` those of late samples since the last sealing. `gpus` is by UUID. As
    long as samples have the same `devices`, `gpu_runs` are their GPUs and runs."""

    gpus: dict[str, KnownGpu] = field(default_factory=dict)
    runs: dict[int, OpenRun] = field(default_factory=dict)
    past_runs: dict[int, OpenRun] = field(default_factory=dict)
    devices: Devices | None = None
    gpu_runs: GpuRuns = GpuRuns((), ())
    is_changed: bool = False
    is_new: bool = False
    """No sample of it was taken before this one: the file has no runs of it."""


class KeyRegistry:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.hosts: dict[str, HostKeys] = {}
        self.by_key: dict[int, HostKeys] = {}
        self.gpus: dict[int, KnownGpu] = {}
        self._by_uuid: dict[str, KnownGpu] = {}
        self._words: dict[str, int] = {}
        self._layouts: dict[tuple[str, ...], int] = {}
        self._newest: dict[str, int] = {}
        self._inserts: dict[str, list[tuple[object, ...]]] = {}
        """New rows by table, with their checksums: all of a transaction are written together."""
        self.load()

    def load(self) -> None:
        self.hosts = {}
        for key, host_id, name, first, last in self._read(_HostRow, _HOST_COLUMNS, "hosts"):
            self.hosts[host_id] = HostKeys(key, host_id, name, *_span(first, last))
        self.by_key = {host.key: host for host in self.hosts.values()}
        self.gpus, self._by_uuid = {}, {}
        for key, uuid, host, label, model, first, last in self._read(_GpuRow, _GPU_COLUMNS, "gpus"):
            self._put(KnownGpu(key, uuid, host, label, model, *_span(first, last)))
        for row in self._read(_RunRow, _RUN_COLUMNS, "runs", "NOT ended"):
            if row[1] in self.by_key:
                self.by_key[row[1]].runs[row[2]] = _open_run(row)
        self._words = {text: key for key, text in self._read(_TextRow, "id, text", "words")}
        self._layouts = {}
        for key, names in self._read(_TextRow, "id, names", "layouts"):
            with contextlib.suppress(msgspec.DecodeError):
                self._layouts[msgspec.json.decode(names, type=tuple[str, ...])] = key
        self._inserts.clear()
        self._newest = {table: self._find_newest(table) for table in ("hosts", "gpus", "runs", "words", "layouts")}

    def _read(self, kind: Any, columns: str, table: str, where: str = "1") -> Iterator[Any]:
        rows = self._connection.execute(f"SELECT {columns} FROM {table} WHERE {where}")  # noqa: S608
        return convert_rows(
            rows, kind, lambda row, error: _tell(f"row {row} of {table} is damaged and left out: {error}")
        )

    def _find_newest(self, table: str) -> int:
        """The largest number ever assigned. The number of a lost row must not be assigned again."""
        query = self._connection.execute
        found = [query(f"SELECT max(id) FROM {table}").fetchone()[0]]  # noqa: S608
        found += [row[0] for row in query("SELECT value FROM meta WHERE name = ?", (f"newest_{table}",))]
        return max((number for number in found if isinstance(number, int)), default=0)

    def make_batch(self, samples: Sequence[Sample], now: float) -> SampleBatch:
        """Assigns numbers to new hosts, GPUs and runs. Inside a transaction."""
        batch = as_batch(samples)
        hosts: list[int] = []
        gpu_runs: list[GpuRuns] = []
        for names, at, devices in zip(batch.names, batch.moments[:, 0].tolist(), batch.devices, strict=True):
            host = self.host(*names, at)
            if host.last > max(at, now + _AHEAD):
                # Samples of a clock that ran ahead and was set right do not count: else no run would start or end until
                # their time.
                host.last = at
            hosts.append(host.key)
            gpu_runs.append(self._gpu_runs(host, at, devices))
            host.first, host.last = min(host.first, at), max(host.last, at)
            host.is_changed = True
        return make_batch(hosts, batch.moments, gpu_runs, batch.states, (batch.own, batch.table, batch.runs))

    def _gpu_runs(self, host: HostKeys, at: float, devices: Devices) -> GpuRuns:
        """Most samples have the GPUs and processes of the previous one."""
        is_late = at < host.last
        if not is_late and (devices is host.devices or devices == host.devices):
            return host.gpu_runs
        keys = [self.gpu(host, *one, at) for one in zip(devices.uuids, devices.labels, devices.models, strict=True)]
        runs = [
            there if there is None else tuple([self.run(host, process, key, at).key for process in there])
            for there, key in zip(devices.processes, keys, strict=True)
        ]
        gpu_runs = GpuRuns(tuple(keys), tuple(runs))
        host.is_new = False
        if not is_late:
            host.devices, host.gpu_runs = devices, gpu_runs
            # Where it is not known who is on some GPU, no run is said to be gone.
            if all(there is not None for there in devices.processes):
                present = {process.pid for there in devices.processes for process in there or ()}
                for pid in host.runs.keys() - present:
                    self.end(host, pid)
        return gpu_runs

    def host(self, host_id: str, name: str, at: float) -> HostKeys:
        host = self.hosts.get(host_id)
        if host is None:
            key = self._insert("hosts", (host_id, name, at, at))
            host = HostKeys(key, host_id, name, at, at, is_new=True)
            self.hosts[host_id] = self.by_key[key] = host
        elif host.name != name and at >= host.last:
            # A late report has the name of before.
            host.name = name
            self._execute("UPDATE hosts SET name = ? WHERE id = ?", (name, host.key))
        return host

    def gpu(self, host: HostKeys, uuid: str, label: str, model: str, at: float) -> int:
        gpu = host.gpus.get(uuid)
        if gpu is None or gpu.label != label or gpu.model != model:
            gpu = self._settle_gpu(host, uuid, label, model, at)
        return gpu.key

    def run(self, host: HostKeys, process: ProcessSample, gpu: int, at: float) -> OpenRun:
        run = host.runs.get(process.pid)
        if run is None or not _is_same(run.started_at, process.started_at):
            run = self._other_run(host, process, gpu, at)
        if gpu not in run.gpus or not run.first <= at <= run.last:
            run.gpus.add(gpu)
            run.first, run.last = min(run.first, at), max(run.last, at)
        return run

    def end(self, host: HostKeys, pid: int) -> None:
        """End the run with that pid: it was last seen with the previous sample."""
        run = host.runs.pop(pid, None)
        if run is not None:
            run.last = max(run.last, host.last)
            self._write_run(run, ended=True)

    def write_seen(self, host: HostKeys) -> None:
        self._execute("UPDATE hosts SET first = ?, last = ? WHERE id = ?", (host.first, host.last, host.key))
        for run in host.runs.values():
            run.last = max(run.last, host.last)
            self._write_run(run, ended=False)
        for run in host.past_runs.values():
            self._write_run(run, ended=True)
        host.past_runs.clear()
        host.is_changed = False

    def end_at(self, now: float) -> None:
        """Cut times after `now`, which a clock that was ahead has left."""
        for host in self.by_key.values():
            self.write_seen(host)
        for table in ("hosts", "gpus", "runs"):
            statement = f"UPDATE {table} SET first = min(first, ?1), last = min(last, ?1) WHERE last > ?1"  # noqa: S608
            self._execute(statement, (now,))
        self.load()

    def word(self, text: str | None) -> int:
        if text is None:
            return 0
        key = self._words.get(text)
        if key is None:
            key = self._words[text] = self._insert("words", (text,))
        return key

    def layout(self, names: Sequence[str]) -> int:
        names = tuple(names)
        key = self._layouts.get(names)
        if key is None:
            key = self._layouts[names] = self._insert("layouts", (json.dumps(names),))
        return key

    def _settle_gpu(self, host: HostKeys, uuid: str, label: str, model: str, at: float) -> KnownGpu:
        """Add a GPU, or change its host (cards are moved), label or model."""
        known = self._by_uuid.get(uuid)
        if known is None:
            row = uuid, host.key, label, model, at, at
            return self._put(KnownGpu(self._insert("gpus", row), *row))
        if known.host in self.by_key:
            self.by_key[known.host].gpus.pop(uuid, None)
        self._execute(
            "UPDATE gpus SET host = ?, label = ?, model = ? WHERE id = ?", (host.key, label, model, known.key)
        )
        return self._put(KnownGpu(known.key, uuid, host.key, label, model, known.first, known.last))

    def _put(self, gpu: KnownGpu) -> KnownGpu:
        self.gpus[gpu.key] = self._by_uuid[gpu.uuid] = gpu
        if gpu.host in self.by_key:
            self.by_key[gpu.host].gpus[gpu.uuid] = gpu
        return gpu

    def _other_run(self, host: HostKeys, process: ProcessSample, gpu: int, at: float) -> OpenRun:
        """A run other than the current one with that pid. Late samples do not change the current runs."""
        is_late = at < host.last
        past = host.past_runs.get(process.pid)
        if is_late and past is not None and _is_same(past.started_at, process.started_at):
            return past
        is_first = host.is_new and process.pid not in host.runs
        run = (None if is_first else self._find_run(host, process)) or self._begin_run(host, process, gpu, at)
        if not is_late:
            self.end(host, process.pid)
            host.runs[process.pid] = run
            return run
        if past is not None:
            self._write_run(past, ended=True)
        host.past_runs[process.pid] = run
        return run

    def _write_run(self, run: OpenRun, *, ended: bool) -> None:
        self._execute(
            "UPDATE runs SET gpus = ?, first = ?, last = ?, ended = ? WHERE id = ?",
            (",".join(map(str, sorted(run.gpus))), run.first, run.last, ended, run.key),
        )

    def _find_run(self, host: HostKeys, process: ProcessSample) -> OpenRun | None:
        """A run in the file that seemed to have ended, or that a late sample belongs to."""
        if process.started_at is None:
            return None
        row = self._execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE host = ? AND pid = ? "  # noqa: S608
            "AND abs(started_at - ?) <= ? ORDER BY last DESC",
            (host.key, process.pid, process.started_at, _SAME_START),
        ).fetchone()
        try:
            return _open_run(msgspec.convert(row, _RunRow))
        except msgspec.ValidationError:
            return None

    def see_gpu(self, key: int, first: float, last: float) -> None:
        """Note that the GPU was sampled at these moments."""
        gpu = self.gpus.get(key)
        if gpu is not None and (first < gpu.first or last > gpu.last):
            gpu = structs.replace(gpu, first=min(first, gpu.first), last=max(last, gpu.last))
            self._execute("UPDATE gpus SET first = ?, last = ? WHERE id = ?", (gpu.first, gpu.last, key))
            self._put(gpu)

    def _begin_run(self, host: HostKeys, process: ProcessSample, gpu: int, at: float) -> OpenRun:
        pid, started_at, *texts = process[:6]
        began = None if started_at is None else float(started_at)
        known = (host.key, pid, began, *texts, str(gpu), at, at, int(at < host.last))
        key = self._insert("runs", (*known, *_NO_SUMS))
        return OpenRun(key, process.pid, process.started_at, {gpu}, at, at)

    def _insert(self, table: str, values: tuple[object, ...]) -> int:
        """`values` are all columns of the table after `id`, with the types of the columns."""
        key = self._newest[table] = self._newest[table] + 1
        row = key, *values
        crc = checksum(*[value.encode() if isinstance(value, str) else value for value in row])
        self._inserts.setdefault(table, []).append((*row, crc))
        return key

    def write_new(self) -> None:
        inserts, self._inserts = self._inserts, {}
        for table, rows in inserts.items():
            marks = ", ".join("?" * len(rows[0]))
            # A row that is there already under this name, but is damaged, gives way.
            self._connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", rows)  # noqa: S608
            values = f"newest_{table}", self._newest[table]
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", values)

    def _execute(self, statement: str, values: Sequence[object]) -> sqlite3.Cursor:
        if self._inserts:
            self.write_new()
        return self._connection.execute(statement, values)


def _open_run(row: _RunRow) -> OpenRun:
    key, _, pid, started_at, gpus, first, last = row
    return OpenRun(key, pid, started_at, set(split_gpus(gpus)), *_span(first, last))


def _span(first: float | None, last: float | None) -> tuple[float, float]:
    """If one of the two is damaged, the other replaces it."""
    known = [time for time in (first, last) if time is not None and 0 <= time < _LAST]
    return (min(known), max(known)) if known else (0.0, 0.0)


@cache
def _tell(what: str) -> None:
    """Log once, not after each rollback."""
    log.warning("%s; `gpudeck history verify` names all damage", what)


def _is_same(one: float | None, other: float | None) -> bool:
    return one is None or other is None or abs(one - other) <= _SAME_START


def split_gpus(text: str) -> tuple[int, ...]:
    """Parts that are not numbers are left out."""
    return tuple(int(part) for part in text.split(",") if part.isascii() and part.isdigit()) if text else ()
