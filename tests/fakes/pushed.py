"""Reports to a hub as an agent would send them: one, and those of a host whose GPUs a test controls."""

import contextlib
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Self

from fakes.hubs import HubProcess
from fakes.reports import HOST, make_busy_gpu, make_envelope, make_gpu
from gpudeck.model.report import GpuReading, Report
from gpudeck.wire import Envelope, encode

_PAUSE = 0.25


def send(hub: HubProcess, envelope: Envelope, token: str | None = None) -> None:
    """Report to the hub as an agent would, with the token of all agents unless told otherwise."""
    headers = {
        "Authorization": f"Bearer {token or hub.token_file.read_text().strip()}",
        "Content-Type": "application/msgpack",
        "Content-Encoding": "zstd",
    }
    request = urllib.request.Request(f"{hub.url}/api/v1/reports", encode(envelope), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 202


class PushedHost:
    """`uuids` are its GPUs. `begin` and `end` are what programs do there; one that begins on a GPU that has somebody is
    noted in `clashes`. `url` may change when the hub does."""

    def __init__(self, hub: HubProcess, name: str = "gpu01", gpus: int = 8, host_id: str = "") -> None:
        self.url = hub.url
        self.name = name
        self.host_id = host_id
        self.uuids = [f"GPU-{name}-{index}" for index in range(gpus)]
        self.clashes: list[str] = []
        self._token = hub.token_file.read_text().strip()
        self._users: dict[str, str] = {}
        self._lock = threading.Lock()
        self._sequence = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._report_forever)

    def begin(self, user: str, uuids: Iterable[str]) -> None:
        with self._lock:
            for uuid in uuids:
                if uuid in self._users:
                    self.clashes.append(f"{user} came to {uuid}, where {self._users[uuid]} is")
                self._users[uuid] = user

    def end(self, uuids: Iterable[str]) -> None:
        with self._lock:
            for uuid in uuids:
                self._users.pop(uuid, None)

    def start(self) -> Self:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _report_forever(self) -> None:
        while not self._over.wait(_PAUSE):
            # A hub that is away misses a report; the next one says it all again.
            with contextlib.suppress(OSError):
                self._report()

    def _report(self) -> None:
        self._sequence += 1
        with self._lock:
            gpus = [self._read(index, uuid) for index, uuid in enumerate(self.uuids)]
        now = time.time()
        envelope = make_envelope(
            self.name,
            self._sequence,
            report=Report(gpus=gpus, metrics=dict(HOST)),
            host_id=self.host_id,
            collected_at=now,
        )
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/msgpack",
            "Content-Encoding": "zstd",
            "Gpudeck-Sent-At": repr(now),
        }
        request = urllib.request.Request(f"{self.url}/api/v1/reports", encode(envelope), headers, method="POST")
        urllib.request.urlopen(request, timeout=5).close()

    def _read(self, index: int, uuid: str) -> GpuReading:
        user = self._users.get(uuid)
        return make_gpu(index, uuid=uuid) if user is None else make_busy_gpu(index, user, uuid=uuid)


@contextlib.contextmanager
def pushing(hub: HubProcess, name: str = "gpu01", gpus: int = 8, host_id: str = "") -> Iterator[PushedHost]:
    host = PushedHost(hub, name, gpus, host_id)
    try:
        yield host.start()
    finally:
        host.stop()
