"""Recorded and modelled pages of exporters, a fetcher that hands them over, and a real web server that serves them."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from gpudeck.fetch import Fetcher, HttpResponse
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.target import Target
from gpudeck.sources.base import ScrapeSettings
from gpudeck.sources.scrape import ScrapeSource
from gpudeck.wire import Envelope

CAPTURES = Path(__file__).parent.parent / "captures" / "exporters"
NOW = 1_790_000_000.0

EIGHT = "dcgm-exporter-4-h100x8"
OLD = "dcgm-exporter-2-v100"
MIG = "dcgm-exporter-3-a100-mig"
SMI = "nvidia_gpu_exporter-1.5-h200-mig"
NVITOP_IDLE = "nvitop-exporter-1.7.2-h200-idle"
NVITOP_HELD = "nvitop-exporter-1.7.2-h200-held"
NODE = "node_exporter-1.8"
GPU_PAGES = (EIGHT, OLD, MIG, SMI, NVITOP_IDLE, NVITOP_HELD)


def load(name: str) -> str:
    return (CAPTURES / f"{name}.prom").read_text()


class Pages(Fetcher):
    """Hands over the page that a test sets, without any network."""

    def __init__(self, page: str | bytes) -> None:
        super().__init__(deadline=5.0)
        self.page = page

    async def get(self, url: str, headers: object = None) -> HttpResponse:
        return HttpResponse(200, {}, self.page.encode() if isinstance(self.page, str) else self.page)


class Exporter:
    """A source whose pages a test sets."""

    def __init__(self, page: str | bytes, *, name: str = "gpu01", settings: ScrapeSettings | None = None) -> None:
        self.pages = Pages(page)
        target = Target(name=name, via="scrape", address="192.0.2.7")
        self.source = ScrapeSource(target, settings or ScrapeSettings(), self.pages)

    def seal(self, page: str | bytes | None = None, now: float = NOW) -> Envelope:
        self.pages.page = self.pages.page if page is None else page
        return asyncio.run(self.source.read(now)).envelope

    def report(self, page: str | bytes | None = None, now: float = NOW) -> Report:
        return self.seal(page, now).report

    def gpus(self, page: str | bytes | None = None, now: float = NOW) -> list[GpuReading]:
        return self.report(page, now).gpus or []


def gpus_of(page: str | bytes) -> list[GpuReading]:
    return Exporter(page).gpus()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    answer: Callable[[BaseHTTPRequestHandler], None]
    open_sockets: set[socket.socket]

    def setup(self) -> None:
        super().setup()
        self.open_sockets.add(self.connection)

    def do_GET(self) -> None:
        with contextlib.suppress(ConnectionError):
            type(self).answer(self)

    def do_POST(self) -> None:
        # What is left unread would be taken for the next question.
        self.posted = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        """Nothing is logged."""


def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
    handler.send_response(status)
    for name, value in ({"Content_Length": str(len(body))} | headers).items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


@contextlib.contextmanager
def web_server(answer: Callable[[BaseHTTPRequestHandler], None], port: int = 0) -> Iterator[int]:
    """A real server that answers every request so, on its own thread; yields its port. At the end it dies as a killed
    process does, with all its connections."""
    open_sockets: set[socket.socket] = set()
    members = {"answer": staticmethod(answer), "open_sockets": open_sockets}
    server = ThreadingHTTPServer(("127.0.0.1", port), type("Handler", (_Handler,), members))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        for opened in open_sockets:
            with contextlib.suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)
        server.server_close()
        thread.join(10)
