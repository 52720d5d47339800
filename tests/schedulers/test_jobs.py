"""Jobs and what they used: counted from the fleet, kept in the database, and nothing twice."""

import asyncio
from datetime import UTC
from typing import Any

import pytest
from msgspec.structs import replace

from fakes.clock import FakeClock
from fakes.reports import HOST, make_busy_gpu, make_envelope, make_gpu
from gpudeck.database.engine import Database
from gpudeck.fleet.hub import Hub
from gpudeck.history.base import HistoryRefused, UsageQuery
from gpudeck.history.settings import UsageSettings
from gpudeck.model.allocation import KUBERNETES, Allocation, SchedulerMark
from gpudeck.model.cluster import Duty
from gpudeck.model.job import ImportedGpu, ImportedJob, JobReport, JobReports, read_summary, write_summary
from gpudeck.model.report import GpuReading, JobCgroup, Report
from gpudeck.model.usage import Usage, UsageRow
from gpudeck.schedulers.base import EndedJob
from gpudeck.schedulers.job_report import AllocatedSums, JobReporter, base_query, read_sums
from gpudeck.schedulers.job_store import JobQuery, JobStore, import_jobs
from gpudeck.schedulers.jobs import TICK_SECONDS, JobService
from gpudeck.views.jobs import render_job

HOUR = 3600.0
START = 1_790_002_800.0  # a full hour
ANN = Allocation("slurm", "7", name="train", user="ann", account="lab1", partition="gpu", since=START)
PRICES = UsageSettings(currency="EUR", prices={"H200": 3.0}, groups={"vision": ["ann"]})


class JobSite:
    """A hub with one host of two GPUs that reports whenever time passes."""

    def __init__(self, database: Database, clock: FakeClock | None = None, duty: Duty | None = None) -> None:
        self.database = database
        self.clock = clock or FakeClock(START)
        self.uptime = FakeClock(1000.0)
        self.hub = Hub(now=self.clock)
        self.service = JobService(
            self.hub, JobStore(database), keep=365 * 86_400.0, now=self.clock, monotonic=self.uptime, duty=duty
        )
        self.reporter = JobReporter(self.service, PRICES)
        self.sequence = 0
        self.gpus: list[GpuReading] = [make_gpu(0, uuid="GPU-0"), make_gpu(1, uuid="GPU-1")]
        self.cgroups: list[JobCgroup] = []
        self.report()

    def report(self) -> None:
        self.sequence += 1
        report = Report(gpus=self.gpus, metrics=dict(HOST), job_cgroups=self.cgroups)
        envelope = make_envelope("n1", self.sequence, report=report, collected_at=self.clock(), run_id=str(id(self)))
        self.hub.fleet.apply(envelope, via="push", now=self.clock())
        self.hub.fleet.settle()

    def allocate(self, *allocations: Allocation | None, unknown: str | None = None) -> None:
        marks = {f"GPU-{place}": SchedulerMark(one, unknown=unknown) for place, one in enumerate(allocations)}
        self.hub.fleet.allocate(marks, self.clock())

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK_SECONDS)):
            self.clock.advance(TICK_SECONDS)
            self.uptime.advance(TICK_SECONDS)
            self.report()
            self.service.on_second()

    def write(self) -> None:
        asyncio.run(self.service.tracker.write())

    def restart(self, seconds: float = 0.0) -> "JobSite":
        """Another hub after that time, and what the database knows of the one that was killed."""
        self.clock.advance(seconds)
        site = JobSite(self.database, self.clock)
        asyncio.run(site.service.open())
        return site

    def job(self, name: str = "7") -> JobReport:
        return self.jobs(name)[0]

    def jobs(self, name: str = "7") -> list[JobReport]:
        return asyncio.run(self.reporter.find(name, None, self.clock())).jobs

    def usage(self, by: Any, start: float = START, **others: Any) -> Usage:
        """Of a history that knows nothing."""
        ask = UsageQuery(by, start, self.clock(), **others)
        sums = asyncio.run(read_sums(self.service.store, ask, self.clock()))
        total = UsageRow(0.0, 0.0, None, 0.0, None, None, None)
        nothing = Usage(base_query(ask).by, ask.start, ask.end, None, 10.0, "EUR", [], total)
        return self.reporter.add_sums(nothing, ask, sums, self.clock())


