"""What every source keeps to. A new one is added to `SUBJECTS`, with a host that can go down, hang and talk rubbish."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Protocol, TypeVar

import pytest

from compat.nodes import CAPTURES, GPU_STATS
from fakes.reports import make_envelope, make_gpu
from fakes.sshd import IS_HERE, WHY_NOT, Sshd, running_sshd
from fakes.waiting import wait_until
from gpudeck.compat.service import make_poll_methods
from gpudeck.compat.settings import CompatSettings, GpuMonitorSettings, GpumonitorSettings
from gpudeck.model.errors import PluginError, Temporary
from gpudeck.model.target import Target
from gpudeck.sources.base import FetchedReport, PullSettings, ScrapeSettings, Source
from gpudeck.sources.poller import PullSource
from gpudeck.sources.scrape import make as make_scrape_source
from gpudeck.sources.ssh import make as make_ssh_sources
from gpudeck.wire import decode, encode
from sources.scrape_pages import EIGHT, load, send, web_server

Made = TypeVar("Made")


class Subject(Protocol):
    """A host, and a source of it. Its methods block: they are called in a thread."""

    def source(self) -> Source:
        """A source of its own each time."""

    def go_down(self) -> None:
        """The host is gone, with every connection to it."""

    def come_back(self) -> None:
        """It is as it was at first."""

    def talk_rubbish(self) -> None:
        """Whatever it is asked, it answers something else."""

    def hang(self) -> None:
        """It takes questions, and does not answer for as long as the source waits."""

    def wait_for_question(self) -> None:
        """Returns when a host that hangs has been asked."""


class OverSsh:
    """A real sshd."""

    def __init__(self, sshd: Sshd) -> None:
        self._sshd = sshd

    def source(self) -> Source:
        return make_ssh_sources(self._sshd.settings())(self._sshd.target())

    def go_down(self) -> None:
        self._sshd.stop()

    def come_back(self) -> None:
        self._sshd.restart("")

    def talk_rubbish(self) -> None:
        self._sshd.restart("ForceCommand head -c 5000 /dev/urandom")

    def hang(self) -> None:
        self._sshd.restart(f"ForceCommand touch {self._asked}; exec sleep 30")

    def wait_for_question(self) -> None:
        wait_until(self._asked.exists, "the question")

    @property
    def _asked(self) -> Path:
        return self._sshd.folder / "asked"


@contextlib.contextmanager
def over_ssh(folder: Path) -> Iterator[Subject]:
    with running_sshd(folder / "sshd") as sshd:
        yield OverSsh(sshd)


class OverHttp:
    """A real server on a port that it keeps. `body` makes what it answers, of that `kind`; `make` the sources of it."""

    def __init__(self, make: Callable[[Target], Source], body: Callable[[], bytes], kind: str) -> None:
        self._make = make
        self._body = body
        self._kind = kind
        self._port = 0
        self._server = contextlib.ExitStack()
        self._asked = threading.Event()
        self._is_over = threading.Event()
        self.come_back()

    def source(self) -> Source:
        return self._make(Target(name="gpu01", address="127.0.0.1", port=self._port))

    def go_down(self) -> None:
        self._is_over.set()
        self._server.close()

    def come_back(self) -> None:
        self._serve(lambda handler: send(handler, self._body(), Content_Type=self._kind))

    def talk_rubbish(self) -> None:
        self._serve(lambda handler: send(handler, b"<html>Log in first</html>"))

    def hang(self) -> None:
        self._serve(self._wait)

    def wait_for_question(self) -> None:
        assert self._asked.wait(20.0)

    def _serve(self, answer: Callable[[BaseHTTPRequestHandler], None]) -> None:
        self.go_down()
        self._is_over.clear()
        self._port = self._server.enter_context(web_server(answer, self._port))

    def _wait(self, _: BaseHTTPRequestHandler) -> None:
        self._asked.set()
        self._is_over.wait(30.0)


@contextlib.contextmanager
def over_http(make: Callable[[Target], Source], body: Callable[[], bytes], kind: str) -> Iterator[Subject]:
    subject = OverHttp(make, body, kind)
    try:
        yield subject
    finally:
        subject.go_down()


def by_pull(_: Path) -> AbstractContextManager[Subject]:
    sequence = itertools.count(1)
    reports = (encode(make_envelope("itself", number, [make_gpu()])) for number in sequence)
    return over_http(
        partial(PullSource, settings=PullSettings(deadline=5.0)), partial(next, reports), "application/msgpack"
    )


def by_scrape(_: Path) -> AbstractContextManager[Subject]:
    make = partial(make_scrape_source, settings=ScrapeSettings(deadline=5.0))
    return over_http(make, load(EIGHT).encode, "text/plain")


def by_gpumonitor(_: Path) -> AbstractContextManager[Subject]:
    make = make_poll_methods(CompatSettings(gpumonitor=GpumonitorSettings(deadline=5.0)))["gpumonitor"].make
    return over_http(make, lambda: GPU_STATS, "text/xml")


def by_gpu_monitor(_: Path) -> AbstractContextManager[Subject]:
    make = make_poll_methods(CompatSettings(gpu_monitor=GpuMonitorSettings(deadline=5.0)))["gpu-monitor"].make
    return over_http(make, (CAPTURES / "gpu-monitor-data" / "gputest001_gpus.csv").read_bytes, "text/csv")


SUBJECTS = [
    pytest.param(over_ssh, id="ssh", marks=pytest.mark.skipif(not IS_HERE, reason=WHY_NOT)),
    pytest.param(by_pull, id="pull"),
    pytest.param(by_scrape, id="scrape"),
    pytest.param(by_gpumonitor, id="gpumonitor"),
    pytest.param(by_gpu_monitor, id="gpu-monitor"),
]


@pytest.fixture(params=SUBJECTS)
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    open_subject: Callable[[Path], AbstractContextManager[Subject]] = request.param
    with open_subject(tmp_path) as opened:
        yield opened


@contextlib.asynccontextmanager
async def opened(subject: Subject) -> AsyncIterator[Source]:
    """A source that is closed in the end, and leaves no task behind."""
    source = subject.source()
    try:
        yield source
    finally:
        await source.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    _, left = await asyncio.wait(others, timeout=10.0) if others else ((), ())
    assert not left


def run(work: Callable[[], Awaitable[Made]]) -> Made:
    async def go() -> Made:
        return await work()

    return asyncio.run(go())


def test_report_is_one_that_a_hub_takes(subject: Subject) -> None:
    async def work() -> FetchedReport:
        async with opened(subject) as source:
            return await source.read(time.time())

    arrival = run(work)
    assert decode(encode(arrival.envelope), encoding="zstd") == arrival.envelope
    assert arrival.envelope.report.gpus
    assert arrival.sent_at is None or abs(arrival.sent_at - time.time()) < 60


def test_readings_of_one_source_are_in_order(subject: Subject) -> None:
    async def work() -> list[FetchedReport]:
        async with opened(subject) as source:
            return [await source.read(time.time()) for _ in range(3)]

    places = [(arrival.envelope.run_id, arrival.envelope.sequence) for arrival in run(work)]
    assert len({run_id for run_id, _ in places}) == 1
    assert places == sorted(set(places))


def test_host_that_is_down_is_a_temporary_failure_and_is_read_once_it_is_back(subject: Subject) -> None:
    async def work() -> FetchedReport:
        async with opened(subject) as source:
            await source.read(time.time())
            await asyncio.to_thread(subject.go_down)
            for _ in range(2):
                with pytest.raises(Temporary):
                    await source.read(time.time())
            await asyncio.to_thread(subject.come_back)
            return await source.read(time.time())

    assert run(work).envelope.report.gpus


def test_nonsense_is_a_plugin_error_and_the_next_good_answer_is_taken(subject: Subject) -> None:
    async def work() -> FetchedReport:
        async with opened(subject) as source:
            await asyncio.to_thread(subject.talk_rubbish)
            with pytest.raises(PluginError):
                await source.read(time.time())
            await asyncio.to_thread(subject.come_back)
            return await source.read(time.time())

    assert run(work).envelope.report.gpus


def test_message_of_a_failure_is_one_line_for_people(subject: Subject) -> None:
    async def work() -> str:
        async with opened(subject) as source:
            await asyncio.to_thread(subject.go_down)
            with pytest.raises(PluginError) as caught:
                await source.read(time.time())
            return str(caught.value)

    message = run(work)
    assert message
    assert message.isprintable()


def test_cancelled_reading_is_clean_and_the_next_one_works(subject: Subject) -> None:
    async def work() -> FetchedReport:
        async with opened(subject) as source:
            await asyncio.to_thread(subject.hang)
            reading = asyncio.ensure_future(source.read(time.time()))
            await asyncio.to_thread(subject.wait_for_question)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            await asyncio.to_thread(subject.come_back)
            return await source.read(time.time())

    assert run(work).envelope.report.gpus


def test_close_ends_a_reading_that_is_under_way(subject: Subject) -> None:
    async def work() -> object:
        async with opened(subject) as source:
            await asyncio.to_thread(subject.hang)
            reading = asyncio.ensure_future(source.read(time.time()))
            await asyncio.to_thread(subject.wait_for_question)
            await source.close()
            (outcome,) = await asyncio.gather(asyncio.wait_for(reading, 20.0), return_exceptions=True)
            return outcome

    assert isinstance(run(work), PluginError)


def test_closing_twice_or_without_any_reading_is_fine(subject: Subject) -> None:
    async def work() -> FetchedReport:
        async with opened(subject) as unread:
            await unread.close()
        async with opened(subject) as source:
            arrival = await source.read(time.time())
            await source.close()
            return arrival

    assert run(work).envelope.report.gpus
