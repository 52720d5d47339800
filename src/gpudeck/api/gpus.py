"""GET /api/v1/gpus: GPUs across hosts, filtered: what a script asks when it looks for a free one."""

import difflib
from collections.abc import Callable, Sequence
from typing import Annotated

import msgspec
from litestar import Response, get
from litestar.exceptions import ValidationException
from litestar.params import QueryParameter
from msgspec import Struct

from gpudeck.api.access import ThePolicy, access, caller_of
from gpudeck.api.answers import HubRequest, TheHub, answer_json, documented
from gpudeck.hub.gpu import GpuState
from gpudeck.hub.host import HostState
from gpudeck.hub.hub import Hub
from gpudeck.hub.sight import Sight
from gpudeck.model.availability import Availability
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE
from gpudeck.model.quantity import AMOUNT, parse_bytes
from gpudeck.model.view import Gpu
from gpudeck.server.admission import checkpoint
from gpudeck.server.asgi import ErrorBody


class GpuOfHost(Gpu, kw_only=True):
    """A GPU with the name and the id of its host."""

    host: str
    host_id: str


class GpuList(Struct, frozen=True):
    """GPUs across hosts."""

    gpus: list[GpuOfHost]


_FILTERS = ("availability", "min_memory", "model", "user", "host")

_encoder = msgspec.json.Encoder()

_Text = Annotated[str | None, QueryParameter(max_length=256)]


@get(
    "/api/v1/gpus",
    opt=access("read"),
    responses={
        200: documented(GpuList, "The GPUs that match, by host and index"),
        400: documented(ErrorBody, "A filter that cannot be understood"),
    },
)
async def list_gpus(
    *,
    hub: TheHub,
    policy: ThePolicy,
    request: HubRequest,
    availability: Annotated[
        list[Availability] | None, QueryParameter(description="Only these states; may be given several times")
    ] = None,
    min_memory: Annotated[
        str | None,
        QueryParameter(description="At least this much memory: 40G, 40GiB", schema_extra={"pattern": AMOUNT}),
    ] = None,
    model: _Text = None,
    user: _Text = None,
    host: _Text = None,
) -> Response[bytes]:
    """GPUs across hosts. `model` is any part of the model's name; `user` and `host` are exact names."""
    _check_names(request)
    least = _least_memory(min_memory)
    part = None if model is None else model.lower()

    def fits(gpu: GpuState) -> bool:
        return (
            (not availability or gpu.availability in availability)
            and (least is None or (gpu.value("memory_total_bytes") or 0) >= least)
            and (part is None or part in f"{gpu.name}\n{gpu.display_name}".lower())
            and (user is None or user in gpu.users)
        )

    body = await _encode(request, hub, _choose(hub, host), fits, policy.sight(caller_of(request)))
    return await answer_json(request, body)


async def _encode(
    request: HubRequest, hub: Hub, hosts: Sequence[HostState], fits: Callable[[GpuState], bool], sight: Sight
) -> bytes:
    """Of a few hosts at a time: others are served in between."""
    found: list[bytes] = []
    for at, host in enumerate(hosts):
        if at % HOSTS_AT_ONCE == 0:
            await checkpoint()
        head = _encoder.encode({"host": host.name, "host_id": host.id})[:-1] + b","
        hub.fleet.settle()
        views = host.show([gpu for gpu in host.gpus.values() if fits(gpu)])
        found += [head + _encoder.encode(sight.gpu(view))[1:] for view in views]
    return b'{"gpus":[' + b",".join(found) + b"]}"


def _check_names(request: HubRequest) -> None:
    """A mistyped filter would otherwise find every GPU there is."""
    for name in request.query_params:
        if name not in _FILTERS:
            near = difflib.get_close_matches(name, _FILTERS, 1) or _FILTERS
            raise ValidationException(f"there is no filter {name[:40]!r}; did you mean {' or '.join(near)}?")


def _choose(hub: Hub, name: str | None) -> list[HostState]:
    return [host for host in hub.fleet.ordered() if name is None or name in {host.name, host.id}]


def _least_memory(text: str | None) -> int | None:
    try:
        return None if text is None else parse_bytes(text)
    except ValueError as error:
        raise ValidationException(f"min_memory: {error}") from error


ROUTES = [list_gpus]
