"""Writes the demo's past into the history file, in a child process of the hub.

The last hours are samples and are written before the hub opens the file; the weeks before are quarter hours, as in a
hub that keeps samples for a day, and are written while it runs. The current hour is written as samples, which the hub
continues. The standard output says when the file can be opened, followed by the events.
"""

import argparse
import gc
import os
import signal
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from gpudeck.child_process import die_with_parent
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.backfill import READY, SEED, remove_file
from gpudeck.demo.past import DAY, HOUR, Slice, past_events, sample_span
from gpudeck.history.embedded.keys import HostKeys
from gpudeck.history.embedded.seal import PastSpan, PastWriter
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.hour import QUARTER, Hour, RunSlice, cut_hour
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, HostSample, ProcessSample

_MAX_HOST_HOURS: Final = 36_000
_FINE_HOST_HOURS: Final = 600
"""Large fleets have a shorter past, and fewer hours with samples."""
_FINE_STEP: Final = 120
_MANY_HOSTS: Final = 64
_RUNS_A_HOST: Final = 50_000
"""Run ids that are reserved for each host."""
_SPAN_SECONDS: Final = 4 * DAY
"""Simulated at once."""
_ProcessRun = tuple[ProcessSample, RunSlice]


class PastFile:
    """`write_recent` makes the file with the last hours, which a hub can open; `write_rest` adds the weeks before."""

    def __init__(self, fleet: SimulatedFleet, until: float, days: float) -> None:
        hosts = len(fleet.names)
        self._fleet, self._until = fleet, until
        self._now = until - until % HOUR
        fine_hours = min(int(days * 24), 24, max(1, _FINE_HOST_HOURS // hosts))
        self._edge = self._now - fine_hours * HOUR
        hours = int(min(days * 24, _MAX_HOST_HOURS / hosts)) - fine_hours
        self.start = self._edge - max(0, hours // 24) * DAY
        self._hosts = [_HostPast(fleet, host) for host in range(hosts)]

    def write_recent(self, path: Path) -> None:
        """The file must not be there yet."""
        writer = PastWriter(path)
        writer.reserve({*self._fleet.logins, *(slot.name for one in self._hosts for slot in one.simulator.host.slots)})
        for host in self._hosts:
            host.introduce(writer, self.start, self._now - _FINE_STEP)
            host.write(writer, Slice(self._edge, self._now, _FINE_STEP), keep_samples=True)
        writer.close()
        self._write_open_hour(path)

    def write_rest(self, path: Path) -> None:
        """A hub may have the file open."""
        if self.start < self._edge:
            writer = PastWriter(path)
            for host in self._hosts:
                host.write(writer, Slice(self.start, self._edge, QUARTER), keep_samples=False)
            writer.close()

    def _write_open_hour(self, path: Path) -> None:
        hosts = range(len(self._hosts))
        span = Slice(self._now, self._until, _FINE_STEP if len(hosts) <= _MANY_HOSTS else 5 * _FINE_STEP)
        store = EmbeddedStore(path, now=lambda: self._until)
        try:
            store.take([one for host in hosts for one in sample_span(self._fleet, host, span)])
            store.flush()
        finally:
            store.close()


class _HostPast:
    def __init__(self, fleet: SimulatedFleet, number: int) -> None:
        self.simulator = fleet.simulator(number)
        self._fleet = fleet
        self._number = number
        self._gpus: list[int] = []
        self._runs: dict[tuple[int, float | None], int] = {}

    def introduce(self, writer: PastWriter, first: float, last: float) -> None:
        """Register the host and its GPUs."""
        spec = self.simulator.host
        key = writer.keys.host(spec.id, spec.name, first)
        key.last, key.is_changed = last, True
        for slot in spec.slots:
            label = str(slot.index) if slot.instance is None else f"{slot.index}.{slot.instance}"
            gpu = writer.keys.gpu(key, slot.uuid, label, slot.name, first)
            self._gpus.append(gpu)
            writer.keys.see_gpu(gpu, first, last)

    def write(self, writer: PastWriter, span: Slice, *, keep_samples: bool) -> None:
        key = writer.keys.hosts[self.simulator.host.id]
        spans = [
            Slice(start, min(start + _SPAN_SECONDS, span.end), span.step)
            for start in np.arange(span.start, span.end, _SPAN_SECONDS).tolist()
        ]
        parts = [self._read(one) for one in spans]
        self._add_runs(writer, key, parts, span.end - span.step)
        for one, (hour, runs) in zip(spans, parts, strict=True):
            hour.runs = [replace(part, run=self._runs[process.pid, process.started_at]) for process, part in runs]
            for start in range(int(one.start), int(one.end), int(HOUR)):
                writer.add(key, cut_hour(hour, start + HOUR, start), keep_samples=keep_samples)
            writer.flush()

    def _read(self, span: Slice) -> tuple[Hour, list[_ProcessRun]]:
        """Consecutive hours as one, and the processes on its GPUs, without ids of runs."""
        samples = sample_span(self._fleet, self._number, span)
        table = np.array([[gpu.values for gpu in one.gpus] for one in samples], np.float64)
        own = np.array([one.values for one in samples], np.float64)
        hour = Hour(
            int(span.start),
            np.array([one.at for one in samples]),
            np.full(len(samples), float(span.step)),
            self._gpus,
            np.array([[gpu.state for gpu in one.gpus] for one in samples], np.uint8).T,
            {name: table[:, :, place].T for place, name in enumerate(GPU_NAMES)},
            {name: own[:, place] for place, name in enumerate(HOST_NAMES)},
        )
        return hour, _find_processes(samples)

    def _add_runs(
        self, writer: PastWriter, host: HostKeys, parts: list[tuple[Hour, list[_ProcessRun]]], newest: float
    ) -> None:
        """By pid and start, with the moments at which they were seen."""
        found: dict[tuple[int, float | None], tuple[ProcessSample, set[int], list[float]]] = {}
        for hour, runs in parts:
            for process, part in runs:
                _, gpus, seen = found.setdefault((process.pid, process.started_at), (process, set(), []))
                gpus.add(self._gpus[part.gpu])
                places = np.flatnonzero(part.present)
                seen += hour.times[places[[0, -1]]].tolist()
        for key, (process, gpus, seen) in found.items():
            if key in self._runs:
                writer.extend_run(self._runs[key], min(seen))
                continue
            self._runs[key] = self._number * _RUNS_A_HOST + len(self._runs) + 1
            last = max(seen)
            writer.add_run(self._runs[key], host, process, gpus, PastSpan(min(seen), last, last < newest))


def _find_processes(samples: Sequence[HostSample]) -> list[_ProcessRun]:
    """In the order of first sight."""
    found: dict[tuple[int, int, float | None], _ProcessRun] = {}
    for place, sample in enumerate(samples):
        for row, gpu in enumerate(sample.gpus):
            for process in gpu.processes or ():
                key = row, process.pid, process.started_at
                if key not in found:
                    blank = np.zeros(len(samples), np.bool_), *(np.full(len(samples), np.nan) for _ in range(2))
                    found[key] = process, RunSlice(0, row, *blank)
                _, part = found[key]
                part.present[place] = True
                part.memory[place] = np.nan if process.memory_bytes is None else process.memory_bytes
                percent = process.utilization_percent
                part.utilization[place] = np.nan if percent is None else percent
    return list(found.values())


def main() -> None:
    """The child. Its output is for the hub only."""
    parser = argparse.ArgumentParser(prog="gpudeck.demo.past_file", description="Write a simulated past.")
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--days", type=float, required=True)
    parser.add_argument("path", type=Path)
    asked = parser.parse_args()
    os.nice(19)
    # Else a hub that was killed and started again would have two of them, which write the same file.
    die_with_parent()
    # Ctrl-C reaches the whole process group: there is nothing to clean up or to report.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Nothing here refers to itself in a circle: looking for that takes a tenth of the time.
    gc.disable()
    fleet = SimulatedFleet(asked.hosts, SEED)
    past = PastFile(fleet, asked.until, asked.days)
    new = asked.path.with_name(asked.path.name + ".new")
    remove_file(new)
    try:
        past.write_recent(new)
        remove_file(asked.path)
        new.rename(asked.path)
        remove_file(new)
        sys.stdout.buffer.write(READY)
        sys.stdout.buffer.flush()
        past.write_rest(asked.path)
    except (OSError, sqlite3.Error) as error:
        raise SystemExit(f"{asked.path} cannot be written: {error}") from error
    hosts = range(asked.hosts)
    events = [one for host in hosts for one in past_events(fleet, host, past.start, asked.until)]
    sys.stdout.buffer.write(msgspec.msgpack.encode(events))


if __name__ == "__main__":
    main()
