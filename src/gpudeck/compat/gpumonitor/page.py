"""`GET /gpus` and `GET /index` of the hub: where gpumonitor's web server had its one page, and where bookmarks lead.

Its own block for Caddy lets these paths through and nothing below them, so what is answered is one document that needs
nothing else. Below the hosts stand its totals by user, counted as it counts (a process on four GPUs is four), and its
processes.
"""

from collections import Counter
from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final
from urllib.parse import parse_qs

from litestar.exceptions import HTTPException

from gpudeck.api.access import Policy
from gpudeck.api.callers import Refusal
from gpudeck.auth.caller import Caller
from gpudeck.hub.hub import Hub
from gpudeck.model.errors import Temporary
from gpudeck.model.quantity import show_gib, show_span
from gpudeck.model.view import Fleet
from gpudeck.server.asgi import Receive, Scope, Send, send_error
from gpudeck.views.static_page import POLICY, render_page

PATHS: Final = ("/gpus", "/index")
_LONGEST_PAUSE: Final = 86_400
_MOST_ROWS: Final = 2000
_USERS: Final = ("User", "Memory", "Processes", "GPUs")
_PROCESSES: Final = ("Host", "GPU", "User", "Memory", "Time", "PID")

Identify = Callable[[Scope], Awaitable[Caller]]


class PageDoor:
    """A side door of the hub. `identify` says who reads, `policy` whether they may."""

    def __init__(self, hub: Hub, *, identify: Identify, policy: Policy) -> None:
        self._hub = hub
        self._identify = identify
        self._policy = policy

    def takes(self, path: str, query: bytes) -> bool:
        return path in PATHS

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            await send_error(send, 405, "method_not_allowed", "this is only read", "", (b"allow", b"GET, HEAD"))
            return
        try:
            caller = await self._identify(scope)
            self._policy.check("read", caller)
        except Temporary as error:
            await send_error(send, 503, "unavailable", error.message, error.hint, (b"retry-after", b"5"))
            return
        except (Refusal, HTTPException):
            hint = "Log in on the hub's own page, or set `read: open`."
            await send_error(send, 401, "unauthorized", "this hub is not open to everybody", hint)
            return
        refresh = _read_refresh(scope["query_string"])
        body = await self._hub.stream.answer(self._policy.sight(caller), _render, refresh)
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"content-security-policy", POLICY.encode()),
            (b"cache-control", b"no-store"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def sum_by_user(fleet: Fleet) -> list[tuple[str, str, str, str]]:
    """User, memory, processes and GPUs, the most memory first, then the most processes. A process counts on each of its
    GPUs. Memory of which a part is not known is at least what is."""
    memory, counts, partly, places = Counter[str](), Counter[str](), set[str](), dict[str, dict[str, list[str]]]()
    for host in fleet.hosts:
        for gpu in host.gpus if host.status == "up" else ():
            for process in gpu.processes or ():
                if (user := process.user) is None:
                    continue
                counts[user] += 1
                memory[user] += process.memory_used_bytes or 0
                partly |= {user} if process.memory_used_bytes is None else set()
                labels = places.setdefault(user, {}).setdefault(host.name, [])
                labels += [gpu.label] if gpu.label not in labels else []
    return [
        (
            user,
            f"{'≥ ' if user in partly else ''}{show_gib(memory[user], 2)} GiB",
            str(count),
            "  ".join(f"{host}-{','.join(labels)}" for host, labels in places[user].items()),
        )
        for user, count in sorted(counts.items(), key=lambda one: (-memory[one[0]], -one[1], one[0]))
    ]


def list_processes(fleet: Fleet) -> list[tuple[str, ...]]:
    """Host, GPU, user, memory, how long it runs, and pid, on each of its GPUs; at most `_MOST_ROWS`."""
    rows = (
        (
            host.name,
            gpu.label,
            process.user or "–",
            f"{show_gib(process.memory_used_bytes, 2)} GiB",
            "–" if process.started_at is None else show_span(fleet.time - process.started_at),
            str(process.pid or "–"),
        )
        for host in fleet.hosts
        for gpu in (host.gpus if host.status == "up" else ())
        for process in gpu.processes or ()
    )
    return list(islice(rows, _MOST_ROWS))


def _render(fleet: Fleet, refresh: int) -> bytes:
    tables = ([_USERS, *sum_by_user(fleet)], [_PROCESSES, *list_processes(fleet)])
    return render_page(fleet, refresh, tables).encode()


def _read_refresh(query: bytes) -> int:
    """`?refresh=5`, as there; what is no number of seconds is once a minute."""
    told = parse_qs(query.decode("latin-1")[:1000]).get("refresh", [""])[0]
    return int(told) if told.isascii() and told.isdigit() and 1 <= int(told[:9]) <= _LONGEST_PAUSE else 60
