"""A fake NVIDIA driver: a libnvidia-ml.so.1 in C that says what a scenario file says, loaded by the unchanged pynvml.

    driver = FakeDriver(folder, [FakeGpu("GPU-a"), FakeGpu("GPU-b", name="NVIDIA L4")])
    environment = os.environ | driver.environment    # for a child process; or, in this process, load_here()
    driver.gpus[0].failures["*"] = "lost"
    driver.apply()                                    # what was opened before sees it with the next call

The scenario file is plain text, a word and its arguments on each line. Lines before the first `gpu` are about the whole
driver, the others about the device named last:

    driver 580.159.04              its version
    gpu GPU-a                      a board; `instance 2 MIG-c` is a MIG instance of it, in slot 2
    name NVIDIA H200               `pci 00000000:18:00.0` likewise
    process compute 4242 max       or graphics; bytes, `max` is 2^64-1
    sample 4242 1700000000 35      what the process did: time in microseconds, percent
    xid 1 79                       a fault, numbered upwards, that an event tells of: once, to those who listen already
    fail nvmlDeviceGetFanSpeed hang    any function, `*` for all, `values` for all but finding and naming the device;
                                   the words are in CODES of scenario.c
    utilization 90 80 70           any value: each call takes the next, then from the front; max is 2^32-1 or 2^64-1.
                                   A value that is not there is Not Supported. The names are in FakeGpu.values.
"""

import atexit
import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
GIB = 1024**3
MAX = "max"
"""2^64-1, or 2^32-1 where the call gives 32 bits: NVML's "not available"."""
NO_COMPILER = "needs a C compiler (cc or gcc) for the fake NVML library"

Value = int | str | list[int]


def find_compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


