"""A past for the demo: sixty days of the simulated fleet, made by a child of the hub while the page is already up.

The child writes samples to its standard output, the newest first, so that charts fill from the right. Making them takes
about half a minute of a processor, at the lowest priority; the hub only decodes them, in slices, and only while the
store has room. The child ends by itself when it has written everything, and with its next write when the hub is gone.
"""

import argparse
import asyncio
import contextlib
import gc
import logging
import os
import signal
import struct
import sys
import time
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from gpudeck.child_process import end, python_module, start
from gpudeck.history.sample import HostSample
from gpudeck.model.event import Event

log = logging.getLogger(__name__)

Take = Callable[[list[HostSample]], None]
TakeEvent = Callable[[Event], None]

DAYS = 60.0
DAY = 86_400.0
SEED = 1
"""Which fleet the hub's own agent simulates: the default of `gpudeck agent --seed`."""
_DONE = "demo-history"
_MAKING = (
    "Demo: the simulated past is still being made. History, Reliability and the time machine are not complete yet."
)
"""In the data folder: how many simulated hosts the history has all days of, and how many days those are."""
_MANY_HOSTS = 64
_MOST_HOST_HOURS = 36_000
_FIRST_EVENTS = 14 * DAY
"""Those of the time before are made last: what happened two months ago is seldom the first question."""
_GPUS_A_FRAME = 256  # decoding takes 2 µs a GPU, and nothing else of the hub happens meanwhile
_FRAME = struct.Struct(">IB")
"""Before each frame: its size, and what it is. A batch of samples is a host's whole hours."""
_MORE, _LAST, _EVENTS = 0, 1, 2
"""Samples of a batch that goes on, those at its end, or events."""
_ROOM_SECONDS = 0.05
_decode = msgspec.msgpack.Decoder(list[HostSample]).decode
_decode_events = msgspec.msgpack.Decoder(list[Event]).decode


def is_needed(data_dir: Path, demo: int | None, days: float = DAYS) -> bool:
    """Whether the past of a demo of that many hosts and days has yet to be made; never where there is no demo."""
    if demo is None:
        return False
    try:
        return (data_dir / _DONE).read_text().split() != [str(demo), f"{days:g}"]
    except OSError:
        return True


def mark_done(data_dir: Path, demo: int, days: float = DAYS) -> None:
    """From now on only what a stopped demo missed is filled. A folder that cannot be written costs a second filling."""
    with contextlib.suppress(OSError):
        (data_dir / _DONE).write_text(f"{demo} {days:g}\n")


