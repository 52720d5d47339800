"""The hub's side of `gpudeck import vesta`: admins bring the hosts and the past of another server.

    POST /api/v1/compat/vesta/import   {"id", "name", "address", "interval", "rows": [[time, GPUs as posted]]}

A sender that has registered anew has another id than the one under which its past was stored. It is known by its name.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct, field

from gpudeck.api.answers import RequestRefused
from gpudeck.api.reports import read_body
from gpudeck.auth.caller import Caller
from gpudeck.compat.vesta import store
from gpudeck.compat.vesta.states import describe_post
from gpudeck.compat.vesta.store import Json, Moment, read_gpus
from gpudeck.history.base import Store
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import ReportRefused, Temporary
from gpudeck.model.gpu_state import AvailabilitySettings, judge
from gpudeck.model.report import GpuReading, Process
from gpudeck.server.asgi import Receive, Scope, Send, read_headers, send_error, send_json

PATH: Final = "/api/v1/compat/vesta/import"
_NO_HOST_VALUES: Final = (None,) * len(HOST_NAMES)
_SETTINGS: Final = AvailabilitySettings()

Identify = Callable[[Scope], Awaitable[Caller]]


class VestaImport(Struct, frozen=True):
    """A machine as the old server knew it, and rows of its past, the oldest first; `interval` is how far apart they
    are, in seconds. With `only_ask` nothing is changed."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{1,32}$")]
    name: Annotated[str, Meta(min_length=1, max_length=store.LONGEST)]
    address: Annotated[str, Meta(max_length=64)] = ""
    interval: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    rows: Annotated[list[tuple[Annotated[float, Meta(ge=0, le=1e11)], dict[str, Any]]], Meta(max_length=1000)] = field(
        default_factory=list
    )
    only_ask: bool = False


class VestaImported(Struct, frozen=True):
    """Whether the host is new here, and how many of the rows were. Rows up to `since` are not taken: they were before,
    or the history does not keep rows of that age. `since` is null without a history."""

    is_new: bool
    taken: int
    since: float | None


class VestaImportRoute:
    """`has_room`: the history keeps up with what it is given. `settle` blocks until that is on the disk and returns
    whether it is. The history keeps `keeps` seconds."""

    def __init__(
        self,
        register: store.VestaRegister,
        samples: store.Samples,
        history: Store | None,
        *,
        has_room: Callable[[], bool],
        settle: Callable[[], bool],
        keeps: float,
        identify: Identify,
        now: Clock,
    ) -> None:
        self._register = register
        self._samples = samples
        self._history = history
        self._has_room = has_room
        self._settle = settle
        self._keeps = keeps
        self._identify = identify
        self._now = now

    def takes(self, path: str, query: bytes) -> bool:
        return path == PATH

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._read(scope, receive)
            if body is not None:
                result = await self._import(msgspec.json.decode(body, type=VestaImport))
                await send_json(send, 200, msgspec.json.encode(result))
        except (RequestRefused, ReportRefused) as refusal:
            close = (b"connection", b"close")
            await send_error(send, refusal.status, refusal.code, refusal.message, refusal.hint, close)
        except (msgspec.DecodeError, RecursionError) as error:
            await send_error(send, 400, "bad_request", str(error)[:200] or "the body is nested too deeply")
        except Temporary as error:
            await send_error(send, 503, "unavailable", error.message, error.hint, (b"retry-after", b"1"))

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        caller = await self._identify(scope)
        if not caller.is_at_least("admin"):
            status, code = (401, "unauthorized") if caller.role == "nobody" else (403, "forbidden")
            raise RequestRefused(
                status, code, "an import is for admins", "Run it on the hub's machine, or set $GPUDECK_TOKEN."
            )
        if scope["method"] != "POST":
            raise RequestRefused(405, "method_not_allowed", "imports are posted")
        (length,) = read_headers(scope, b"content-length")
        return await read_body(receive, length)

    async def _import(self, wanted: VestaImport) -> VestaImported:
        host = self._register.named(wanted.name) or await self._register.find(wanted.id)
        is_new, history = host is None, self._history
        if host is None and not wanted.only_ask:
            host = await self._register.put(wanted.id, wanted.name, wanted.address)
        if history is None:
            return VestaImported(is_new, 0, None)
        since = max(await self._samples.imported_until(wanted.id) or 0.0, self._now() - self._keeps)
        rows = [row for row in wanted.rows if row[0] > since]
        if wanted.only_ask or not rows or host is None:
            return VestaImported(is_new, 0, since)
        if history.problem is not None or not self._has_room():
            raise _busy(history)
        name, until = store.fleet_name(host.name, host.id), max(at for at, _ in rows)
        await self._samples.add(host.id, await parse_in_thread(_describe_rows, rows, name))
        host.last_at = max(host.last_at or 0.0, until)
        history.take([make_sample(name, at, wanted.interval, gpus) for at, gpus in rows])
        # It counts as taken when it is on the disk: what a full one has dropped is sent again.
        if not await asyncio.to_thread(self._settle) or history.problem is not None:
            raise _busy(history)
        await self._samples.note_imported(wanted.id, until)
        return VestaImported(is_new, len(rows), since)


def _busy(history: Store) -> Temporary:
    return Temporary(history.problem or "the history is busy with what it was given.")


def _describe_rows(rows: list[Moment], host: str) -> list[Moment]:
    return [(at, describe_post(read_gpus(gpus, host))) for at, gpus in rows]


def make_sample(host: str, at: float, interval: float, posted: Json) -> HostSample:
    """A stored row of a host as the history keeps it. Raises ReportRefused."""
    gpus = read_gpus(posted, host).report.gpus or ()
    return HostSample(host, host, at, interval, _NO_HOST_VALUES, tuple(map(_sample_gpu, gpus)))


def _sample_gpu(gpu: GpuReading) -> GpuSample:
    state, _ = judge(
        processes=None if gpu.processes is None else len(gpu.processes),
        memory_used_bytes=gpu.metrics.get("memory_used_bytes"),
        utilization_percent=gpu.metrics.get("utilization_percent"),
        idle_seconds=0.0,
        reserved=False,
        settings=_SETTINGS,
    )
    processes = None if gpu.processes is None else tuple(map(_sample_process, gpu.processes))
    values = tuple(gpu.metrics.get(name) for name in GPU_NAMES)
    return GpuSample(gpu.uuid, str(gpu.index), gpu.name, STATE_NUMBERS[state], values, processes)


def _sample_process(process: Process) -> ProcessSample:
    return ProcessSample(process.pid, None, process.user, process.command, None, None, process.memory_used_bytes, None)
