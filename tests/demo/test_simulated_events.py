"""The simulated fleet's past has events, told by the code of a running hub."""

import pytest

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.past import past_events
from gpudeck.model.event import Event

NOON = 1_760_356_800.0
DAYS = 7 * 86_400.0


@pytest.fixture(scope="module")
def past() -> list[Event]:
    fleet = SimulatedFleet(12, seed=1)
    return [event for host in range(12) for event in past_events(fleet, host, NOON - DAYS, NOON)]


def test_past_has_hosts_that_went_down_lost_gpus_and_faults(past: list[Event]) -> None:
    told = {event.kind for event in past}
    assert {"host_seen", "host_down", "host_up", "flapping", "gpu_lost", "gpu_found", "xid"} <= told


def test_host_that_keeps_dying_does_not_fill_the_past(past: list[Event]) -> None:
    assert sum(event.kind == "host_down" for event in past) == 5
    assert 1 <= sum(event.kind == "flapping" for event in past) <= 8


def test_fault_of_a_program_names_its_owner(past: list[Event]) -> None:
    faults = [event for event in past if event.kind == "xid" and event.severity == "info"]
    assert faults
    assert all(event.user for event in faults)


def test_all_of_it_lies_in_the_span(past: list[Event]) -> None:
    assert all(NOON - DAYS <= event.at < NOON for event in past)


def test_turns_that_are_close_to_each_other_are_looked_at_in_order() -> None:
    """A host that booted again within the silence after another turn was taken for a second agent."""
    until = 1794984021.0
    assert past_events(SimulatedFleet(5, 1), 0, until - 2 * DAYS, until)
