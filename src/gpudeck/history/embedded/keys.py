"""The numbers by which the file knows hosts, GPUs, runs and words, and samples translated into them.

Only the writer's thread assigns new numbers. Everything here is in the file too, or will be with the current
transaction: after a failed one, everything is read again.
"""

import contextlib
import json
import logging
import sqlite3
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import chain
from typing import Any, Final

import msgspec
from msgspec import Struct, field, structs

from gpudeck.history.base import KnownGpu
from gpudeck.history.embedded.journal import GpuRuns, SampleBatch, SampleHead, make_batch
from gpudeck.history.embedded.tables import split_key
from gpudeck.history.sample import GpuSample, HostSample, ProcessSample, Values
from gpudeck.model.clock import Clock

log = logging.getLogger(__name__)

_Time = float | None
_HostRow = tuple[int, str, str, _Time, _Time]
_GpuRow = tuple[int, str, int, str, str, _Time, _Time]
_RunRow = tuple[int, int, int, _Time, str | None, str, _Time, _Time]
_TextRow = tuple[int, str]
_HOST_COLUMNS: Final = "id, host_id, name, first, last"
_GPU_COLUMNS: Final = "id, uuid, host, label, model, first, last"
_RUN_COLUMNS: Final = "id, host, pid, started_at, user, gpus, first, last"
_LAST: Final = 7e9
"""Unix seconds: later times are damage."""
_SAME_START = 2.0
"""Seconds by which the start of one process may differ after its host corrected its clock."""
_AHEAD: Final = 60.0
"""Seconds: a sample so far ahead of the hub's clock was taken while that clock was wrong."""


class OpenRun(Struct):
    """A run of the last sample of its host, or of a late sample."""

    key: int
    pid: int
    started_at: float | None
    user: str | None
    gpus: set[int]
    first: float
    last: float


class HostKeys(Struct):
    """`runs` are the open ones by pid, `past_runs` those of late samples since the last sealing. `gpus` is by UUID. An
    open run was last seen when its host was. While a sample equals `seen_devices`, its GPUs and runs are those of
    `gpu_runs`, and nothing has to be looked up."""

    key: int
    host_id: str
    name: str
    first: float
    last: float
    gpus: dict[str, KnownGpu] = field(default_factory=dict)
    runs: dict[int, OpenRun] = field(default_factory=dict)
    past_runs: dict[int, OpenRun] = field(default_factory=dict)
    seen_devices: tuple[object, ...] | None = None
    gpu_runs: GpuRuns = GpuRuns((), ())
    is_changed: bool = False


