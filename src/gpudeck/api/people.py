"""GET /api/v1/people: who is on which GPUs now, with memory and processes, the largest first."""

import asyncio
from typing import Any

import msgspec
from litestar import Response, get
from msgspec import Struct

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, answer_json, documented
from gpudeck.views.people_table import describe_people


class Holder(Struct, frozen=True):
    """Somebody on GPUs of hosts that report. `user` is null for all whom nobody could name. `memory_used_bytes` is what
    is known of it, and at least that where `is_memory_part`; `gpus` are host by host, as in `gpu01-0,1`. A null stands
    beside its reason."""

    user: str | None
    memory_used_bytes: int | None
    is_memory_part: bool
    processes: int | None
    gpu_count: int
    gpus: list[str]
    reasons: dict[str, str]


class People(Struct, frozen=True):
    """By memory, then by processes, the most first."""

    time: float
    people: list[Holder]


@get("/api/v1/people", opt=access("read"), responses={200: documented(People, "Who is on GPUs as of the last second")})
async def read_people(hub: TheHub, policy: ThePolicy, request: HubRequest) -> Response[bytes]:
    """Who is on which GPUs now: memory, processes, and where."""
    document = hub.stream.document(policy.sight(caller_of(request)))
    return await answer_json(request, await asyncio.to_thread(_describe, document))


def _describe(document: bytes) -> bytes:
    fleet: dict[str, Any] = msgspec.json.decode(document)
    return msgspec.json.encode({"time": fleet["time"], "people": describe_people(fleet)})


ROUTES = [read_people]
