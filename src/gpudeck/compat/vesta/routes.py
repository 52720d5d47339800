"""The paths of vesta's server: /register/, /update/host/<id>, /states/, /gpu_table and /?term=true. Raw ASGI, as
senders post all the time. Errors are answered with 200 and a status code in the body: on a 404 senders register
again.

Also the route of `gpudeck import vesta`, with which admins bring the hosts and the past of another server:

    POST /api/v1/compat/vesta/import   {"id", "name", "address", "interval", "rows": [[time, GPUs as posted]]}

A sender that has registered anew has another id than the one under which its past was stored. It is known by its name.
"""

import asyncio
import hmac
import html
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gpudeck.api.access import Policy
from gpudeck.api.answers import RequestRefused
from gpudeck.api.page import is_on
from gpudeck.api.reports import read_body
from gpudeck.auth.caller import Caller
from gpudeck.compat.settings import VestaSettings
from gpudeck.compat.vesta.states import (
    VestaHost,
    VestaStates,
    describe_post,
    draw_boxes,
    draw_table,
    hide_commands,
)
from gpudeck.compat.vesta.store import (
    LONGEST,
    MAX_SAMPLES,
    Json,
    Moment,
    RegisteredSender,
    Samples,
    VestaPost,
    VestaRegister,
    fleet_name,
    read_gpus,
    read_post,
)
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.history.base import Store
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import LoopBudget, parse_in_thread
from gpudeck.model.errors import ReportRefused, Temporary
from gpudeck.model.gpu_state import AvailabilitySettings, judge
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.server.addresses import Networks, parse_address
from gpudeck.server.admission import ReportSender
from gpudeck.server.asgi import Receive, Scope, Send, read_headers, send_error, send_json
from gpudeck.wire import VERSION, Envelope

log = logging.getLogger(__name__)

Identify = Callable[[Scope], Awaitable[Caller]]

_UPDATE: Final = "/update/host/"
_STATES: Final = "/states"
_REGISTER: Final = "/register"
_TABLE: Final = "/gpu_table"
_MAX_SAMPLES: Final = 20_000
_QUIET_SECONDS: Final = 60.0
_MAX_PARAMETERS: Final = 16
_OWN_WORDS: Final = frozenset({"users", "free", "user", "q", "columns", "color", "refresh"})
_MAX_QUERY_LENGTH: Final = 4096
_LARGE_BYTES: Final = 32 * 1024


IMPORT_PATH: Final = "/api/v1/compat/vesta/import"
_NO_HOST_VALUES: Final = (None,) * len(HOST_NAMES)
_SETTINGS: Final = AvailabilitySettings()


class VestaReply(Struct, frozen=True):
    """`close`: the body was not read to its end, so the connection is closed."""

    body: bytes
    status: int = 200
    media: bytes = b"application/json"
    close: bool = False


def _error(code: int, message: str, status: int = 200, *, close: bool = False) -> VestaReply:
    body = json.dumps({"status": "ERROR", "status_code": code, "message": message, "info": message})
    return VestaReply(body.encode(), status, close=close)


FORBIDDEN: Final = _error(403, "forbidden", close=True)
ELSEWHERE: Final = _error(403, "forbidden", 403)
UNKNOWN_ID: Final = _error(404, "not in known list")
NOT_FOUND: Final = _error(404, "not found")
TAKEN: Final = VestaReply(json.dumps({"status": "OK", "status_code": 200}).encode())


