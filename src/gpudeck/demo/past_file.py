"""The demo's past, written into the history's file by a child of the hub: the last hours before the hub opens it, the
weeks before while it runs.

Of the last hours the file has samples, of the weeks before quarter hours, as a hub keeps them that keeps samples for a
day. The hour that is not over yet comes as samples, which the hub goes on with. The child's standard output says when
the file can be opened, and then what happened.
"""

import argparse
import gc
import os
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.backfill import READY, SEED, remove_file
from gpudeck.demo.columns import RunColumns, SampledHosts, read_columns
from gpudeck.demo.past import DAY, HOUR, Slice, past_events, sample_span
from gpudeck.history.codec import Bytes, Floats
from gpudeck.history.embedded.keys import HostKeys
from gpudeck.history.embedded.past_writer import PastSpan, PastWriter
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.embedded.tables import HOURS_A_ROW
from gpudeck.history.hour import QUARTER, Hour, RunSlice
from gpudeck.history.sample import ProcessSample

_MOST_HOST_HOURS: Final = 36_000
_FINE_HOST_HOURS: Final = 600
"""Of a large fleet the past is shorter, and so is the part with samples."""
_FINE_STEP: Final = 60
_MANY_HOSTS: Final = 64
_RUNS_A_HOST: Final = 50_000
"""Numbers that are set apart for the runs of each host."""


