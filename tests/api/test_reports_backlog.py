"""A backlog is answered only when it is on the disk: a hub that is killed must not take it along."""

import asyncio

import httpx
import pytest

from fakes.api_app import AGENT_TOKEN, make_app
from fakes.clock import FakeClock
from fakes.reports import make_envelope
from gpudeck.fleet.hub import Hub
from gpudeck.history.recorder import Recorder, Sample, count_samples
from gpudeck.wire import encode

HEADERS = {
    "Authorization": f"Bearer {AGENT_TOKEN}",
    "Content-Type": "application/msgpack",
    "Content-Encoding": "zstd",
}


@pytest.fixture
def hub() -> Hub:
    return Hub(now=FakeClock())


def post(hub: Hub, recorder: Recorder, waits: list[float]) -> list[int]:
    """Send reports of one agent that were made so long ago, all at once."""
    hub.fleet.observers.add(recorder)
    now = hub.started_at

    async def send() -> list[int]:
        transport = httpx.ASGITransport(make_app(hub))
        async with httpx.AsyncClient(transport=transport, base_url="http://hub", headers=HEADERS) as client:
            bodies = [
                encode(make_envelope(sequence=at + 1, collected_at=now - waited)) for at, waited in enumerate(waits)
            ]
            answers = [
                client.post("/api/v1/reports", content=body, headers={"Gpudeck-Sent-At": str(now)}) for body in bodies
            ]
            return [answer.status_code for answer in await asyncio.gather(*answers)]

    return asyncio.run(send())


def test_backlog_is_on_the_disk_before_it_is_answered_and_written_together(hub: Hub) -> None:
    taken: list[Sample] = []
    on_disk: list[int] = []

    def flush() -> bool:
        on_disk.append(count_samples(taken))
        return True

    assert post(hub, Recorder(2.0, taken.extend, flush), [600.0, 590.0, 580.0]) == [202, 202, 202]
    assert on_disk == [3]


def test_report_that_comes_in_time_waits_for_no_disk(hub: Hub) -> None:
    flushed: list[None] = []
    recorder = Recorder(2.0, lambda _: None, lambda: bool(flushed.append(None)))
    assert post(hub, recorder, [0.5]) == [202]
    assert flushed == []


def test_backlog_is_answered_where_the_disk_does_not_take_it(hub: Hub) -> None:
    assert post(hub, Recorder(2.0, lambda _: None, lambda: False), [600.0]) == [202]


def test_what_comes_while_the_disk_is_busy_waits_for_the_next_time(hub: Hub) -> None:
    taken: list[Sample] = []
    on_disk: list[int] = []

    async def work() -> None:
        busy = asyncio.Event()
        loop = asyncio.get_running_loop()

        def flush() -> bool:
            loop.call_soon_threadsafe(busy.set)
            on_disk.append(count_samples(taken))
            return True

        recorder = Recorder(2.0, taken.extend, flush)
        hub.fleet.observers.add(recorder)
        now = hub.started_at
        hub.fleet.apply(make_envelope(sequence=1, collected_at=now - 60), via="push", now=now, sent_at=now)
        first = asyncio.create_task(recorder.save_backlog())
        await busy.wait()
        hub.fleet.apply(make_envelope(sequence=2, collected_at=now - 50), via="push", now=now, sent_at=now)
        await asyncio.gather(first, recorder.save_backlog())

    asyncio.run(work())
    assert on_disk == [1, 2]