class VestaRoutes:
    """Routes outside the API. `identify` and `policy` check readers; senders send the token instead."""

    def __init__(
        self,
        hub: Hub,
        register: VestaRegister,
        samples: Samples,
        settings: VestaSettings,
        *,
        identify: Identify,
        policy: Policy,
        now: Clock,
    ) -> None:
        self._hub = hub
        self._register = register
        self._samples = samples
        self._settings = settings
        self._identify = identify
        self._policy = policy
        self._now = now
        self._states = VestaStates(hub.fleet, register, settings)
        self._token = settings.token.encode()
        self._readers = Networks(settings.read_from)
        self._run_id = secrets.token_hex(8)
        self._warned_at: dict[str, float] = {}

    def takes(self, path: str, query: bytes) -> bool:
        if path == "/":
            # Other parameters than `detail` request the hub's own text, which also has `term`.
            parameters = _read_query(query) if b"term=" in query else {}
            return is_on(parameters.get("term")) and not parameters.keys() & _OWN_WORDS
        return self.owns(path) or path in {_STATES, _TABLE, f"{_TABLE}/"} or path.startswith("/states/")

    def owns(self, path: str) -> bool:
        """The paths of senders, which have their own limits: see `ReportSenders`."""
        return path.startswith(_UPDATE) or path in {_REGISTER, f"{_REGISTER}/"}

    def recognize(self, path: str, scope: Scope) -> ReportSender | None:
        if not self._has_token(scope):
            return None
        if not path.startswith(_UPDATE):
            return ReportSender("registrations")
        host_id = _read_id(path)
        is_known = scope["method"] == "POST" and self._register.get(host_id) is not None
        return ReportSender("reports", host_id) if is_known else None

    def is_refusal(self, body: bytes) -> bool:
        return body == FORBIDDEN.body

    async def refuse(self, send: Send) -> None:
        """Answer "forbidden": on "unknown id" a sender would register, and send even more requests."""
        await _send(send, FORBIDDEN)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reply = await self._answer(scope["path"], scope, receive)
        except Temporary as error:
            log.warning("vesta: %s", error)
            reply = _error(503, "unavailable", 503, close=True)
        except Exception:
            log.exception("bug while answering as vesta would")
            reply = _error(500, "bug", 500, close=True)
        if reply is not None:
            await _send(send, reply)

    async def _answer(self, path: str, scope: Scope, receive: Receive) -> VestaReply | None:
        """None if the sender closed the connection during its post."""
        if path.startswith(_UPDATE):
            return await self._update(_read_id(path), scope, receive)
        if path.startswith(_REGISTER):
            return await self._take_registration(scope)
        return await self._read(path, scope)

    async def _update(self, host_id: str, scope: Scope, receive: Receive) -> VestaReply | None:
        if scope["method"] != "POST":
            return NOT_FOUND
        if not self._may_report(scope):
            return FORBIDDEN
        try:
            (length,) = read_headers(scope, b"content-length")
            body = await read_body(receive, length)
            if body is None:
                return None
            host = await self._register.find(host_id[:64])
            if host is None:
                return UNKNOWN_ID
            at, gpus = await self._take(host, body)
        except ReportRefused as refusal:
            self._hub.ingest.count(refusal)
            self._warn(host_id, f"what a vesta sender at {_address(scope)} posts is not taken: {refusal}")
            return FORBIDDEN
        try:
            await self._samples.keep(host.id, at, gpus)
            await self._register.note_seen(host, _address(scope))
        except Temporary as error:
            # The fleet has the report, so the sender gets no error.
            self._warn("samples", f"what vesta senders post is not kept for fetch_num: {error}")
        return TAKEN

    async def _take(self, host: RegisteredSender, body: bytes) -> tuple[float, Json]:
        now = self._now()
        if len(body) < _LARGE_BYTES:
            post, gpus = _read_post(body, host.host)
        else:
            post, gpus = await parse_in_thread(_read_post, body, host.host)
        host.note_post(now, post.posted)
        self._hub.ingest.take_fetched(self._seal(host, post.report, now), via="vesta", target=host.host)
        return now, gpus

    def _seal(self, host: RegisteredSender, report: Report, now: float) -> Envelope:
        return Envelope(
            version=VERSION,
            host=host.host,
            boot_id="vesta",
            run_id=f"{self._run_id}-{host.id}"[:64],
            sequence=host.sequence,
            collected_at=now,
            # In the fleet a host is down after four intervals.
            interval_seconds=host.silence_limit(self._settings.down_after) / 4,
            report=replace(report, addresses=[host.address] if host.address else []),
            agent_version="vesta",
        )

    async def _take_registration(self, scope: Scope) -> VestaReply:
        if not self._may_report(scope):
            return FORBIDDEN
        wanted = _read_query(scope["query_string"]).get("host_name", "")
        made = await self._register.add(wanted, _address(scope))
        if made is None:
            self._warn("register", f"a vesta sender that asks to be called {wanted[:80]!r} is not registered")
            return FORBIDDEN
        log.info("a vesta sender at %s has registered as %s", made.address, made.name)
        reply = {"id": made.id, "register_name": made.name, "status": "OK", "status_code": 200}
        return VestaReply(json.dumps(reply).encode())

    def _may_report(self, scope: Scope) -> bool:
        is_right = self._has_token(scope)
        if not is_right:
            address = _address(scope)
            self._warn(address, f"a vesta sender at {address} was turned away: it comes with a wrong token")
        return is_right

    def _has_token(self, scope: Scope) -> bool:
        """Compares in constant time."""
        token = _read_query(scope["query_string"]).get("token", "").encode("utf-8", "surrogatepass")
        return hmac.compare_digest(token, self._token)

    async def _read(self, path: str, scope: Scope) -> VestaReply:
        if scope["method"] not in {"GET", "HEAD"}:
            return NOT_FOUND
        # Only readers are restricted, as in the original.
        if not self._readers.is_empty and not self._readers.has(_address(scope)):
            return ELSEWHERE
        try:
            caller = await self._identify(scope)
            self._policy.check("read", caller)
        except RequestRefused:
            return FORBIDDEN
        return await self._show(path, _read_query(scope["query_string"]), self._policy.visibility(caller))

    async def _show(self, path: str, parameters: dict[str, str], visibility: Visibility) -> VestaReply:
        is_text, width = is_on(parameters.get("term")), self._settings.term_width
        if path == "/":
            hosts, has_boxes = self._states.hosts(self._now()), is_on(parameters.get("detail"))
            boxes = draw_boxes(hosts, self._states, visibility, width) if has_boxes else None
            return _send_text(boxes or draw_table(hosts, self._states, width))
        if path.startswith(_TABLE):
            table = draw_table(self._states.hosts(self._now()), self._states, width)
            return _send_text(table) if is_text else _send_page(table)
        name, count = path[len(_STATES) :].strip("/"), _read_count(parameters.get("fetch_num"))
        if not name:
            return VestaReply(await self._describe_all(visibility, count))
        one = self._states.find(name, self._now())
        if one is None:
            return NOT_FOUND
        if is_text:
            return _send_text(draw_boxes([one], self._states, visibility, width))
        return VestaReply(json.dumps({one.name: await self._describe(one, visibility, count)}).encode())

    async def _describe_all(self, visibility: Visibility, count: int) -> bytes:
        hosts = self._states.hosts(self._now())
        # A sample has about a kilobyte: with many hosts fewer are sent, so that the answer is bounded.
        count = min(count, max(1, _MAX_SAMPLES // max(1, len(hosts))))
        parts, budget = list[str](), LoopBudget()
        for host in hosts:
            is_short = host.is_down or count == 1
            described = (
                self._states.summarize(host, visibility) if is_short else await self._describe(host, visibility, count)
            )
            parts.append(f"{json.dumps(host.name)}: {json.dumps(described)}")
            await budget.checkpoint()
        return f"{{{', '.join(parts)}}}".encode()

    async def _describe(self, host: VestaHost, visibility: Visibility, count: int) -> Json:
        """Posted and imported samples, each at its own time, then the newest state."""
        wanted, registered, past = min(count, MAX_SAMPLES) - host.has_reported, host.registered, list[Moment]()
        if wanted > 0 and registered is not None:
            newest = float("inf") if host.state is None or not host.has_reported else host.state.observed_at
            if registered.posted_at is not None and host.is_of_vesta:
                newest = registered.posted_at
            past = await self._samples.newest(registered.id, newest, wanted)
        if visibility.commands != "all":
            past = [(at, hide_commands(gpus, visibility)) for at, gpus in past]
        return self._states.describe(host, visibility, past)

    def _warn(self, about: str, sentence: str) -> None:
        """At most once a minute for each `about`: wrong requests repeat. Never log queries: they contain tokens."""
        now = time.monotonic()
        if now - self._warned_at.get(about, float("-inf")) < _QUIET_SECONDS:
            return
        if len(self._warned_at) > 1000:
            self._warned_at.clear()
        self._warned_at[about] = now
        log.warning("%s", sentence)


def _read_post(body: bytes, host: str) -> tuple[VestaPost, Json]:
    """The post, and its GPUs in the form in which they are stored. Raises ReportRefused."""
    post = read_post(body, host)
    return post, describe_post(post)


def _send_text(text: str) -> VestaReply:
    return VestaReply(text.encode("utf-8", "replace"), media=b"text/plain; charset=utf-8")


def _send_page(text: str) -> VestaReply:
    body = f'<!DOCTYPE html><html lang="en"><title>GPU table</title><pre>{html.escape(text)}</pre></html>'
    return VestaReply(body.encode("utf-8", "replace"), media=b"text/html; charset=utf-8")


def _read_query(query: bytes) -> dict[str, str]:
    if len(query) > _MAX_QUERY_LENGTH:
        return {}
    text = query.decode("latin-1")
    try:
        pairs = parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_PARAMETERS, errors="replace")
    except ValueError:
        return {}
    return dict(reversed(pairs))


def _read_id(path: str) -> str:
    return path[len(_UPDATE) :].rstrip("/")


def _read_count(text: str | None) -> int:
    return max(1, int(text)) if text and text.isascii() and text.isdigit() and len(text) < 10 else 1


def _address(scope: Scope) -> str:
    """As in the original: IPv4 is never written as IPv6."""
    address = str(scope["client"][0])[:64] if scope.get("client") else ""
    return str(parse_address(address) or address)


async def _send(send: Send, reply: VestaReply) -> None:
    headers = [
        (b"content-type", reply.media),
        (b"content-length", b"%d" % len(reply.body)),
        (b"cache-control", b"no-store"),
        *([(b"connection", b"close")] if reply.close else ()),
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


class VestaImport(Struct, frozen=True):
    """A machine as the old server knew it, and rows of its past, the oldest first; `interval` is how far apart they
    are, in seconds. With `only_ask` nothing is changed."""

    id: Annotated[str, Meta(pattern=r"^[0-9a-f]{1,32}$")]
    name: Annotated[str, Meta(min_length=1, max_length=LONGEST)]
    address: Annotated[str, Meta(max_length=64)] = ""
    interval: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    rows: Annotated[list[tuple[Annotated[float, Meta(ge=0, le=1e11)], dict[str, Any]]], Meta(max_length=1000)] = field(
        default_factory=list
    )
    only_ask: bool = False


class VestaImported(Struct, frozen=True):
    """Whether the host is new here, and how many of the rows were. Rows up to `since` are not taken: they were taken
    before, or are older than the history keeps. `since` is null without a history."""

    is_new: bool
    taken: int
    since: float | None


class VestaImportRoute:
    """`has_room`: the history has room for more samples. `settle` blocks until they are on the disk, and returns
    whether they are. The history keeps `keeps` seconds."""

    def __init__(
        self,
        register: VestaRegister,
        samples: Samples,
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
        return path == IMPORT_PATH

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
        name, until = fleet_name(host.name, host.id), max(at for at, _ in rows)
        await self._samples.add(host.id, await parse_in_thread(_describe_rows, rows, name))
        host.last_at = max(host.last_at or 0.0, until)
        history.take([make_sample(name, at, wanted.interval, gpus) for at, gpus in rows])
        # Rows count as taken when they are on the disk: those that a full disk dropped are sent again.
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
