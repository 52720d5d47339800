"""What agents say of Kubernetes' pods, in the fleet: allocated, shared, unknown, next to Slurm, now and in the past."""

from typing import Any

import msgspec

from fakes.clock import FakeClock
from fakes.reports import HOST, make_busy_gpu, make_envelope, make_gpu
from gpudeck.fleet.hub import Hub
from gpudeck.model.allocation import Allocation, SchedulerMark
from gpudeck.model.report import GpuReading, PodGpus, Report
from gpudeck.model.view import Gpu
from gpudeck.views.text import allocation_note
from gpudeck.wire import ShortReport, describe, pack_numbers

TRAIN = PodGpus(
    ["GPU-1"], "ml", "train-0", "trainer", owner="Job/train", user="ann", labels={"team": "a"}, since=1_789_999_000.0
)
UNREAD = "the kubelet cannot be read: no such file or directory"


class Node:
    """A hub with one host."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.hub = Hub(now=self.clock)
        self.sequence = 0

    def report(self, gpus: list[GpuReading] | None = None, **others: Any) -> list[Gpu]:
        self.sequence += 1
        report = Report(gpus=four() if gpus is None else gpus, metrics=dict(HOST), **others)
        envelope = make_envelope(
            "n1", self.sequence, report=report, collected_at=self.clock(), description=describe(report)
        )
        self.hub.fleet.apply(envelope, via="push", now=self.clock())
        return self.gpus()

    def gpus(self) -> list[Gpu]:
        found = self.hub.fleet.find("n1")
        assert found is not None
        self.hub.fleet.settle()
        return found.view().gpus


def four() -> list[GpuReading]:
    return [make_gpu(index, uuid=f"GPU-{index}") for index in range(4)]


def states(gpus: list[Gpu]) -> list[str]:
    return [gpu.availability for gpu in gpus]


def test_a_gpu_of_a_pod_is_allocated_with_its_very_report() -> None:
    node = Node()
    gpus = node.report(pods=[TRAIN])
    assert states(gpus) == ["free", "allocated", "free", "free"]
    assert gpus[1].allocation == Allocation(
        "kubernetes",
        "ml/train-0",
        user="ann",
        since=1_789_999_000.0,
        namespace="ml",
        pod="train-0",
        container="trainer",
        owner="Job/train",
        labels={"team": "a"},
    )
    totals = node.hub.fleet.totals()
    assert (totals.free, totals.allocated) == (3, 1)
    assert states(node.report()) == ["free"] * 4


def test_empty_gpus_of_a_cordoned_node_are_drained() -> None:
    node = Node()
    gpus = node.report([*four()[:2], make_busy_gpu(2, uuid="GPU-2")], pods=[TRAIN], closed="cordoned in Kubernetes")
    assert states(gpus) == ["drained", "allocated", "busy"]
    assert gpus[0].availability_reason == "cordoned in Kubernetes"
    assert states(node.report(pods=[TRAIN])) == ["free", "allocated", "free", "free"]


def test_one_that_is_in_use_stays_busy_and_shows_its_pod() -> None:
    gpus = Node().report([make_gpu(0, uuid="GPU-0"), make_busy_gpu(1, uuid="GPU-1")], pods=[TRAIN])
    assert states(gpus) == ["free", "busy"]
    assert gpus[1].allocation is not None


def test_a_short_report_leaves_it_as_it_is() -> None:
    node = Node()
    report = Report(gpus=four(), metrics=dict(HOST), pods=[TRAIN], allocation_unknown={"GPU-2": UNREAD})
    node.report(pods=report.pods, allocation_unknown=report.allocation_unknown)
    numbers = pack_numbers(report)
    assert numbers is not None
    whole = make_envelope("n1", 2, report=report, collected_at=node.clock())
    head = {name: getattr(whole, name) for name in ShortReport.__struct_fields__ if hasattr(whole, name)}
    short = ShortReport(**head | {"version": 2, "description": describe(report), "numbers": numbers})
    node.hub.fleet.apply(short, via="push", now=node.clock())
    assert states(node.gpus()) == ["free", "allocated", "unknown", "free"]


def test_of_several_pods_on_a_gpu_the_oldest_is_shown_and_the_others_are_counted() -> None:
    pods = [
        PodGpus(["GPU-0"], "ml", "b", since=2.0),
        PodGpus(["GPU-0"], "ml", "a", "x", since=1.0),
        PodGpus(["GPU-0"], "ml", "a", "y", since=1.0),
        PodGpus(["GPU-0"], "ml", "c"),
    ]
    allocation = Node().report(pods=pods)[0].allocation
    assert allocation is not None
    assert (allocation.job, allocation.container, allocation.shared_with) == ("ml/a", "x", ["ml/b", "ml/c"])
    assert allocation_note(allocation) == "pod ml/a and 2 more"


def test_where_the_kubelet_cannot_be_read_empty_gpus_are_unknown() -> None:
    gpus = Node().report(
        [*four()[:3], make_busy_gpu(3, uuid="GPU-3")], allocation_unknown=dict.fromkeys(("GPU-0", "GPU-3"), UNREAD)
    )
    assert states(gpus) == ["unknown", "free", "free", "busy"]
    assert gpus[0].availability_reason == UNREAD


def test_next_to_slurm_each_counts() -> None:
    node = Node()
    node.hub.fleet.allocate(
        {
            "GPU-0": SchedulerMark(Allocation("slurm", "7")),
            "GPU-1": SchedulerMark(unknown="Slurm has not been read yet"),
            "GPU-2": SchedulerMark(closed="drained in Slurm"),
        },
        node.clock(),
    )
    gpus = node.report(pods=[TRAIN], allocation_unknown={"GPU-3": UNREAD})
    assert states(gpus) == ["allocated", "allocated", "drained", "unknown"]
    node.hub.fleet.allocate({}, node.clock())
    assert states(node.gpus()) == ["free", "allocated", "free", "unknown"]


def test_what_is_not_of_a_pod_is_left_out_of_json() -> None:
    (allocation,) = [gpu.allocation for gpu in Node().report(pods=[PodGpus(["GPU-0"], "ml", "a")]) if gpu.allocation]
    shown = {"scheduler": "kubernetes", "job": "ml/a", "namespace": "ml", "pod": "a"}
    assert msgspec.to_builtins(allocation) == shown


def test_gpus_that_a_host_does_not_have_are_nobodys() -> None:
    gpus = Node().report(pods=[PodGpus(["GPU-9"], "ml", "a")], allocation_unknown={"GPU-8": UNREAD})
    assert states(gpus) == ["free"] * 4
