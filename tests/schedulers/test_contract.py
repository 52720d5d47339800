"""What every scheduler has to do, whatever its cluster answers: those that the hub reads, and Kubernetes, which agents
read from the kubelet. A new one adds a case to CASES."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest
from msgspec.structs import asdict

pytest.importorskip("grpc_tools", reason="grpcio-tools, for the tests with a kubelet, is not installed")

import grpc

from fakes.clock import FakeClock
from fakes.kubelet import MESSAGES, FakeKubelet, container, pod, serve_api, serve_kubelet
from fakes.reports import HOST, make_envelope, make_gpu
from fakes.waiting import until
from gpudeck.collectors.base import KubernetesSettings
from gpudeck.collectors.kubernetes import KEPT_SECONDS, PodWatch
from gpudeck.collectors.kubernetes_api import ApiServer
from gpudeck.fleet.hub import Hub
from gpudeck.model.allocation import KUBERNETES, mark_pods
from gpudeck.model.errors import PluginError, Temporary
from gpudeck.model.report import Report
from gpudeck.schedulers.base import Scheduler, SchedulerNode, SchedulerState
from gpudeck.schedulers.registry import SCHEDULERS
from gpudeck.schedulers.service import MISSED_READINGS, SchedulerService
from gpudeck.schedulers.slurm import Slurm, SlurmSettings

Condition = Literal["good", "hung", "failed", "cut", "empty", "localized", "absent"]
"""`good`: node n1 has four GPUs; a job of ann has the first, a job of a user without a name the second, one with
control characters in all of its names the third. The others cannot be read: `cut` ends in the middle, `localized` is a
sentence in another language."""
BAD: tuple[Condition, ...] = ("hung", "failed", "cut", "empty", "localized", "absent")
EVIL = "a\x1b[2J\x07\u202eb"
GPUS = [make_gpu(index, uuid=f"GPU-{index}0000000-1111-2222-3333-444444444444") for index in range(4)]


class Case(Protocol):
    """A cluster in a folder. `job` is the one of ann. `watch` applies what becomes of node n1 in a hub that reads it in
    one condition first, then in the other until that counts, and calls `look` again and again."""

    job: str
    conditions: tuple[Condition, ...]

    def __init__(self, folder: Path) -> None: ...

    def reader(self, condition: Condition) -> Scheduler: ...

    def watch(self, hub: Hub, first: Condition, then: Condition, look: Callable[[], object]) -> Awaitable[None]: ...

    def close(self) -> None: ...


_NODE = (
    "NodeName=n1 Gres=gpu:h100:4 GresUsed=gpu:h100:3(IDX:0-2) NodeAddr=n1 NodeHostName=n1 Sockets=2 CoresPerSocket=4 "
    "State=MIXED Partitions=gpu\n"
)
_QUEUE = (
    "7|7|ann|lab|gpu|normal|RUNNING|1790000000|1790003600|n1\n"
    "8|8|(null)|lab|gpu|normal|RUNNING|1790000000|Unknown|n1\n"
    f"9|9|{EVIL}|{EVIL}|{EVIL}|{EVIL}|RUNNING|1790000000|Unknown|n1\n"
)
_JOBS = "".join(
    f"JobId={number} JobName={name} UserId=x(1) ReqB:S:C:T=0:0:*:*   Nodes=n1 CPU_IDs=0 Mem=0 "
    f"GRES=gpu:h100:1(IDX:{index}) MinCPUsNode=1 \n"
    for number, name, index in ((7, "train", 0), (8, "eval", 1), (9, EVIL, 2))
)
_RESERVATIONS = f"ReservationName={EVIL} StartTime=1 EndTime=9 Nodes=n1 CoreCnt=8 Flags= TRES=cpu=8 Users={EVIL} \n"


def make_slurm(folder: Path, condition: Condition) -> Slurm:
    """Scripts in place of Slurm's commands. What real ones print is in test_slurm.py."""
    texts = {"node": _NODE, "job": _JOBS, "reservation": _RESERVATIONS, "queue": _QUEUE}
    for name, text in texts.items():
        (folder / name).write_text(text)
    shown = "".join(f"*{name}*) cat {folder}/{name};; " for name in ("node", "job", "reservation"))
    programs = {"scontrol": f'case "$*" in {shown} esac', "squeue": f"cat {folder}/queue"}
    if condition == "absent":
        return Slurm(SlurmSettings(command=[str(folder / "none")]))
    programs |= {
        "good": {},
        "hung": {"squeue": "exec sleep 600"},
        "failed": {"squeue": "echo 'slurm_load_jobs error' >&2; exit 1"},
        "cut": {"squeue": f"head -c 20 {folder}/queue"},
        "empty": {"scontrol": "exit 0", "squeue": "exit 0"},
        "localized": {"scontrol": "echo 'Keine Knoten gefunden'", "squeue": "echo 'Keine Aufträge'"},
    }[condition]
    for name, program in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{program}\n")
        (folder / name).chmod(0o755)
    return Slurm(
        SlurmSettings(command=["env", f"PATH={folder}:/usr/bin:/bin"], timeout=1.0 if condition == "hung" else 30.0)
    )


