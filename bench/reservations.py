"""Reservations: a year's 10,000 reservations on 500 GPUs, over HTTP and below it, on SQLite as a hub has it."""

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
from sqlalchemy import insert

from bench.tables import print_table
from gpudeck.api.access import Policy
from gpudeck.api.app import Framework
from gpudeck.api.services import ApiServices
from gpudeck.auth.auth import Auth
from gpudeck.auth.settings import AuthSettings
from gpudeck.database import schema
from gpudeck.database.engine import Database, open_database
from gpudeck.fleet.hub import Hub
from gpudeck.model.gpu_request import GpuRequest
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.conflicts import Conflict
from gpudeck.reservations.requests import ObservedGpu, Requester, ReservationDraft, ReservationRequest
from gpudeck.reservations.settings import DAY, HOUR, ReservationSettings
from gpudeck.reservations.store import ReservationStore

GPUS, RESERVATIONS, A_HOST = 500, 10_000, 8
REPEATS = 20
FLEET = {
    f"GPU-{number}": ObservedGpu(
        uuid=f"GPU-{number}",
        host=f"gpu{number // A_HOST:02}",
        host_id=f"gpu{number // A_HOST:02}",
        label=str(number % A_HOST),
        index=number % A_HOST,
        name="NVIDIA H100",
        display_name="H100",
        memory_total_bytes=80 * 2**30,
        availability="free",
        health="ok",
        occupants=(),
    )
    for number in range(GPUS)
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_run(Path(folder)))


async def _run(folder: Path) -> None:
    database = await open_database(None, folder)
    now = time.time()
    await fill(database, now)
    calendar = ReservationCalendar(ReservationStore(database), ReservationSettings(), lambda: now)
    await calendar.load()
    hub, unused = Hub(), cast("Any", None)
    auth, policy = Auth(database, AuthSettings()), Policy(is_readable=True)
    app: Any = Framework(
        ApiServices(
            hub=hub,
            auth=auth,
            policy=policy,
            host_admin=cast("Any", SimpleNamespace(installer=None)),
            reservations=calendar,
            maintenance=unused,
            notes=unused,
            events=unused,
            queue=unused,
            jobs=unused,
            watches=unused,
            mutes=unused,
            alerts=unused,
            reaches=unused,
        )
    )
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://hub") as http:
        month = f"/api/v1/reservations?start={now - 15 * DAY}&end={now + 15 * DAY}"
        count = len((await http.get(month)).json()["reservations"])
        probe = await _best(lambda: http.get("/healthz"))
        timeline = await _best(lambda: http.get(month))
        feed = (await http.get("/api/v1/reservations.ics")).content.count(b"BEGIN:VEVENT")
        calendar_file = await _best(lambda: http.get("/api/v1/reservations.ics"))
    check = await _best(lambda: _check(calendar, now))
    reserve = await _best(lambda: _reserve(calendar))
    four = ReservationRequest(any=GpuRequest(gpus=4, same_host=True))
    any_four = await _best(lambda: calendar.next_free(four, 4 * HOUR, FLEET))
    together = await _compete(calendar)
    await database.close()
    rows = [
        (f"a month's timeline over HTTP ({count} reservations)", timeline, "≤ 50 ms"),
        (f"a calendar to subscribe to ({feed:,} reservations)", calendar_file, ""),
        ("is a GPU free for a week? refused with the next time", check, "≤ 5 ms"),
        ("a reservation made and given back", reserve, ""),
        ("the next time at which 4 GPUs of one host are free", any_four, ""),
        ("100 at once for one GPU, until one has won", together, ""),
    ]
    print_table(
        f"Reservations: {RESERVATIONS:,} a year on {GPUS} GPUs",
        f"GET /healthz through the same framework, {probe * 1000:.2f} ms",
        [(what, f"{took * 1000:.1f} ms", promised, f"{took / probe:.1f}") for what, took, promised in rows],
    )


async def fill(database: Database, now: float) -> None:
    """Each GPU's reservations one after another, over the year around now; every fourth is of a pair."""
    chance = random.Random(9)
    rows, gpus = [], []
    slot = 365 * DAY / (RESERVATIONS / GPUS)
    for number in range(RESERVATIONS):
        gpu, turn = number % GPUS, number // GPUS
        start = now - 182 * DAY + turn * slot + chance.random() * slot / 3
        row = {"kind": "reservation", "note": "a run of many", "version": 1, "created_at": start, "changed_at": start}
        times = {"start": float(int(start)), "end": float(int(start + slot / 2)), "used_at": start}
        rows.append(row | times | {"id": number + 1, "fleet": "real", "user": f"user{number % 60}", "created_by": "x"})
        for other in {gpu, (gpu + 1) % GPUS if number % 4 == 0 else gpu}:
            place = {"host": f"gpu{other // A_HOST:02}", "label": str(other % A_HOST)}
            gpus.append({"reservation_id": number + 1, "uuid": f"GPU-{other}"} | place)
    async with database.begin() as connection:
        await connection.execute(insert(schema.reservations), rows)
        await connection.execute(insert(schema.reservation_gpus), gpus)


async def _best(work: Callable[[], Awaitable[object]]) -> float:
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        await work()
        times.append(time.perf_counter() - start)
    return min(times)


async def _check(calendar: ReservationCalendar, now: float) -> None:
    """A week from now on, in which the GPU is reserved for a part."""
    taken = next(one for one in calendar.near if one.end > now + HOUR)
    wanted = ReservationDraft(wanted=ReservationRequest(gpus=(taken.gpus[0].uuid,)), length=7 * DAY)
    try:
        await calendar.reserve(wanted, Requester("ada"), FLEET)
    except Conflict:
        return
    raise AssertionError("a GPU that is reserved was reserved again")


async def _reserve(calendar: ReservationCalendar) -> None:
    who = Requester("ada", is_admin=True)
    made = await calendar.reserve(
        ReservationDraft(wanted=ReservationRequest(any=GpuRequest(gpus=1)), start=calendar.now(), length=HOUR),
        who,
        FLEET,
    )
    await calendar.release(made.id, who)


async def _compete(calendar: ReservationCalendar) -> float:
    wanted = ReservationDraft(wanted=ReservationRequest(gpus=("GPU-7",)), start=calendar.now() + 300 * DAY, length=HOUR)
    people = [Requester(f"user{number}", is_admin=True) for number in range(100)]
    start = time.perf_counter()
    answers = await asyncio.gather(*(calendar.reserve(wanted, who, FLEET) for who in people), return_exceptions=True)
    took = time.perf_counter() - start
    assert sum(isinstance(answer, Conflict) for answer in answers) == 99
    return took
