"""A stand-in for Slack: its Web API and Socket Mode over real HTTP and real WebSockets, for the real slack-sdk.

Every call is checked for its shape (see fakes.slack_shapes), every envelope for its acknowledgement within three
seconds. What is wrong stands in `complaints`, which a test looks at in the end.
"""

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, ClassVar

from aiohttp import WSMsgType, web

from fakes.slack_shapes import check_blocks, check_call

APP_TOKEN = "xapp-1-A0-secret-app"
BOT_TOKEN = "xoxb-0-secret-bot"
BOT = "UBOT00001"
TEAM = "T0001"
ACK_SECONDS = 3.0
Json = dict[str, Any]


class FakeSlack:
    """`calls` are what was asked, `said` what people could read: messages, answers to slash commands and files."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Json]] = []
        self.said: list[Json] = []
        self.files: dict[str, Json] = {}
        self.complaints: list[str] = []
        self.sockets: list[web.WebSocketResponse] = []
        self._requests: list[web.Request] = []
        self.opened = 0
        self.acks: dict[str, float] = {}
        self.zones: dict[str, str] = defaultdict(lambda: "Europe/Berlin")
        self.tokens = {"app": APP_TOKEN, "bot": BOT_TOKEN}
        self.refusals: dict[str, Json] = {}
        self.limits: dict[str, tuple[int, int]] = {}
        self.hanging: set[str] = set()
        self.greets = True
        self.url = ""
        self._tickets: set[str] = set()
        self._sent: dict[str, float] = {}
        self._numbers = itertools.count(1)
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> None:
        app = web.Application()
        app.router.add_route("*", "/api/{method}", self._answer)
        app.router.add_post("/upload/{file}", self._take_file)
        app.router.add_post("/respond/{number}", self._take_response)
        app.router.add_get("/link", self._link)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self.port}"

    async def stop(self) -> None:
        assert self._runner is not None
        for socket in self.sockets:
            await socket.close()
        await self._runner.cleanup()
        for number, sent in self._sent.items():
            if self.acks.get(number, float("inf")) - sent > ACK_SECONDS:
                self.complaints.append(f"envelope {number} was not acknowledged in time")

    @property
    def api(self) -> str:
        return f"{self.url}/api/"

    @property
    def texts(self) -> list[str]:
        """All that could be read, each message as one text."""
        return [read(one) for one in self.said]

    # What people do.

    async def write(self, text: str, user: str = "U0ADA", channel: str = "D0ADA", **others: Any) -> str:
        """A message. A direct one, unless the channel is another."""
        kind = "im" if channel.startswith("D") else "channel"
        event = {"type": "message", "text": text, "user": user, "channel": channel, "channel_type": kind, "ts": "1.2"}
        return await self._send_event(event | others.pop("event", {}), **others)

    async def mention(self, text: str, user: str = "U0ADA", channel: str = "C0GPUS", **others: Any) -> str:
        event = {"type": "app_mention", "text": f"<@{BOT}> {text}", "user": user, "channel": channel, "ts": "1.2"}
        return await self._send_event(event | others.pop("event", {}), **others)

    async def slash(self, text: str, user: str = "U0ADA", channel: str = "C0GPUS", command: str = "/gpu") -> str:
        payload = {
            "command": command,
            "text": text,
            "user_id": user,
            "channel_id": channel,
            "team_id": TEAM,
            "response_url": f"{self.url}/respond/{next(self._numbers)}",
            "trigger_id": "1.1",
        }
        return await self.send("slash_commands", payload)

    async def _send_event(self, event: Json, event_id: str | None = None, **body: Any) -> str:
        number = event_id or f"Ev{next(self._numbers)}"
        payload = {"type": "event_callback", "team_id": TEAM, "event_id": number, "event": event}
        return await self.send("events_api", payload | body)

    async def send(self, kind: str, payload: Any) -> str:
        """An envelope over the newest socket. Returns its number."""
        number = f"envelope-{next(self._numbers)}"
        self._sent[number] = time.monotonic()
        await self.sockets[-1].send_str(json.dumps({"type": kind, "envelope_id": number, "payload": payload}))
        return number

    async def ask_for_a_new_socket(self, reason: str = "refresh_requested") -> None:
        await self.sockets[-1].send_str(json.dumps({"type": "disconnect", "reason": reason}))

    def drop(self) -> None:
        """The line is cut, without a word."""
        for request in self._requests:
            if request.transport is not None:
                request.transport.abort()

    # What Slack does.

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        method = request.match_info["method"]
        arguments = await _read_arguments(request)
        self.calls.append((method, arguments))
        self.complaints += check_call(method, arguments)
        if method in self.hanging:
            await asyncio.sleep(3600)
        left, seconds = self.limits.get(method, (0, 0))
        if left:
            self.limits[method] = left - 1, seconds
            return web.json_response(
                {"ok": False, "error": "ratelimited"}, status=429, headers={"Retry-After": str(seconds)}
            )
        if method in self.refusals:
            return web.json_response({"ok": False, **self.refusals[method]})
        wanted = self.tokens["app" if method == "apps.connections.open" else "bot"]
        if request.headers.get("Authorization") != f"Bearer {wanted}":
            return web.json_response({"ok": False, "error": "invalid_auth"})
        return web.json_response({"ok": True, **self._METHODS[method](self, arguments)})

    def _auth_test(self, _: Json) -> Json:
        return {"user_id": BOT, "bot_id": "B0001", "team_id": TEAM, "user": "gpudeck", "team": "lab", "url": self.url}

    def _open(self, _: Json) -> Json:
        ticket = f"secret-ticket-{next(self._numbers)}"
        self._tickets.add(ticket)
        return {"url": f"{self.url.replace('http', 'ws')}/link?ticket={ticket}"}

    def _post(self, arguments: Json) -> Json:
        self.said.append(arguments | {"is_ephemeral": "user" in arguments})
        return {"ts": "2.1", "channel": arguments["channel"], "message_ts": "2.1"}

    def _open_direct(self, arguments: Json) -> Json:
        return {"channel": {"id": f"D{arguments['users'][1:]}"}}

    def _user(self, arguments: Json) -> Json:
        return {"user": {"id": arguments["user"], "tz": self.zones[arguments["user"]]}}

    def _upload_url(self, arguments: Json) -> Json:
        number = f"F{next(self._numbers)}"
        self.files[number] = {"length": int(arguments["length"]), "name": arguments["filename"]}
        return {"file_id": number, "upload_url": f"{self.url}/upload/{number}"}

    def _complete(self, arguments: Json) -> Json:
        files = json.loads(arguments["files"]) if isinstance(arguments["files"], str) else arguments["files"]
        for file in files:
            if "text" not in self.files.get(file["id"], {}):
                self.complaints.append(f"{file['id']} was not uploaded")
            self.said.append({"channel": arguments.get("channel_id"), **self.files[file["id"]], **arguments})
        return {"files": files}

    _METHODS: ClassVar[dict[str, Callable[["FakeSlack", Json], Json]]] = {
        "auth.test": _auth_test,
        "apps.connections.open": _open,
        "chat.postMessage": _post,
        "chat.postEphemeral": _post,
        "conversations.open": _open_direct,
        "users.info": _user,
        "files.getUploadURLExternal": _upload_url,
        "files.completeUploadExternal": _complete,
    }

    async def _take_file(self, request: web.Request) -> web.Response:
        file = self.files[request.match_info["file"]]
        body = await request.read()
        if len(body) != file["length"]:
            self.complaints.append(f"{file['name']} has {len(body)} bytes, and {file['length']} were announced")
        file["file"] = file["text"] = body.decode()
        return web.Response(text=f"OK - {len(body)}")

    async def _take_response(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.complaints += check_blocks(body["blocks"]) if "blocks" in body else ()
        self.said.append(body | {"is_ephemeral": body.get("response_type") == "ephemeral", "is_response": True})
        return web.Response(text="ok")

    async def _link(self, request: web.Request) -> web.StreamResponse:
        ticket = request.query.get("ticket", "")
        if ticket not in self._tickets:
            # A ticket opens one socket.
            raise web.HTTPForbidden
        self._tickets.discard(ticket)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self.sockets.append(socket)
        self._requests.append(request)
        if self.greets:
            await socket.send_str(json.dumps({"type": "hello", "num_connections": len(self.sockets)}))
            self.opened += 1
        try:
            async for message in socket:
                if message.type == WSMsgType.TEXT:
                    self.acks[json.loads(message.data)["envelope_id"]] = time.monotonic()
        finally:
            self.sockets.remove(socket)
            self._requests.remove(request)
        return socket


def read(said: Json) -> str:
    """One message as text: its blocks, or the file."""
    texts = [said["file"]] if "file" in said else []
    for block in said.get("blocks", ()):
        texts += [block["text"]["text"]] if "text" in block else []
        texts += [element["text"] for element in block.get("elements", ()) if isinstance(element["text"], str)]
    return "\n".join(texts)


def buttons_of(said: Json) -> list[Json]:
    return [element for block in said["blocks"] if block["type"] == "actions" for element in block["elements"]]


async def _read_arguments(request: web.Request) -> Json:
    found: Json = dict(request.query)
    if request.content_type == "application/json":
        found |= await request.json()
    elif request.can_read_body:
        found |= dict(await request.post())
    if isinstance(found.get("blocks"), str):
        found["blocks"] = json.loads(found["blocks"])
    return found


@contextlib.asynccontextmanager
async def running_slack() -> AsyncIterator[FakeSlack]:
    """In this event loop; in the end nothing may have been wrong with any call."""
    slack = FakeSlack()
    await slack.start()
    try:
        yield slack
    finally:
        await slack.stop()
    assert slack.complaints == []


class SlackThread:
    """The same in a thread of its own, for hubs in processes of their own."""

    def __init__(self) -> None:
        self.slack = FakeSlack()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.do(self.slack.start())

    def do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def stop(self) -> None:
        self.do(self.slack.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


@contextlib.contextmanager
def slack_in_a_thread() -> Iterator[SlackThread]:
    thread = SlackThread()
    try:
        yield thread
    finally:
        thread.stop()
    assert thread.slack.complaints == []
