"""The simulated past is what a live hub would have kept, in pieces that fit together."""

from itertools import pairwise

import pytest

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.past import DAY, HOUR, Slice, sample_span, slices
from gpudeck.fleet.host import HostState
from gpudeck.fleet.table import FleetTable
from gpudeck.history.recorder import sample_host
from gpudeck.history.sample import STATES, HostSample
from gpudeck.model.availability import FleetSettings
from gpudeck.model.report import Report
from gpudeck.model.text import Names
from gpudeck.wire import Envelope

NOON = 1_760_356_800.0


@pytest.fixture(scope="module")
def fleet() -> SimulatedFleet:
    return SimulatedFleet(24, seed=1)


def seen_live(fleet: SimulatedFleet, host: int, at: float, report: Report) -> HostSample:
    """What a hub that has just been started samples of that report."""
    table = FleetTable(FleetSettings(), Names(), {})
    state = HostState(fleet.host_id(host), "push", table)
    envelope = Envelope(
        version=1,
        host=fleet.names[host],
        host_id=fleet.host_id(host),
        boot_id="b",
        run_id="r",
        sequence=1,
        collected_at=at,
        interval_seconds=60.0,
        agent_version="1",
        report=report,
    )
    state.take(envelope, at, 0.0, at)
    table.settle()
    return sample_host(state, at, 60.0)


def dead_spans(fleet: SimulatedFleet, host: int) -> list[float]:
    return [NOON + s for s in range(0, 1200, 60) if fleet.report(host, NOON + s) is None]


@pytest.mark.parametrize("host", range(24))
def test_samples_are_those_that_a_live_hub_takes(fleet: SimulatedFleet, host: int) -> None:
    past = sample_span(fleet, host, Slice(NOON, NOON + DAY, 600.0))
    reports = [(sample, fleet.report(host, sample.at)) for sample in past]
    alive = [(sample._replace(interval=60.0), report) for sample, report in reports if report]
    assert len(alive) > 100
    assert [sample for sample, _ in alive] == [seen_live(fleet, host, s.at, report) for s, report in alive]


def test_a_month_has_every_state_and_people(fleet: SimulatedFleet) -> None:
    past = [sample for host in range(24) for sample in sample_span(fleet, host, Slice(NOON, NOON + DAY, 1800.0))]
    gpus = [gpu for sample in past for gpu in sample.gpus]
    assert {STATES[gpu.state] for gpu in gpus} == {"unknown", "free", "busy", "idle"}
    assert len({process.user for gpu in gpus for process in gpu.processes or ()}) > 10


def test_a_dead_host_was_in_an_unknown_state(fleet: SimulatedFleet) -> None:
    host = next(host for host in range(24) if dead_spans(fleet, host))
    past = sample_span(fleet, host, Slice(NOON, NOON + 1200, 60.0))
    dead = [sample for sample in past if sample.at in dead_spans(fleet, host)]
    assert len(past) == 20
    assert {STATES[gpu.state] for sample in dead for gpu in sample.gpus} == {"unknown"}
    assert {value for sample in dead for gpu in sample.gpus for value in gpu.values} == {None}
    assert {value for sample in dead for value in sample.values} == {None}
    assert {gpu.processes for sample in dead for gpu in sample.gpus} == {None}


def test_moments_are_multiples_of_the_step_within_the_span(fleet: SimulatedFleet) -> None:
    past = sample_span(fleet, 0, Slice(NOON + 1, NOON + 601, 60.0))
    assert [sample.at - NOON for sample in past] == [60.0 * number for number in range(1, 11)]
    assert {sample.interval for sample in past} == {60.0}


@pytest.mark.parametrize("until", [NOON, NOON + 1, NOON + 1799.5, NOON + 3599])
def test_slices_go_back_from_now_and_meet_at_full_hours(until: float) -> None:
    pieces = list(slices(until - 14 * DAY, until, 60.0, 300.0))
    assert (pieces[0].end, pieces[-1].start) == (until, until - 14 * DAY)
    assert all(newer.start == older.end for newer, older in pairwise(pieces))
    assert {piece.start % HOUR for piece in pieces[:-1]} == {0.0}
    fine = [piece for piece in pieces if piece.step == 60.0]
    assert pieces[: len(fine)] == fine
    assert DAY - HOUR <= until - fine[-1].start <= DAY
    assert until - pieces[0].start <= 4 * HOUR


def test_days_before_the_last_three_have_a_sample_a_quarter_hour() -> None:
    pieces = [piece for piece in slices(NOON - 60 * DAY, NOON, 60.0, 300.0) if piece.end < NOON - 4 * DAY]
    assert {piece.step for piece in pieces} == {900.0}
    assert {piece.step for piece in slices(NOON - 3 * DAY, NOON, 60.0, 300.0)} == {60.0, 300.0}


def test_slices_of_a_short_span_do_not_reach_before_it() -> None:
    pieces = list(slices(NOON - 7 * HOUR - 5, NOON + 30, 60.0, 300.0))
    assert pieces[-1].start == NOON - 7 * HOUR - 5
    assert all(newer.start == older.end for newer, older in pairwise(pieces))
    assert {piece.step for piece in pieces} == {60.0}
