"""A month of the simulated fleet, sampled, kept and asked about: the accounts say what really happened."""

import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from fakes.truth import Truth, gpu_seconds, host_of, true_idle_spans, true_total, true_use
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.past import DAY, HOUR, Slice, sample_span
from gpudeck.demo.past_file import PastFile
from gpudeck.history.base import IdleQuery, MomentQuery, UsageAmounts, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import STATES
from gpudeck.history.settings import HistorySettings
from gpudeck.idle_policy.report import PastFacts, simulate, sum_up
from gpudeck.idle_policy.settings import IdlePolicySettings, IdleRule
from gpudeck.model.usage import Usage, UsageRow

START = 1_760_313_600.0
DAYS = 30
STEP = 120.0
HOSTS = (11,)
"""Eight GPUs: sealing an hour costs the same for a few of them, so that more hosts would only take longer."""
ODD_HOSTS = (1, 2, 5, 6)
"""A missing GPU, MIG instances, memory that nobody holds, a display server and a GPU that is never left alone."""
ODD_DAYS = 4

pytestmark = [pytest.mark.timeout(300), pytest.mark.slow]

Kept = tuple[EmbeddedStore, Truth]


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return SimulatedFleet(24, seed=1)


def keep(path: Path, fleet: SimulatedFleet, hosts: tuple[int, ...], days: int, step: float) -> EmbeddedStore:
    """A store that was fed hour by hour, as a live hub does."""
    clock = FakeClock(START)
    store = EmbeddedStore(path / "history.db", HistorySettings(), clock)
    for day in range(days):
        span = Slice(START + day * DAY, START + (day + 1) * DAY, step)
        samples = sorted(
            (sample for host in hosts for sample in sample_span(fleet, host, span)), key=lambda one: one.at
        )
        per_hour = len(samples) // 24
        for hour in range(24):
            clock.advance(HOUR)
            store.take(samples[hour * per_hour : (hour + 1) * per_hour])
            assert store.flush()
    return store


@pytest.fixture(scope="module")
def month(tmp_path_factory: pytest.TempPathFactory, fleet: SimulatedFleet) -> Iterator[Kept]:
    store = keep(tmp_path_factory.mktemp("month"), fleet, HOSTS, DAYS, STEP)
    yield store, true_use(fleet, HOSTS, START, START + DAYS * DAY)
    store.close()


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory, fleet: SimulatedFleet) -> Iterator[Kept]:
    store = keep(tmp_path_factory.mktemp("odd"), fleet, ODD_HOSTS, ODD_DAYS, STEP)
    yield store, true_use(fleet, ODD_HOSTS, START, START + ODD_DAYS * DAY)
    store.close()


def ask(kept: Kept, days: int, **question: str) -> Usage:
    return kept[0].usage(UsageQuery(by="user", start=START, end=START + days * DAY, **question))


def by_user(usage: Usage) -> dict[str | None, UsageRow]:
    return {row.user: row for row in usage.rows}


def hours(use: UsageAmounts) -> tuple[float, float, float]:
    return use.used / HOUR, use.active / HOUR, use.idle / HOUR


def test_a_month_has_a_crowd_and_every_kind_of_use(month: Kept) -> None:
    total = true_total(month[1])
    assert len(month[1]) > 20
    assert total.used > total.measured * 0.99 > total.active > total.idle > 0


def test_totals_of_a_month_are_those_of_the_jobs(month: Kept) -> None:
    total, truth = ask(month, DAYS).total, true_total(month[1])
    told = (total.gpu_hours, total.active_hours, total.idle_hours)
    assert told == pytest.approx(hours(truth), rel=0.005)
    assert total.energy_kwh == pytest.approx(truth.joules / 3.6e6, rel=0.005)
    assert total.peak_memory_bytes == truth.peak


def test_everybody_is_told_their_own_hours(month: Kept) -> None:
    """The shorter something was, the more it matters that nobody looked between two samples: so it is with pauses."""
    rows, truth = by_user(ask(month, DAYS)), month[1]
    assert rows.keys() == truth.keys()
    for user, use in truth.items():
        row, (used, worked, idle) = rows[user], hours(use)
        assert (row.gpu_hours, row.idle_hours) == pytest.approx((used, idle), rel=0.005, abs=0.5), user
        assert row.active_hours == pytest.approx(worked, rel=0.015, abs=0.5), user
        assert row.energy_kwh == pytest.approx(use.joules / 3.6e6, rel=0.015, abs=0.1), user


def test_any_moment_of_the_month_shows_who_was_on_which_gpu(month: Kept, fleet: SimulatedFleet) -> None:
    rng = random.Random(9)
    (number,) = HOSTS
    for _ in range(200):
        at = rng.uniform(START + HOUR, START + DAYS * DAY - HOUR)
        (past,) = month[0].moment(MomentQuery(at))
        assert at - STEP - 1 <= past.sample.at <= at
        jobs = fleet.runs(number, past.sample.at, past.sample.at + 0.001)
        there = [(slot, job) for job in jobs for slot in job.slots if job.start <= past.sample.at < job.end]
        for slot, gpu in enumerate(past.sample.gpus):
            expected = {job.user for on, job in there if on == slot}
            assert {process.user for process in gpu.processes or ()} == expected, (at, slot)
            assert (STATES[gpu.state] in {"busy", "idle"}) == bool(expected), (at, slot)


