"""A small fleet, and a calendar on a database of a test's own."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fakes.clock import FakeClock
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.model.gpu_request import GpuRequest
from gpudeck.model.reservation import Reservation, ReservedGpu
from gpudeck.reservations.calendar import ReservationCalendar
from gpudeck.reservations.requests import ObservedGpu, Occupant, Requester, ReservationDraft, ReservationRequest
from gpudeck.reservations.settings import ReservationSettings
from gpudeck.reservations.store import ReservationStore

T = TypeVar("T")
NOW = 1_790_000_000.0
HOUR, DAY = 3600.0, 86_400.0
GIB = 2**30
ADA = Requester("ada", logins=frozenset({"ada", "lovelace"}))
BOB = Requester("bob", logins=frozenset({"bob"}))
ROOT = Requester("root", is_admin=True, logins=frozenset({"root"}))


def make_gpu(uuid: str, host: str = "gpu01", index: int = 0, *users: str, **others: Any) -> ObservedGpu:
    """A free H100 with 80 GiB, or one that these people are on."""
    defaults = {
        "label": str(index),
        "name": "NVIDIA H100",
        "display_name": "H100",
        "memory_total_bytes": 80 * GIB,
        "availability": "busy" if users else "free",
        "health": "ok",
        "occupants": tuple(Occupant(user, NOW - HOUR) for user in users),
    }
    return ObservedGpu(uuid=uuid, host=host, host_id=f"id-{host}", index=index, **(defaults | others))


def make_fleet(*gpus: ObservedGpu) -> dict[str, ObservedGpu]:
    return {gpu.uuid: gpu for gpu in gpus}


FLEET = make_fleet(
    make_gpu("A0"),
    make_gpu("A1", index=1),
    make_gpu("B0", "gpu02", 0, name="NVIDIA A100", display_name="A100", memory_total_bytes=40 * GIB),
    make_gpu("B1", "gpu02", 1, name="NVIDIA A100", display_name="A100", memory_total_bytes=40 * GIB),
)


def make_calendar(
    database: Database,
    clock: FakeClock | None = None,
    changed: Callable[[], None] = lambda: None,
    fleet: str = REAL,
    **settings: Any,
) -> ReservationCalendar:
    store = ReservationStore(database, fleet)
    return ReservationCalendar(store, ReservationSettings(**settings), clock or FakeClock(NOW), changed=changed)


def draft(*uuids: str, start: float | None = None, hours: float = 4, note: str = "", **wish: Any) -> ReservationDraft:
    """So many hours, from now or from so many hours on; `count` GPUs of any kind where no UUIDs are given."""
    begins = None if start is None else NOW + start * HOUR
    count = wish.pop("count", None)
    request = ReservationRequest(gpus=uuids, **wish) if count is None else _any(gpus=count, **wish)
    return ReservationDraft(wanted=request, start=begins, length=hours * HOUR, note=note)


def _any(**wish: Any) -> ReservationRequest:
    return ReservationRequest(any=GpuRequest(**wish))


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def make_reservation(*uuids: str, **others: Any) -> Reservation:
    defaults = {
        "id": 7,
        "kind": "reservation",
        "user": "ada",
        "start": NOW,
        "end": NOW + 8 * HOUR,
        "note": "",
        "version": 1,
        "created_at": NOW,
        "created_by": "ada",
        "changed_at": NOW,
        "used_at": None,
        "released_at": None,
        "release_reason": None,
    }
    return Reservation(gpus=[ReservedGpu(uuid, "gpu01", uuid[1:]) for uuid in uuids or ("A0",)], **(defaults | others))