class SlurmCase:
    job = "7"
    conditions = BAD

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def reader(self, condition: Condition) -> Scheduler:
        folder = self._folder / condition
        folder.mkdir(exist_ok=True)
        return make_slurm(folder, condition)

    async def watch(self, hub: Hub, first: Condition, then: Condition, look: Callable[[], object]) -> None:
        apply(hub, Report(gpus=GPUS, metrics=dict(HOST)))
        scheduler = ChangingScheduler(self.reader(first), self.reader(then))
        service = SchedulerService(hub, [scheduler])
        await service.open()
        look()
        service.start()
        try:
            await until(lambda: look() and scheduler.readings > MISSED_READINGS + 2)
        finally:
            await service.close()

    def close(self) -> None:
        return


class KubernetesCase:
    """A gRPC server instead of the kubelet, and an HTTP server instead of the API server. A kubelet that lists no pods
    is right: there are none."""

    job = "ml/train"
    conditions = ("hung", "failed", "cut", "localized", "absent")

    def __init__(self, folder: Path) -> None:
        self.name, self.origin, self.pause = KUBERNETES, "Kubernetes", 0.0
        self._folder = folder
        (folder / "token").write_text("secret\n")
        self._servers = ExitStack()
        self._api = self._servers.enter_context(serve_api())
        labels = ({"labels": {"who": user}} for user in ("ann", "", EVIL))
        pods = [
            (f"ml/{name}", {"metadata": about}) for name, about in zip(("train", "eval", EVIL), labels, strict=True)
        ]
        self._api.pods.extend(pod(name, f"uid-{at}", **about) for at, (name, about) in enumerate(pods))
        devices = [{"nvidia.com/gpu": [gpu.uuid]} for gpu in GPUS]
        self._pods = [
            container(name, having, name="train") for (name, _), having in zip(pods, devices[:3], strict=True)
        ]
        self._kubelet: FakeKubelet | None = None

    def become(self, condition: Condition) -> None:
        path = self._folder / "kubelet.sock"
        if condition != "absent" and self._kubelet is None:
            self._kubelet = self._servers.enter_context(serve_kubelet(path))
        if self._kubelet is None:
            return
        kubelet, listed = self._kubelet, MESSAGES.ListPodResourcesResponse(pod_resources=self._pods)
        kubelet.pods = self._pods
        kubelet.failure = (grpc.StatusCode.UNAVAILABLE, "not ready") if condition == "failed" else None
        raw = {"cut": listed.SerializeToString()[:-3], "localized": b"Keine Pods gefunden"}
        kubelet.raw = raw.get(condition)
        if condition == "hung":
            kubelet.gate.clear()

    def open(self, clock: FakeClock | None = None) -> PodWatch:
        def make_api(user_label: str | None) -> ApiServer:
            return ApiServer(self._api.address, "n1", self._folder, user_label)

        settings = KubernetesSettings(socket=str(self._folder / "kubelet.sock"), user_label="who")
        return PodWatch(settings, api=make_api, pause=0.01, **({"clock": clock} if clock else {}))

    def reader(self, condition: Condition) -> Scheduler:
        self.become(condition)
        return self

    async def read(self) -> SchedulerState:
        """What an agent reports, as a scheduler would say it."""
        with closing(self.open()) as watch:

            def look() -> Report | None:
                report = watch.add_to(Report(gpus=GPUS))
                return None if report.problems == ["The kubelet has not been read yet."] else report

            report = await until(lambda: asyncio.to_thread(look))
        assert report is not None
        if report.allocation_unknown:
            raise Temporary(next(iter(report.allocation_unknown.values())))
        marks = mark_pods(report)
        found = {at: mark.allocation for at, gpu in enumerate(GPUS) if (mark := marks.get(gpu.uuid))}
        gpus = {at: allocation for at, allocation in found.items() if allocation is not None}
        return SchedulerState({"n1": SchedulerNode(("n1",), len(GPUS), gpus)})

    async def watch(self, hub: Hub, first: Condition, then: Condition, look: Callable[[], object]) -> None:
        self.become(first)
        clock, sequence = FakeClock(), 0
        with closing(self.open(clock)) as watch:

            async def read() -> Report:
                nonlocal sequence
                sequence += 1
                report = await asyncio.to_thread(watch.add_to, Report(gpus=GPUS, metrics=dict(HOST)))
                apply(hub, report, sequence)
                look()
                return report

            await until(lambda: read_until(read, lambda report: bool(report.pods) == (first == "good")))
            self.become(then)
            calls = 0 if self._kubelet is None else self._kubelet.calls
            await until(lambda: self._kubelet is None or self._kubelet.calls > calls + 1)
            clock.advance(KEPT_SECONDS + 1)
            await until(lambda: read_until(read, lambda report: len(report.allocation_unknown) == 4))

    def close(self) -> None:
        self._servers.close()


