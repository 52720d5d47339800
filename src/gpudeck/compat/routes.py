"""Paths of other monitors that are only read."""

from collections.abc import Awaitable, Callable
from typing import ClassVar

from gpudeck.api.access import Policy
from gpudeck.api.answers import RequestRefused, describe_trouble
from gpudeck.auth.caller import Caller
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.visibility import Visibility
from gpudeck.model.errors import Temporary
from gpudeck.server.asgi import Receive, Scope, Send, send_error

Identify = Callable[[Scope], Awaitable[Caller]]
Headers = list[tuple[bytes, bytes]]


class ReadOnlyRoute:
    """`identify` says who reads, `policy` whether they may. A subclass names its `paths`, the `refusal` (status, code,
    message, hint) for all others, and makes the answer."""

    paths: ClassVar[tuple[str, ...]]
    refusal: ClassVar[tuple[int, str, str, str]]

    def __init__(self, hub: Hub, *, identify: Identify, policy: Policy) -> None:
        self._hub = hub
        self._identify = identify
        self._policy = policy

    def takes(self, path: str, query: bytes) -> bool:
        return path in self.paths

    async def answer(self, query: bytes, visibility: Visibility) -> tuple[bytes, Headers]:
        """The body and its headers, beside its length."""
        raise NotImplementedError

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in {"GET", "HEAD"}:
            await send_error(send, 405, "method_not_allowed", "this is only read", "", (b"allow", b"GET, HEAD"))
            return
        try:
            caller = await self._identify(scope)
            self._policy.check("read", caller)
        except Temporary as error:
            await send_error(send, 503, "unavailable", *describe_trouble(error), (b"retry-after", b"5"))
            return
        except RequestRefused:
            await send_error(send, *self.refusal)
            return
        body, headers = await self.answer(scope["query_string"], self._policy.visibility(caller))
        headers = [*headers, (b"content-length", b"%d" % len(body)), (b"cache-control", b"no-store")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
