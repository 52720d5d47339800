"""The history beside an event loop, in a process that has nothing else: its memory, and how long it keeps the loop.

A child of the benchmark: reads ticks from a file, hands them over far faster than a fleet would, prints what it saw.
"""

import asyncio
import gc
import json
import os
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import uvloop

from bench.processes import rss_mib
from gpudeck.history.sample import HostSample
from gpudeck.model.cpu_budget import THREAD_SECONDS

LENGTH = struct.Struct(">I")
PAUSE = 0.015
"""Between two ticks that are 10 s apart: an hour takes little more than five seconds."""
WAKEUP_SECONDS = 0.001
_decode = msgspec.msgpack.Decoder(list[HostSample]).decode


def write_ticks(file: Path, ticks: Iterator[list[HostSample]]) -> None:
    with file.open("wb") as out:
        for tick in ticks:
            body = msgspec.msgpack.encode(tick)
            out.write(LENGTH.pack(len(body)) + body)


def read_ticks(file: Path) -> Iterator[list[HostSample]]:
    with file.open("rb") as opened:
        while head := opened.read(LENGTH.size):
            yield _decode(opened.read(LENGTH.unpack(head)[0]))


async def run_beside(file: Path, take: Callable[[list[HostSample]], None]) -> list[float]:
    """Hands all ticks to `take`; returns how much later than due each wakeup of the loop came, the longest last."""
    late: list[float] = []

    async def wake_up() -> None:
        while True:
            due = time.perf_counter() + WAKEUP_SECONDS
            await asyncio.sleep(WAKEUP_SECONDS)
            late.append(time.perf_counter() - due)

    waking = asyncio.create_task(wake_up())
    for tick in read_ticks(file):
        take(tick)
        await asyncio.sleep(PAUSE)
    waking.cancel()
    return sorted(late)


def main() -> None:
    database, file = map(Path, sys.argv[1:])
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(THREAD_SECONDS)
    alone = uvloop.run(run_beside(file, lambda _: None))
    before = rss_mib(os.getpid())

    from gpudeck.history.embedded.store import EmbeddedStore  # noqa: PLC0415 - its memory is what is measured

    newest = 0.0
    store = EmbeddedStore(database, now=lambda: newest)

    def take(tick: list[HostSample]) -> None:
        nonlocal newest
        newest = tick[-1].at
        store.take(tick)

    beside = uvloop.run(run_beside(file, take))
    store.flush()
    seen = {
        "alone": alone[-1],
        "beside": beside[-1],
        "alone_often": alone[-len(alone) // 1000],
        "beside_often": beside[-len(beside) // 1000],
        "rss": rss_mib(os.getpid()) - before,
    }
    ask(store, newest)
    seen["rss_asked"] = rss_mib(os.getpid()) - before
    store.close()
    print(json.dumps(seen))


def ask(store: object, newest: float) -> None:
    from bench.history import questions  # noqa: PLC0415 - the benchmark itself starts this

    for _ in range(3):
        for question in questions(store, newest).values():  # type: ignore[arg-type]
            question()


if __name__ == "__main__":
    main()