class PastFile:
    """`write_recent` makes the file, with the last hours, for a hub to open; `write_rest` adds the weeks before."""

    def __init__(self, fleet: SimulatedFleet, until: float, days: float) -> None:
        hosts = len(fleet.names)
        self._fleet, self._until = fleet, until
        self._now = until - until % HOUR
        fine_hours = min(int(days * 24), 24, max(1, _FINE_HOST_HOURS // hosts))
        self._edge = self._now - fine_hours * HOUR
        hours = int(min(days * 24, _MOST_HOST_HOURS / hosts)) - fine_hours
        self.start = self._edge - max(0, hours // 24) * DAY
        self._hosts = [_HostPast(fleet, host) for host in range(hosts)]

    def write_recent(self, path: Path) -> None:
        """The file must not be there yet."""
        writer = PastWriter(path)
        writer.reserve({*self._fleet.logins, *(slot.name for one in self._hosts for slot in one.station.host.slots)})
        for host in self._hosts:
            host.introduce(writer, self.start, self._now - _FINE_STEP)
            host.write(writer, np.arange(self._edge, self._now, _FINE_STEP), _FINE_STEP, keep_samples=True)
        writer.close()
        self._write_open_hour(path)

    def write_rest(self, path: Path) -> None:
        """A hub may have the file open."""
        if self.start < self._edge:
            writer = PastWriter(path)
            for host in self._hosts:
                host.write(writer, np.arange(self.start, self._edge, QUARTER), QUARTER, keep_samples=False)
                writer.flush()
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
        self.station = fleet.station(number)
        self._number = number
        self._gpus: list[int] = []
        self._runs: dict[tuple[int, float], int] = {}

    def introduce(self, writer: PastWriter, first: float, last: float) -> None:
        """The host and its GPUs get their numbers."""
        spec = self.station.host
        key = writer.keys.host(spec.id, spec.name, first)
        key.last, key.is_changed = last, True
        for slot in spec.slots:
            label = str(slot.index) if slot.instance is None else f"{slot.index}.{slot.instance}"
            gpu = writer.keys.gpu(key, slot.uuid, label, slot.name, first)
            self._gpus.append(gpu)
            writer.keys.see_gpu(gpu, first, last)

    def write(self, writer: PastWriter, times: Floats, step: int, *, keep_samples: bool) -> None:
        columns, key = read_columns(self.station, times), writer.keys.hosts[self.station.host.id]
        self._add_runs(writer, key, columns)
        each, parts = int(HOURS_A_ROW * HOUR / step), columns.stack()
        for first in range(0, len(times), each):
            span = self._span(columns, parts, slice(first, first + each), step)
            writer.add(key, span, int(len(span.times) * step / HOUR), keep_samples=keep_samples)

    def _add_runs(self, writer: PastWriter, host: HostKeys, columns: SampledHosts) -> None:
        """By pid and start, with the moments at which they were seen."""
        found: dict[tuple[int, float], list[tuple[int, RunColumns, Floats]]] = {}
        for row, gpu in enumerate(columns.gpus):
            for run in gpu.runs:
                seen = columns.times[run.places][run.present]
                found.setdefault((run.pid, run.job.start), []).append((row, run, seen))
        for key, parts in found.items():
            job, (first, last) = (
                parts[0][1].job,
                (float(pick(seen[at] for _, _, seen in parts)) for pick, at in ((min, 0), (max, -1))),
            )
            if key in self._runs:
                writer.extend_run(self._runs[key], job.user, first)
                continue
            self._runs[key] = self._number * _RUNS_A_HOST + len(self._runs) + 1
            process = ProcessSample(key[0], job.start, job.user, job.command, job.container, job.job, None, None)
            gpus = {self._gpus[row] for row, _, _ in parts}
            seen_at = PastSpan(first, last, last < columns.times[-1])
            writer.add_run(self._runs[key], host, process, gpus, seen_at)

    def _span(
        self, columns: SampledHosts, parts: tuple[Bytes, dict[str, Floats], dict[str, Floats]], mine: slice, step: float
    ) -> Hour:
        times, (states, tables, own) = columns.times[mine], parts
        return Hour(
            int(times[0]),
            times,
            np.full(len(times), float(step)),
            self._gpus,
            states[:, mine],
            {name: table[:, mine] for name, table in tables.items()},
            {name: line[mine] for name, line in own.items()},
            [
                one
                for row, gpu in enumerate(columns.gpus)
                for run in gpu.runs
                if run.places.start < mine.stop and run.places.stop > mine.start
                for one in [self._slice(row, run, mine.start, len(times))]
            ],
        )

    def _slice(self, row: int, run: RunColumns, first: int, count: int) -> RunSlice:
        """A run's part of a span of so many samples from `first` on."""
        begin, end = max(run.places.start, first), min(run.places.stop, first + count)
        there = slice(begin - first, end - first)
        own = slice(begin - run.places.start, end - run.places.start)
        part = RunSlice(
            self._runs[run.pid, run.job.start],
            row,
            np.zeros(count, np.bool_),
            np.full(count, np.nan),
            np.full(count, np.nan),
        )
        part.present[there], part.memory[there] = run.present[own], run.memory[own]
        part.utilization[there] = run.utilization[own]
        return part


def main() -> None:
    """The child. Its output is for the hub only."""
    parser = argparse.ArgumentParser(prog="gpudeck.demo.past_file", description="Write a simulated past.")
    parser.add_argument("--hosts", type=int, required=True)
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--days", type=float, required=True)
    parser.add_argument("path", type=Path)
    asked = parser.parse_args()
    os.nice(19)
    # Ctrl-C reaches the whole process group: there is nothing to clean up or to report.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Nothing here refers to itself in a circle: looking for that takes a tenth of the time.
    gc.disable()
    fleet = SimulatedFleet(asked.hosts, SEED)
    past = PastFile(fleet, asked.until, asked.days)
    new = asked.path.with_name(asked.path.name + ".new")
    remove_file(new)
    past.write_recent(new)
    remove_file(asked.path)
    new.rename(asked.path)
    remove_file(new)
    sys.stdout.buffer.write(READY)
    sys.stdout.buffer.flush()
    past.write_rest(asked.path)
    hosts = range(asked.hosts)
    events = [one for host in hosts for one in past_events(fleet, host, past.start, asked.until, is_new=True)]
    sys.stdout.buffer.write(msgspec.msgpack.encode(events))


if __name__ == "__main__":
    main()