@functools.cache
def build_library() -> Path:
    """The folder with libnvidia-ml.so.1 in it, compiled once for this process and removed at its end."""
    folder = Path(tempfile.mkdtemp(prefix="gpudeck-fake-nvml-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    # Found by this name once it is loaded, wherever it lies: see load_here().
    name = "libnvidia-ml.so.1"
    sources = [str(HERE / "library.c"), str(HERE / "scenario.c")]
    command = [find_compiler() or "cc", "-std=c11", "-O1", "-shared", "-fPIC", f"-Wl,-soname,{name}"]
    subprocess.run([*command, "-o", str(folder / name), *sources], check=True)
    return folder


def load_here() -> None:
    """Makes pynvml of this very process find the fake library: a name that is already loaded is not looked for."""
    ctypes.CDLL(str(build_library() / "libnvidia-ml.so.1"), mode=ctypes.RTLD_GLOBAL)


GPM = {
    1: 99_900,
    2: 95_700,
    3: 31_200,
    5: 92_900,
    10: 16_000,
    11: 0,
    12: 2_400,
    13: 600,
    20: 320_000,
    21: 1_250_000,
    60: 40_000_000,
    61: 39_000_000,
}
"""In thousandths of a percent or of a MiB/s, by the id of the metric: what an H200 says of a bf16 matrix product."""


def values_of_an_h200() -> dict[str, Value]:
    """Power in mW, energy in mJ, PCIe in KB/s, GPM as above; an H200 has no fan. Errors of NVLink 3 alone are in
    "nvlink_replays_3"."""
    return {
        "utilization": 90,
        "memory_utilization": 31,
        "memory_total": 140 * GIB,
        "memory_used": 20 * GIB,
        "memory_reserved": GIB // 2,
        "temperature": 53,
        "memory_temperature": 61,
        "power": 529_040,
        "power_limit": 700_000,
        "clock_sm": 1980,
        "clock_memory": 3201,
        "encoder": 7,
        "decoder": 3,
        "performance_state": 0,
        "clock_reasons": 0,
        "ecc_corrected": 2,
        "ecc_uncorrected": 0,
        "remapped_corrected": 1,
        "remapped_uncorrected": 2,
        "remapped_pending": 0,
        "nvlinks": 18,
        "nvlinks_up": 0b11_1111_1111_1111_1111,
        "nvlink_replays": 0,
        "nvlink_recoveries": 0,
        "pcie_generation": 5,
        "pcie_generation_max": 5,
        "pcie_width": 16,
        "pcie_width_max": 16,
        "temperature_margin": 34,
        "energy": 7_654_321_900,
        "pcie_receive": 1_250_000,
        "pcie_transmit": 320_000,
        "gpm": 1,
        **{f"gpm_{number}": value for number, value in GPM.items()},
        "persistence_mode": 1,
        "compute_mode": 0,
    }


@dataclass
class FakeGpu:
    """A board or a MIG instance. A value that is not in `values` is Not Supported.

    `compute` and `graphics` are processes, as pids and bytes, `samples` what they did, as pid, microseconds, percent.
    `xids` are the codes of its faults so far: one that is appended happens with the next `apply`.
    `instances` are by slot: a board that has the dict, even an empty one, is in MIG mode.
    """

    uuid: str
    name: str = "NVIDIA H200"
    pci: str = "00000000:18:00.0"
    values: dict[str, Value] = field(default_factory=values_of_an_h200)
    compute: list[tuple[int, int | str]] = field(default_factory=list)
    graphics: list[tuple[int, int | str]] = field(default_factory=list)
    samples: list[tuple[int, int, int]] = field(default_factory=list)
    xids: list[int] = field(default_factory=list)
    instances: "dict[int, FakeGpu] | None" = None
    failures: dict[str, str] = field(default_factory=dict)

    def write(self) -> Iterator[str]:
        yield from (f"name {self.name}", f"pci {self.pci}")
        for name, value in self.values.items():
            yield f"{name} {' '.join(map(str, value if isinstance(value, list) else [value]))}"
        yield from (f"process compute {pid} {memory}" for pid, memory in self.compute)
        yield from (f"process graphics {pid} {memory}" for pid, memory in self.graphics)
        yield from (f"sample {pid} {time} {percent}" for pid, time, percent in self.samples)
        yield from (f"xid {number} {code}" for number, code in enumerate(self.xids, 1))
        yield from _write_failures(self.failures)
        if self.instances is not None:
            yield f"mig_slots {SLOTS}"
            for slot, instance in self.instances.items():
                yield from (f"instance {slot} {instance.uuid}", *instance.write())


SLOTS = 7


def make_instance(uuid: str, gpu_instance: int = 0, **values: Value) -> FakeGpu:
    """A MIG instance, which knows its memory and little else."""
    memory: dict[str, Value] = {"memory_total": 18 * GIB, "memory_used": 2 * GIB, "memory_reserved": 0}
    return FakeGpu(uuid, "NVIDIA H200 MIG 1g.18gb", values=memory | {"gpu_instance": gpu_instance} | values)


class FakeDriver:
    """A driver whose scenario lies in `folder`. `failures` are those of the whole driver; `apply` makes changes count.

    `calls` has the name of every function that was called since `forget_calls`.
    """

    def __init__(self, folder: Path, gpus: Iterable[FakeGpu] = (), version: str = "580.159.04") -> None:
        self.gpus = list(gpus)
        self.version = version
        self.failures: dict[str, str] = {}
        self._scenario = folder / "scenario.txt"
        self._calls = folder / "calls.txt"
        self.forget_calls()
        self.apply()

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs so that pynvml finds this driver; over that of `os.environ`."""
        return {
            "LD_LIBRARY_PATH": os.pathsep.join(filter(None, [str(build_library()), os.environ.get("LD_LIBRARY_PATH")])),
            "GPUDECK_FAKE_NVML": str(self._scenario),
            "GPUDECK_FAKE_NVML_CALLS": str(self._calls),
        }

    def apply(self) -> None:
        """Writes the scenario, in one step: a library in the middle of a call never sees half of it."""
        fresh = self._scenario.with_suffix(".new")
        # A name may hold any bytes: "\udcff" is the byte 0xff.
        fresh.write_text("".join(f"{line}\n" for line in self._write()), errors="surrogateescape")
        fresh.replace(self._scenario)

    @property
    def calls(self) -> list[str]:
        return self._calls.read_text().split()

    def forget_calls(self) -> None:
        self._calls.write_text("")

    def _write(self) -> Iterator[str]:
        yield f"driver {self.version}"
        yield from _write_failures(self.failures)
        for gpu in self.gpus:
            yield from (f"gpu {gpu.uuid}", *gpu.write())


def _write_failures(failures: dict[str, str]) -> Iterator[str]:
    yield from (f"fail {function} {word}" for function, word in failures.items())
