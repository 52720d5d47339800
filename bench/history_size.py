"""Left out: HTTP, the other parts of the hub, samples of the seven days that only sums are generated of, late reports.

An hour of a large fleet (eight GPUs a host, each host every 5 s) goes through the recorder into the embedded store as
fast as it can be written, a batch for each second, as live; then it is sealed. The event loop is watched at the real
pace while an hour is sealed. The reference is the least that can be done with the same numbers: the doubles of each
second, compressed with zstd and appended to a file.
"""

import asyncio
import gc
import os
import random
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

import numpy as np
import uvloop
import zstandard
from msgspec import Struct, field

from bench.processes import rss_mib
from bench.reports import make_envelope
from bench.tables import Row, best_of, print_table
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import FleetObserver
from gpudeck.fleet.state import FleetState
from gpudeck.fleet.table import FleetTable, Pending
from gpudeck.history.base import HeatQuery, SeriesQuery, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.embedded.tables import checksum
from gpudeck.history.recorder import Recorder
from gpudeck.history.settings import HistorySettings
from gpudeck.model.cpu_budget import THREAD_SECONDS

GPUS, INTERVAL, HOUR, DAY = 8, 5, 3600, 86_400
SLICES, WAKEUP_SECONDS = 20, 0.001
"""Into how many parts the reports of a second are divided, and seconds between two looks at the event loop's clock."""
WATCHED = 30
DAYS = 7
MIB = float(1 << 20)


class Clock:
    """Follows the samples."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class _Capture(FleetObserver):
    """Keeps the reports of the first contact, to send them again with other numbers."""

    name = "capture"

    def __init__(self) -> None:
        self.reports: list[Pending] = []

    def on_reports(self, table: FleetTable, reports: "list[Pending]") -> None:  # type: ignore[override]
        self.reports += reports


class LargeFleet:
    """Hosts whose numbers change from report to report as those of a lab: utilization and power are noise around a
    level, memory goes in steps, temperatures follow, totals stay; a third of the GPUs is free."""

    def __init__(self, hosts: int, clock: Clock) -> None:
        self._clock, self._start = clock, clock.now
        self._hub = Hub(now=clock)
        capture = _Capture()
        fleet: FleetState = self._hub.fleet
        fleet.observers.add(capture)
        rng = random.Random(1)
        for host in range(hosts):
            envelope = make_envelope(host, 1, rng)
            fleet.apply(envelope, via="push", now=clock.now, sent_at=envelope.collected_at)
        fleet.settle()
        self.table = fleet.table
        self._reports = capture.reports[-hosts:]
        assert len(self._reports) == hosts
        self._noise = np.random.default_rng(1)
        gpus = self.table.gpus
        self._place = gpus.place
        self._level = self._noise.choice((0.0, 0.0, 0.4, 0.9, 0.95, 0.98), gpus.end)
        self._memory = np.floor(self._noise.uniform(0.06, 0.94, gpus.end) * 143_771)
        self._heat = np.full(gpus.end, 40.0)

    @property
    def first_gpu(self) -> str:
        return next(iter(self._reports[0].host.gpus.values())).uuid

    def second(self, number: int, at: float | None = None) -> list[Pending]:
        """The reports of the hosts whose turn it is, `at` seconds after the first."""
        self._clock.now = self._start + (number if at is None else at)
        reports = self._reports[number % INTERVAL :: INTERVAL]
        rows = np.concatenate([np.arange(one.host.rows.start, one.host.rows.stop) for one in reports])
        self._change(rows)
        now = self._clock.now
        return [one._replace(observed_at=now + place / 1e5, is_backlog=False) for place, one in enumerate(reports)]

    def _change(self, rows: np.ndarray) -> None:
        draw, values, count = self._noise, self.table.gpus.values, len(rows)
        level = self._level[rows]
        percent = np.where(level > 0, np.clip(np.rint(100 * level + 4 * draw.uniform(-1, 1, count)), 5, 100), 0.0)
        self._memory[rows] += 64 * (draw.uniform(0, 1, count) < 0.002) * (level > 0)
        watts = np.rint((75 + 6 * percent + draw.uniform(-6, 6, count) * (level > 0)) * 10) / 10
        self._heat[rows] += (28 + 0.4 * percent - self._heat[rows]) * 0.08
        place = self._place
        columns = {
            "utilization_percent": percent,
            "memory_utilization_percent": np.rint(percent * 0.5),
            "memory_used_bytes": self._memory[rows] * MIB,
            "temperature_celsius": np.rint(self._heat[rows]),
            "memory_temperature_celsius": np.rint(self._heat[rows] * 0.9),
            "power_watts": watts,
            "clock_sm_mhz": np.where(level > 0, 1980 - percent // 10 * 15, 345),
            "throttled_power": (watts > 665).astype(float),
            "energy_joules": np.floor(values[rows, place["energy_joules"]] + watts * INTERVAL),
        }
        for name, column in columns.items():
            values[rows, place[name]] = column


class Seen(Struct):
    """CPU seconds, but for counts, MiB and bytes. `late` are seconds by which looks at the clock came too late, with
    the history and without."""

    rows: int = 0
    first: float = 0.0
    loop: float = 0.0
    writing: float = 0.0
    sealing: float = 0.0
    reference: float = 0.0
    memory: float = 0.0
    journal: int = 0
    sealed: int = 0
    late: tuple[list[float], list[float]] = field(default_factory=lambda: ([], []))


def measure(folder: Path, hosts: int, seconds: int) -> tuple[Seen, dict[str, float]]:
    """What an hour costs, and how long questions take, in seconds."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(THREAD_SECONDS)
    start = time.time() // HOUR * HOUR - 2 * HOUR
    clock, seen = Clock(start), Seen()
    fleet = LargeFleet(hosts, clock)
    path = folder / "history.db"
    before = rss_mib(os.getpid())
    store = EmbeddedStore(path, HistorySettings(every=INTERVAL, min_free=0), clock)
    recorder = Recorder(INTERVAL, store.take)
    with (folder / "reference").open("wb") as reference:
        for number in range(seconds):
            _write_second(seen, fleet, number, recorder, store, reference)
    seen.memory = rss_mib(os.getpid()) - before
    seen.journal = path.with_name("history.db-wal").stat().st_size + path.stat().st_size
    alone = uvloop.run(_watch(fleet, Recorder(INTERVAL, lambda _: None), seconds))
    others = time.process_time() - time.thread_time()
    seen.late = uvloop.run(_watch(fleet, recorder, HOUR + 95)), alone
    while any(begin == start for _, begin in list(store.writer.open_hours)):
        clock.now += 1
        store.flush()
    seen.sealing = time.process_time() - time.thread_time() - others
    assert not store.dropped, store.problem
    store.close()
    seen.sealed = _measure_sealed(path)
    return seen, ask(path, start, fleet.first_gpu)


