"""The jobs behind the reports: what the simulator knows and an accounting can be checked against."""

from collections import Counter, defaultdict
from itertools import pairwise

import pytest

from gpudeck.collectors.simulated import SimulatedFleet, SimulatedJob
from gpudeck.collectors.simulated.chance import activity, later
from gpudeck.collectors.simulated.inventory import lifecycle_of

NOON = 1_760_356_800.0
DAY = 86_400.0
Seen = set[tuple[str, int, str | None, str | None, float | None, str | None, str | None]]


@pytest.fixture(scope="module")
def fortnight(fleet: SimulatedFleet) -> list[SimulatedJob]:
    return [run for host in range(24) for run in fleet.runs(host, NOON, NOON + 14 * DAY)]


def seen_in_report(fleet: SimulatedFleet, host: int, t: float) -> Seen:
    report = fleet.report(host, t)
    return {
        (gpu.uuid, process.pid, process.user, process.command, process.started_at, process.container, process.job)
        for gpu in (report.gpus if report and report.gpus else ())
        for process in gpu.processes or ()
        if not process.display
    }


def true_at(fleet: SimulatedFleet, host: int, t: float) -> Seen:
    return {
        (gpu, pid, run.user, run.command, run.start, run.container, run.job)
        for run in fleet.runs(host, t, t + 0.25)
        for gpu, pid in zip(run.gpus, run.pids, strict=True)
    }


@pytest.mark.parametrize("host", range(24))
def test_reports_show_exactly_the_jobs_that_run(fleet: SimulatedFleet, host: int) -> None:
    moments = [NOON + 0.5 + step * 4_999 for step in range(60)]
    seen = [seen_in_report(fleet, host, t) for t in moments]
    assert any(seen)
    assert seen == [true_at(fleet, host, t) for t in moments]


def test_a_span_holds_the_jobs_of_its_parts_once(fleet: SimulatedFleet) -> None:
    whole = fleet.runs(0, NOON, NOON + 8 * DAY)
    parts = [run for part in range(32) for run in fleet.runs(0, NOON + part * DAY / 4, NOON + (part + 1) * DAY / 4)]
    assert {(run.start, run.pids) for run in parts} == {(run.start, run.pids) for run in whole}
    assert len({(run.start, run.pids) for run in whole}) == len(whole)
    assert [run.start for run in whole] == sorted(run.start for run in whole)


def gpus_taken(fleet: SimulatedFleet, host: int, t: float) -> int:
    return len({gpu for run in fleet.runs(host, t, t + 1) for gpu in run.gpus})


def test_jobs_cross_from_block_to_block_without_a_seam(fleet: SimulatedFleet) -> None:
    """As many GPUs are taken at the edges between the blocks a timeline is made of as in the middle of the blocks."""
    lives = {host: lifecycle_of(1, host, "none") for host in range(8, 24)}
    numbers = {host: life.number(NOON) for host, life in lives.items()}
    edges = [
        (host, life.opens(number))
        for host, life in lives.items()
        for number in range(numbers[host], numbers[host] + 20)
        if not life.boots_at(number)
    ]
    at_edges = sum(gpus_taken(fleet, host, edge) for host, edge in edges)
    between = sum(gpus_taken(fleet, host, edge + DAY) for host, edge in edges)
    assert at_edges == pytest.approx(between, rel=0.08)


def test_a_gpu_has_one_job_and_at_most_one_guest(fortnight: list[SimulatedJob]) -> None:
    by_gpu: dict[str, list[SimulatedJob]] = defaultdict(list)
    for run in (run for run in fortnight if run.start < NOON + 4 * DAY):
        for gpu in run.gpus:
            by_gpu[gpu].append(run)
    together = [sum(other.start <= run.start < other.end for other in runs) for runs in by_gpu.values() for run in runs]
    assert set(together) == {1, 2}
    assert together.count(2) < 0.2 * len(together)


