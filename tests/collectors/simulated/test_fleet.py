"""What holds for every simulated fleet at every moment."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpudeck.collectors.base import Collector
from gpudeck.collectors.simulated import SimulatedFleet, SimulatedHost
from gpudeck.collectors.simulated.work import GROUPS
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Number, Report

MOMENTS = st.floats(min_value=0.0, max_value=4e9)
NOON = 1_760_356_800.0


def reports_of(fleet: SimulatedFleet, t: float) -> list[Report | None]:
    return [fleet.report(host, t) for host in range(len(fleet.names))]


def misfits(metrics: dict[str, Number], catalog: dict[str, Metric]) -> list[str]:
    """The metrics that are outside their range or finer than their precision."""
    return [
        name
        for name, value in metrics.items()
        if not catalog[name].low <= value <= catalog[name].high or catalog[name].round(value) != value
    ]


def overfull(gpus: list[GpuReading]) -> list[str]:
    """The GPUs whose processes hold more than is used, or where more is used than there is."""
    read = [gpu for gpu in gpus if gpu.metrics]
    return [
        gpu.uuid
        for gpu in read
        if not sum(process.memory_used_bytes or 0 for process in gpu.processes or ())
        <= gpu.metrics["memory_used_bytes"]
        <= gpu.metrics["memory_total_bytes"]
    ]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**9), hosts=st.integers(1, 30), t=MOMENTS)
def test_every_report_keeps_to_the_catalog(seed: int, hosts: int, t: float) -> None:
    reports = [report for report in reports_of(SimulatedFleet(hosts, seed), t) if report]
    gpus = [gpu for report in reports for gpu in report.gpus or ()]
    assert gpus
    assert [misfits(gpu.metrics, GPU_METRICS) for gpu in gpus] == [[]] * len(gpus)
    assert [misfits(report.metrics, HOST_METRICS) for report in reports] == [[]] * len(reports)
    assert all(sorted([*gpu.metrics, *gpu.unknown]) == sorted(GPU_METRICS) for gpu in gpus)
    assert all(sorted([*report.metrics, *report.unknown]) == sorted(HOST_METRICS) for report in reports)
    assert overfull(gpus) == []
    assert len({gpu.uuid for gpu in gpus}) == len(gpus)
    assert all(gpu.idle_seconds is not None and gpu.idle_seconds >= 0 for gpu in gpus)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**9), t=MOMENTS)
def test_reports_survive_the_wire(seed: int, t: float) -> None:
    reports = reports_of(SimulatedFleet(9, seed), t)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(reports), type=list[Report | None]) == reports


@settings(max_examples=15, deadline=None)
@given(moments=st.lists(st.integers(0, 40 * 86_400), min_size=2, max_size=6), host=st.integers(0, 8))
def test_answers_do_not_depend_on_the_order_of_asking(moments: list[int], host: int) -> None:
    kept = SimulatedFleet(9)
    answers = [kept.report(host, NOON + moment / 7) for moment in moments]
    assert answers == [SimulatedFleet(9).report(host, NOON + moment / 7) for moment in moments]


def test_going_back_over_days_without_jobs_gives_what_a_fresh_fleet_gives() -> None:
    """A slot that takes no jobs is empty for whole blocks of days; the energy counter starts anew with each."""
    kept = SimulatedFleet(8)
    moments = [NOON + 3600.0 * hours for hours in (96, 48, 49, 97, 98, 1, 2, 50, 51)]
    answers = [kept.report(host, moment) for host in range(8) for moment in moments]
    assert answers == [SimulatedFleet(8).report(host, moment) for host in range(8) for moment in moments]


def test_going_on_second_by_second_gives_what_a_fresh_fleet_gives() -> None:
    kept = SimulatedFleet(9)
    walked = [[kept.report(host, NOON + second) for second in range(0, 900, 3)] for host in range(9)]
    fresh = [SimulatedFleet(9).report(host, NOON + 897) for host in range(9)]
    assert [reports[-1] for reports in walked] == fresh


def test_the_same_seed_gives_the_same_fleet() -> None:
    assert reports_of(SimulatedFleet(12, seed=5), NOON) == reports_of(SimulatedFleet(12, seed=5), NOON)


def test_another_seed_gives_another_fleet() -> None:
    one, other = SimulatedFleet(12, seed=5), SimulatedFleet(12, seed=6)
    assert all(one.report(host, NOON) != other.report(host, NOON) for host in range(12))
    assert {one.host_id(host) for host in range(12)}.isdisjoint(other.host_id(host) for host in range(12))


@pytest.mark.parametrize(("hosts", "first", "last"), [(1, "gpu01", "gpu01"), (24, "gpu01", "gpu24")])
def test_hosts_are_numbered_names(hosts: int, first: str, last: str) -> None:
    names = SimulatedFleet(hosts).names
    assert (names[0], names[-1]) == (first, last)


def test_a_large_fleet_can_be_asked_about_any_host() -> None:
    fleet = SimulatedFleet(10_000)
    assert len(set(fleet.names)) == 10_000
    assert {len(name) for name in fleet.names} == {len("gpu10000")}
    assert fleet.report(9_999, NOON) == SimulatedFleet(10_000).report(9_999, NOON)


def test_host_ids_are_unique_and_lasting() -> None:
    ids = [SimulatedFleet(40).host_id(host) for host in range(40)]
    assert len(set(ids)) == 40
    assert ids == [SimulatedFleet(40).host_id(host) for host in range(40)]


def test_a_host_collects_like_any_collector(fleet: SimulatedFleet) -> None:
    host: Collector = SimulatedHost(fleet, 0)
    assert host.collect(NOON) == fleet.report(0, NOON)
    assert host.name == "simulated"
    host.close()


def test_a_dead_host_is_a_temporary_failure(fleet: SimulatedFleet) -> None:
    host, t = next(
        (host, NOON + s) for host in range(24) for s in range(0, 600, 30) if not fleet.report(host, NOON + s)
    )
    with pytest.raises(Temporary, match=fleet.names[host]):
        SimulatedHost(fleet, host).collect(t)


def test_values_change_on_slow_readings_only(fleet: SimulatedFleet) -> None:
    """A stream of changes stays small: nothing is read anew more often than every few seconds."""
    reports = [fleet.report(2, NOON + second) for second in range(121)]
    rows = [report.gpus or [] for report in reports if report]
    pairs = [pair for old, new in pairwise(rows) for pair in zip(old, new, strict=True)]
    assert 0 < sum(old.metrics != new.metrics for old, new in pairs) < 0.3 * len(pairs)
    assert 0 < sum(old.processes != new.processes for old, new in pairs) < 0.12 * len(pairs)


def test_everybody_who_is_met_belongs_to_a_group() -> None:
    fleet = SimulatedFleet(24, 1)
    reports = [fleet.report(host, 1_780_272_000.0) for host in range(24)]
    gpus = [gpu for report in reports if report for gpu in report.gpus or ()]
    users = {process.user for gpu in gpus for process in gpu.processes or () if not process.display}
    assert len(users) > 5
    assert {fleet.group_of(user) for user in users if user} <= set(GROUPS)
    assert fleet.group_of("somebody-else") is None
