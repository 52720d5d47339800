"""The public client against a real hub: typed answers, the queue, the stream, asyncio."""

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import isnan
from pathlib import Path

import pytest

import gpudeck
from fakes.hubs import HubProcess, running_hub
from fakes.pushed import PushedHost, pushing
from fakes.waiting import wait_until
from gpudeck import AsyncClient, Client, ImpossibleRequest, NotFound, ReservationTaken, UsageError, WaitTimeout
from gpudeck.client.history import History
from gpudeck.collectors.host import host_name, machine_id
from gpudeck.model.history import Series
from gpudeck.model.view import Fleet

CONFIG = "demo: never\nlocal: never\n"
VARIABLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HubProcess]:
    folder = tmp_path_factory.mktemp("hub")
    (folder / "gpudeck.yaml").write_text(CONFIG)
    with running_hub(folder) as hub:
        yield hub


@pytest.fixture(scope="module")
def host(hub: HubProcess) -> Iterator[PushedHost]:
    """This machine, with three GPUs."""
    with pushing(hub, host_name(), 3, machine_id() or "") as host:
        wait_until(lambda: Client(hub.url).totals().free == 3, "three free GPUs")
        yield host


@pytest.fixture
def client(hub: HubProcess, host: PushedHost) -> Iterator[Client]:
    with Client(hub.url) as client:
        yield client


def test_gpus_in_the_block_are_in_the_variable_and_given_back_after_it(
    client: Client, host: PushedHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "before")
    with client.wait(gpus=2) as gpus:
        uuids = [gpu.uuid for gpu in gpus]
        assert set(uuids) < set(host.uuids)
        assert os.environ[VARIABLE] == ",".join(uuids)
        assert [len(request.granted.gpus) for request in client.queue().requests if request.granted] == [2]
    assert os.environ[VARIABLE] == "before"
    assert client.queue().requests == []