def test_pids_that_live_together_differ(fleet: SimulatedFleet) -> None:
    for step in range(50):
        runs = fleet.runs(0, NOON + step * 5_000, NOON + step * 5_000 + 0.25)
        pids = [pid for run in runs for pid in set(run.pids)]
        assert len(pids) == len(set(pids))


def test_jobs_last_from_minutes_to_days(fortnight: list[SimulatedJob]) -> None:
    hours = sorted((run.end - run.start) / 3600 for run in fortnight)
    assert hours[0] < 0.25
    assert hours[-1] > 36
    assert sum(hours) / len(hours) > 1.5 * hours[len(hours) // 2]


def test_jobs_take_one_to_eight_gpus_of_one_host(fortnight: list[SimulatedJob]) -> None:
    assert {len(run.gpus) for run in fortnight} == {1, 2, 4, 8}
    several = [len(set(run.pids)) == 1 for run in fortnight if len(run.gpus) > 1]
    assert {True, False} == set(several)


def test_all_kinds_of_work_are_done(fortnight: list[SimulatedJob]) -> None:
    kinds = Counter(run.kind for run in fortnight)
    assert set(kinds) == {"training", "loader", "notebook", "inference", "holder"}
    assert min(kinds.values()) > 20


def test_a_few_people_start_most_jobs(fortnight: list[SimulatedJob]) -> None:
    jobs = sorted(Counter(run.user for run in fortnight).values(), reverse=True)
    assert 20 <= len(jobs) <= 40
    assert sum(jobs[:6]) > 0.35 * sum(jobs)


def test_larger_fleets_have_more_people() -> None:
    people = [
        {run.user for host in range(8, 12) for run in SimulatedFleet(hosts).runs(host, NOON, NOON + 30 * DAY)}
        for hosts in (12, 1200)
    ]
    assert len(people[0]) < len(people[1]) < 3 * len(people[0])


def test_jobs_say_who_is_behind_them(fortnight: list[SimulatedJob]) -> None:
    told = [(run, run.describe_owner(run.pids[0])) for run in fortnight]
    assert all(run.user in evidence or f"uid {run.uid}" in evidence for run, evidence in told)
    contained = [run for run in fortnight if run.container]
    scheduled = [run for run in fortnight if run.job]
    assert all(run.container in evidence for run, evidence in told if run.container)
    assert all(run.job in evidence for run, evidence in told if run.job)
    assert contained
    assert scheduled


def test_more_jobs_are_started_by_day_than_by_night(fortnight: list[SimulatedJob]) -> None:
    own_choice = [run for run in fortnight if run.start >= NOON and run.end - run.start > 600]
    hours = Counter(int(run.start // 3600) % 24 for run in own_choice)
    assert sum(hours[hour] for hour in range(10, 18)) > 1.15 * sum(hours[hour] for hour in (22, 23, 0, 1, 2, 3, 4, 5))


def test_weekends_are_quieter() -> None:
    saturday = NOON + 5 * DAY
    assert activity(saturday) < activity(NOON)
    assert activity(NOON + DAY / 2) < activity(NOON)


def test_waiting_takes_longer_at_night() -> None:
    by_day, by_night = later(NOON, 3600) - NOON, later(NOON - DAY / 2, 3600) - (NOON - DAY / 2)
    assert 3600 <= by_day < by_night


def test_jobs_end_when_their_host_boots(fleet: SimulatedFleet) -> None:
    moments = [NOON + hour * 3600 for hour in range(49 * 24)]
    boots = [
        (host, late)
        for host in range(3)
        for early, late in pairwise(moments)
        if fleet.boot_id(host, early) != fleet.boot_id(host, late)
    ][:3]
    assert boots
    for host, t in boots:
        report = fleet.report(host, t)
        assert report is not None
        booted = t - report.metrics["uptime_seconds"]
        assert all(run.start >= booted - 60 for run in fleet.runs(host, t, t + 1))
