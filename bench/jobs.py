"""Left out: PostgreSQL, a hub with other work, and the history's part of a usage report.

Jobs: what a tick costs with 5,000 jobs on 8,000 allocated GPUs, what writing a minute costs, and sums over 90 days of
such a cluster. All but turns of the event loop is CPU. The reference is a walk over as many GPUs.
"""

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.slurm import make_hub
from bench.tables import print_table
from gpudeck.database.engine import open_database
from gpudeck.database.sqlite import FILE_NAME
from gpudeck.fleet.hub import Hub
from gpudeck.model.allocation import Allocation, SchedulerMark
from gpudeck.schedulers.job_store import AMOUNTS, DAY, HOUR, JobStore
from gpudeck.schedulers.jobs import JobTracker

JOBS, DAYS, BY_HOUR = 5_000, 90, 8


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(measure(Path(folder)))


async def measure(folder: Path) -> None:
    database = await open_database(None, folder)
    hub, store, now = make_hub(), JobStore(database), time.time()
    tracker = JobTracker(store)
    table = hub.fleet.table
    count = allocate(hub, 0)
    walk = cpu_of(5, lambda: [gpu.scheduling for gpu in table.gpu_at if gpu is not None])
    first = cpu_of(1, lambda: tracker.tick(table))
    tick = cpu_of(10, lambda: tracker.tick(table))
    allocate(hub, 25)
    changed = cpu_of(1, lambda: tracker.tick(table))
    new, new_turn = await watch(tracker.write)
    again, turn = await watch(tracker.write)
    rows = fill(folder / FILE_NAME, now)

    async def ask(seconds: float) -> object:
        return await store.sum_usage(now - seconds, now, now, ["account", "user", "model"], {})

    month, _ = await watch(lambda: ask(DAYS * DAY))
    week, turn_of_sums = await watch(lambda: ask(7 * DAY))
    await database.close()
    size = (folder / FILE_NAME).stat().st_size
    print_table(
        f"jobs: {count:,} allocated GPUs, {JOBS:,} jobs, {rows:,} rows of usage in {size / 1e6:,.0f} MB of SQLite",
        f"a walk over the GPUs, {walk * 1e3:.1f} ms",
        [
            ("a tick, every 5 s", f"{tick * 1e3:.1f} ms", "", f"{tick / walk:.1f} ×"),
            ("a tick after 25 jobs have started", f"{changed * 1e3:.0f} ms", "", f"{changed / walk:.0f} ×"),
            ("the first tick", f"{first * 1e3:.0f} ms", "", f"{first / walk:.0f} ×"),
            ("writing a minute", f"{again:.2f} s", "", f"{again / walk:.0f} ×"),
            ("its longest turn of the event loop", f"{turn * 1e3:.0f} ms", "", f"{turn / walk:.1f} ×"),
            ("writing all jobs for the first time", f"{new:.2f} s", "", f"{new / walk:.0f} ×"),
            ("its longest turn of the event loop", f"{new_turn * 1e3:.0f} ms", "", f"{new_turn / walk:.1f} ×"),
            (f"usage by account over {DAYS} days", f"{month:.2f} s", "", f"{month / walk:.0f} ×"),
            ("usage by account over 7 days", f"{week:.2f} s", "", f"{week / walk:.0f} ×"),
            ("its longest turn of the event loop", f"{turn_of_sums * 1e3:.0f} ms", "", f"{turn_of_sums / walk:.1f} ×"),
        ],
    )


def allocate(hub: Hub, first: int) -> int:
    """All GPUs to `JOBS` jobs; `first` is the number of the first one."""
    uuids = [uuid for host in hub.fleet.hosts.values() for uuid in host.gpus]
    made = {
        number: SchedulerMark(Allocation("slurm", str(number), user=f"u{number % 200}", account="lab", since=1.79e9))
        for number in range(first, first + JOBS)
    }
    hub.fleet.allocate({uuid: made[max(first, at % JOBS)] for at, uuid in enumerate(uuids)}, time.time())
    return len(uuids)


def fill(file: Path, now: float) -> int:
    """Usage of the days before, of the GPUs of jobs that are there: by the hour, and by the day where it is older."""
    amounts = ", ".join("1800.0" for _ in AMOUNTS)
    hour = int(now // HOUR) * HOUR
    with sqlite3.connect(file) as connection:
        for span, last, times in (
            (HOUR, hour - HOUR, BY_HOUR * 24),
            (DAY, hour // DAY * DAY - BY_HOUR * DAY, 2 * (DAYS - BY_HOUR)),
        ):
            # Two jobs a day on each GPU: the second one is a row some seconds later.
            step = span if span == HOUR else DAY // 2
            connection.execute(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) INSERT OR IGNORE INTO "
                f"job_usage SELECT ?, ? - i * ?, id, {amounts} FROM n, job_gpus",
                (times, span, last, step),
            )
        rows: int = connection.execute("SELECT count(*) FROM job_usage").fetchone()[0]
    connection.close()
    return rows


def cpu_of(repeats: int, work: Callable[[], object]) -> float:
    """Of the quickest of several runs."""
    times = []
    for _ in range(repeats):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return min(times)


async def watch(work: Callable[[], Awaitable[object]]) -> tuple[float, float]:
    """The CPU that it takes, and the longest turn of the event loop meanwhile."""
    longest, is_over = 0.0, False

    async def look() -> None:
        nonlocal longest
        while not is_over:
            before = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - before - 0.001)

    looking = asyncio.create_task(look())
    before = time.process_time()
    await work()
    took = time.process_time() - before
    is_over = True
    await looking
    return took, longest