class KeyRegistry:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.hosts: dict[str, HostKeys] = {}
        self.by_key: dict[int, HostKeys] = {}
        self.gpus: dict[int, KnownGpu] = {}
        self._by_uuid: dict[str, KnownGpu] = {}
        self.owners: dict[int, str | None] = {}
        self._words: dict[str, int] = {}
        self._layouts: dict[tuple[str, ...], int] = {}
        self._newest: dict[str, int] = {}
        self.load()

    def load(self) -> None:
        """Read everything again, without damaged rows."""
        self.hosts = {}
        for key, host_id, name, first, last in self._read(_HostRow, _HOST_COLUMNS, "hosts"):
            self.hosts[host_id] = HostKeys(key, host_id, name, *_span(first, last))
        self.by_key = {host.key: host for host in self.hosts.values()}
        self.gpus, self._by_uuid = {}, {}
        for key, uuid, host, label, model, first, last in self._read(_GpuRow, _GPU_COLUMNS, "gpus"):
            self._put(KnownGpu(key, uuid, host, label, model, *_span(first, last)))
        self.owners = {}
        for row in self._read(_RunRow, _RUN_COLUMNS, "runs", "NOT ended"):
            if row[1] in self.by_key:
                self.by_key[row[1]].runs[row[2]] = self._open_run(row)
        self._words = {text: key for key, text in self._read(_TextRow, "id, text", "words")}
        self._layouts = {}
        for key, names in self._read(_TextRow, "id, names", "layouts"):
            with contextlib.suppress(msgspec.DecodeError):
                self._layouts[msgspec.json.decode(names, type=tuple[str, ...])] = key
        self._newest = {table: self._find_newest(table) for table in ("hosts", "gpus", "runs", "words", "layouts")}

    def _open_run(self, row: _RunRow) -> OpenRun:
        key, _, pid, started_at, user, gpus, first, last = row
        self.owners[key] = user
        return OpenRun(key, pid, started_at, user, set(split_gpus(gpus)), *_span(first, last))

    def _read(self, kind: object, columns: str, table: str, where: str = "1") -> Iterator[Any]:
        for row in self._connection.execute(f"SELECT {columns} FROM {table} WHERE {where}").fetchall():  # noqa: S608
            try:
                yield msgspec.convert(row, type=kind)
            except msgspec.ValidationError as error:
                _tell(f"a row of {table} is damaged and left out: {error}")

    def _find_newest(self, table: str) -> int:
        """The largest number ever assigned: the number of a lost row must not be used again."""
        ask = self._connection.execute
        found = [ask(f"SELECT max(id) FROM {table}").fetchone()[0]]  # noqa: S608
        found += [row[0] for row in ask("SELECT value FROM meta WHERE name = ?", (f"newest_{table}",))]
        if table == "hosts":
            hours = [ask(f"SELECT max(key) FROM {name}").fetchone()[0] for name in ("chunks", "quarters", "sealed")]  # noqa: S608
            found += [split_key(key)[0] for key in hours if isinstance(key, int)]
        return max((number for number in found if isinstance(number, int)), default=0)

    def host(self, sample: HostSample) -> HostKeys:
        host = self.hosts.get(sample.host_id)
        if host is None:
            key = self._insert(
                "hosts", "host_id, name, first, last", (sample.host_id, sample.name, sample.at, sample.at)
            )
            host = HostKeys(key, sample.host_id, sample.name, sample.at, sample.at)
            self.hosts[sample.host_id] = self.by_key[key] = host
        elif host.name != sample.name:
            host.name = sample.name
            self._connection.execute("UPDATE hosts SET name = ? WHERE id = ?", (sample.name, host.key))
        return host

    def gpu(self, host: HostKeys, sample: GpuSample, at: float) -> int:
        gpu = host.gpus.get(sample.uuid)
        if gpu is None or gpu.label != sample.label or gpu.model != sample.model:
            gpu = self._settle_gpu(host, sample, at)
        return gpu.key

    def run(self, host: HostKeys, process: ProcessSample, gpu: int, at: float) -> OpenRun:
        """The run that this process is, new or known. A pid that was given to another program is another run."""
        run = host.runs.get(process.pid)
        if run is None or not _is_same(run.started_at, process.started_at):
            run = self._other_run(host, process, gpu, at)
        if gpu not in run.gpus or not run.first <= at <= run.last:
            run.gpus.add(gpu)
            run.first, run.last = min(run.first, at), max(run.last, at)
        return run

    def end(self, host: HostKeys, pid: int) -> None:
        """The run with that pid is no longer there: it was last seen with the sample before."""
        run = host.runs.pop(pid, None)
        if run is not None:
            run.last = max(run.last, host.last)
            self._write_run(run, ended=True)

    def write_seen(self, host: HostKeys) -> None:
        """What is known of that host and of its runs, into the file."""
        self._connection.execute("UPDATE hosts SET first = ?, last = ? WHERE id = ?", (host.first, host.last, host.key))
        for run in host.runs.values():
            run.last = max(run.last, host.last)
            self._write_run(run, ended=False)
        for run in host.past_runs.values():
            self._write_run(run, ended=True)
        host.past_runs.clear()
        host.is_changed = False

    def write_all_seen(self) -> None:
        for host in self.hosts.values():
            if host.is_changed:
                self.write_seen(host)

    def end_at(self, now: float) -> None:
        """Cut times after `now`, which a clock that was ahead has left."""
        for table in ("hosts", "gpus", "runs"):
            self._connection.execute(
                f"UPDATE {table} SET first = min(first, ?1), last = min(last, ?1) WHERE last > ?1",  # noqa: S608
                (now,),
            )
        for host in self.by_key.values():
            host.first, host.last = min(host.first, now), min(host.last, now)
            for run in (*host.runs.values(), *host.past_runs.values()):
                run.first, run.last = min(run.first, now), min(run.last, now)
        for gpu in list(self.gpus.values()):
            if gpu.last > now:
                self._put(structs.replace(gpu, first=min(gpu.first, now), last=now))

    def word(self, text: str | None) -> int:
        """0 stands for None: unknown."""
        if text is None:
            return 0
        key = self._words.get(text)
        if key is None:
            key = self._words[text] = self._insert("words", "text", (text,))
        return key

    def layout(self, names: Sequence[str]) -> int:
        names = tuple(names)
        key = self._layouts.get(names)
        if key is None:
            key = self._layouts[names] = self._insert("layouts", "names", (json.dumps(names),))
        return key

    def _settle_gpu(self, host: HostKeys, sample: GpuSample, at: float) -> KnownGpu:
        """A GPU that is new here: to the file, to this host (cards are moved), or under this label."""
        known = self._by_uuid.get(sample.uuid)
        if known is None:
            key = self._insert(
                "gpus",
                "uuid, host, label, model, first, last",
                (sample.uuid, host.key, sample.label, sample.model, at, at),
            )
            return self._put(KnownGpu(key, sample.uuid, host.key, sample.label, sample.model, at, at))
        if known.host in self.by_key:
            self.by_key[known.host].gpus.pop(sample.uuid, None)
        self._connection.execute(
            "UPDATE gpus SET host = ?, label = ?, model = ? WHERE id = ?",
            (host.key, sample.label, sample.model, known.key),
        )
        return self._put(
            KnownGpu(known.key, sample.uuid, host.key, sample.label, sample.model, known.first, known.last)
        )

    def _put(self, gpu: KnownGpu) -> KnownGpu:
        self.gpus[gpu.key] = self._by_uuid[gpu.uuid] = gpu
        if gpu.host in self.by_key:
            self.by_key[gpu.host].gpus[gpu.uuid] = gpu
        return gpu

    def _other_run(self, host: HostKeys, process: ProcessSample, gpu: int, at: float) -> OpenRun:
        """Not the one that this pid was last. A late sample changes nothing about who is there now."""
        is_late = at < host.last
        past = host.past_runs.get(process.pid)
        if is_late and past is not None and _is_same(past.started_at, process.started_at):
            return past
        run = self._find_run(host, process) or self._begin_run(host, process, gpu, at)
        if not is_late:
            self.end(host, process.pid)
            host.runs[process.pid] = run
            return run
        if past is not None:
            self._write_run(past, ended=True)
        host.past_runs[process.pid] = run
        return run

    def _write_run(self, run: OpenRun, *, ended: bool) -> None:
        self._connection.execute(
            "UPDATE runs SET gpus = ?, first = ?, last = ?, ended = ? WHERE id = ?",
            (join_gpus(run.gpus), run.first, run.last, ended, run.key),
        )

    def _find_run(self, host: HostKeys, process: ProcessSample) -> OpenRun | None:
        """One that seemed to have ended, or that a late sample has again."""
        if process.started_at is None:
            return None
        row = self._connection.execute(
            f"SELECT {_RUN_COLUMNS} FROM runs WHERE host = ? AND pid = ? "  # noqa: S608
            "AND abs(started_at - ?) <= ? ORDER BY last DESC",
            (host.key, process.pid, process.started_at, _SAME_START),
        ).fetchone()
        try:
            return self._open_run(msgspec.convert(row, _RunRow))
        except msgspec.ValidationError:
            return None

    def see_gpu(self, key: int, first: float, last: float) -> None:
        """That GPU was there at these moments, and maybe between them."""
        gpu = self.gpus.get(key)
        if gpu is not None and (first < gpu.first or last > gpu.last):
            gpu = structs.replace(gpu, first=min(first, gpu.first), last=max(last, gpu.last))
            self._connection.execute("UPDATE gpus SET first = ?, last = ? WHERE id = ?", (gpu.first, gpu.last, key))
            self._put(gpu)

    def _begin_run(self, host: HostKeys, process: ProcessSample, gpu: int, at: float) -> OpenRun:
        key = self._insert(
            "runs",
            "host, pid, started_at, user, command, container, job, gpus, first, last, ended",
            (host.key, *process[:6], str(gpu), at, at, at < host.last),
        )
        self.owners[key] = process.user
        return OpenRun(key, process.pid, process.started_at, process.user, {gpu}, at, at)

    def _insert(self, table: str, columns: str, values: tuple[object, ...]) -> int:
        key = self._newest[table] = self._newest[table] + 1
        marks = ", ".join("?" * (len(values) + 1))
        # A row that is there already under this name, but is damaged, gives way.
        self._connection.execute(f"INSERT OR REPLACE INTO {table} (id, {columns}) VALUES ({marks})", (key, *values))  # noqa: S608
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"newest_{table}", key))
        return key