async def read_until(read: Callable[[], Awaitable[Report]], is_done: Callable[[Report], bool]) -> bool:
    return is_done(await read())


def apply(hub: Hub, report: Report, sequence: int = 1) -> None:
    hub.fleet.apply(make_envelope("n1", sequence, report=report), via="push", now=1_790_000_000.0)


CASES: dict[str, type[Case]] = {"slurm": SlurmCase, KUBERNETES: KubernetesCase}


@pytest.fixture(params=sorted(CASES))
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    made = CASES[request.param](tmp_path)
    yield made
    made.close()


def test_every_scheduler_is_tested_here() -> None:
    # Those of plugins are tested with the example packages.
    assert CASES.keys() == (SCHEDULERS.keys() - {"plugins"}) | {KUBERNETES}


def test_allocated_gpus_have_their_jobs_and_users(case: Case) -> None:
    scheduler = case.reader("good")
    assert scheduler.name
    assert scheduler.origin
    node = asyncio.run(scheduler.read()).nodes["n1"]
    assert (node.names[0], node.count) == ("n1", 4)
    assert node.gpus.keys() == {0, 1, 2}
    assert (node.gpus[0].job, node.gpus[0].user, node.gpus[0].scheduler) == (case.job, "ann", scheduler.name)


def test_a_job_whose_user_is_unknown_has_none(case: Case) -> None:
    assert asyncio.run(case.reader("good").read()).nodes["n1"].gpus[1].user is None


def test_nothing_that_is_told_can_control_a_terminal(case: Case) -> None:
    texts = list(find_texts(asyncio.run(case.reader("good").read())))
    assert "train" in texts
    assert all(text.isprintable() for text in texts)


def find_texts(told: Any) -> Iterator[str]:
    if isinstance(told, str):
        yield told
    elif hasattr(told, "__struct_fields__"):
        yield from find_texts(asdict(told))
    elif isinstance(told, dict):
        yield from find_texts([*told, *told.values()])
    elif isinstance(told, list | tuple | set | frozenset):
        for one in told:
            yield from find_texts(one)


@pytest.mark.parametrize("condition", BAD)
def test_what_cannot_be_read_is_an_error_in_a_line(case: Case, condition: Condition) -> None:
    if condition not in case.conditions:
        return
    with pytest.raises(PluginError) as error:
        asyncio.run(case.reader(condition).read())
    assert error.value.message.isprintable()
    assert 0 < len(error.value.message) < 400


def test_a_reading_can_be_cancelled(case: Case) -> None:
    async def cancel() -> None:
        reading = asyncio.create_task(case.reader("hung").read())
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    asyncio.run(cancel())


class ChangingScheduler:
    """Reads one scheduler first, then another."""

    pause = 0.0

    def __init__(self, first: Scheduler, then: Scheduler) -> None:
        self.name, self.origin = first.name, first.origin
        self._first = [first]
        self._then = then
        self.readings = 0

    async def read(self) -> SchedulerState:
        self.readings += 1
        return await (self._first.pop() if self._first else self._then).read()


@pytest.mark.parametrize("condition", ["failed", "cut", "empty", "localized"])
@pytest.mark.parametrize("was_read", [True, False])
def test_what_cannot_be_read_makes_empty_gpus_unknown_and_never_free(
    case: Case, condition: Condition, was_read: bool
) -> None:
    if condition not in case.conditions:
        return
    hub = Hub()
    seen: list[list[str]] = []

    def look() -> list[str]:
        hub.fleet.settle()
        host = hub.fleet.find("n1")
        assert host is not None
        seen.append([gpu.availability for gpu in host.view().gpus])
        return seen[-1]

    async def play() -> None:
        await case.watch(hub, "good" if was_read else condition, condition, look)

    asyncio.run(play())
    assert look() == ["unknown"] * 4
    read = [states for states in seen if "allocated" in states]
    # What was allocated stays so for some readings; what was empty may have been given away since.
    assert all(states[:3] == ["allocated"] * 3 and states[3] in {"free", "unknown"} for states in read)
    assert bool(read) == was_read
