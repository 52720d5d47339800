"""What schedulers say, joined with the fleet: which GPU is allocated, closed, unknown."""

import asyncio
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from fakes.clock import FakeClock
from fakes.reports import HOST, make_busy_gpu, make_envelope, make_gpu, make_process
from fakes.waiting import until
from gpudeck.fleet.hub import Hub
from gpudeck.model.allocation import Allocation
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Report
from gpudeck.schedulers.base import NodeReservation, SchedulerNode, SchedulerState
from gpudeck.schedulers.service import MISSED_READINGS, RECENT_SECONDS, FleetHosts, SchedulerService, find_marks
from gpudeck.views.text import gpu_note

ANN = Allocation("slurm", "7", name="train", user="ann", until=1_790_003_600.0)
HIDDEN = Allocation("slurm", unknown="Slurm does not say which job")


class FakeScheduler:
    """Says what a test puts into `answer`."""

    name = "test"
    origin = "Slurm (test)"
    pause = 0.0

    def __init__(self, *nodes: SchedulerNode) -> None:
        self.answer: SchedulerState | Exception = SchedulerState({})
        self.readings = 0
        self.reservations: tuple[NodeReservation, ...] = ()
        self.set(*nodes)

    def set(self, *nodes: SchedulerNode) -> None:
        self.answer = SchedulerState({node.names[0]: node for node in nodes}, self.reservations)

    async def read(self) -> SchedulerState:
        self.readings += 1
        await asyncio.sleep(0.001)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Site:
    """A hub with one scheduler."""

    def __init__(self, *nodes: SchedulerNode, data_dir: Path | None = None) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.scheduler = FakeScheduler(*nodes)
        self.monotonic = FakeClock()
        self.service = SchedulerService(
            self.hub, [self.scheduler], data_dir=data_dir, now=self.clock, monotonic=self.monotonic
        )
        self.sequence = 0

    def report(self, host: str, gpus: list[GpuReading], **others: Any) -> None:
        self.sequence += 1
        report = Report(gpus=gpus, metrics=dict(HOST), **others)
        self.hub.fleet.apply(
            make_envelope(host, self.sequence, report=report, collected_at=self.clock()), via="push", now=self.clock()
        )

    def states(self, host: str = "n1") -> list[str]:
        found = self.hub.fleet.find(host)
        assert found is not None
        self.hub.fleet.settle()
        return [gpu.availability for gpu in found.view().gpus]

    def reasons(self, host: str = "n1") -> list[str | None]:
        found = self.hub.fleet.find(host)
        assert found is not None
        return [gpu.availability_reason for gpu in found.view().gpus]

    async def read_again(self, times: int = 2) -> None:
        wanted = self.scheduler.readings + times
        await until(lambda: self.scheduler.readings >= wanted)

    def play(self, *steps: Any) -> None:
        async def run() -> None:
            await self.service.open()
            self.service.start()
            try:
                await self.read_again()
                for step in steps:
                    step()
                    await self.read_again(MISSED_READINGS + 2)
            finally:
                await self.service.close()

        asyncio.run(run())


def four(host: str = "n1", **others: Any) -> list[GpuReading]:
    return [make_gpu(index, uuid=f"GPU-{host}-{index}", **others) for index in range(4)]


def test_the_first_reading_that_fails_makes_empty_gpus_unknown_and_keeps_allocated_ones() -> None:
    site = Site()
    site.report("n1", four())
    hosts = FleetHosts(site.hub.fleet.hosts.values())
    state = SchedulerState({"n1": SchedulerNode(("n1",), 4, {1: ANN})})
    marks = find_marks(state, [("n1",)], "Slurm cannot be read: it hangs", hosts, 0.0)
    assert [mark.allocation for mark in marks.values()] == [None, ANN, None, None]
    assert [mark.unknown for mark in marks.values()] == [
        *("Slurm cannot be read: it hangs", None),
        *("Slurm cannot be read: it hangs",) * 2,
    ]


def test_an_allocated_gpu_is_not_free_and_shows_its_job() -> None:
    site = Site(SchedulerNode(("n1",), 4, {1: ANN, 3: HIDDEN}))
    site.report("n1", four())
    site.play()
    assert site.states() == ["free", "allocated", "free", "allocated"]
    host = site.hub.fleet.find("n1")
    assert host is not None
    assert [gpu.allocation for gpu in host.view().gpus] == [None, ANN, None, HIDDEN]
    totals = site.hub.fleet.totals()
    assert (totals.free, totals.allocated, totals.gpus) == (2, 2, 4)


