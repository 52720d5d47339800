"""The demo's past: all of it is there, whether a hub has the file open or not, and it is what the simulator says."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.past import DAY, HOUR, Slice, sample_span
from gpudeck.demo.past_file import PastFile
from gpudeck.history.base import MomentQuery, OverviewQuery, RunsQuery, SeriesQuery
from gpudeck.history.embedded.repair import find_damage
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.embedded.tables import open_to_read
from gpudeck.history.sample import GpuSample

UNTIL = 1_760_356_800.0 + 1234
DAYS = 6
HOSTS = 12


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return SimulatedFleet(HOSTS, seed=1)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, fleet: SimulatedFleet) -> Path:
    path = tmp_path_factory.mktemp("past") / "history.db"
    past = PastFile(fleet, UNTIL, DAYS)
    past.write_recent(path)
    with closing(EmbeddedStore(path, now=FakeClock(UNTIL))) as store:
        past.write_rest(path)
        store.take(sample_span(fleet, 0, Slice(UNTIL, UNTIL + 10, 5.0)))
        assert store.flush()
    return path


@pytest.fixture
def store(path: Path) -> Iterator[EmbeddedStore]:
    with closing(EmbeddedStore(path, now=FakeClock(UNTIL))) as store:
        yield store


def facts(gpu: GpuSample) -> tuple[object, ...]:
    """What quarter hours keep: which runs there were, and not what each of them did."""
    processes = None if gpu.processes is None else sorted((one.pid, one.user, one.command) for one in gpu.processes)
    return gpu.uuid, gpu.label, gpu.model, gpu.state, gpu.values, processes


def test_any_moment_is_what_the_simulator_says(store: EmbeddedStore, fleet: SimulatedFleet) -> None:
    rng = random.Random(4)
    moments = [rng.uniform(UNTIL - (DAYS - 1) * DAY, UNTIL) for _ in range(40)]
    for at in moments:
        step = 120.0 if at >= (UNTIL - DAY) // HOUR * HOUR else 900.0
        then = at // step * step
        found = {past.sample.name: past.sample for past in store.moment(MomentQuery(at))}
        for host, name in enumerate(fleet.names):
            (expected,) = sample_span(fleet, host, Slice(then, then + 1, step))
            if fleet.report(host, then) is not None:
                assert found[name].values == pytest.approx(expected.values)
                assert [facts(gpu) for gpu in found[name].gpus] == [facts(gpu) for gpu in expected.gpus]


def test_nothing_is_damaged(path: Path) -> None:
    with closing(open_to_read(path)) as file:
        assert not list(find_damage(file))


def test_totals_of_the_fleet_are_those_of_its_hosts(store: EmbeddedStore, fleet: SimulatedFleet) -> None:
    asks = [SeriesQuery("power_watts", UNTIL - 3 * DAY, UNTIL - 2 * DAY, host=name) for name in fleet.names]
    of_hosts = [store.series(ask).series[0].points for ask in asks]
    whole = store.series(SeriesQuery("power_watts", UNTIL - 3 * DAY, UNTIL - 2 * DAY, fleet=True)).series[0].points
    sums = [sum(point[1] or 0.0 for point in points) for points in zip(*of_hosts, strict=True)]
    assert [point[1] for point in whole] == pytest.approx(sums, rel=0.01)


def test_a_run_that_goes_on_is_one_run(store: EmbeddedStore, fleet: SimulatedFleet) -> None:
    """From quarter hours over samples and the open hour to live samples."""
    edge = (UNTIL - DAY) // HOUR * HOUR
    going = [
        job
        for job in fleet.runs(0, edge - 3 * HOUR, edge)
        if job.end > UNTIL + 60 and len({*job.pids}) == len(job.pids)
    ]
    runs = store.runs(RunsQuery(start=UNTIL - DAYS * DAY, end=UNTIL, limit=1000, host=fleet.names[0])).runs
    for job in going:
        (run,) = (run for run in runs if run.pid == job.pids[0] and run.started_at == job.start)
        assert run.gpu_seconds == pytest.approx(UNTIL - max(job.start, UNTIL - DAYS * DAY), rel=0.05)


def test_the_overview_covers_all_days(store: EmbeddedStore) -> None:
    overview = store.overview(OverviewQuery(start=UNTIL - (DAYS - 1) * DAY, end=UNTIL))
    assert overview.usage.coverage > 0.95