def _write_second(
    seen: Seen, fleet: LargeFleet, number: int, recorder: Recorder, store: EmbeddedStore, reference: BinaryIO
) -> None:
    reports = fleet.second(number)
    others, begun = time.process_time() - time.thread_time(), time.thread_time()
    recorder.on_reports(fleet.table, reports)
    recorder.hand_over()
    kept = time.thread_time() - begun
    store.flush()
    written = time.process_time() - time.thread_time() - others
    if number < INTERVAL:  # the first contact of each host
        seen.first += kept + written
        return
    seen.loop += kept
    seen.writing += written
    seen.rows += len(reports) * GPUS
    begun = time.thread_time()
    rows = np.concatenate([np.arange(one.host.rows.start, one.host.rows.stop) for one in reports])
    reference.write(zstandard.ZstdCompressor(level=1).compress(fleet.table.gpus.values[rows].tobytes()))
    seen.reference += time.thread_time() - begun


async def _watch(fleet: LargeFleet, recorder: Recorder, begin: int) -> list[float]:
    """How late each look at the clock was, while reports come at the pace of the fleet, from second `begin` on."""
    late: list[float] = []
    coming = [fleet.second(number, at=begin + number) for number in range(WATCHED)]

    async def look() -> None:
        while True:
            due = time.perf_counter() + WAKEUP_SECONDS
            await asyncio.sleep(WAKEUP_SECONDS)
            late.append(time.perf_counter() - due)

    looking = asyncio.create_task(look())
    for reports in coming:
        ends = time.perf_counter() + 1
        for part in range(SLICES):
            recorder.on_reports(fleet.table, reports[part::SLICES])
            await asyncio.sleep(0.04)
        recorder.hand_over()
        await asyncio.sleep(max(0.0, ends - time.perf_counter()))
    looking.cancel()
    return sorted(late)


def _measure_sealed(path: Path) -> int:
    with closing(sqlite3.connect(path)) as file:
        tables = ("chunks", "quarters", "host_hours", "fleet_quarters")
        return sum(int(file.execute(f"SELECT total(length(body)) FROM {name}").fetchone()[0]) for name in tables)


