"""The NVML collector of this process, over the real pynvml and a fake driver."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from fakes.nvml.driver import FakeDriver, FakeGpu, Value, load_here, values_of_an_h200
from gpudeck.collectors.nvml import NvmlCollector, SleepWatch
from gpudeck.collectors.owners import ProcessOwner
from gpudeck.collectors.xids import KernelLog, XidWatch
from gpudeck.model.report import GpuReading, Process, Report


class FakeOwners:
    """Every pid belongs to alice, in her container and her job; `names` gives programs their names."""

    def __init__(self, names: dict[int, str]) -> None:
        self.names = names

    def find(self, pids: Iterable[int], now: float) -> dict[int, ProcessOwner]:
        return {pid: self._make(self.names.get(pid, "python3")) for pid in pids}

    @staticmethod
    def _make(name: str) -> ProcessOwner:
        return ProcessOwner(
            name, user="alice", command="train", started_at=7.0, evidence="uid 1000", container="trainer", job="42"
        )


class Station:
    """`driver` is what a test changes, `collector` what it looks at.

    `log` is the kernel's log and `root` where /sys and /proc are: they are not there unless a test writes them.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        load_here()
        self.driver = FakeDriver(folder)
        self.log, self.root = folder / "kmsg", folder / "root"
        for name, value in self.driver.environment.items():
            monkeypatch.setenv(name, value)
        self.collector = self.collect_anew()

    def collect_anew(self, names: dict[int, str] | None = None, **options: Any) -> NvmlCollector:
        """A fresh collector, as an agent that was just started."""
        options = {"xids": XidWatch(KernelLog(str(self.log))), "sleep": SleepWatch(str(self.root))} | options
        self.collector = NvmlCollector(owners=FakeOwners(names or {}), **options)  # type: ignore[arg-type]
        return self.collector

    def put_in(self, *gpus: FakeGpu) -> None:
        """These are the GPUs from now on."""
        self.driver.gpus = list(gpus)
        self.driver.apply()

    def report(self, now: float = 0.0) -> Report:
        return self.collector.collect(now)

    def read(self, now: float = 0.0) -> dict[str, GpuReading]:
        """All rows by UUID."""
        return {gpu.uuid: gpu for gpu in self.report(now).gpus or ()}

    def read_one(self, gpu: FakeGpu) -> GpuReading:
        """The row of a machine with this GPU alone."""
        self.put_in(gpu)
        return self.read()[gpu.uuid]

    def calls_during(self, now: float) -> list[str]:
        """Which functions of the library a reading calls."""
        self.driver.forget_calls()
        self.report(now)
        return self.driver.calls


def an_h200(uuid: str = "GPU-a", *, without: Iterable[str] = (), **values: Value) -> FakeGpu:
    """A board with these values changed; those in `without` it does not support."""
    changed = values_of_an_h200() | values
    return FakeGpu(uuid, values={name: value for name, value in changed.items() if name not in without})


def processes_of(gpu: GpuReading) -> dict[int, Process]:
    """Fails where the list is unknown."""
    assert gpu.processes is not None
    return {process.pid: process for process in gpu.processes}
