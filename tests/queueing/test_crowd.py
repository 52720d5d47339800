"""Fifty who wait for eight GPUs of a real hub: every grant exclusive, none lost, the order fair; also when the hub is
killed in between, and when somebody wants all eight."""

import contextlib
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fakes.hubs import HubProcess
from fakes.ports import free_port
from fakes.pushed import PushedHost, pushing
from fakes.waiting import wait_until
from gpudeck.cli.wait import HubQueueClient
from gpudeck.client import Client
from gpudeck.client.errors import NotFound
from gpudeck.model.errors import GpudeckError
from gpudeck.model.gpu_request import GpuRequest, Granted, QueuePosition

pytestmark = pytest.mark.slow

SECONDS = 180.0


class Site:
    """A hub that can be killed and started again in the same place, and a host with eight GPUs."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._port = free_port()
        config = {"demo": "never", "local": "never", "history": {"kind": "off"}} | settings
        (folder / "gpudeck.yaml").write_text(yaml.safe_dump(config))
        self.hub = self._start()

    def _start(self) -> HubProcess:
        return HubProcess(self._folder, ["--listen", f"127.0.0.1:{self._port}"])

    def kill_and_restart(self) -> None:
        self.hub.stop(signal.SIGKILL)
        self.hub = self._start()


@contextlib.contextmanager
def site(folder: Path, **settings: Any) -> Iterator[tuple[Site, PushedHost]]:
    made = Site(folder, **settings)
    try:
        with pushing(made.hub) as host:
            yield made, host
    finally:
        made.hub.stop()


class Waiter(threading.Thread):
    """Waits as `gpudeck wait` does; then its program is on the GPUs until the hub has seen it there, and ends."""

    def __init__(self, hub: HubProcess, host: PushedHost, name: str, **wanted: Any) -> None:
        super().__init__(name=name)
        self.granted: Granted | None = None
        self.place: QueuePosition | None = None
        self.told: list[str] = []
        self._url = hub.url
        self._host = host
        self._line = HubQueueClient(Client(hub.url), name, GpuRequest(**wanted), self.told.append)

    def join_line(self) -> None:
        self._line.join()

    def run(self) -> None:
        deadline = time.monotonic() + SECONDS
        while self.granted is None and time.monotonic() < deadline:
            self.place = self._line.poll(5.0) or self.place
            self.granted = self.place.granted if self.place is not None else None
        if self.granted is not None:
            self._use([gpu.uuid for gpu in self.granted.gpus])

    def _use(self, uuids: list[str]) -> None:
        self._host.begin(self.name, uuids)
        try:
            wait_until(self._is_seen, f"the program of {self.name} was seen", SECONDS, every=0.25)
        finally:
            self._host.end(uuids)

    def _is_seen(self) -> bool:
        """Then its claim has ended, and its place is gone."""
        assert self.place is not None
        try:
            Client(self._url).get(f"/api/v1/queue/{self.place.id}")
        except NotFound:
            return True
        except GpudeckError:
            pass
        return False


def in_order(waiters: list[Waiter]) -> list[float]:
    return [waiter.granted.at for waiter in waiters if waiter.granted is not None]


@pytest.mark.parametrize("is_killed", [False, True], ids=["steady", "hub killed"])
def test_fifty_on_eight_gpus_are_all_served_once_each_and_in_order(tmp_path: Path, is_killed: bool) -> None:
    with site(tmp_path) as (place, host):
        # Every fifth wants two.
        waiters = [Waiter(place.hub, host, f"user{at}", gpus=2 if at % 5 == 0 else 1) for at in range(50)]
        for waiter in waiters:
            waiter.join_line()
        for waiter in waiters:
            waiter.start()
        wait_until(lambda: sum(waiter.granted is not None for waiter in waiters) >= 10, "ten are served", SECONDS)
        [lambda: None, place.kill_and_restart][is_killed]()
        for waiter in waiters:
            waiter.join(SECONDS)
    assert host.clashes == []
    assert [waiter.name for waiter in waiters if waiter.granted is None] == []
    # Times are the hub's: who wants the same and came later was never served earlier.
    for pairs in (waiters[::5], [waiter for at, waiter in enumerate(waiters) if at % 5]):
        assert in_order(pairs) == sorted(in_order(pairs))
    assert any("position in the queue is kept" in line for waiter in waiters for line in waiter.told) == is_killed


def test_who_wants_all_eight_is_not_starved_by_a_stream_of_small_ones(tmp_path: Path) -> None:
    with site(tmp_path, queue={"patience": "1s"}) as (place, host):
        crowd = [Waiter(place.hub, host, f"user{at}") for at in range(30)]
        large = Waiter(place.hub, host, "ada", gpus=8, same_host=True)
        for waiter in crowd[:8]:
            waiter.join_line()
            waiter.start()
        wait_until(lambda: all(waiter.granted for waiter in crowd[:8]), "the first eight are served", SECONDS)
        large.join_line()
        large.start()
        for waiter in crowd[8:]:
            waiter.join_line()
            waiter.start()
        for waiter in [large, *crowd]:
            waiter.join(SECONDS)
    assert host.clashes == []
    assert large.granted is not None
    assert len(large.granted.gpus) == 8
    assert max(in_order(crowd)) > large.granted.at
    assert [waiter.name for waiter in crowd if waiter.granted is None] == []
