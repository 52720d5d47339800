"""Left out: HTTP, the browser, and a database on another machine.

The reliability ranking: 90 days of a fleet's events in SQLite, as a hub has it. The reference reads the same events one
by one, as a list of events is read.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from bench.tables import Row, print_table
from gpudeck.api.events import ReliabilityRanking
from gpudeck.database.engine import open_database
from gpudeck.events.store import MAX_EVENTS, EventQuery, EventStore
from gpudeck.fleet.state import FleetState
from gpudeck.model.event import Event, make_event
from gpudeck.model.gpu_state import FleetSettings

DAYS, A_HOST, REPEATS = 90, 8, 5
DAY = 86_400.0


def make_events(hosts: int, now: float) -> list[Event]:
    """Each host goes down once a week on average, and each tenth GPU has a fault a day."""
    rng = random.Random(1)
    found = []
    for number in range(hosts):
        made = partial(make_event, host=f"gpu{number:04}", host_id=f"id-{number}")
        for _ in range(DAYS // 7):
            at = now - rng.random() * DAYS * DAY
            found += [made(at, "host_down", "down", severity="critical"), made(at + 600, "host_up", "up")]
        if number * A_HOST % 10 == 0:
            for _ in range(DAYS):
                at = now - rng.random() * DAYS * DAY
                title = f"XID {rng.choice((31, 48, 63, 79))} on GPU 0"
                found.append(made(at, "xid", title, severity="warning", gpu=f"GPU-{number}", label="0"))
    return found


async def rank(store: EventStore, start: float, end: float) -> int:
    ranking = ReliabilityRanking("gpu", start, end)
    ranking.add_faults(await store.count_faults(start, end))
    ranking.add_lost(await store.lost_times(start, end))
    return ranking.finish(FleetState(FleetSettings()), 50, []).total


async def read_all(store: EventStore, start: float, end: float) -> int:
    before, count = None, 0
    while page := await store.find(EventQuery(start=start, end=end, limit=MAX_EVENTS, before=before)):
        before, count = page[-1].id, count + len(page)
    return count


async def _measure(folder: Path, hosts: int) -> None:
    now = time.time()
    database = await open_database(None, folder)
    store = EventStore(database)
    events = make_events(hosts, now)
    for place in range(0, len(events), 1000):
        await store.write(events[place : place + 1000])

    async def best(work: Callable[[EventStore, float, float], Awaitable[int]]) -> float:
        times = []
        for _ in range(REPEATS):
            began = time.perf_counter()
            await work(store, now - DAYS * DAY, now)
            times.append(time.perf_counter() - began)
        return min(times)

    reference, ranked = await best(read_all), await best(rank)
    rows: list[Row] = [
        ("the ranking", f"{1e3 * ranked:.0f} ms", "≤ 300 ms", f"{ranked / reference:.3f} ×"),
        ("the reference", f"{1e3 * reference:.0f} ms", "", ""),
    ]
    title = f"The reliability ranking: {DAYS} days of {hosts:,} hosts, {len(events):,} events"
    print_table(title, "the same events read one by one", rows)
    await database.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench reliability")
    parser.add_argument("--hosts", type=int, default=1000)
    hosts = parser.parse_known_args()[0].hosts
    print((__doc__ or "").partition("\n\n")[0])
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_measure(Path(folder), hosts))
