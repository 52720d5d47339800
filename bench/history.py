"""The history: what keeping samples costs, how large they are, how quickly they are found again."""

import argparse
import contextlib
import gc
import json
import logging
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import victoria
from bench.history_live import write_ticks
from bench.history_size import print_size
from bench.tables import Row, print_table
from bench.week import GPU_VALUES, GPUS, HOST_VALUES, HOSTS, STEP, ticks, uuid_of
from gpudeck.history.base import HeatQuery, SeriesQuery, Store, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import HostSample

HOUR, DAY = 3600, 86_400
MONTH_DAYS = 30
COARSE_STEP = 300.0
VALUES_A_TICK = HOSTS * (GPUS * GPU_VALUES + HOST_VALUES)
ROWS_A_DAY = HOSTS * GPUS * DAY / STEP
LIVE_HOURS = 4
REPEATS = 20
GPU = uuid_of(3, 0)

PROMISED = {
    "one GPU's day, 500 points": 10,
    "the fleet's 30 days": 20,
    "heat map of a week": 20,
    "usage by user, 30 days": 30,
}
"""Milliseconds."""


class Clock:
    """Follows the samples."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def main() -> None:
    asked = _read_options()
    if not asked.only_size:
        measure_week(asked.days)
    if asked.hosts:
        with tempfile.TemporaryDirectory() as folder:
            print_size(Path(folder), asked.hosts, asked.seconds)


def measure_week(days: int) -> None:
    end = time.time() // DAY * DAY
    start = end - days * DAY
    logging.getLogger("gpudeck").setLevel(logging.ERROR)  # the clock is made to run, and that is told
    gc.disable()  # what the samples are made from is not the history's to look through
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "history.db"
        clock = Clock(start)
        store = EmbeddedStore(path, now=clock)
        # For questions about 30 days: sums are as many whatever the step is.
        feed(store, clock, ticks(end - MONTH_DAYS * DAY, (MONTH_DAYS - days) * 24, COARSE_STEP))
        seal(store, clock, start)
        before = measure_parts(store)
        store = EmbeddedStore(path, now=clock)
        seconds = feed(store, clock, ticks(start, days * 24))
        seconds += seal(store, clock, end + 2 * HOUR)
        after = measure_parts(store)
        store = EmbeddedStore(path, now=clock)
        asked = {name: median(question) for name, question in questions(store, end).items()}
        store.close()
        live = run_live(path, Path(folder) / "ticks", end)
    grown = {name: size - before[name] for name, size in after.items()}
    print_figures(days, seconds, grown, asked, live, measure_reference(end))


def feed(store: EmbeddedStore, clock: Clock, coming: Iterator[list[HostSample]]) -> float:
    """One journal entry a tick, as live; returns the CPU seconds: those of the other threads, and of handing over."""
    others = time.process_time() - time.thread_time()
    handing_over = 0.0
    for tick in coming:
        clock.now = tick[-1].at
        begun = time.thread_time()
        store.take(tick)
        store.flush()
        handing_over += time.thread_time() - begun
    return time.process_time() - time.thread_time() - others + handing_over


def seal(store: EmbeddedStore, clock: Clock, now: float) -> float:
    """Lets the clock go on until every hour is sealed; returns the CPU seconds of the other threads."""
    clock.now = now
    others = time.process_time() - time.thread_time()
    while store.stats().parts["journal"]:
        for _ in range(20):
            clock.now += 10
            store.flush()
    return time.process_time() - time.thread_time() - others


def measure_parts(store: EmbeddedStore) -> dict[str, int]:
    """Closes the store; returns the bytes of its file, of what is in use and what is free of it, and of its tables."""
    stats = store.stats()
    assert not stats.samples_dropped, stats
    store.close()
    with contextlib.closing(sqlite3.connect(store.path)) as file:
        pages, free, size = (
            file.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
    return {"used": (pages - free) * size, "free": free * size, **stats.parts}


def questions(store: Store, end: float) -> dict[str, Callable[[], object]]:
    month, week, day = end - MONTH_DAYS * DAY, end - 7 * DAY, end - DAY
    asks = (
        lambda: store.series(SeriesQuery("utilization_percent", day, end, gpu=GPU)),
        lambda: store.series(SeriesQuery("utilization_percent", month, end, fleet=True)),
        lambda: store.heat(HeatQuery("utilization_percent", week, end)),
        lambda: store.usage(UsageQuery("user", month, end)),
    )
    return dict(zip(PROMISED, asks, strict=True))


def median(question: Callable[[], object]) -> float:
    """Seconds of the middle one of several answers."""
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        question()
        times.append(time.perf_counter() - begun)
    return sorted(times)[REPEATS // 2]


def run_live(database: Path, file: Path, end: float) -> dict[str, float]:
    """In a process that has none of the arrays that the samples are made from."""
    write_ticks(file, ticks(end, LIVE_HOURS))
    command = [sys.executable, "-m", "bench.history_live", str(database), str(file)]
    done = subprocess.run(command, capture_output=True, check=True, timeout=300)
    seen: dict[str, float] = json.loads(done.stdout)
    return seen


def measure_reference(end: float) -> victoria.Cost | None:
    """A day of the same samples: the whole week takes it minutes."""
    if shutil.which(victoria.PROGRAM) is None:
        print(f"{victoria.PROGRAM} is not installed: no reference")
        return None
    return victoria.measure(ticks(end - DAY, 24), GPU, end)


def print_figures(
    days: int,
    seconds: float,
    grown: dict[str, int],
    asked: dict[str, float],
    live: dict[str, float],
    reference: victoria.Cost | None,
) -> None:
    values = VALUES_A_TICK * days * DAY / STEP
    ours, our_value = seconds / (ROWS_A_DAY * days / 1e6), seconds / (values / 1e6)
    a_value, free = grown.pop("used") / values, grown.pop("free")
    rows: list[Row] = [
        ("CPU a million rows, live ingest", f"{ours:.2f} s", "≤ 4 s", ""),
        (f"  a million values, {VALUES_A_TICK / HOSTS / GPUS:.1f} a row", f"{our_value:.3f} s", "", ""),
        ("on the disk, sealed, with all sums", f"{a_value:.3f} bytes a value", "≤ 0.5 bytes", ""),
        *((f"  of these {name}", f"{size / values:.3f}", "", "") for name, size in grown.items()),
        ("  room that the journal left for later", f"{free / 2**20:.0f} MiB", "", ""),
    ]
    told = "none"
    if reference is not None:
        theirs = (reference.client_seconds + reference.store_seconds) / (ROWS_A_DAY / 1e6)
        their_value = reference.disk_bytes / reference.values
        their_cpu = (reference.client_seconds + reference.store_seconds) / (reference.values / 1e6)
        told = (
            f"VictoriaMetrics with our client, a day of it: {theirs:.1f} s a million rows "
            f"({reference.store_seconds / (ROWS_A_DAY / 1e6):.1f} s without the client), {their_cpu:.3f} s a million "
            f"values, {their_value:.3f} bytes a value"
        )
        rows[0] = (*rows[0][:3], f"{ours / theirs:.2f} ×")
        rows[1] = (*rows[1][:3], f"{our_value / their_cpu:.2f} ×")
        rows[2] = (*rows[2][:3], f"{a_value / their_value:.2f} ×")
    for name, taken in asked.items():
        rows.append((name, f"{taken * 1e3:.1f} ms", f"≤ {PROMISED[name]} ms", ""))
    if reference is not None:
        name, taken = next(iter(asked.items()))
        rows[-len(asked)] = (*rows[-len(asked)][:3], f"{taken / reference.gpu_day_seconds:.1f} ×")
    rows += [
        ("memory of the history, live", f"{live['rss']:.0f} MiB", "≤ 60 MB", ""),
        ("  after the questions as well", f"{live['rss_asked']:.0f} MiB", "", ""),
        ("longest block of the event loop", f"{live['beside'] * 1e3:.1f} ms", "≤ 10 ms", ""),
        ("  the same loop without a history", f"{live['alone'] * 1e3:.1f} ms", "", ""),
        ("  one wakeup of a thousand, with it", f"{live['beside_often'] * 1e3:.1f} ms", "", ""),
    ]
    print_table(f"History: {HOSTS * GPUS} GPUs every {STEP:.0f} s for {days} days, in 30 days of sums", told, rows)


def _read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench history")
    parser.add_argument("--days", type=int, default=7, choices=range(1, MONTH_DAYS), metavar="DAYS")
    parser.add_argument("--hosts", type=int, default=10_000, help="of the large fleet; 0: leave it out")
    parser.add_argument("--seconds", type=int, default=HOUR, help="of the large fleet's samples")
    parser.add_argument("--only-size", action="store_true", help="the large fleet alone")
    return parser.parse_known_args()[0]