def _span(first: float | None, last: float | None) -> tuple[float, float]:
    """Where one of them is damaged, the other stands for it."""
    known = [time for time in (first, last) if time is not None and 0 <= time < _LAST]
    return (min(known), max(known)) if known else (0.0, 0.0)


@cache
def _tell(what: str) -> None:
    """Once, and not with every rollback."""
    log.warning("%s; `gpudeck history verify` names all damage", what)


def _is_same(one: float | None, other: float | None) -> bool:
    return one is None or other is None or abs(one - other) <= _SAME_START


def split_gpus(text: str) -> tuple[int, ...]:
    """Those that are numbers: one that is damaged hides no other."""
    return tuple(int(part) for part in text.split(",") if part.isascii() and part.isdigit()) if text else ()


def join_gpus(gpus: set[int]) -> str:
    return ",".join(map(str, sorted(gpus)))


class BatchBuilder:
    def __init__(self, keys: KeyRegistry, now: Clock) -> None:
        self._keys = keys
        self._now = now

    def take(self, samples: list[HostSample]) -> SampleBatch:
        """Inside of a transaction: what is new gets its number."""
        heads: list[SampleHead] = []
        own: list[Values] = []
        tables: list[Values] = []
        run_values: list[tuple[float | None, ...]] = []
        for sample in samples:
            _, _, at, interval, values, gpus = sample
            host = self._keys.host(sample)
            own += (at, interval), values
            if gpus:
                # Column by column: each is taken, or compared with the last one, at once.
                uuids, labels, models, states, rows, processes = zip(*gpus, strict=True)
                tables += rows
                everybody = tuple(chain.from_iterable(filter(None, processes)))
                seen_devices: tuple[object, ...] = (uuids, labels, models, [some and len(some) for some in processes])
                if everybody:
                    pids, starts, _, _, _, _, memories, utilizations = zip(*everybody, strict=True)
                    seen_devices = (*seen_devices, pids, starts)
                    run_values += memories, utilizations
                gpu_runs = self._gpu_runs(host, at, seen_devices, gpus)
                heads.append(SampleHead(host.key, bytes(states), gpu_runs))
            else:
                heads.append(SampleHead(host.key, b"", self._gpu_runs(host, at, (), ())))
            host.last = max(host.last, at)
            host.first = min(host.first, at)
            host.is_changed = True
        return make_batch(heads, own, tables, run_values)

    def _gpu_runs(
        self, host: HostKeys, at: float, seen_devices: tuple[object, ...], gpus: tuple[GpuSample, ...]
    ) -> GpuRuns:
        """Nearly always a sample has the GPUs and processes of the one before."""
        is_late = at < host.last and self._is_late(host, at)
        if seen_devices == host.seen_devices and not is_late:
            return host.gpu_runs
        keys = [self._keys.gpu(host, gpu, at) for gpu in gpus]
        gpu_runs = GpuRuns(
            tuple(keys), tuple([self._runs(host, gpu, key, at) for gpu, key in zip(gpus, keys, strict=True)])
        )
        if not is_late:
            host.seen_devices, host.gpu_runs = seen_devices, gpu_runs
            self._end_runs(host, gpus)
        return gpu_runs

    def _runs(self, host: HostKeys, gpu: GpuSample, key: int, at: float) -> tuple[int, ...] | None:
        if gpu.processes is None:
            return None
        return tuple([self._keys.run(host, process, key, at).key for process in gpu.processes])

    def _is_late(self, host: HostKeys, at: float) -> bool:
        """Whether newer samples of that host are known. Those of a clock that ran ahead and was set right do not count:
        else nobody would come or go until their time."""
        if host.last <= self._now() + _AHEAD:
            return True
        host.last = at
        return False

    def _end_runs(self, host: HostKeys, gpus: tuple[GpuSample, ...]) -> None:
        """Runs that are no longer there. Where it is not known who is on some GPU, none is said to be gone."""
        if any(gpu.processes is None for gpu in gpus):
            return
        present = {process.pid for gpu in gpus for process in gpu.processes or ()}
        for pid in [pid for pid in host.runs if pid not in present]:
            self._keys.end(host, pid)