def test_program_that_fails_gives_its_gpus_back(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.wait():
        raise ZeroDivisionError
    assert client.queue().requests == []
    assert VARIABLE not in os.environ


def test_who_does_not_get_gpus_in_time_leaves_the_queue(client: Client) -> None:
    positions = list[int | None]()
    with (
        client.wait(gpus=3),
        pytest.raises(WaitTimeout, match="1 GPU on"),
        client.wait(timeout=0.5, on_position=lambda place: positions.append(place.position)),
    ):
        pytest.fail("granted twice")
    assert 1 in positions
    assert client.queue().requests == []
    with pytest.raises(ImpossibleRequest, match="can never be met"), client.wait(memory="4000G"):
        pytest.fail("granted what is not there")
    with pytest.raises(UsageError, match="40 what"), client.wait(memory="40"):
        pytest.fail("granted what is not clear")


def test_reservations_are_made_refused_and_released(client: Client, host: PushedHost) -> None:
    start = datetime.now(timezone.utc) + timedelta(hours=1)
    made = client.reserve(host.uuids[:2], start=start, length="2h", note="evaluation", user="ada")
    assert [gpu.uuid for gpu in made.gpus] == host.uuids[:2]
    assert (made.end - made.start, made.user) == (7200, "ada")
    assert [one.id for one in client.reservations()] == [made.id]
    with pytest.raises(ReservationTaken) as taken:
        client.reserve(host.uuids[1:], start=start, length=3600, user="bob")
    assert [one.id for one in taken.value.conflicts] == [made.id]
    slot = client.next_free("2h", gpus=3, start=start)
    assert slot is not None
    assert slot.start >= made.end
    assert client.release(made.id).state == "cancelled"
    chosen = client.reserve(2, start=start, length=3600, memory="1G", user="bob")
    assert len(chosen.gpus) == 2
    client.release(chosen.id)
    with pytest.raises(UsageError, match="zone"):
        client.reserve(1, start=start.replace(tzinfo=None), length=60)


def test_fleet_is_read_typed_and_what_is_not_there_is_an_error(client: Client, host: PushedHost) -> None:
    assert [gpu.uuid for gpu in client.gpus("free", model="h100") + client.gpus("busy")] == [
        gpu.uuid for gpu in client.host(host.name).gpus if "H100" in gpu.name
    ]
    assert [one.name for one in client.fleet().hosts] == [host.name]
    assert client.health(host.name, ["0"]).gpus[0].label == "0"
    assert client.me().may_administer
    assert b"gpudeck_gpus" in client.metrics()
    with pytest.raises(NotFound, match="nowhere"):
        client.host("nowhere")


def test_history_and_usage_are_of_what_was_reported(client: Client, host: PushedHost) -> None:
    found = client.history("gpus_free", "-10m")
    assert found.series[0].fleet

    def read() -> History | None:
        with contextlib.suppress(NotFound):
            start = datetime.now(timezone.utc) - timedelta(minutes=5)
            return client.history("utilization_percent", start, host=host.name, by="gpu")
        return None

    split = wait_until(read, "a recorded host")
    assert {one.gpu for one in split.series} <= set(host.uuids)
    assert client.usage("host", "-1h").by == "host"
    assert [event.kind for event in client.events(kind="host_seen")] == ["host_seen"]
    assert list(client.runs("-1h", user="nobody-there")) == []


def test_unknown_values_of_the_history_are_nan() -> None:
    series = [
        Series([(10.0, 1.0, 0.0, 2.0), (20.0, None, None, None)], gpu="GPU-1"),
        Series([(10.0, 3.0, 3.0, 3.0)], user="ada"),
    ]
    history = History("utilization_percent", "%", 10.0, 0.0, 30.0, "raw", series)
    columns = history.to_arrays()
    assert list(columns) == ["GPU-1", "ada"]
    assert list(columns["GPU-1"]["time"]) == [10.0, 20.0]
    assert isnan(columns["GPU-1"]["mean"][1])
    assert isnan(history.to_numpy()["GPU-1"]["max"][1])
    table = history.to_pandas()
    assert list(table["series"]) == ["GPU-1", "GPU-1", "ada"]
    assert table["time"][0].isoformat() == "1970-01-01T00:00:10+00:00"
    assert list(table["mean"].isna()) == [False, True, False]


def test_stream_starts_with_the_fleet_and_goes_on_with_changes(client: Client, host: PushedHost) -> None:
    first, second = itertools.islice(client.stream(), 2)
    assert isinstance(first, Fleet)
    assert not isinstance(second, Fleet)
    host.begin("ada", host.uuids[:1])
    users = (gpu.users for fleet in client.live() for gpu in fleet.hosts[0].gpus if gpu.uuid == host.uuids[0])
    assert next(names for names in users if names) == ["ada"]
    host.end(host.uuids[:1])
    wait_until(lambda: client.totals().free == 3, "three free GPUs")


def test_asynchronous_client_asks_waits_and_streams(hub: HubProcess, host: PushedHost) -> None:
    async def use() -> None:
        async with AsyncClient(hub.url) as client:
            totals, hosts = await asyncio.gather(client.totals(), client.hosts())
            assert (totals.gpus, len(hosts)) == (3, 1)
            events = [event async for event in client.events(kind="host_seen")]
            assert len(events) == 1
            async for event in client.stream():
                assert isinstance(event, Fleet)
                break
            async with client.wait(3):
                assert len(os.environ[VARIABLE].split(",")) == 3
                late = asyncio.ensure_future(enter(client))
                await asyncio.to_thread(wait_until, lambda: count() == 2, "a second request")
                late.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await late
            await asyncio.to_thread(wait_until, lambda: count() == 0, "an empty queue")

    def count() -> int:
        return len(Client(hub.url).queue().requests)

    async def enter(client: AsyncClient) -> None:
        async with client.wait():
            pytest.fail("granted to a task that was cancelled")

    asyncio.run(asyncio.wait_for(use(), 60))
    assert VARIABLE not in os.environ


def test_every_public_method_is_also_asynchronous() -> None:
    own = {
        "close",
        "read",
        "with_timeout",
        "get_text",
        "send",
        "stream_events",
        "learn_token",
        "log_in",
        "revoke_own_token",
        "download",
        "begin_login",
        "redeem_login",
    }
    public = {name for name in dir(Client) if not name.startswith("_")} - own
    assert public <= set(dir(AsyncClient))


@contextlib.contextmanager
def answering(*statuses: int) -> Iterator[tuple[str, list[str]]]:
    """A server of these answers, one after the other, and the methods of the requests."""
    left, methods = list(statuses), list[str]()

    class Server(BaseHTTPRequestHandler):
        def answer(self) -> None:
            methods.append(self.command)
            self.send_response(left.pop(0))
            self.send_header("Content-Type", "application/json")
            self.send_header("Retry-After", "0")
            body = b'{"error": {"code": "x", "message": "later"}}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            self.answer()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", methods
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


def test_requests_that_were_not_executed_are_repeated() -> None:
    with answering(503, 429, 200) as (url, methods):
        assert Client(url).get("/api/v1/totals")
        assert methods == ["GET"] * 3
    with answering(429, 200) as (url, methods):
        assert Client(url).post("/api/v1/queue", {})
        assert methods == ["POST"] * 2


def test_change_that_may_have_been_executed_is_not_repeated() -> None:
    with answering(503, 200) as (url, methods), pytest.raises(gpudeck.Busy, match="later"):
        Client(url).post("/api/v1/queue", {})
    assert methods == ["POST"]
    with answering(429, 429, 200) as (url, methods), pytest.raises(gpudeck.Busy):
        Client(url, retries=1).get("/api/v1/totals")
    assert methods == ["GET"] * 2


def test_client_finds_the_hub_of_the_environment_and_nothing_else_is_public(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("GPUDECK_HUB", "gpu-hub:9000")
    assert Client().shown == "http://gpu-hub:9000"
    assert set(gpudeck.__all__) >= {"Client", "AsyncClient", "here", "GpudeckError"}
    for name in gpudeck.__all__:
        assert getattr(gpudeck, name)
    with pytest.raises(AttributeError, match="no attribute 'Klient'"):
        getattr(gpudeck, "Klient")  # noqa: B009