def ask(path: Path, start: float, gpu: str) -> dict[str, float]:
    """Questions about seven days whose sums are those of the sealed hour again and again."""
    first = int(start) - DAYS * DAY + HOUR
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("BEGIN")
        columns = "hour, host, layout, body, utilization_sum, utilization_seconds"
        repeat_rows(file, "host_hours", columns, (int(start),), range(first, int(start), HOUR), 0)
        for quarter in range(0, HOUR, 900):
            begins = range(first + quarter, int(start) + quarter, HOUR)
            columns = "start, layout, observed, body"
            repeat_rows(file, "fleet_quarters", columns, (int(start) + quarter,), begins, 0)
        uses = "hour, user, model, held, worked, idle, measured, metered, joules, peak"
        repeat_rows(file, "uses_of_all", uses, (int(start),), range(first, int(start), HOUR), 0)
        file.execute("UPDATE hosts SET first = ?", (first,))
        file.execute("UPDATE hosts SET crc = NULL")
        file.execute("COMMIT")
    end = start + HOUR
    with closing(EmbeddedStore(path, HistorySettings(min_free=0), lambda: end)) as store:
        questions = {
            "one GPU's hour, 500 points": lambda: store.series(SeriesQuery("utilization_percent", start, end, gpu=gpu)),
            "the fleet's 7 days": lambda: store.series(SeriesQuery("utilization_percent", first, end, fleet=True)),
            "usage by user, 7 days": lambda: store.usage(UsageQuery("user", first, end)),
            "heat map of 24 hours, all hosts": lambda: store.heat(HeatQuery("utilization_percent", end - DAY, end)),
        }
        return {name: best_of(3, question) for name, question in questions.items()}


def repeat_rows(file: sqlite3.Connection, table: str, columns: str, where: tuple[int], begins: range, key: int) -> None:
    """The rows that begin at `where` once more for each of `begins`."""
    names = columns.split(", ")
    rows = file.execute(f"SELECT {columns} FROM {table} WHERE {names[key]} = ?", where).fetchall()
    marks = ", ".join("?" * (len(names) + 1))
    insert = f"INSERT OR REPLACE INTO {table} ({columns}, crc) VALUES ({marks})"
    for begin in begins:
        copies = [(begin, *row[1:]) for row in rows]
        file.executemany(insert, [(*copy, checksum(*copy)) for copy in copies])


LIMITS = {"the fleet's 7 days": 20, "usage by user, 7 days": 30, "one GPU's hour, 500 points": 10}
"""Milliseconds, as of the small fleet."""


def print_size(folder: Path, hosts: int, seconds: int) -> None:
    print((__doc__ or "").partition("\n\n")[0])
    seen, asked = measure(folder, hosts, seconds)
    million = seen.rows / 1e6
    ours, theirs = (seen.loop + seen.writing + seen.sealing) / million, seen.reference / million
    with_history, alone = seen.late
    rows: list[Row] = [
        ("CPU a million rows, all in", f"{ours:.2f} s", "≤ 4 s", f"{ours / theirs:.1f} ×"),
        ("  of these the event loop", f"{seen.loop / million:.2f} s", "", ""),
        ("  journal and memory", f"{seen.writing / million:.2f} s", "", ""),
        ("  sealing", f"{seen.sealing / million:.2f} s", "", ""),
        ("first contact of all hosts", f"{seen.first:.1f} s", "", ""),
        ("memory with an hour that is not sealed", f"{seen.memory:.0f} MiB", "", ""),
        ("  for each host", f"{seen.memory * 1024 / hosts:.0f} KiB", "", ""),
        ("journal, bytes a row", f"{seen.journal / seen.rows:.1f}", "", ""),
        ("sealed, bytes a row", f"{seen.sealed / seen.rows:.2f}", "", ""),
        ("longest block of the event loop", f"{with_history[-1] * 1e3:.1f} ms", "≤ 10 ms", ""),
        ("  the same loop without a history", f"{alone[-1] * 1e3:.1f} ms", "", ""),
        ("  one look of a thousand, with it", f"{with_history[-len(with_history) // 1000] * 1e3:.1f} ms", "", ""),
    ]
    for name, taken in asked.items():
        rows.append((name, f"{taken * 1e3:.1f} ms", f"≤ {LIMITS[name]} ms" if name in LIMITS else "", ""))
    title = f"History at size: {hosts:,} hosts, {hosts * GPUS:,} GPUs every {INTERVAL} s, {seconds} s of samples"
    print_table(title, f"the same doubles, compressed and appended to a file: {theirs:.2f} s a million rows", rows)
