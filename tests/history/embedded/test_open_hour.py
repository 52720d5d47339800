import random

import numpy as np
import pytest

from gpudeck.history.embedded.journal import GpuRuns, MetricLayout, SampleHead, SampleRow, make_batch
from gpudeck.history.embedded.open_hour import ROWS_IN_PIECE, OpenHour
from gpudeck.history.hour import Hour

LAYOUT = MetricLayout(("utilization_percent", "power_watts", "temperature_celsius", "fan_percent"), ("cpu_percent",))
OLDER = MetricLayout(("power_watts", "smell_level"), ("cpu_percent",))
START = 7200


def make_row(
    at: float, gpus: tuple[int, ...], runs: tuple[tuple[int, ...] | None, ...], layout: MetricLayout = LAYOUT
) -> SampleRow:
    rng = random.Random(at)
    head = SampleHead(1, bytes(rng.randrange(2, 6) for _ in gpus), GpuRuns(gpus, runs))
    tables = [(*(rng.choice((None, float(rng.randrange(100)))) for _ in layout.gpu[1:]), None) for _ in gpus]
    count = sum(len(some or ()) for some in runs)
    run_values = [[rng.choice((None, 2.0**20 * rng.randrange(80_000))) for _ in range(count)], [50.0] * count]
    (row,) = make_batch([head], [(START + at, 10.0), (float(rng.randrange(100)),)], tables, run_values).rows()
    return row


def fill(rows: list[SampleRow], rows_in_piece: int) -> Hour:
    open_hour = OpenHour(START, None, 1, rows_in_piece=rows_in_piece)
    for row in rows:
        open_hour.append(row, float(row.own[0]), 1, LAYOUT)
    return open_hour.snapshot()


def assert_same(one: Hour, other: Hour) -> None:
    assert (one.gpus, [part.run for part in one.runs]) == (other.gpus, [part.run for part in other.runs])
    for field in ("times", "covered", "states"):
        np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
    for mine, its in zip(one.runs, other.runs, strict=True):
        assert mine.gpu == its.gpu
        for field in ("present", "memory", "utilization"):
            np.testing.assert_array_equal(getattr(mine, field), getattr(its, field))
    unknown = np.full(one.states.shape, np.nan)
    for name in LAYOUT.gpu:
        np.testing.assert_allclose(one.metrics.get(name, unknown), other.metrics.get(name, unknown))
    np.testing.assert_allclose(one.host["cpu_percent"], other.host["cpu_percent"])


def changing() -> list[SampleRow]:
    """GPUs and runs that come and go, twice as many rows as fit into one piece, some of them late and some repeated."""
    stages = [((1, 2), ((7,), ())), ((1, 2), ((7,), (7, 8))), ((2,), (None,)), ((3, 1), ((), (9,))), ((), ())]
    rows = [make_row(10.0 * number, *stages[number // 30 % 5]) for number in range(2 * ROWS_IN_PIECE + 31)]
    return [*rows[:40], *rows[60:], *rows[30:60], rows[5]]


@pytest.mark.parametrize("rows_in_piece", [1, 7, ROWS_IN_PIECE])
def test_hour_is_the_same_however_it_is_packed(rows_in_piece: int) -> None:
    assert_same(fill(changing(), rows_in_piece), fill(changing(), 10_000))


def test_hour_has_every_moment_once_and_all_that_was_told_of_it() -> None:
    hour = fill(changing(), 10_000)
    rows = {float(row.own[0]): row for row in changing()}
    assert hour.times.tolist() == sorted(rows)
    for place, at in enumerate(hour.times.tolist()):
        row = rows[at]
        places = [hour.gpus.index(gpu) for gpu in row.gpu_runs.gpus]
        assert hour.states[places, place].tolist() == row.states.tolist()
        np.testing.assert_array_equal(hour.metrics["utilization_percent"][places, place], row.table[:, :1].ravel())
        told = [(part.run, hour.gpus[part.gpu]) for part in hour.runs if part.present[place]]
        there = zip(row.gpu_runs.gpus, row.gpu_runs.runs, strict=True)
        assert sorted(told) == sorted((run, gpu) for gpu, runs in there for run in runs or ())


def test_only_what_is_wanted_is_in_a_picture() -> None:
    open_hour = OpenHour(START, None, 1)
    open_hour.append(make_row(0.0, (1,), ((7,),)), START, 1, LAYOUT)
    snapshot = open_hour.snapshot(("power_watts", "host_cpu_percent"), runs=False)
    assert (list(snapshot.metrics), list(snapshot.host), snapshot.runs) == (["power_watts"], ["cpu_percent"], [])


def test_rows_of_an_earlier_version_stand_beside_those_of_this_one() -> None:
    open_hour = OpenHour(START, None, 1)
    open_hour.append(make_row(0.0, (1,), ((),), OLDER), START, 1, OLDER)
    open_hour.append(make_row(10.0, (1,), ((),)), START + 10, 2, LAYOUT)
    snapshot = open_hour.snapshot()
    assert set(snapshot.metrics) == {*LAYOUT.gpu, *OLDER.gpu}
    assert np.isnan(snapshot.metrics["utilization_percent"][0, 0])
    assert np.isnan(snapshot.metrics["smell_level"][0, 1])
