"""What every scheduler has to do, whatever its cluster answers. A new one adds a case to CASES."""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec.structs import asdict

from fakes.reports import HOST, make_envelope, make_gpu
from fakes.waiting import until
from gpudeck.fleet.hub import Hub
from gpudeck.model.errors import PluginError
from gpudeck.model.report import Report
from gpudeck.schedulers.base import Scheduler, SchedulerState
from gpudeck.schedulers.registry import SCHEDULERS
from gpudeck.schedulers.service import MISSED_READINGS, SchedulerService
from gpudeck.schedulers.slurm import Slurm, SlurmSettings

Condition = Literal["good", "hung", "failed", "cut", "empty", "localized", "absent"]
"""`good`: node n1 has four GPUs; job 7 of ann has the first, a job of a user without a name the second, one with
control characters in all of its names the third. The others cannot be read: `cut` ends in the middle, `localized` is a
sentence in another language."""
BAD: tuple[Condition, ...] = ("hung", "failed", "cut", "empty", "localized", "absent")
Case = Callable[[Path, Condition], Scheduler]
EVIL = "a\x1b[2J\x07\u202eb"

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
    f"JobId={number} JobName={name} UserId=x(1) GroupId=x(1)   Nodes=n1 CPU_IDs=0 Mem=0 GRES=gpu:h100:1(IDX:{index}) \n"
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


CASES: dict[str, Case] = {"slurm": make_slurm}


@pytest.fixture(params=sorted(CASES))
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Condition], Scheduler]:
    case = CASES[request.param]

    def make_in_folder(condition: Condition) -> Scheduler:
        folder = tmp_path / condition
        folder.mkdir()
        return case(folder, condition)

    return make_in_folder


def test_every_scheduler_is_tested_here() -> None:
    assert CASES.keys() == SCHEDULERS.keys()


def test_allocated_gpus_have_their_jobs_and_users(make: Callable[[Condition], Scheduler]) -> None:
    scheduler = make("good")
    assert scheduler.name
    assert scheduler.origin
    node = asyncio.run(scheduler.read()).nodes["n1"]
    assert (node.names[0], node.count) == ("n1", 4)
    assert node.gpus.keys() == {0, 1, 2}
    assert (node.gpus[0].job, node.gpus[0].user, node.gpus[0].scheduler) == ("7", "ann", scheduler.name)


def test_a_job_whose_user_is_unknown_has_none(make: Callable[[Condition], Scheduler]) -> None:
    assert asyncio.run(make("good").read()).nodes["n1"].gpus[1].user is None


def test_nothing_that_is_told_can_control_a_terminal(make: Callable[[Condition], Scheduler]) -> None:
    texts = list(find_texts(asyncio.run(make("good").read())))
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
def test_what_cannot_be_read_is_an_error_in_a_line(
    make: Callable[[Condition], Scheduler], condition: Condition
) -> None:
    with pytest.raises(PluginError) as error:
        asyncio.run(make(condition).read())
    assert error.value.message.isprintable()
    assert 0 < len(error.value.message) < 400


def test_a_reading_can_be_cancelled(make: Callable[[Condition], Scheduler]) -> None:
    async def cancel() -> None:
        reading = asyncio.create_task(make("hung").read())
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
    make: Callable[[Condition], Scheduler], condition: Condition, was_read: bool
) -> None:
    hub = Hub()
    gpus = [make_gpu(index, uuid=f"GPU-{index}") for index in range(4)]
    hub.fleet.apply(make_envelope("n1", report=Report(gpus=gpus, metrics=dict(HOST))), via="push", now=1_790_000_000.0)
    bad = make(condition)
    scheduler = ChangingScheduler(make("good") if was_read else bad, bad)
    service = SchedulerService(hub, [scheduler])
    seen: list[list[str]] = []

    def look() -> list[str]:
        hub.fleet.settle()
        host = hub.fleet.find("n1")
        assert host is not None
        seen.append([gpu.availability for gpu in host.view().gpus])
        return seen[-1]

    async def play() -> None:
        await service.open()
        look()
        service.start()
        try:
            await until(lambda: look() and scheduler.readings > MISSED_READINGS + 2)
        finally:
            await service.close()

    asyncio.run(play())
    assert look() == ["unknown"] * 4
    read = [states for states in seen if "unknown" not in states]
    assert all(states == ["allocated"] * 3 + ["free"] for states in read)
    assert bool(read) == was_read
