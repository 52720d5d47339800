"""docs/way-of-a-report.md names the files that a report passes. Here a short report takes that way, from the bytes of a
connection to the stream, and every file of the project in which a function runs is noted."""

import asyncio
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import gpudeck
from fakes.clock import FakeClock
from fakes.reports import HOST, make_busy_gpu, make_envelope
from gpudeck.api.reports import DirectReports, ReportsRoute
from gpudeck.auth.tokens import Token
from gpudeck.fleet.hub import Hub
from gpudeck.model.report import Report
from gpudeck.model.settings import LimitsSettings
from gpudeck.server.admission import AdmissionGate
from gpudeck.server.connections import Connection, ConnectionLimiter, FirstReports
from gpudeck.wire import Envelope, ShortReport, describe, encode, pack_numbers

SOURCE = Path(gpudeck.__file__).parent
PAGE = Path(__file__).parents[2] / "docs" / "way-of-a-report.md"
LIMITS_AND_TOKEN = {"server/admission.py", "server/rate_limits.py", "auth/tokens.py"}
EVERY_SECOND = {"fleet/observers.py", "fleet/late_reports.py", "fleet/identity.py", "model/cpu_budget.py"}
"""What runs once a second whether reports came or not."""
TOKEN = Token(1, "any host", "agent", None, None, 0.0, "", None, None, None)


async def no_app(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("a report in its usual form does not reach the application")


class Transport(asyncio.Transport):
    """A client that reads everything."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 50_000)})
        self.sent = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def is_closing(self) -> bool:
        return False


class Sender:
    """One agent and its connection to a hub."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        gate = AdmissionGate(no_app, LimitsSettings(unlimited=["127.0.0.1"]))
        self.route = DirectReports(ReportsRoute(self.hub, {"secret": TOKEN}.get), gate, ["/api/v1/reports"])
        self.transport = Transport()
        with socket.socket() as accepted:
            self.connection = Connection(ConnectionLimiter(), "127.0.0.1", accepted)
        self.connection.pass_to(asyncio.Protocol, self.route, FirstReports())

    def send(self, report: Envelope | ShortReport) -> int:
        body = encode(report)
        lines = [
            "POST /api/v1/reports HTTP/1.1",
            "Host: hub",
            "Authorization: Bearer secret",
            "Content-Type: application/msgpack",
            "Content-Encoding: zstd",
            f"Gpudeck-Sent-At: {self.clock()}",
            f"Content-Length: {len(body)}",
        ]
        self.transport.sent = b""
        self.connection.receive("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        return int(self.transport.sent.split()[1])

    def make_report(self, sequence: int) -> Envelope:
        self.clock.advance(2.0)
        gpu = make_busy_gpu()
        gpu.metrics["utilization_percent"] = 40.0 + sequence
        report = Report(gpus=[gpu], metrics=dict(HOST))
        others = {"collected_at": self.clock(), "description": describe(report)}
        return make_envelope("gpu01", sequence, report=report, **others)


def shorten(envelope: Envelope) -> ShortReport:
    numbers = pack_numbers(envelope.report)
    assert numbers is not None
    head = {name: getattr(envelope, name) for name in Envelope.__struct_fields__ if name not in {"report", "version"}}
    return ShortReport(**head, version=2, numbers=numbers)


@contextmanager
def noting_files() -> Iterator[set[str]]:
    files: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            files.add(path.relative_to(SOURCE).as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield files
    finally:
        sys.setprofile(before)


def test_a_short_report_passes_the_eight_files_that_the_page_names() -> None:
    files, delta = asyncio.run(trace_report())
    assert b"44" in delta.plain
    sentence = PAGE.read_text().partition("passes eight files")[2].partition(". Its limits")[0]
    named = set(re.findall(r"`src/gpudeck/([\w/]+\.py)`", sentence))
    assert len(named) == 8
    assert files - LIMITS_AND_TOKEN - EVERY_SECOND == named


async def trace_report() -> tuple[set[str], Any]:
    """The files that the fourth report passes, and the delta that it causes."""
    sender = Sender()
    sender.connection.connection_made(sender.transport)
    assert sender.send(sender.make_report(1)) == 202
    for sequence in (2, 3):
        assert sender.send(shorten(sender.make_report(sequence))) == 202
        sender.hub.stream.tick()
    report = shorten(sender.make_report(4))
    with noting_files() as files:
        assert sender.send(report) == 202
        delta = sender.hub.stream.tick()
    return files, delta
