import random
from collections.abc import Sequence

import numpy as np
import pytest

from gpudeck.history.embedded.journal import GpuRuns, SampleBatch, make_batch
from gpudeck.history.embedded.open_hour import LooseBatches, MatrixCache, OpenHour
from gpudeck.history.hour import Hour
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES

START, HOST = 7200, 17
NEVER_SEEN = 10_000


class Row:
    """One sample, as it was told."""

    def __init__(self, at: float, gpu_runs: GpuRuns) -> None:
        rng = random.Random(at)
        self.at, self.gpu_runs = START + at, gpu_runs
        self.states = bytes(rng.randrange(2, 6) for _ in gpu_runs.gpus)
        width = len(GPU_NAMES)
        values = [
            [rng.choice((np.nan, rng.randrange(100) * 3.0**place)) for place in range(width)] for _ in self.states
        ]
        self.table = np.rint(np.array(values).reshape(-1, width))
        memory = [(rng.choice((np.nan, 2.0**20 * rng.randrange(80_000))), 50.0) for _ in gpu_runs.pairs]
        self.runs = np.array(memory).reshape(-1, 2)
        self.own = np.array([[float(rng.randrange(100)) for _ in HOST_NAMES]])

    def batch(self) -> SampleBatch:
        """With a neighbour before and after it."""
        other = GpuRuns((99,), ((5,),))
        table = np.concatenate([np.zeros((1, self.table.shape[1])), self.table, np.ones((1, self.table.shape[1]))])
        runs = np.concatenate([[(0.0, 1.0)], self.runs, [(2.0**20, np.nan)]])
        own = np.concatenate([np.ones_like(self.own), self.own, 2 * np.ones_like(self.own)])
        moments = np.array([(self.at, 10.0)] * 3)
        of = (HOST - 1, HOST, HOST + 1)
        gpu_runs = [other, self.gpu_runs, other]
        return make_batch(of, moments, gpu_runs, b"\2" + self.states + b"\3", (own, table, runs))


def open_hour(rows: Sequence[Row], batches_in_piece: int = NEVER_SEEN) -> OpenHour:
    loose = LooseBatches()
    hour = OpenHour(HOST, START, None, 1, loose)
    for number, row in enumerate(rows, 1):
        loose.append(row.batch())
        hour.note(row.at, number, 0.0)
        if number % batches_in_piece == 0:
            hour.parts += [found for host, start, found in loose.pack() if (host, start) == (HOST, START)]
            loose.clear()
    return hour


def assert_same(one: Hour, other: Hour) -> None:
    assert (sorted(one.gpus), [part.run for part in one.runs]) == (
        sorted(other.gpus),
        [part.run for part in other.runs],
    )
    order = [other.gpus.index(gpu) for gpu in one.gpus]
    for field in ("times", "covered"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    np.testing.assert_array_equal(one.states, other.states[order])
    for mine, its in zip(one.runs, other.runs, strict=True):
        assert one.gpus[mine.gpu] == other.gpus[its.gpu]
        for field in ("present", "memory", "utilization"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(its, field))
    for name in GPU_NAMES:
        np.testing.assert_array_equal(one.metrics[name], other.metrics[name][order])
    np.testing.assert_allclose(one.host["cpu_percent"], other.host["cpu_percent"])


def changing() -> list[Row]:
    """GPUs and runs that come and go, some rows late and some repeated."""
    stages = [
        GpuRuns((1, 2), ((7,), ())),
        GpuRuns((1, 2), ((7,), (7, 8))),
        GpuRuns((2,), (None,)),
        GpuRuns((3, 1), ((), (9,))),
        GpuRuns((), ()),
    ]
    rows = [Row(10.0 * number, stages[number // 30 % 5]) for number in range(151)]
    return [*rows[:40], *rows[60:], *rows[30:60], rows[5]]


@pytest.mark.parametrize("batches_in_piece", [1, 7, 60, 182])
def test_hour_is_the_same_however_it_is_packed(batches_in_piece: int) -> None:
    assert_same(open_hour(changing(), batches_in_piece).snapshot(), open_hour(changing()).snapshot())


def test_matrices_that_neighbours_need_too_are_kept() -> None:
    cache: MatrixCache = {}
    hour = open_hour(changing(), 60)
    assert_same(hour.snapshot(cache=cache), hour.snapshot(cache=cache))
    assert cache


def test_hour_has_every_moment_once_and_all_that_was_told_of_it() -> None:
    hour = open_hour(changing(), 60).snapshot()
    rows = {row.at: row for row in changing()}
    assert hour.times.tolist() == sorted(rows)
    for place, at in enumerate(hour.times.tolist()):
        row = rows[at]
        places = [hour.gpus.index(gpu) for gpu in row.gpu_runs.gpus]
        assert hour.states[places, place].tolist() == list(row.states)
        np.testing.assert_array_equal(hour.metrics["utilization_percent"][places, place], row.table[:, 0])
        told = [(part.run, hour.gpus[part.gpu]) for part in hour.runs if part.present[place]]
        assert sorted(told) == sorted(row.gpu_runs.pairs)


def test_only_what_is_wanted_is_in_a_picture() -> None:
    for batches_in_piece in (1, NEVER_SEEN):
        hour = open_hour([Row(0.0, GpuRuns((1,), ((7,),)))], batches_in_piece)
        snapshot = hour.snapshot(("power_watts", "host_cpu_percent"), runs=False)
        assert (list(snapshot.metrics), list(snapshot.host), snapshot.runs) == (["power_watts"], ["cpu_percent"], [])