def test_everything_was_observed(month: Kept, fleet: SimulatedFleet) -> None:
    usage = ask(month, DAYS)
    assert usage.coverage == pytest.approx(1.0, abs=0.001)
    seconds = gpu_seconds(fleet, HOSTS, START, START + DAYS * DAY)
    assert usage.monitored_gpu_hours == pytest.approx(seconds / HOUR, rel=0.001)


@pytest.mark.parametrize("host", ODD_HOSTS)
def test_a_host_alone_is_told_what_happened_on_it(odd: Kept, fleet: SimulatedFleet, host: int) -> None:
    total = ask(odd, ODD_DAYS, host=fleet.names[host]).total
    truth = true_total(true_use(fleet, (host,), START, START + ODD_DAYS * DAY))
    assert total.gpu_hours == pytest.approx(truth.used / HOUR, rel=0.005)


def test_memory_that_nobody_holds_is_told_as_that(odd: Kept) -> None:
    rows, truth = by_user(ask(odd, ODD_DAYS)), odd[1]
    nobody = rows[None]
    assert nobody.unknown
    assert (nobody.gpu_hours, nobody.idle_hours) == pytest.approx((ODD_DAYS * 24, ODD_DAYS * 24), rel=0.005)
    assert nobody.energy_kwh == pytest.approx(truth[None].joules / 3.6e6, rel=0.01)


def test_instances_without_readings_count_as_held_and_not_as_work_or_idleness(odd: Kept) -> None:
    total, truth = ask(odd, ODD_DAYS).total, true_total(odd[1])
    assert truth.measured < 0.9 * truth.used
    told = (total.gpu_hours, total.active_hours, total.idle_hours)
    assert told == pytest.approx(hours(truth), rel=0.01)
    assert total.energy_kwh == pytest.approx(truth.joules / 3.6e6, rel=0.01)


def test_a_missing_gpu_was_not_observed(odd: Kept, fleet: SimulatedFleet) -> None:
    usage = ask(odd, ODD_DAYS)
    slots = sum(len(host_of(fleet, host).slots) for host in ODD_HOSTS)
    assert usage.coverage == pytest.approx((slots - 1) / slots, abs=0.001)


def test_a_past_that_was_written_at_once_is_the_same(tmp_path: Path) -> None:
    """As the demo's is: samples of the last day, quarter hours before."""
    end = START + 9 * DAY
    past = PastFile(SimulatedFleet(12, seed=1), end, 9)
    past.write_recent(tmp_path / "history.db")
    past.write_rest(tmp_path / "history.db")
    fleet, hosts = SimulatedFleet(12, seed=1), tuple(range(12))
    with closing(EmbeddedStore(tmp_path / "history.db", now=FakeClock(end))) as store:
        usage = store.usage(UsageQuery(by="user", start=START, end=end))
    truth = true_total(true_use(fleet, hosts, START, end))
    assert usage.coverage > 0.97
    assert (usage.total.gpu_hours, usage.total.idle_hours) == pytest.approx(
        (truth.used / HOUR, truth.idle / HOUR), rel=0.03
    )


@pytest.mark.parametrize("hours", [0.5, 1.0, 3.0])
def test_a_dry_run_of_the_idle_policy_saves_what_could_really_have_been_saved(
    month: Kept, fleet: SimulatedFleet, hours: float
) -> None:
    end = START + DAYS * DAY
    after = hours * HOUR
    spans = true_idle_spans(fleet, HOSTS, START, end)
    truth = [(users, begin + after, stop) for users, begin, stop in spans if stop - begin > after]
    rule = IdleRule(name="r", warn_after=after / 2, act_after=after, grace=60.0, hook=["/bin/true"])
    nothing = PastFacts({}, {}, {}, {}, lambda _: None, lambda _: 2.0)
    steps, idle, exempt = simulate(IdlePolicySettings(rules=[rule]), month[0].idle(IdleQuery(START, end)), nothing)
    report = sum_up(steps, (idle, exempt), (START, end), "EUR", 1.0)
    saved = sum(stop - begin for _, begin, stop in truth) / HOUR
    assert saved > 50
    assert report.total.saved_hours == pytest.approx(saved, rel=0.01)
    assert report.total.saved_cost == pytest.approx(2 * saved, rel=0.01)
    # Sampled every two minutes, one that is hardly long enough may seem too short.
    assert report.total.acted == pytest.approx(len(truth), rel=0.06)
    assert report.idle_hours == pytest.approx(sum(stop - begin for _, begin, stop in spans) / HOUR, rel=0.01)
    assert exempt == 0
    true_by_user = {
        row.user: sum((stop - begin) / len(users) / HOUR for users, begin, stop in truth if row.user in users)
        for row in report.users
    }
    assert {row.user: row.saved_hours for row in report.users} == pytest.approx(true_by_user, rel=0.03, abs=0.5)


def test_waste_says_what_could_really_have_been_released(month: Kept, fleet: SimulatedFleet) -> None:
    end = START + DAYS * DAY
    found = month[0].waste(UsageQuery("user", START, end), {})
    spans = true_idle_spans(fleet, HOSTS, START, end)
    truth = sum(max(0.0, stop - begin - HOUR) for _, begin, stop in spans)
    assert found.total.released == pytest.approx(truth, rel=0.01)
