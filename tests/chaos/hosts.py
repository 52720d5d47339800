"""Hosts that report to a hub as agents do, and know precisely what they reported.

Each second of each host has values of its own: the memory in use tells which second a sample is of, the utilization
and the process follow from host, GPU and second. A hub that is away gets everything later, each report with the time
for which it waited. Even hosts are like today's agents: where the hub takes late reports the newest goes first, and the
others follow in order. Odd ones go from the oldest to the newest, as older agents do.
"""

import http.client
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from msgspec import Struct

from fakes.reports import HOST, make_gpu
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.wire import Envelope, encode

MIB = 1 << 20
FIRST_MIB = 2_000
"""Of the second 0: beyond what counts as empty."""
RUN_SECONDS = 20
USERS = ("alice", "bob", "carol", "dave", "erin")
_EARLY = 0.1
"""Seconds after a full second at which a host is read: however long a report takes, it stays in its second."""
_SLOW = 0.8
"""Seconds for the answer to a report after which the hub may have dated it a second late."""
_RETRY = 0.1
_DEADLINE = 20.0


class Moment(Struct, frozen=True):
    """What a GPU did in one second."""

    utilization: int
    memory_mib: int
    user: str
    pid: int
    run_start: int


def moment_of(host: int, gpu: int, second: int) -> Moment:
    run = (second + 7 * host + 3 * gpu) // RUN_SECONDS
    return Moment(
        utilization=6 + (host * 31 + gpu * 17 + second * 13) % 90,
        memory_mib=FIRST_MIB + second,
        user=USERS[(run + host + gpu) % len(USERS)],
        pid=10_000 + run * 16 + gpu,
        run_start=run * RUN_SECONDS - 7 * host - 3 * gpu,
    )


class ChaosHost:
    """`number` and `gpus` say who it is; `epoch` is the moment of its second 0. `taken` are the seconds that the hub
    has answered for, with when it did; `read` all those in which it was read; `slow` those whose report was under way
    for so long that the hub may have put it into the next second, where the next report takes its place."""

    def __init__(self, number: int, gpus: int, epoch: int, *, run_id: str = "run-1", every: int = 1) -> None:
        self._every = every
        self.number = number
        self.name = f"gpu{number:02}"
        self.epoch = epoch
        self.uuids = [f"GPU-{self.name}-{index}" for index in range(gpus)]
        self.read: dict[int, float] = {}
        self.taken: dict[int, float] = {}
        self.slow: set[int] = set()
        self.lost_gpus: set[int] = set()
        self._run_id = run_id

    def envelope(self, second: int) -> Envelope:
        gpus = [self._reading(index, second) for index in range(len(self.uuids)) if index not in self.lost_gpus]
        missing = [
            make_gpu(index, uuid=self.uuids[index], missing="GPU is lost", metrics=dict.fromkeys(make_gpu().metrics))
            for index in self.lost_gpus
        ]
        return Envelope(
            version=1,
            host=self.name,
            host_id=f"machine-{self.number:02}",
            boot_id="boot-1",
            run_id=self._run_id,
            sequence=second // self._every + 1,
            collected_at=self.epoch + second + _EARLY,
            interval_seconds=float(self._every),
            agent_version="0.1.0",
            report=Report(gpus=[*gpus, *missing], metrics=dict(HOST)),
        )

    def _reading(self, index: int, second: int) -> GpuReading:
        now = moment_of(self.number, index, second)
        process = Process(
            pid=now.pid,
            user=now.user,
            command="python train.py",
            memory_used_bytes=now.memory_mib * MIB,
            started_at=float(self.epoch + now.run_start),
        )
        values = {"utilization_percent": now.utilization, "memory_used_bytes": now.memory_mib * MIB}
        return make_gpu(index, uuid=self.uuids[index], metrics=values, processes=[process])


