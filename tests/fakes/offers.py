"""GPUs and requests as the queue knows them, with everything a test does not care about filled in."""

from collections.abc import Sequence
from typing import Any

from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.wanted import OfferedGpu, Wanted
from gpudeck.queueing.request import Granted, Request, grant_of

GIB = 1024**3


def make_offer(host: str = "gpu01", index: int = 0, **others: Any) -> OfferedGpu:
    """A usable A100 with 80 GiB."""
    defaults: dict[str, Any] = {
        "uuid": f"GPU-{host}-{index}",
        "host": host,
        "host_id": host,
        "label": str(index),
        "index": index,
        "name": "NVIDIA A100-SXM4-80GB",
        "display_name": "A100-SXM4-80GB",
        "vendor": "nvidia",
        "memory_total_bytes": 80.0 * GIB,
        "state": "usable",
    }
    return OfferedGpu(**(defaults | others))


def make_request(
    number: int, *, at: float = 0.0, user: str = "ada", granted: Granted | None = None, **wanted: Any
) -> Request:
    return Request(
        id=number,
        key=f"key-{number}",
        user=user,
        account=None,
        wanted=Wanted(**wanted),
        created_at=at,
        last_seen_at=at,
        granted=granted,
    )


def granted(*gpus: OfferedGpu, until: float = 120.0) -> Granted:
    return Granted([grant_of(gpu) for gpu in gpus], 0.0, until)


class FakeHolds:
    """Remembers what is held, by number, and what was held for longer until when. `refused` are UUIDs that somebody
    else has; while it `is_away` none works."""

    def __init__(self) -> None:
        self.held: dict[int, list[str]] = {}
        self.extended: dict[int, float] = {}
        self.users: list[str] = []
        self.refused: set[str] = set()
        self.is_away = False

    async def hold(self, gpus: Sequence[OfferedGpu], user: str, seconds: float) -> int:
        if self.is_away:
            raise Temporary("the database is away.")
        if any(gpu.uuid in self.refused for gpu in gpus):
            raise GpudeckError("somebody else has booked it.")
        self.users.append(user)
        self.held[len(self.users)] = [gpu.uuid for gpu in gpus]
        return len(self.users)

    async def extend_hold(self, number: int, until: float) -> bool:
        if self.refused & set(self.held.get(number, ())):
            raise GpudeckError("somebody else has booked it from then on.")
        self.extended[number] = until
        return number in self.held

    async def end_hold(self, number: int) -> None:
        self.held.pop(number, None)
