"""The fake NVIDIA driver is a driver to others too: gpustat and nvitop, unchanged, say of it what we do."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fakes.nvml.driver import GIB, NO_COMPILER, FakeDriver, FakeGpu, find_compiler
from gpudeck.collectors.child import ChildCollector
from gpudeck.model.report import GpuReading

pytestmark = pytest.mark.skipif(find_compiler() is None, reason=NO_COMPILER)

OTHERS = Path(__file__).parent.parent.parent / "bench" / "out" / "others" / "bin"
WHERE = os.pathsep.join([os.environ.get("PATH", os.defpath), str(OTHERS)])


def need(program: str) -> str:
    """Its path; the test is skipped where it is not installed."""
    found = shutil.which(program, path=WHERE)
    return found or pytest.skip(f"needs {program}: `python -m bench agent_cost` installs it, and so does pip")


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Two GPUs: one with this very process on it, one that tells no power."""
    gpus = [
        FakeGpu("GPU-a", compute=[(os.getpid(), 3 * GIB)]),
        FakeGpu(
            "GPU-b", name="NVIDIA L4", pci="00000000:19:00.0", failures={"nvmlDeviceGetPowerUsage": "not_supported"}
        ),
    ]
    found = FakeDriver(tmp_path, gpus).environment
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    return os.environ | found | {"TERM": "dumb", "COLUMNS": "120"}


def read_ourselves() -> list[GpuReading]:
    collector = ChildCollector("nvml", deadline=30.0)
    try:
        return collector.collect(1700000000.0).gpus or []
    finally:
        collector.close()


def run(program: str, option: str, environment: dict[str, str]) -> str:
    command = [need(program), option]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_gpustat_reads_the_same_figures_and_processes(environment: dict[str, str]) -> None:
    theirs = json.loads(run("gpustat", "--json", environment))["gpus"]
    ours = read_ourselves()
    assert [(gpu["uuid"], gpu["name"], gpu["temperature.gpu"], gpu["memory.used"] * 2**20) for gpu in theirs] == [
        (gpu.uuid, gpu.name, gpu.metrics["temperature_celsius"], gpu.metrics["memory_used_bytes"]) for gpu in ours
    ]
    assert [[(p["pid"], p["gpu_memory_usage"] * 2**20) for p in gpu["processes"]] for gpu in theirs] == [
        [(p.pid, p.memory_used_bytes) for p in gpu.processes or ()] for gpu in ours
    ]
    assert (theirs[1]["power.draw"], ours[1].metrics.get("power_watts")) == (None, None)


def test_nvitop_shows_the_same_gpus(environment: dict[str, str]) -> None:
    shown = run("nvitop", "-1", environment)
    assert [gpu.pci_address for gpu in read_ourselves() if f"0000{gpu.pci_address}" in shown] == [
        "0000:18:00.0",
        "0000:19:00.0",
    ]
    assert "Driver Version: 580.159.04" in shown
    assert str(os.getpid()) in shown