class Sender:
    """Posts reports over one connection that is kept. `takes_late` is whether the hub said that it takes late ones.
    With `others`, the ports of other hubs, it goes on to the next one after a failure. A port may be an address."""

    def __init__(
        self, port: int | str, token: str, others: Sequence[int | str] = (), *, deadline: float = _DEADLINE
    ) -> None:
        self.takes_late = False
        self._ports = (port, *others)
        self._at = 0
        self._deadline = deadline
        self._token = token
        self._connection: http.client.HTTPConnection | None = None

    def post(self, envelope: Envelope, sent_at: float) -> bool:
        """Whether the hub has answered for it; False where it is to be sent again. Fails where it is refused."""
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Content-Type": "application/msgpack",
            "Content-Encoding": "zstd",
            "Gpudeck-Sent-At": repr(sent_at),
        }
        try:
            if self._connection is None:
                port = self._ports[self._at % len(self._ports)]
                place = port if isinstance(port, str) else f"127.0.0.1:{port}"
                self._connection = http.client.HTTPConnection(place, timeout=self._deadline)
            self._connection.request("POST", "/api/v1/reports", encode(envelope), headers)
            answer = self._connection.getresponse()
            body = answer.read()
            self.takes_late = answer.getheader("Gpudeck-Late-Reports") is not None
        except (OSError, http.client.HTTPException):
            self._go_on()
            return False
        if answer.status >= 500 or answer.status == 429:
            self._go_on()
            return False
        assert answer.status in {200, 202}, f"{answer.status} {body[:200].decode('utf-8', 'replace')}"
        return True

    def _go_on(self) -> None:
        """To the next hub, where there are several."""
        self._at += 1
        self.close()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Fleet:
    """Hosts that report once a second, or once in `every`, each in a thread of its own. `clock` is theirs.

    While `is_cut` the cable is out: hosts are read all the same, and what was read waits. `pace` is the least time
    between two reports of a backlog. `others` are ports of further hubs: hosts are spread over all.
    """

    def __init__(
        self,
        port: int | str,
        token: str,
        hosts: int,
        gpus: int = 2,
        *,
        clock: Callable[[], float] = time.time,
        pace: float = 0.01,
        epoch: int | None = None,
        run_id: str = "run-1",
        others: Sequence[int | str] = (),
        deadline: float = _DEADLINE,
        every: int = 1,
    ) -> None:
        self._others, self._deadline = tuple(others), deadline
        epoch = int(clock()) if epoch is None else epoch
        self.epoch = epoch
        self.hosts = [ChaosHost(number, gpus, epoch, run_id=run_id, every=every) for number in range(hosts)]
        self.every = every
        self.is_cut = False
        self._clock = clock
        self._pace = pace
        self._port, self._token = port, token
        self._is_read = self._is_running = True
        self._silent: set[str] = set()
        self._threads = [threading.Thread(target=self._report, args=[host], daemon=True) for host in self.hosts]

    def start(self) -> "Fleet":
        for thread in self._threads:
            thread.start()
        return self

    def stop(self, *, deliver: float = 0.0) -> None:
        """No host is read any more; what waits is delivered for up to so many seconds."""
        self._is_read = False
        until = time.monotonic() + deliver
        while time.monotonic() < until and any(host.read.keys() - host.taken.keys() for host in self.hosts):
            time.sleep(0.05)
        self._is_running = False
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(_DEADLINE + 5)

    def mute(self, *names: str) -> None:
        """These hosts are off: they are not even read. None of them: all are on."""
        self._silent = set(names)

    def seconds(self) -> int:
        """How many seconds each of them was read."""
        return max(len(host.read) for host in self.hosts)

    def last_second(self) -> int:
        return max(max(host.read, default=0) for host in self.hosts)

    def has_reported(self, since: float) -> bool:
        """Whether the hub took a report of each host that was read after that moment (of the monotonic clock)."""
        return all(any(at >= since for at in list(host.taken.values())) for host in self.hosts)

    def _report(self, host: ChaosHost) -> None:
        ports = (self._port, *self._others)
        first = host.number % len(ports)
        ports = (*ports[first:], *ports[:first])
        sender = Sender(ports[0], self._token, ports[1:], deadline=self._deadline)
        waiting: list[int] = []
        fresh: int | None = None
        last = -1
        while self._is_running:
            second = math.floor(self._clock() - self.epoch - _EARLY)
            second -= (second - host.number) % self.every
            if second > last and second >= 0 and self._is_read and host.name not in self._silent:
                last = second
                if fresh is not None:
                    waiting.append(fresh)
                host.read[second] = time.monotonic()
                fresh = second
                if waiting and (host.number % 2 or not sender.takes_late):
                    waiting.append(fresh)
                    fresh = None
            due = fresh if fresh is not None else waiting[0] if waiting else None
            begun = time.monotonic()
            if due is None or self.is_cut:
                time.sleep(0.02)
            elif sender.post(host.envelope(due), self._clock()):
                host.taken[due] = time.monotonic()
                if host.taken[due] - begun > _SLOW:
                    host.slow.add(due)
                if fresh is not None:
                    fresh = None
                else:
                    waiting.pop(0)
                    time.sleep(self._pace)
            else:
                time.sleep(_RETRY)
        sender.close()


@contextmanager
def reporting(*arguments: object, **options: object) -> Iterator[Fleet]:
    """A fleet that is stopped at the end, whatever happens."""
    fleet = Fleet(*arguments, **options)  # type: ignore[arg-type]
    try:
        yield fleet.start()
    finally:
        fleet.stop()
