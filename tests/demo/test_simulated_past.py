"""The simulated past is what a live hub would have kept."""

import pytest

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.past import DAY, Slice, sample_span
from gpudeck.fleet.host import HostState
from gpudeck.fleet.table import FleetTable
from gpudeck.history.recorder import sample_host
from gpudeck.history.sample import STATES, HostSample
from gpudeck.model.gpu_state import FleetSettings
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
