"""Places that messages are sent to: a real mail server, and a webhook that does what a test says."""

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

from fakes.ports import free_port
from gpudeck.alerts.notifiers.rendering import Message


def make_message(key: str = "news 1", **others: Any) -> Message:
    usual: dict[str, Any] = {
        "at": 1_790_000_000.0,
        "kind": "alert",
        "rule": "host_down",
        "severity": "critical",
        "title": "gpu07 is down",
        "lines": ("It has not reported for 60 s.",),
        "action": "Look at its power and network.",
        "link": "#/host/gpu07",
    }
    return Message(key=key, **(usual | others))


class Webhook:
    """`status` is what it answers; it hangs while `hangs`, and answers without end while `floods`."""

    def __init__(self) -> None:
        self.taken: list[tuple[str, Any]] = []
        self.asked = 0
        self.status = 200
        self.hangs = False
        self.floods = False
        self.released = threading.Event()
        self.url = ""

    def texts(self, path: str = "/hook") -> list[str]:
        return [body["text"] for at, body in self.taken if at == path]


@contextmanager
def running_webhook(host: str = "127.0.0.1") -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = msgspec.json.decode(self.rfile.read(int(self.headers["content-length"])))
            hook.asked += 1
            status, floods = hook.status, hook.floods
            if hook.hangs:
                hook.released.wait(60)
                return
            if status == 200:
                hook.taken.append((self.path, body))
            self.send_response(status)
            self.end_headers()
            while floods and not hook.released.is_set():
                try:
                    self.wfile.write(b"x" * 65_536)
                except OSError:
                    return

        def log_message(self, *_: Any) -> None: ...

    server = http.server.ThreadingHTTPServer((host, 0), Handler)
    server.daemon_threads = True
    hook.url = f"http://{host}:{server.server_port}/hook"
    serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    serving.start()
    try:
        yield hook
    finally:
        hook.released.set()
        server.shutdown()
        serving.join(10)
        server.server_close()


class MailServer:
    """Takes no mail for nobody@example.org, and of those who log in ada with the password `right` alone."""

    def __init__(self) -> None:
        self.mails: list[tuple[list[str], str]] = []
        self.port = 0

    async def handle_RCPT(  # noqa: N802 - as the library calls it
        self, _server: Any, _session: Any, envelope: Any, address: str, _options: Any
    ) -> str:
        if address == "nobody@example.org":
            return "550 no such user here"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Any) -> str:  # noqa: N802 - the same
        self.mails.append((envelope.rcpt_tos, envelope.content.decode()))
        return "250 OK"


@contextmanager
def running_mail_server() -> Iterator[MailServer]:
    mail = MailServer()
    mail.port = free_port()

    def check(_server: Any, _session: Any, _envelope: Any, _mechanism: str, told: Any) -> AuthResult:
        return AuthResult(success=(told.login, told.password) == (b"ada", b"right"), handled=False)

    controller = Controller(mail, hostname="127.0.0.1", port=mail.port, authenticator=check, auth_require_tls=False)
    controller.start()
    try:
        yield mail
    finally:
        controller.stop()
