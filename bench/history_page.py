"""Left out: HTTP and its compression, the browser, and samples and runs of the 29 days that only sums are generated of.

30 days of a fleet (eight GPUs a host, each host every 5 s) in the embedded store: the sums are those of a sealed hour
again and again, and half an hour is open. What the History page asks for goes the hub's way: queue, thread, budget of
CPU time, JSON. The reference are the single questions of the API that say the same, one after another.
"""

import argparse
import asyncio
import logging
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from operator import methodcaller
from pathlib import Path

import msgspec
import uvloop

from bench.history_size import DAY, GPUS, HOUR, INTERVAL, WAKEUP_SECONDS, Clock, LargeFleet, repeat_rows
from bench.tables import Row, print_table
from gpudeck.api.history import HistoryQueries
from gpudeck.history.answers import OVERVIEW_METRICS
from gpudeck.history.base import HeatQuery, OverviewQuery, SeriesQuery, Store, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.recorder import Recorder
from gpudeck.history.settings import HistorySettings
from gpudeck.model.cpu_budget import THREAD_SECONDS

DAYS = 30
SEALED_SECONDS, OPEN_SECONDS, GRACE = 600, 1800, 100
BEST_OF = 10
USES = "user, model, held, worked, idle, measured, metered, joules, peak"
REPEATED = {
    "host_hours": "hour, host, layout, body, utilization_sum, utilization_seconds",
    "uses": f"hour, host, {USES}",
    "uses_of_all": f"hour, {USES}",
}
SETTINGS = HistorySettings(every=INTERVAL, min_free=0)
Question = Callable[[Store], object]


def generate(folder: Path, hosts: int, *, has_sums: bool = True) -> tuple[Path, float]:
    """The file, and the time in it. With the sums of 30 days, if wanted."""
    start = time.time() // HOUR * HOUR - 2 * HOUR
    clock, path = Clock(start), folder / "history.db"
    fleet = LargeFleet(hosts, clock)
    with closing(EmbeddedStore(path, SETTINGS, clock)) as store:
        _write(store, fleet, range(SEALED_SECONDS), 0)
        clock.now = start + HOUR + GRACE
        while any(begin == start for _, begin in list(store.writer.open_hours)):
            clock.now += 1
            store.flush()
    if has_sums:
        _repeat_sums(path, int(start))
    with closing(EmbeddedStore(path, SETTINGS, clock)) as store:
        _write(store, fleet, range(OPEN_SECONDS), HOUR)
    return path, start + HOUR + OPEN_SECONDS + GRACE


def _write(store: EmbeddedStore, fleet: LargeFleet, seconds: range, offset: int) -> None:
    recorder = Recorder(INTERVAL, store.take)
    for number in seconds:
        recorder.on_reports(fleet.table, fleet.second(number, at=offset + number))
        recorder.hand_over()
        store.flush()


def _repeat_sums(path: Path, start: int) -> None:
    first = start - DAYS * DAY + HOUR
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("BEGIN")
        for table, columns in REPEATED.items():
            repeat_rows(file, table, columns, (start,), range(first, start, HOUR), 0)
        for at in range(start, start + HOUR, 900):
            begins = range(first + at - start, at, HOUR)
            repeat_rows(file, "fleet_quarters", "start, layout, observed, body", (at,), begins, 0)
        for table in ("hosts", "gpus"):
            file.execute(f"UPDATE {table} SET first = ?", (first,))
            file.execute(f"UPDATE {table} SET crc = NULL")
        file.execute("COMMIT")


def single_questions(start: float, end: float) -> list[Question]:
    step = HOUR if end - start <= 7 * DAY else 12 * HOUR
    series = [SeriesQuery(metric, start, end, 300, fleet=True) for metric in OVERVIEW_METRICS]
    return [
        *(lambda store, ask=ask: store.series(ask) for ask in series),
        lambda store: store.usage(UsageQuery("user", start, end, daily=True)),
        lambda store: store.heat(HeatQuery("utilization_percent", start, end, step)),
    ]


async def ask(store: Store, now: float, questions: list[Question]) -> tuple[float, float, int, float]:
    """Seconds, CPU seconds of the answers, their bytes, and by how much a look at the clock came too late at most."""
    queries, late, size = HistoryQueries(store, lambda: now), [0.0], 0

    async def look() -> None:
        while True:
            due = time.perf_counter() + WAKEUP_SECONDS
            await asyncio.sleep(WAKEUP_SECONDS)
            late.append(time.perf_counter() - due)

    looking = asyncio.create_task(look())
    began, worked = time.perf_counter(), 0.0
    for question in questions:
        found, cpu = await queries.ask(partial(_answer, question))
        size, worked = size + found, worked + cpu
    seconds = time.perf_counter() - began
    looking.cancel()
    return seconds, worked, size, max(late)


def _answer(question: Question, store: Store) -> tuple[int, float]:
    """The bytes of its JSON, and the CPU seconds of the answer. What is ready comes in parts."""
    began = time.thread_time()
    found = question(store)
    size = sum(map(len, found)) if isinstance(found, list) else len(msgspec.json.encode(found))
    return size, time.thread_time() - began


def measure(path: Path, now: float) -> list[Row]:
    rows: list[Row] = []
    with closing(EmbeddedStore(path, SETTINGS, lambda: now)) as store:
        while store.writer.summarized is None:
            time.sleep(0.1)
        for days in (1, 7, DAYS):
            start = now - days * DAY
            one: list[Question] = [methodcaller("overview", OverviewQuery(start, now))]
            best = min((uvloop.run(ask(store, now, one)) for _ in range(BEST_OF)), key=lambda found: found[0])
            # Each sample of a live fleet makes the open hours' figures old.
            for open_hour in store.writer.open_hours.values():
                open_hour.samples += 1
            many = uvloop.run(ask(store, now, single_questions(start, now)))
            rows += [
                (f"{days} d: one answer", f"{best[0]:.2f} s", "< 1 s", f"{best[0] / many[0]:.3f} ×"),
                ("  CPU", f"{best[1]:.2f} s", "", f"{best[1] / many[1]:.3f} ×"),
                ("  JSON", f"{best[2] / 1e3:.0f} kB", "", f"{best[2] / many[2]:.2f} ×"),
                ("  longest block of the event loop", f"{best[3] * 1e3:.1f} ms", "≤ 10 ms", ""),
                ("  the single questions", f"{many[0]:.2f} s, CPU {many[1]:.2f} s", "", ""),
            ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench history_page")
    parser.add_argument("--hosts", type=int, default=1000)
    hosts = parser.parse_known_args()[0].hosts
    print((__doc__ or "").partition("\n\n")[0])
    logging.getLogger("gpudeck").setLevel(logging.ERROR)
    sys.setswitchinterval(THREAD_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        path, now = generate(Path(folder), hosts)
        rows = [("file", f"{path.stat().st_size / 1e6:.0f} MB", "", ""), *measure(path, now)]
    title = f"The History page: {DAYS} days of {hosts:,} hosts, {hosts * GPUS:,} GPUs, in the embedded store"
    print_table(title, "the single questions of the API, one after another", rows)