def test_gpus_of_an_old_reading_are_outdated_until_it_is_read_again() -> None:
    site = Site(SchedulerNode(("n1",), 4, {1: ANN}))
    site.report("n1", four())
    site.report("other", four("other"))
    wanted = {"GPU-n1-0", "GPU-other-0"}

    async def run() -> None:
        site.scheduler.pause = 3600.0
        await site.service.open()
        site.service.start()
        try:
            await site.read_again(1)
            assert site.service.find_outdated(wanted) == set()
            site.monotonic.advance(RECENT_SECONDS + 1)
            site.scheduler.set(SchedulerNode(("n1",), 4, {0: ANN}))
            # It is read again, although the pause is not over.
            assert site.service.find_outdated(wanted) == {"GPU-n1-0"}
            await site.read_again(1)
            assert site.service.find_outdated(wanted) == set()
        finally:
            await site.service.close()

    asyncio.run(run())
    assert site.states()[:2] == ["allocated", "free"]


def test_one_that_is_in_use_stays_busy_and_shows_its_job() -> None:
    site = Site(SchedulerNode(("n1",), 2, {0: ANN}))
    site.report("n1", [make_busy_gpu(0, uuid="GPU-0"), make_gpu(1, uuid="GPU-1")])
    site.play()
    host = site.hub.fleet.find("n1")
    assert host is not None
    assert site.states() == ["busy", "free"]
    assert host.view().gpus[0].allocation == ANN


def test_a_gpu_is_free_again_with_the_next_reading() -> None:
    site = Site(SchedulerNode(("n1",), 4, {1: ANN}))
    site.report("n1", four())
    site.play(lambda: site.scheduler.set(SchedulerNode(("n1",), 4)))
    assert site.states() == ["free"] * 4


def test_slurms_order_is_the_hosts_own_where_it_says_so() -> None:
    site = Site(SchedulerNode(("n1",), 4, {0: ANN}))
    gpus = [make_gpu(index, uuid=f"GPU-{index}", pci_address=f"00000000:{index + 1}0:00.0") for index in range(4)]
    site.report("n1", gpus, slurm_gpus=["0000:30:00.0", "0000:10:00.0", "0000:20:00.0", "0000:40:00.0"])
    site.play()
    assert site.states() == ["free", "free", "allocated", "free"]


def test_without_that_and_with_another_number_of_gpus_none_is_called_free() -> None:
    site = Site(SchedulerNode(("n1",), 4, {0: ANN}))
    site.report("n1", four()[:3])
    site.play()
    assert site.states() == ["unknown"] * 3
    assert site.reasons()[0] == "1 of the 4 GPUs that its scheduler counts are allocated; 3 are seen here"


def test_mig_instances_of_an_allocated_board_are_allocated() -> None:
    site = Site(SchedulerNode(("n1",), 2, {0: ANN}))
    slices = [make_gpu(0, uuid=f"MIG-{number}", parent="GPU-0", instance=number) for number in range(2)]
    site.report("n1", [*slices, make_gpu(1, uuid="GPU-1")])
    site.play()
    assert site.states() == ["allocated", "allocated", "free"]


def test_empty_gpus_of_a_closed_node_are_drained_with_its_reason() -> None:
    site = Site(SchedulerNode(("n1",), 4, {0: ANN}, closed="drained in Slurm: xid 79"))
    site.report("n1", four())
    site.play()
    assert site.states() == ["allocated", "drained", "drained", "drained"]
    assert site.reasons()[1] == "drained in Slurm: xid 79"


def test_a_scheduler_that_cannot_be_read_makes_empty_gpus_of_its_hosts_unknown() -> None:
    site = Site(SchedulerNode(("n1",), 4, {1: ANN}))
    site.report("n1", [*four()[:3], make_busy_gpu(3, uuid="GPU-n1-3")])
    site.report("other", four("other"))

    def fail() -> None:
        site.scheduler.answer = Temporary("squeue did not answer within 20 s.")

    site.play(fail)
    assert site.states() == ["unknown", "unknown", "unknown", "busy"]
    assert site.states("other") == ["free"] * 4
    assert site.reasons()[0] == "Slurm (test) cannot be read: squeue did not answer within 20 s"
    assert site.hub.fleet.problems_of("schedulers") == [
        "Slurm (test) cannot be read: squeue did not answer within 20 s."
    ]


def test_one_that_was_never_read_may_have_any_host() -> None:
    site = Site()
    site.scheduler.answer = Temporary("no controller")
    site.report("n1", four())
    site.play()
    assert site.states() == ["unknown"] * 4


