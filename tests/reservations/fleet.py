"""A small fleet, and a calendar on a database of a test's own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fakes.clock import FakeClock
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.reservations.calendar import Reservations
from gpudeck.reservations.requests import ObservedGpu, Occupant, ReservationDraft, ReservationRequest
from gpudeck.reservations.rules import Who
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

T = TypeVar("T")
NOW = 1_790_000_000.0
HOUR, DAY = 3600.0, 86_400.0
GIB = 2**30
ADA = Who("ada", logins=frozenset({"ada", "lovelace"}))
BOB = Who("bob", logins=frozenset({"bob"}))
ROOT = Who("root", is_admin=True, logins=frozenset({"root"}))


def make_gpu(uuid: str, host: str = "gpu01", index: int = 0, *users: str, **others: Any) -> ObservedGpu:
    """A free H100 with 80 GiB, or one that these people are on."""
    defaults = {
        "label": str(index),
        "model": "NVIDIA H100\nH100",
        "memory_total_bytes": 80 * GIB,
        "availability": "busy" if users else "free",
        "occupants": tuple(Occupant(user, NOW - HOUR) for user in users),
    }
    return ObservedGpu(uuid=uuid, host=host, index=index, **(defaults | others))


def make_fleet(*gpus: ObservedGpu) -> dict[str, ObservedGpu]:
    return {gpu.uuid: gpu for gpu in gpus}


FLEET = make_fleet(
    make_gpu("A0"),
    make_gpu("A1", index=1),
    make_gpu("B0", "gpu02", 0, model="NVIDIA A100\nA100", memory_total_bytes=40 * GIB),
    make_gpu("B1", "gpu02", 1, model="NVIDIA A100\nA100", memory_total_bytes=40 * GIB),
)


def make_calendar(
    database: Database,
    clock: FakeClock | None = None,
    changed: Callable[[], None] = lambda: None,
    fleet: str = REAL,
    **settings: Any,
) -> Reservations:
    store = ReservationStore(database, fleet)
    return Reservations(store, ReservationSettings(**settings), clock or FakeClock(NOW), changed=changed)


def draft(*uuids: str, start: float | None = None, hours: float = 4, note: str = "", **wish: Any) -> ReservationDraft:
    """So many hours, from now or from so many hours on."""
    begins = None if start is None else NOW + start * HOUR
    return ReservationDraft(wish=ReservationRequest(gpus=uuids, **wish), start=begins, length=hours * HOUR, note=note)


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)