@pytest.fixture
def site(database: Database) -> JobSite:
    site = JobSite(database)
    site.service.on_second()
    asyncio.run(site.service.open())
    return site


def test_a_job_that_never_touches_its_gpu_is_allocated_and_unused(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(1800)
    site.write()
    job = site.job()
    assert (job.state, job.job, job.user, job.account, job.hosts, job.gpu_count) == (
        *("running", "7", "ann", "lab1"),
        *(["n1"], 1),
    )
    assert job.allocated_hours == pytest.approx(0.5)
    assert (job.used_hours, job.unused_hours, job.active_hours) == (0.0, pytest.approx(0.5), 0.0)
    assert (job.wall_seconds, job.coverage, job.cost) == (1800.0, pytest.approx(1.0), None)
    (row,) = site.usage("account").rows
    assert (row.account, row.gpu_hours) == ("lab1", 0.0)
    assert [row.allocated_hours, row.unused_hours, row.never_used_hours] == pytest.approx([0.5] * 3)


def test_an_import_of_a_job_that_ends_in_the_future_is_refused(site: JobSite) -> None:
    job = ImportedJob(job="9", start=START - 60, seconds=7200.0)
    done = asyncio.run(import_jobs(site.service.store, "slurm", [job], START))
    assert (done.imported, [(one.job, one.start) for one in done.refused]) == ([], [("9", START - 60)])


def test_only_the_starts_on_one_scheduler_are_starts_of_a_job(site: JobSite) -> None:
    site.allocate(ANN, replace(ANN, scheduler="other", since=START - 30))
    site.run(60)
    found = asyncio.run(site.reporter.find("7", None, site.clock()))
    assert ([one.scheduler for one in found.jobs], found.other_schedulers) == (["slurm"], ["other"])
    shown = render_job(found, UTC, site.clock())
    assert "Earlier starts" not in shown
    assert "Another job has this id: --scheduler other." in shown
    other = asyncio.run(site.reporter.find("7", "other", site.clock()))
    assert ([one.scheduler for one in other.jobs], other.other_schedulers) == (["other"], [])


def test_time_before_the_first_job_is_unknown_not_zero(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    with pytest.raises(HistoryRefused, match="no job is recorded before"):
        asyncio.run(site.reporter.read_sums(UsageQuery("account", START - 7200, START - 3600), site.clock()))
    ask = UsageQuery("user", START - 7200, START - 3600)
    assert asyncio.run(site.reporter.read_sums(ask, site.clock())) is None
    partly = asyncio.run(site.reporter.read_sums(UsageQuery("account", START - 7200, site.clock()), site.clock()))
    assert partly is not None
    assert partly.since == START + TICK_SECONDS
    asked = UsageQuery("account", START, site.clock())
    assert asyncio.run(site.reporter.read_sums(asked, site.clock())) is not None


def test_an_imported_job_does_not_make_the_time_since_look_recorded(site: JobSite) -> None:
    def ask(by: str, ago: float) -> AllocatedSums | None:
        query = UsageQuery(by, START - ago, START - ago + 7200)  # type: ignore[arg-type]
        return asyncio.run(site.reporter.read_sums(query, site.clock()))

    gpu = ImportedGpu(host="n9", label="0", utilization_percent=50.0)
    old = ImportedJob(job="3", start=START - 30 * 86_400, seconds=3600.0, gpus=[gpu], account="lab")
    assert asyncio.run(import_jobs(site.service.store, "slurm", [old], START)).imported == ["3"]
    site.service.note_imported()
    assert ask("user", 7 * 86_400) is None
    site.allocate(ANN)
    site.run(600)
    imported = ask("account", 30 * 86_400)
    assert imported is not None
    assert imported.since == START + TICK_SECONDS
    assert [one.names[0] for _, one in imported.days] == ["lab"]
    with pytest.raises(HistoryRefused, match="no job is recorded before"):
        ask("account", 7 * 86_400)


def test_what_it_did_is_counted_by_gpu(site: JobSite) -> None:
    busy = {"utilization_percent": 50, "power_watts": 360.0, "memory_used_bytes": 2**30}
    site.gpus = [make_busy_gpu(0, uuid="GPU-0", name="NVIDIA H200", metrics=busy), make_gpu(1, uuid="GPU-1")]
    site.allocate(ANN, ANN)
    site.run(7200)
    job = site.job()
    first, second = job.gpus
    assert (first.host, first.label, first.uuid, first.model) == ("n1", "0", "GPU-0", "NVIDIA H200")
    assert [first.allocated_hours, first.used_hours, first.active_hours] == pytest.approx([2.0, 2.0, 1.0])
    assert (first.utilization_percent, first.utilization_peak_percent) == (pytest.approx(50), 50.0)
    assert (first.memory_mean_bytes, first.memory_peak_bytes) == (pytest.approx(2**30), 2**30)
    assert (first.energy_kwh, first.cost) == (pytest.approx(0.72), pytest.approx(6.0))
    assert (second.used_hours, second.unused_hours) == (0.0, pytest.approx(2.0))
    assert (job.allocated_hours, job.used_hours, job.cost) == (pytest.approx(4.0), pytest.approx(2.0), 6.0)


def test_cpu_and_memory_of_its_cgroup_are_kept_also_over_a_restart_and_after_its_end(site: JobSite) -> None:
    def read(cpu: float | None, memory: int | None, **others: Any) -> None:
        """Of task 3 of array 7, which Slurm counts as job 9."""
        site.cgroups = [
            JobCgroup("9", site.clock(), cpu, memory, 4.0, 64 * 2**30, **others),
            JobCgroup("12", site.clock(), 1e6, 2**40),
        ]
        site.run(30)

    site.allocate(replace(ANN, job="7_3", number="9"))
    site.run(TICK_SECONDS)
    assert (site.job("7_3").nodes[0].cpu_seconds, site.job("7_3").nodes[0].memory_peak_bytes) == (None, None)
    assert "has read the job's cgroup" in (site.job("7_3").nodes[0].reason or "")
    read(60.0, 2 * 2**30)
    read(180.0, 6 * 2**30)
    site.write()
    other = site.restart()
    other.allocate(replace(ANN, job="7_3", number="9"))
    other.cgroups = [JobCgroup("9", site.clock(), 210.0, None, 4.0, None, {"memory_used_bytes": "not permitted"})]
    other.run(TICK_SECONDS)
    other.allocate(None)
    other.run(TICK_SECONDS)
    other.write()
    job = other.job("7_3")
    (node,) = job.nodes
    assert (job.state, node.host, node.cpu_seconds, node.cpu_limit_cores) == ("ended", "n1", 210.0, 4.0)
    assert (node.cpu_peak_cores, node.cpu_mean_cores) == (pytest.approx(4.0), pytest.approx(210 / 70, rel=0.01))
    assert (node.memory_mean_bytes, node.memory_peak_bytes) == (4 * 2**30, 6 * 2**30)
    assert (node.memory_limit_bytes, node.reason) == (None, "not permitted")
    summary = read_summary(write_summary(job))
    assert summary is not None
    found = summary.nodes["n1"]
    assert (found.total_time, found.cpus, found.used_memory, found.total_memory) == (210.0, 4.0, 6 * 2**30, None)
    assert [(node.cpu_seconds, node.memory_peak_bytes) for node in summary.list_nodes()] == [(210.0, 6 * 2**30)]


def test_others_on_its_gpu_are_no_use_of_the_job_and_pods_that_share_one_are_marked(site: JobSite) -> None:
    busy = make_busy_gpu(0, uuid="GPU-0", user="bob")
    site.gpus = [busy, make_busy_gpu(1, uuid="GPU-1", user="ann")]
    taken = replace(ANN, conflict="process 42 of bob is on it")
    site.allocate(taken, taken)
    site.run(600)
    first, second = site.job().gpus
    assert (first.used_hours, first.allocated_hours, first.utilization_percent) == (0.0, pytest.approx(1 / 6), 0.0)
    assert (second.used_hours, first.is_shared, second.is_shared) == (pytest.approx(1 / 6), True, True)
    site.allocate(None, replace(ANN, scheduler=KUBERNETES, job="ml/a", shared_with=["ml/b"]))
    site.run(600)
    found = asyncio.run(site.reporter.find("ml/a", None, site.clock()))
    assert found.jobs[0].gpus[0].is_shared
    assert "Others had or used n1:1 too." in render_job(found, UTC, site.clock())


def test_unmonitored_time_is_allocated_and_its_use_unknown(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    site.gpus = [make_gpu(0, uuid="GPU-0", missing="lost"), make_gpu(1, uuid="GPU-1")]
    site.report()
    site.run(600)
    job = site.job()
    assert (job.allocated_hours * HOUR, job.wall_seconds, job.coverage) == pytest.approx((1200.0, 1200.0, 0.5))
    assert [job.unmonitored_hours * HOUR, (job.unused_hours or 0.0) * HOUR] == pytest.approx([600.0, 600.0])


def test_a_job_ends_when_its_gpus_are_known_to_be_given_back(site: JobSite) -> None:
    site.allocate(ANN, ANN)
    site.run(600)
    # The scheduler cannot be read: nothing is counted, and nothing has ended.
    site.allocate(None, None, unknown="Slurm cannot be read")
    site.run(600)
    site.write()
    assert (site.job().state, site.job().ended_at) == ("unknown", None)
    assert site.job().state_reason == "Slurm cannot be read"
    site.allocate(ANN, ANN)
    site.run(600)
    assert site.job().state == "running"
    site.allocate(None, None)
    site.run(TICK_SECONDS)
    site.write()
    job = site.job()
    assert (job.state, job.ended_at) == ("ended", START + 1800 + TICK_SECONDS)
    assert job.allocated_hours * HOUR == pytest.approx(2 * 1200)
    assert asyncio.run(site.reporter.search(JobQuery(is_running=True), site.clock())) == []
    (found,) = asyncio.run(site.reporter.search(JobQuery(user="ann", account="lab1"), site.clock()))
    assert (found.job, found.allocated_hours) == ("7", job.allocated_hours)


def test_a_killed_hub_loses_what_was_not_written_and_counts_nothing_twice(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    site.write()
    site.run(50)
    after = site.restart(seconds=100)
    after.allocate(ANN)
    after.run(600)
    after.write()
    after.write()
    seconds = after.job().allocated_hours * HOUR
    assert 1200 - TICK_SECONDS <= seconds <= 1200
    again = after.restart()
    again.allocate(ANN)
    again.run(TICK_SECONDS)
    again.write()
    assert again.job().allocated_hours * HOUR == seconds
    assert again.job().start == START


@pytest.mark.parametrize(("pause", "unmonitored"), [(15, 50.0), (600, 0.0)])
def test_a_hub_that_takes_over_knows_that_a_job_had_its_gpus_since_the_last_write(
    site: JobSite, pause: float, unmonitored: float
) -> None:
    """The hub that had the duty was killed 35 s after it wrote."""
    site.gpus = [make_busy_gpu(0, uuid="GPU-0")]
    site.allocate(ANN)
    site.run(120)
    site.write()
    site.run(35)
    held = [False]
    other = JobSite(site.database, site.clock, Duty("schedulers", lambda: held[0]))
    other.gpus = site.gpus
    other.allocate(ANN)
    other.run(pause)
    held[0] = True

    async def take_over() -> None:
        other.service.start()
        other.service.on_second()
        other.run(60)
        await other.service.close()

    asyncio.run(take_over())
    (gpu,) = other.job().gpus
    assert 3600 * gpu.unmonitored_hours == pytest.approx(unmonitored, abs=0.1)
    assert gpu.used_hours is not None
    assert 3600 * gpu.used_hours == pytest.approx(120 + 60, abs=0.1)


def test_a_job_that_ended_while_the_hub_was_away_ended_when_it_was_last_seen(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    site.write()
    after = site.restart(seconds=7200)
    # Until the scheduler was read, what it knows is not known.
    after.allocate(None, unknown="not read yet")
    after.run(60)
    assert after.job().state == "unknown"
    after.allocate(None)
    after.run(60)
    after.write()
    assert after.job().ended_at == START + 600


def test_a_requeued_job_has_several_starts_and_a_reused_id_is_another_job(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    site.allocate(replace(ANN, since=site.clock() - 10))
    site.run(600)
    later = replace(ANN, user="bob", name="other", since=site.clock() + 86_400)
    site.clock.advance(86_400)
    site.allocate(None)
    site.run(60)
    site.allocate(later)
    site.run(600)
    site.write()
    found = site.jobs()
    assert [(job.user, job.state) for job in found] == [("bob", "running"), ("ann", "ended"), ("ann", "ended")]
    # No GPU is counted twice where one job follows another.
    assert sum(job.allocated_hours for job in found[1:]) * HOUR == pytest.approx(1200, abs=TICK_SECONDS)


def test_a_pod_has_not_ended_because_its_host_has_not_reported_yet(site: JobSite) -> None:
    pod = Allocation(KUBERNETES, "ml/train-0", namespace="ml", labels={"team": "vision"}, since=START)
    site.allocate(pod)
    site.run(600)
    site.write()
    after = site.restart(seconds=30)
    after.gpus = [make_gpu(0, uuid="GPU-0", missing="not read yet")]
    after.run(60)
    assert after.job("ml/train-0").state != "ended"
    after.gpus = [make_gpu(0, uuid="GPU-0")]
    after.run(60)
    after.write()
    job = after.job("ml/train-0")
    assert (job.state, job.namespace, job.labels) == ("ended", "ml", {"team": "vision"})
    (row,) = after.usage("label", label="team").rows
    assert (row.label, row.allocated_hours) == ("vision", pytest.approx(600 / HOUR, rel=0.01))
    assert [row.label for row in after.usage("label", label="cost-center").rows] == [None]


def test_an_array_is_found_by_its_id_and_by_its_tasks(site: JobSite) -> None:
    site.allocate(replace(ANN, job="70_1", number="71"), replace(ANN, job="70_12", number="70"))
    site.run(60)
    assert [job.allocated_hours * HOUR for job in site.jobs("70")] == pytest.approx([60.0, 60.0])
    assert [job.job for job in site.jobs("70_1")] == ["70_1"]
    assert {job.job for job in site.jobs("70")} == {"70_1", "70_12"}
    assert [job.job for job in site.jobs("71")] == ["70_1"]
    assert site.jobs("7") == site.jobs("_1") == []
    found = asyncio.run(site.reporter.find("70", None, site.clock()))
    text = render_job(found, UTC, site.clock(), width=100)
    assert text.startswith("Array 70 (train) of ann on slurm: 2 running\n0.03 GPU-hours allocated, 0.0 used\n")
    assert [line.split()[0] for line in text.splitlines()[4:]] == [job.job for job in found.jobs]
    assert "these are the newest 2" in render_job(JobReports(found.jobs, has_more=True), UTC, site.clock())


def test_a_clock_that_steps_back_adds_nothing_to_hours_that_were_counted(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(3600)
    site.write()
    site.run(600)
    site.write()
    site.clock.advance(-3600)
    site.run(600)
    site.write()
    # Ten minutes of an hour that was counted in full.
    assert site.job().allocated_hours == pytest.approx(4200 / HOUR, rel=0.01)


def test_a_hub_that_was_stopped_for_a_while_counts_nothing_for_it(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    for clock in (site.clock, site.uptime):
        clock.advance(900)
    site.run(600)
    assert site.job().allocated_hours * HOUR == pytest.approx(1200, abs=2 * TICK_SECONDS)


def test_jobs_that_may_not_be_seen_count_for_their_gpus_and_are_not_listed(site: JobSite) -> None:
    hidden = Allocation("slurm", unknown="this account may not see it")
    site.allocate(hidden, ANN)
    site.run(1800)
    site.write()
    assert [job.job for job in asyncio.run(site.reporter.search(JobQuery(), site.clock()))] == ["7"]
    rows = site.usage("user").rows
    assert [(row.user, row.unknown, row.allocated_hours) for row in sorted(rows, key=lambda row: row.unknown)] == [
        ("ann", False, pytest.approx(0.5)),
        (None, True, pytest.approx(0.5)),
    ]
    assert [(row.host, row.allocated_hours) for row in site.usage("host").rows] == [("n1", pytest.approx(1.0))]


def test_usage_by_the_names_of_schedulers(site: JobSite) -> None:
    site.gpus = [make_busy_gpu(0, uuid="GPU-0", name="NVIDIA H200"), make_gpu(1, uuid="GPU-1", name="NVIDIA H200")]
    site.allocate(ANN, replace(ANN, job="8", user="bob", account=None, partition="debug"))
    site.run(7200)
    site.write()

    def shown(usage: Usage) -> list[tuple[str | None, float]]:
        return [(row.name_by(usage.by), round(row.allocated_hours or 0.0, 2)) for row in usage.rows]

    assert sorted(shown(site.usage("partition"))) == [("debug", 2.0), ("gpu", 2.0)]
    assert sorted(shown(site.usage("account")), key=str) == [("lab1", 2.0), (None, 2.0)]
    assert sorted(shown(site.usage("group")), key=str) == [("vision", 2.0), (None, 2.0)]
    assert shown(site.usage("account", start=START + 5400, user="ann")) == [("lab1", 0.5)]
    assert shown(site.usage("model", model="h200")) == [("NVIDIA H200", 4.0)]
    assert shown(site.usage("account", group="vision")) == [("lab1", 2.0)]
    usage = site.usage("account", daily=True)
    assert (usage.total.gpu_hours, usage.total.cost) == (pytest.approx(2.0), pytest.approx(12.0))
    assert usage.total.allocated_hours == pytest.approx(4.0)
    assert usage.total.never_used_hours == pytest.approx(2.0)
    assert [len(row.days) for row in usage.rows] == [1, 1]
    with pytest.raises(HistoryRefused, match="needs the name of a label"):
        asyncio.run(site.reporter.read_sums(UsageQuery("label", START, site.clock()), site.clock()))


def test_a_site_without_schedulers_has_no_allocated_time(site: JobSite) -> None:
    site.run(60)
    asked = UsageQuery("user", START, site.clock())
    assert asyncio.run(site.reporter.read_sums(asked, site.clock())) is None
    with pytest.raises(HistoryRefused, match="no scheduler"):
        asyncio.run(site.reporter.read_sums(UsageQuery("account", START, site.clock()), site.clock()))


def test_old_hours_are_joined_to_days_without_changing_sums(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(4 * HOUR)
    site.write()
    before = site.usage("account").total
    store = site.service.store
    asyncio.run(store.join_days(site.clock() + 2 * 86_400))
    asyncio.run(store.join_days(site.clock() + 2 * 86_400))
    day = START // 86_400 * 86_400
    total = site.usage("account", start=day).total
    assert total.allocated_hours == pytest.approx(before.allocated_hours)
    assert total.never_used_hours == pytest.approx(before.never_used_hours)
    assert site.job().allocated_hours == pytest.approx(4.0, rel=0.3)
    site.allocate(None)
    site.run(TICK_SECONDS)
    site.write()
    asyncio.run(store.trim(site.clock() + 86_400 * 3))
    assert site.jobs() == []


def test_what_slurm_says_of_the_end_counts(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    site.allocate(None)
    site.run(60)
    site.write()
    asyncio.run(site.service.note_ended("slurm", [EndedJob("7", START, START + 590, "TIMEOUT")]))
    job = site.job()
    assert (job.ended_at, job.outcome, job.coverage) == (START + 590, "TIMEOUT", 1.0)


def test_what_slurm_said_of_the_end_stays_though_the_end_is_seen_later(site: JobSite) -> None:
    site.allocate(ANN)
    site.run(600)
    site.write()
    asyncio.run(site.service.note_ended("slurm", [EndedJob("7", START, START + 590, "TIMEOUT")]))
    site.allocate(None)
    site.run(60)
    site.write()
    job = site.job()
    assert (job.ended_at, job.outcome) == (START + 590, "TIMEOUT")