class Backfill:
    """Fills a store with the past of `hosts` simulated hosts, once.

    `since` is the newest sample that the store has, where the rest was made before (see `is_needed`): only what came
    after it is made. What is made twice is the same both times.
    """

    def __init__(
        self,
        hosts: int,
        *,
        until: float,
        since: float | None = None,
        days: float = DAYS,
        when_done: Callable[[], None] | None = None,
        say: Callable[[list[str]], None] = lambda _: None,
    ) -> None:
        """`say` shows the hub's problems: while the past is made, pages about it are not complete."""
        self._until = until
        self._say = say
        # Of a large fleet the past is shorter: every host's every hour costs the store some milliseconds.
        earliest = until - min(days * DAY, _MOST_HOST_HOURS / hosts * 3600)
        self._start = earliest if since is None else max(since, earliest)
        # A large fleet gets a coarser past: it would take a quarter of an hour otherwise.
        fine_step, step = (60, 300) if hosts <= _MANY_HOSTS else (300, 900)
        span = {"until": f"{until:.0f}", "days": f"{(until - self._start) / DAY:.6f}"}
        options = {"hosts": hosts, **span, "step": step, "fine-step": fine_step, "first": int(since is None)}
        self._command = python_module(__name__, *(f"--{name}={value}" for name, value in options.items()))
        self._is_worth_it = until - self._start > fine_step
        self._when_done = when_done
        self._task: asyncio.Task[None] | None = None

    def start(self, take: Take, has_room: Callable[[], bool], take_event: TakeEvent = lambda _: None) -> None:
        """Begin, on the running event loop: `take` is called there, a batch at a time, while `has_room`; and
        `take_event`, with what happened."""
        if self._is_worth_it:
            self._task = asyncio.get_running_loop().create_task(self._fill(take, has_room, take_event))

    async def stop(self) -> None:
        """End the child, wherever it is; what was taken stays."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _fill(self, take: Take, has_room: Callable[[], bool], take_event: TakeEvent) -> None:
        started = time.monotonic()
        child = await start(self._command, stdin=DEVNULL)
        self._say([_MAKING])
        try:
            samples = await _pass_on(child, take, has_room, take_event)
            code = await child.wait()
        finally:
            self._say([])
            await end(child)
        if code:
            log.warning("making the simulated past ended with code %d: some of the charts stay empty", code)
            return
        log.info("made %d samples of a simulated past in %.0f s", samples, time.monotonic() - started)
        if self._when_done is not None:
            self._when_done()


async def _pass_on(child: Process, take: Take, has_room: Callable[[], bool], take_event: TakeEvent) -> int:
    """From the pipe to the store; returns the number of samples. The child waits as soon as the pipe is full."""
    assert child.stdout is not None  # noqa: S101 - it was asked for
    batch: list[HostSample] = []
    count = 0
    while True:
        while not has_room():  # noqa: ASYNC110 - the store is a thread, which knows no events of this loop
            await asyncio.sleep(_ROOM_SECONDS)
        try:
            size, what = _FRAME.unpack(await child.stdout.readexactly(_FRAME.size))
            frame = await child.stdout.readexactly(size)
        except asyncio.IncompleteReadError:
            return count
        if what == _EVENTS:
            for event in _decode_events(frame):
                take_event(event)
            continue
        batch += _decode(frame)
        if what == _LAST:
            count += len(batch)
            take(batch)
            batch = []
        await asyncio.sleep(0)


def frames(samples: list[HostSample]) -> Iterator[bytes]:
    """A batch as the child writes it: small frames, so that none of them keeps the hub long."""
    waiting = iter(samples)
    at_once = max(1, _GPUS_A_FRAME // max(1, len(samples[0].gpus))) if samples else 1
    part = list(islice(waiting, at_once))
    while part:
        rest = list(islice(waiting, at_once))
        body = msgspec.msgpack.encode(part)
        yield _FRAME.pack(len(body), _MORE if rest else _LAST) + body
        part = rest


def event_frame(events: list[Event]) -> bytes:
    """What happened to one host, as the child writes it."""
    body = msgspec.msgpack.encode(events)
    return _FRAME.pack(len(body), _EVENTS) + body


def main() -> None:
    """The child. Its output is for the hub only."""
    from gpudeck.collectors.simulated import SimulatedFleet  # noqa: PLC0415 - the same
    from gpudeck.demo.past import (  # noqa: PLC0415 - the hub needs no simulator
        past_events,
        sample_span,
        slices,
    )

    asked = _read_arguments()
    os.nice(19)
    # Ctrl-C reaches the whole process group, and a closed pipe means that the hub is gone: either
    # way there is nothing to clean up or to report.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # Nothing here refers to itself in a circle: looking for that takes a tenth of the time.
    gc.disable()
    fleet = SimulatedFleet(asked.hosts, SEED)
    start = asked.until - asked.days * DAY
    middle = max(start, asked.until - _FIRST_EVENTS)

    def write_events(begin: float, end: float, *, is_new: bool) -> None:
        for host in range(asked.hosts):
            sys.stdout.buffer.write(event_frame(past_events(fleet, host, begin, end, is_new=is_new)))
        sys.stdout.buffer.flush()

    for number, span in enumerate(slices(start, asked.until, asked.fine_step, asked.step)):
        for host in range(asked.hosts):
            sys.stdout.buffer.writelines(frames(sample_span(fleet, host, span)))
        sys.stdout.buffer.flush()
        if number == 0:
            # After the hours that the page shows first, and before the days that take long.
            write_events(middle, asked.until, is_new=bool(asked.first) and middle == start)
    if middle > start:
        write_events(start, middle, is_new=bool(asked.first))


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpudeck.demo.backfill", description="Write a simulated past to stdout.")
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--days", type=float, default=DAYS)
    parser.add_argument("--step", type=float, default=300.0)
    parser.add_argument("--fine-step", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
