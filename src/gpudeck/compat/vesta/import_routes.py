"""The hub's side of `gpudeck import vesta`: admins bring the hosts and the past of another server.

    POST /api/v1/compat/vesta/hosts   {"hosts": [{"id", "name", "address"}]}
    POST /api/v1/compat/vesta/past    {"id", "name", "interval", "rows": [[time, GPUs as posted]]}

A sender that has registered anew has another id than the one under which its past was stored. It is known by its name.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Struct

from gpudeck.api.answers import RequestRefused
from gpudeck.api.reports import read_body
from gpudeck.auth.caller import Caller
from gpudeck.compat.vesta import store
from gpudeck.compat.vesta.states import describe_posts
from gpudeck.compat.vesta.store import read_gpus
from gpudeck.fleet.visibility import EVERYTHING
from gpudeck.history.base import Store
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import parse_in_thread
from gpudeck.model.errors import ReportRefused, Temporary
from gpudeck.model.gpu_state import AvailabilitySettings, judge
from gpudeck.model.report import GpuReading, Process
from gpudeck.server.asgi import Receive, Scope, Send, read_headers, send_error, send_json

log = logging.getLogger(__name__)

HOSTS: Final = "/api/v1/compat/vesta/hosts"
PAST: Final = "/api/v1/compat/vesta/past"
_NO_HOST_VALUES: Final = (None,) * len(HOST_NAMES)
_SETTINGS: Final = AvailabilitySettings()

Identify = Callable[[Scope], Awaitable[Caller]]
_Id = Annotated[str, Meta(pattern=r"^[0-9a-f]{1,32}$")]
_Name = Annotated[str, Meta(min_length=1, max_length=store.LONGEST)]
_Time = Annotated[float, Meta(ge=0, le=1e11)]


class ImportedHost(Struct, frozen=True):
    """A machine as the old server knew it."""

    id: _Id
    name: _Name
    address: Annotated[str, Meta(max_length=64)] = ""


class NewHosts(Struct, frozen=True):
    """With `only_ask` nothing is changed."""

    hosts: Annotated[list[ImportedHost], Meta(max_length=1000)]
    only_ask: bool = False


class PastRows(Struct, frozen=True):
    """`rows` are of the host that is registered with that id, or anew under that name, the oldest first; `interval` is
    how far apart they are, in seconds. Without any row it is a question."""

    id: _Id
    interval: Annotated[float, Meta(ge=1, le=3600)]
    rows: Annotated[list[tuple[_Time, dict[str, Any]]], Meta(max_length=1000)]
    name: _Name | None = None


class PastTaken(Struct, frozen=True):
    """`taken` of the rows were new. Rows up to `since` are not taken: they were before, or the history does not keep
    what is so old."""

    taken: int
    since: float


class ImportStorage(Struct, frozen=True):
    """Where the past goes. `has_room`: the history keeps up with what it is given. `settle` blocks until
    that is on the disk and returns whether it is. What is older than `keeps` seconds it does not keep."""

    history: Store | None
    samples: store.Samples
    has_room: Callable[[], bool]
    settle: Callable[[], bool]
    keeps: float


Outcome = Literal["new", "there"]
"""`there`: also where it is registered with another id."""


class VestaImportRoutes:
    def __init__(
        self, register: store.VestaRegister, storage: ImportStorage, *, identify: Identify, now: Clock
    ) -> None:
        self._register = register
        self._storage = storage
        self._identify = identify
        self._now = now

    def takes(self, path: str, query: bytes) -> bool:
        return path in {HOSTS, PAST}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._read(scope, receive)
            if body is None:
                return
            answer: object
            if scope["path"] == HOSTS:
                wanted = msgspec.json.decode(body, type=NewHosts)
                answer = {"outcomes": [await self._take_host(host, only_ask=wanted.only_ask) for host in wanted.hosts]}
            else:
                answer = await self._take_past(body)
            await send_json(send, 200, msgspec.json.encode(answer))
        except RequestRefused as refusal:
            await send_error(send, refusal.status, refusal.code, refusal.message, refusal.hint)
        except ReportRefused as refusal:
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

    async def _take_host(self, host: ImportedHost, *, only_ask: bool) -> Outcome:
        if self._register.named(host.name) or await self._register.find(host.id):
            return "there"
        if not only_ask and await self._register.put(host.id, host.name, host.address) is None:
            return "there"
        return "new"

    async def _take_past(self, body: bytes) -> PastTaken:
        history, samples = self._storage.history, self._storage.samples
        if history is None:
            raise RequestRefused(
                409, "no_history", "this hub keeps no history", "Set history.kind in its gpudeck.yaml."
            )
        wanted = msgspec.json.decode(body, type=PastRows)
        since = max(await samples.imported_until(wanted.id) or 0.0, self._now() - self._storage.keeps)
        if not wanted.rows:
            # Also of one that is not registered: a dry run asks before the hosts are there.
            return PastTaken(0, since)
        host = self._register.get(wanted.id) or self._register.named(wanted.name or "")
        if host is None:
            raise RequestRefused(404, "unknown_host", "no host is registered with that id", "Import the hosts first.")
        if history.problem is not None or not self._storage.has_room():
            raise _busy(history)
        rows = [row for row in wanted.rows if row[0] > since]
        if rows:
            name, until = store.fleet_name(host.name, host.id), max(at for at, _ in rows)
            await samples.add(host.id, await parse_in_thread(describe_posts, rows, name, EVERYTHING))
            host.last_at = max(host.last_at or 0.0, until)
            history.take([make_sample(name, at, wanted.interval, gpus) for at, gpus in rows])
            # It counts as taken when it is on the disk: what a full one has dropped is sent again.
            if not await asyncio.to_thread(self._storage.settle) or history.problem is not None:
                raise _busy(history)
            await samples.note_imported(wanted.id, until)
        return PastTaken(len(rows), since)


def _busy(history: Store) -> Temporary:
    return Temporary(history.problem or "the history is busy with what it was given.")


def make_sample(host: str, at: float, interval: float, posted: dict[str, Any]) -> HostSample:
    """What was stored of a host as the history keeps it. Raises ReportRefused."""
    gpus = read_gpus(posted, host).report.gpus or ()
    return HostSample(host, host, at, interval, _NO_HOST_VALUES, tuple(map(_sample_gpu, gpus)))


def _sample_gpu(gpu: GpuReading) -> GpuSample:
    values = {
        name: value for name, value in gpu.metrics.items() if GPU_METRICS[name].low <= value <= GPU_METRICS[name].high
    }
    state, _ = judge(
        processes=None if gpu.processes is None else len(gpu.processes),
        memory_used_bytes=values.get("memory_used_bytes"),
        utilization_percent=values.get("utilization_percent"),
        idle_seconds=0.0,
        reserved=False,
        settings=_SETTINGS,
    )
    processes = None if gpu.processes is None else tuple(map(_sample_process, gpu.processes))
    kept = tuple(values.get(name) for name in GPU_NAMES)
    return GpuSample(gpu.uuid, str(gpu.index), gpu.name, STATE_NUMBERS[state], kept, processes)


def _sample_process(process: Process) -> ProcessSample:
    return ProcessSample(process.pid, None, process.user, process.command, None, None, process.memory_used_bytes, None)
