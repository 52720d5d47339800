"""Left out: HTTP, mail servers, the jobs of a scheduler, and samples of the other six days of the week.

Digests for 500 users: a day of samples of one GPU each, in runs of some hours, in the embedded store. They are made
and put into the outbox by the hub's service while the same event loop takes reports. The reference is the same hub, in
the same process, without digests.
"""

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

import numpy as np
import uvloop
from sqlalchemy import func, select

from bench.reports import make_rounds
from bench.tables import Row, print_table
from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.notifiers.message_service import MessageService
from gpudeck.alerts.notifiers.settings import ChannelSettings, NotifySettings
from gpudeck.alerts.service import AlertManager
from gpudeck.alerts.settings import AlertSettings
from gpudeck.alerts.store import AlertStore
from gpudeck.api.access import Policy
from gpudeck.api.history import HistoryQueries
from gpudeck.auth.auth import Auth
from gpudeck.auth.settings import AuthSettings, UserSettings
from gpudeck.database.engine import open_database
from gpudeck.database.schema import outbox
from gpudeck.digests.figures import SHARE, FigureReader
from gpudeck.digests.service import DigestService
from gpudeck.digests.settings import DigestSettings
from gpudeck.events.service import EventLog
from gpudeck.events.settings import EventSettings
from gpudeck.fleet.hub import Hub
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.history.settings import HistorySettings, UsageSettings
from gpudeck.model.cpu_budget import THREAD_SECONDS
from gpudeck.queueing.queue import QueueStore, WaitQueue
from gpudeck.queueing.settings import QueueSettings
from gpudeck.schedulers.job_report import JobReporter
from gpudeck.schedulers.job_store import JobStore
from gpudeck.schedulers.jobs import JobService
from gpudeck.wire import decode

GPUS, STEP, HOURS = 8, 60, 24
GIB, HOUR = 2.0**30, 3600
THURSDAY = datetime(2026, 11, 12, tzinfo=UTC).timestamp()
MONDAY = datetime(2026, 11, 16, 8, tzinfo=UTC).timestamp()
PROMISED_SECONDS = 10.0
REPORTS_A_SECOND = 100
QUIET_SECONDS = 15.0


class Clock:
    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class NoClaims:
    """Nobody waits."""

    async def claim(self, *_: object) -> int:
        return 0

    async def extend_claim(self, *_: object) -> bool:
        return False

    async def end_claim(self, *_: object) -> None: ...


