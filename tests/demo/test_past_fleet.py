"""The fleet of any past moment is the one that was shown live at that time."""

import random
from contextlib import closing
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.past import DAY, HOUR, Slice, sample_span
from gpudeck.fleet.state import FleetState
from gpudeck.history.base import MomentQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.past_fleet import PastFleetBuilder
from gpudeck.history.settings import HistorySettings
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.view import Gpu, Host
from gpudeck.wire import VERSION, Envelope

START = 1_760_313_600.0
SETTINGS = FleetSettings()
ODD_HOSTS = (1, 2, 5, 6)
"""A missing GPU, MIG instances, memory that nobody holds, a display server and a GPU that is never left alone."""


def keep(path: Path, fleet: SimulatedFleet, hosts: tuple[int, ...], days: int, step: float) -> EmbeddedStore:
    clock = FakeClock(START)
    store = EmbeddedStore(path, HistorySettings(), clock)
    for day in range(days):
        span = Slice(START + day * DAY, START + (day + 1) * DAY, step)
        samples = [sample for host in hosts for sample in sample_span(fleet, host, span)]
        for hour in range(24):
            begin = span.start + hour * HOUR
            clock.advance(HOUR)
            store.take([one for one in samples if begin <= one.at < begin + HOUR])
            assert store.flush()
    return store


def shown_live(fleet: SimulatedFleet, host: int, at: float) -> Host | None:
    """As a hub shows it that has just been started; None while the host is dead."""
    report = fleet.report(host, at)
    if report is None:
        return None
    state = FleetState(SETTINGS)
    envelope = Envelope(
        version=VERSION,
        host=fleet.names[host],
        boot_id="b",
        sequence=1,
        collected_at=at,
        interval_seconds=10.0,
        report=report,
        host_id=fleet.host_id(host),
        agent_version="1",
    )
    state.apply(envelope, via="simulated", now=at)
    state.settle()
    return state.view(at).hosts[0]


def show_past(store: EmbeddedStore, at: float) -> dict[str, Host]:
    builder = PastFleetBuilder(at, SETTINGS, lambda _: None)
    return {host.name: host for host in map(builder.add, store.moment(MomentQuery(at)))}


def facts(gpu: Gpu) -> dict[str, object]:
    """What is recorded: display servers are not, and nothing of a GPU without a state."""
    processes = None if gpu.processes is None else [one for one in gpu.processes if not one.display]
    own = {name: getattr(gpu, name) for name in ("uuid", "label", "name", "availability", *GPU_METRICS)}
    if processes is None or gpu.availability == "unknown":
        return own
    programs = sorted((one.pid, one.user, one.command, one.job, one.container) for one in processes)
    return own | {"users": sorted(one.user for one in processes if one.user), "processes": programs}


def assert_like(found: Host, live: Host) -> None:
    assert found.status == "up"
    for name in HOST_METRICS:
        assert getattr(found, name) == getattr(live, name), name
    assert [facts(gpu) for gpu in found.gpus] == [facts(gpu) for gpu in live.gpus]


@pytest.mark.parametrize(
    ("hosts", "days", "step", "moments"),
    [
        (ODD_HOSTS, 1, 600.0, 40),
        pytest.param(tuple(range(12)), 30, 300.0, 200, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
def test_any_moment_is_what_was_shown_live(
    tmp_path: Path, hosts: tuple[int, ...], days: int, step: float, moments: int
) -> None:
    fleet, rng = SimulatedFleet(24, seed=1), random.Random(4)
    with closing(keep(tmp_path / "history.db", fleet, hosts, days, step)) as store:
        for _ in range(moments):
            at = rng.uniform(START + HOUR, START + days * DAY - HOUR)
            found = show_past(store, at)
            assert found.keys() == {fleet.names[host] for host in hosts}
            for host in hosts:
                shown, live = found[fleet.names[host]], shown_live(fleet, host, at // step * step)
                if live is None:
                    assert shown.status == "down"
                    assert {gpu.availability for gpu in shown.gpus} <= {"unknown"}
                else:
                    assert_like(shown, live)
