"""Many hosts of eight GPUs in one process, each with a connection of its own: a child of bench/scale.py.

Reports are made and encoded by the agent's own code, and change as those of a lab do: two GPUs of three are in use, and
utilization, power, temperature and memory of these change with every report; a job lasts twenty minutes on average.
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from pathlib import Path

import uvloop
from msgspec.structs import replace

from bench.reports import GIB, HOST_METRICS, make_reading
from gpudeck.agent.outbox import EncodedReport
from gpudeck.agent.push import FIRST_PAUSE, JITTER, MAX_PAUSE
from gpudeck.agent.run import Reporter
from gpudeck.model.backoff import Backoff
from gpudeck.model.report import GpuReading, Report

BUSY = 2 / 3
INTERVAL = 5.0
JOB_REPORTS = 240
_PATIENCE = 30.0
_IDLE = {"utilization_percent": 0, "memory_used_bytes": 0, "temperature_celsius": 31, "power_watts": 71.5}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LabHost:
    """A collector: what one machine of a lab reads."""

    name = "lab"

    def __init__(self, number: int) -> None:
        self._rng, self._number = random.Random(number), number
        self._gpus = [self._begin(make_reading(number, index, self._rng)) for index in range(8)]

    def collect(self, now: float) -> Report:
        del now
        self._gpus = [self._go_on(gpu) for gpu in self._gpus]
        load = round(self._rng.uniform(5, 60), 1)
        metrics = {**HOST_METRICS, "cpu_percent": load, "load_1m": load}
        return Report(
            gpus=self._gpus, metrics=metrics, driver_version="580.159.04", os="Debian GNU/Linux 12 (bookworm)"
        )

    def close(self) -> None:
        """Nothing is open."""

    def _begin(self, gpu: GpuReading) -> GpuReading:
        """Somebody comes, or nobody does."""
        if self._rng.random() > BUSY:
            return replace(gpu, processes=[], metrics={**gpu.metrics, **_IDLE})
        [process] = make_reading(self._number, gpu.index, self._rng).processes or []
        pid, user = self._rng.randrange(1000, 4_000_000), f"user{self._rng.randrange(200)}"
        return replace(gpu, processes=[replace(process, pid=pid, user=user, started_at=round(time.time(), 2))])

    def _go_on(self, gpu: GpuReading) -> GpuReading:
        if self._rng.random() < 1 / JOB_REPORTS:
            return self._begin(gpu)
        if not gpu.processes:
            return gpu
        chance = self._rng.random
        memory = int((80 + 20 * chance()) * GIB)
        changed = {
            "utilization_percent": int(60 + 40 * chance()),
            "memory_utilization_percent": int(20 + 30 * chance()),
            "memory_used_bytes": memory,
            "temperature_celsius": int(55 + 10 * chance()),
            "power_watts": round(400 + 250 * chance(), 1),
            "energy_joules": int(gpu.metrics["energy_joules"] + 2500),
        }
        process = replace(gpu.processes[0], memory_used_bytes=memory)
        return replace(gpu, metrics={**gpu.metrics, **changed}, processes=[process])


class Senders:
    """`wire` is the newest version that is sent: 1, or 2 where agent and hub know it. What is answered between `since`
    and `until`, by the wall clock, counts; errors always do."""

    def __init__(self, first: int, hosts: int, wire: int) -> None:
        self._hosts = [
            Reporter(f"gpu{number:05}", f"machine-{number:05}", lambda _: "boot", LabHost(number))
            for number in range(first, first + hosts)
        ]
        self._wire = wire
        self.answers: list[float] = []
        self.back: list[float] = []
        """When each host was answered again after a failure."""
        self.errors: Counter[str] = Counter()
        self.short = self.sent_bytes = 0

    async def run(self, port: int, token: str, source: str, begin: float, since: float, until: float) -> None:
        """Hosts begin one after the other within an interval."""
        self._port, self._token, self._source, self._since, self._until = port, token, source, since, until
        pause = INTERVAL / len(self._hosts)
        await asyncio.gather(*(self._report(host, begin + pause * place) for place, host in enumerate(self._hosts)))

    async def _report(self, host: Reporter, due: float) -> None:
        streams: Streams | None = None
        described, backoff = "", Backoff(FIRST_PAUSE, MAX_PAUSE, JITTER)
        while due < self._until:
            await asyncio.sleep(max(0.0, due - time.time()))
            parcel = host.report(time.time(), INTERVAL)
            assert parcel is not None
            began = time.perf_counter()
            try:
                async with asyncio.timeout(_PATIENCE):
                    address = (self._source, 0)
                    streams = streams or await asyncio.open_connection("127.0.0.1", self._port, local_addr=address)
                    described = await self._send(streams, parcel, described)
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                self.errors[type(error).__name__] += 1
                if streams is not None:
                    streams[1].close()
                streams, described = None, ""
                # As an agent, which keeps its reports meanwhile.
                due = time.time() + backoff.fail()
                continue
            if self._since <= time.time() < self._until:
                self.answers.append(time.perf_counter() - began)
            if backoff.failures:
                self.back.append(time.time())
                backoff.succeed()
            due = max(due + INTERVAL, time.time())
        if streams is not None:
            streams[1].close()

    async def _send(self, streams: Streams, parcel: EncodedReport, described: str) -> str:
        """As agent/push.py does it: a short report where the hub has taken a whole one that says the same in words.
        Returns which words the hub knows."""
        description, short = getattr(parcel, "description", ""), getattr(parcel, "short", b"")
        is_short = self._wire > 1 and bool(short) and described == description
        head = await self._post(streams, short if is_short else parcel.body)
        if is_short and head[9:10] == b"4":
            is_short, described = False, ""
            head = await self._post(streams, parcel.body)
        if head[9:12] != b"202":
            self.errors[head[9:12].decode()] += 1
        elif not is_short and b"gpudeck-wire-version: 2" in head.lower():
            described = description
        self.short += is_short and self._since <= time.time() < self._until
        return described

    async def _post(self, streams: Streams, body: bytes) -> bytes:
        head = (
            f"POST /api/v1/reports HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._token}\r\nContent-Type: "
            f"application/msgpack\r\nContent-Encoding: zstd\r\nGpudeck-Sent-At: {time.time()}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.sent_bytes += len(body) if self._since <= time.time() < self._until else 0
        streams[1].write(head.encode() + body)
        answer = await streams[0].readuntil(b"\r\n\r\n")
        await streams[0].readexactly(int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]))
        return answer


def main() -> None:
    """Arguments: the first host's number, how many, the wire version, port, token, source address, a file. It says when
    it is ready, reads its three times from standard input, and at the end writes what it saw to the file."""
    first, hosts, wire, port = map(int, sys.argv[1:5])
    senders = Senders(first, hosts, wire)
    print("ready", flush=True)
    uvloop.run(senders.run(port, sys.argv[5], sys.argv[6], *map(float, sys.stdin.readline().split())))
    seen = {name: getattr(senders, name) for name in ("answers", "back", "errors", "short", "sent_bytes")}
    Path(sys.argv[7]).write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