def test_after_a_restart_its_hosts_are_known(tmp_path: Path) -> None:
    site = Site(SchedulerNode(("n1",), 4, {1: ANN}), data_dir=tmp_path)
    site.report("n1", four())
    site.play(lambda: None)
    again = Site(data_dir=tmp_path)
    again.scheduler.answer = Temporary("no controller")
    again.report("n1", four())
    again.report("other", four("other"))
    again.play()
    assert again.states() == ["unknown"] * 4
    assert again.states("other") == ["free"] * 4


def test_nodes_are_found_by_their_names_in_any_case_with_and_without_a_domain() -> None:
    site = Site(SchedulerNode(("GPU01", "10.0.0.1"), 4, {0: ANN}), SchedulerNode(("node7", "gpu02"), 4, {0: ANN}))
    site.report("gpu01.cluster.example", four("a"))
    site.report("gpu02", four("b"))
    site.play()
    assert site.states("gpu01.cluster.example")[0] == "allocated"
    assert site.states("gpu02")[0] == "allocated"


def test_a_host_that_joins_later_is_joined_too() -> None:
    site = Site(SchedulerNode(("n1",), 4, {0: ANN}))

    def join() -> None:
        site.report("n1", four())
        site.service.on_second()

    site.play(join)
    assert site.states() == ["allocated", "free", "free", "free"]


def test_reservations_have_the_gpus_of_their_nodes_and_stay_while_the_scheduler_cannot_be_read() -> None:
    site = Site()
    now = site.clock()
    site.scheduler.reservations = (
        NodeReservation("paper", ("n1", "elsewhere"), now + 60, now + 3660, ("ann", "bob"), is_maintenance=False),
        NodeReservation("login", ("login1",), now, now + 60, ("root",), is_maintenance=False),
    )
    site.scheduler.set(SchedulerNode(("n1",), 4))
    site.report("n1", four())

    def fail() -> None:
        site.scheduler.answer = Temporary("no controller")

    site.play(fail)
    (found,) = site.service.reservations
    assert (found.name, found.scheduler, found.user) == ("paper", "test", "ann, bob")
    assert [gpu.uuid for gpu in found.gpus] == [f"GPU-n1-{index}" for index in range(4)]
    assert found.title == "reservation paper of test"


def test_a_maintenance_reservation_closes_its_nodes_while_it_counts() -> None:
    site = Site()
    now = site.clock()
    upkeep = NodeReservation("upkeep", ("n1",), now + 60, now + 120, ("root",), is_maintenance=True, note="upkeep")
    site.scheduler.reservations = (upkeep,)
    site.scheduler.set(SchedulerNode(("n1",), 4))
    site.report("n1", four())
    seen = []

    def look() -> None:
        seen.append((site.states()[0], site.reasons()[0]))
        site.clock.advance(60)

    site.play(look, look, look, look)
    assert seen[:3] == [("free", None), ("drained", "upkeep"), ("free", None)]


def test_instances_that_slurm_counts_one_by_one_are_allocated_one_by_one() -> None:
    site = Site(SchedulerNode(("n1",), 3, {1: ANN}))
    slices = [make_gpu(0, uuid=f"MIG-{number}", parent="GPU-0", instance=number) for number in range(2)]
    whole = make_gpu(1, uuid="GPU-1", pci_address="00000000:10:00.0")
    site.report("n1", [*slices, whole], slurm_gpus=["MIG-0", "MIG-1", "0000:10:00.0"])
    site.play()
    assert site.states() == ["free", "allocated", "free"]


def test_a_process_has_the_job_that_users_know_and_one_of_another_job_is_pointed_out() -> None:
    site = Site()
    now = site.clock()
    task = replace(ANN, job="4_0", number="7", since=now - 120)
    late = replace(task, since=now - 1)
    site.scheduler.set(SchedulerNode(("n1",), 4, {0: task, 1: task, 2: late, 3: task}))
    processes = [
        make_process(pid=41, job="7", started_at=now - 100),
        make_process(pid=42, job="6", started_at=now - 100),
        make_process(pid=43, job="6", started_at=now - 100),
        make_process(pid=44, user="bob", job=None, started_at=now - 100),
    ]
    site.report("n1", [make_gpu(at, uuid=f"GPU-n1-{at}", processes=[process]) for at, process in enumerate(processes)])
    site.play()
    host = site.hub.fleet.find("n1")
    assert host is not None
    gpus = host.view().gpus
    assert [gpu.processes[0].job for gpu in gpus if gpu.processes] == ["4_0", "6", "6", None]
    conflicts = [gpu.allocation.conflict for gpu in gpus if gpu.allocation is not None]
    assert conflicts == [None, "process 42 of job 6 is on it", None, "process 44 of bob is on it"]
    assert all(task.is_of(None, user) for user in ("ann", "root", "1007", None))
    assert "process 42 of job 6 is on it" in gpu_note(gpus[1], now)