def samples(host: int, users: int, seed: int) -> Iterator[HostSample]:
    """Runs of some hours with breaks; some load their data in bursts, some idle."""
    rng = np.random.default_rng(seed)
    place = {name: at for at, name in enumerate(GPU_NAMES)}
    empty: list[float | None] = [None] * len(GPU_NAMES)
    ends, levels, begins = [0] * GPUS, [0.0] * GPUS, [0] * GPUS
    for number in range(HOURS * HOUR // STEP):
        gpus = []
        for gpu in range(GPUS):
            user = host * GPUS + gpu
            if number >= ends[gpu]:
                begins[gpu], ends[gpu] = number + int(rng.integers(1, 20)), number + int(rng.integers(60, 400))
                levels[gpu] = float(rng.choice([0.0, 30.0, 60.0, 95.0]))
            is_there = user < users and number >= begins[gpu]
            level = max(0.0, levels[gpu] + float(rng.normal(0, 4))) if is_there and levels[gpu] else 0.0
            values = list(empty)
            values[place["utilization_percent"]] = min(100.0, level)
            values[place["memory_used_bytes"]] = (60 if is_there else 0) * GIB
            values[place["memory_total_bytes"]] = 80 * GIB
            values[place["power_watts"]] = 100 + 5 * level
            begun = THURSDAY + begins[gpu] * STEP
            process = ProcessSample(
                1000 + begins[gpu], begun, f"user{user:03}", "python train.py", None, None, None, None
            )
            state = "free" if not is_there else "busy" if levels[gpu] else "idle"
            gpus.append(
                GpuSample(
                    *(f"GPU-{host:04}-{gpu}", str(gpu), "NVIDIA H100", STATE_NUMBERS[state], tuple(values)),
                    (process,) if is_there else (),
                )
            )
        at = THURSDAY + number * STEP
        yield HostSample(f"id-{host}", f"gpu{host:03}", at, float(STEP), (None,) * len(HOST_NAMES), tuple(gpus))


def generate(folder: Path, users: int, usage: UsageSettings) -> EmbeddedStore:
    clock = Clock(THURSDAY)
    store = EmbeddedStore(folder / "history.db", HistorySettings(every=STEP, min_free=0), clock, prices=usage)
    hosts = [samples(host, users, host) for host in range(-(-users // GPUS))]
    for number, moment in enumerate(zip(*hosts, strict=True)):
        clock.now = THURSDAY + number * STEP
        store.take(moment)
        if number % 30 == 0:
            store.flush()
    clock.now = MONDAY
    while store.writer.open_hours:
        # Hours are sealed one after another.
        clock.now += 1
        store.flush()
    return store


async def send_reports(hub: Hub, bodies: Iterator[bytes], until: asyncio.Event) -> list[float]:
    """Seconds from when each is due until it is taken; the last one is the CPU time of them all."""
    begin, late, cpu = time.perf_counter(), list[float](), 0.0
    for number, body in enumerate(bodies):
        due = begin + number / REPORTS_A_SECOND
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        if until.is_set():
            return [*late, cpu]
        worked = time.thread_time()
        hub.fleet.apply(decode(body, encoding="zstd"), via="push", now=time.time())
        cpu += time.thread_time() - worked
        late.append(time.perf_counter() - due)
    raise AssertionError("there are not enough reports")


async def measure(folder: Path, users: int) -> list[Row]:
    usage = UsageSettings(currency="EUR", prices={"H100": 2.0})
    began = time.perf_counter()
    store = await asyncio.to_thread(generate, folder, users, usage)
    generated = time.perf_counter() - began
    clock, database = Clock(MONDAY), await open_database(None, folder)
    hub, entries = Hub(), {f"user{number:03}": UserSettings(mail=f"u{number}@example.org") for number in range(users)}
    auth = Auth(database, AuthSettings(), dict(entries))
    events = EventLog(database, EventSettings())
    notify = NotifySettings(channels={"mail": ChannelSettings("mailto://127.0.0.1:9/?from=h@example.org")}, mail="mail")
    messages = MessageService(hub, auth, notify, events)
    alerts = AlertManager(AlertEngine(AlertSettings(), events.add), AlertStore(database), events.add, lambda _: None)
    jobs = JobReporter(JobService(hub, JobStore(database), keep=86_400.0), usage)
    queue = WaitQueue(QueueStore(database), QueueSettings(), NoClaims())
    dated = Hub(now=clock)
    reader = FigureReader(dated, HistoryQueries(store, clock, SHARE), jobs, events, alerts, queue)
    policy = Policy(is_readable=True)
    service = DigestService(
        DigestSettings(every="week"), auth, policy, messages, reader, page="https://gpus.example.org"
    )
    bodies = chain.from_iterable(make_rounds(50, 300))

    async def run(work: asyncio.Task[None]) -> tuple[float, float, list[float]]:
        over = asyncio.Event()
        sending = asyncio.create_task(send_reports(hub, bodies, over))
        begin, cpu = time.perf_counter(), time.process_time()
        await work
        seconds, worked = time.perf_counter() - begin, time.process_time() - cpu
        over.set()
        *late, of_reports = await sending
        return seconds, worked - of_reports, late

    async def make() -> None:
        service.on_second()
        assert service.task is not None
        await service.task

    quiet = await run(asyncio.create_task(asyncio.sleep(QUIET_SECONDS)))
    busy = await run(asyncio.create_task(make()))
    again = await run(asyncio.create_task(asyncio.sleep(QUIET_SECONDS)))
    (count,) = (await database.execute(select(func.count()).select_from(outbox))).one()
    await asyncio.to_thread(store.close)
    await database.close()
    base = (*quiet[2], *again[2])
    made = int(count)
    idle = (quiet[1] + again[1]) / (quiet[0] + again[0])
    cpu = busy[1] - busy[0] * idle
    rows: list[Row] = [
        ("runs of a day written", f"{generated:.0f} s", "", ""),
        (f"{made} digests in the outbox", f"{busy[0]:.1f} s", f"≤ {PROMISED_SECONDS:.0f} s", ""),
        ("  CPU, without that of the reports", f"{cpu:.1f} s", "", ""),
    ]
    for percent in (50, 99):
        before, during = (float(np.percentile(one, percent)) for one in (base, busy[2]))
        told = f"{during * 1e3:.2f} ms, quiet {before * 1e3:.2f} ms"
        rows.append(
            (f"  a report's p{percent}", told, "not moved" if percent == 99 else "", f"{during / before:.2f} ×")
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench digest")
    parser.add_argument("--users", type=int, default=500)
    users = parser.parse_known_args()[0].users
    print((__doc__ or "").partition("\n\n")[0])
    logging.getLogger("gpudeck").setLevel(logging.ERROR)
    sys.setswitchinterval(THREAD_SECONDS)
    with tempfile.TemporaryDirectory() as folder:
        rows = uvloop.run(measure(Path(folder), users))
    print_table(
        f"Digests for {users} users, while the hub takes {REPORTS_A_SECOND} reports a second", "no digests", rows
    )
