"""GPUs and requests as the queue knows them, with everything a test does not care about filled in."""

from collections.abc import Sequence
from typing import Any

from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.gpu_request import CandidateGpu, GpuRequest, Granted
from gpudeck.queueing.scheduler import Request, grant_of

GIB = 1024**3


def make_offer(host: str = "gpu01", index: int = 0, **others: Any) -> CandidateGpu:
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
    return CandidateGpu(**(defaults | others))


def make_request(
    number: int, *, at: float = 0.0, user: str = "ada", granted: Granted | None = None, **wanted: Any
) -> Request:
    return Request(
        id=number,
        key=f"key-{number}",
        user=user,
        account=None,
        wanted=GpuRequest(**wanted),
        created_at=at,
        last_seen_at=at,
        granted=granted,
    )


def granted(*gpus: CandidateGpu, until: float = 120.0) -> Granted:
    return Granted([grant_of(gpu) for gpu in gpus], 0.0, until)


class FakeClaims:
    """Remembers what is claimed, by number, and until when claims were extended. `refused` are UUIDs that other users
    have; while it `is_away` none works."""

    def __init__(self) -> None:
        self.claimed: dict[int, list[str]] = {}
        self.extended: dict[int, float] = {}
        self.users: list[str] = []
        self.refused: set[str] = set()
        self.is_away = False

    async def claim(self, gpus: Sequence[CandidateGpu], user: str, seconds: float) -> int:
        if self.is_away:
            raise Temporary("the database is away.")
        if any(gpu.uuid in self.refused for gpu in gpus):
            raise GpudeckError("somebody else has reserved it.")
        self.users.append(user)
        self.claimed[len(self.users)] = [gpu.uuid for gpu in gpus]
        return len(self.users)

    async def extend_claim(self, number: int, until: float) -> bool:
        if self.refused & set(self.claimed.get(number, ())):
            raise GpudeckError("somebody else has reserved it from then on.")
        self.extended[number] = until
        return number in self.claimed

    async def end_claim(self, number: int) -> None:
        self.claimed.pop(number, None)
