"""Asks NVML what it is, and prints that as JSON. Run in a process of its own: any call may hang in a sick driver."""

import json
import subprocess
import sys
from typing import Any

from msgspec import Struct, convert

SECONDS = 15.0


class ProbedGpu(Struct, frozen=True):
    """`problem` is why it cannot be read; `is_persistent` None where the driver does not tell."""

    index: int
    name: str = ""
    problem: str | None = None
    is_persistent: bool | None = None


class Probed(Struct, frozen=True):
    """`trouble` is why NVML cannot be used at all, with NVML's number of it; None: it can."""

    trouble: str | None = None
    code: int | None = None
    library: str = ""
    driver: str = ""
    gpus: list[ProbedGpu] = []


def probe_nvml(seconds: float = SECONDS) -> Probed:
    """What NVML says within that time."""
    command = [sys.executable, "-m", "gpudeck.ops.doctor.probe"]
    try:
        run = subprocess.run(command, capture_output=True, timeout=seconds, check=False)  # noqa: S603 - ourselves
    except subprocess.TimeoutExpired:
        return Probed(trouble=f"it has not answered within {seconds:g} s")
    if run.returncode:
        return Probed(trouble=f"it ended the process that asked ({run.returncode})")
    return convert(json.loads(run.stdout), Probed)


def main() -> None:
    import pynvml  # noqa: PLC0415 - whoever only reads the answer needs none

    sys.stdout.write(json.dumps(_ask(pynvml)))


def _ask(nvml: Any) -> dict[str, Any]:
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return {"trouble": str(error), "code": error.value}
    gpus = [_ask_gpu(nvml, index) for index in range(nvml.nvmlDeviceGetCount())]
    return {
        "library": _read(nvml, "nvmlSystemGetNVMLVersion"),
        "driver": _read(nvml, "nvmlSystemGetDriverVersion"),
        "gpus": gpus,
    }


def _ask_gpu(nvml: Any, index: int) -> dict[str, Any]:
    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        name = nvml.nvmlDeviceGetName(handle)
    except nvml.NVMLError as error:
        return {"index": index, "problem": str(error)}
    found = {"index": index, "name": name if isinstance(name, str) else name.decode("utf-8", "replace")}
    try:
        return found | {"is_persistent": bool(nvml.nvmlDeviceGetPersistenceMode(handle))}
    except nvml.NVMLError:
        return found


def _read(nvml: Any, name: str) -> str:
    try:
        told = getattr(nvml, name)()
    except nvml.NVMLError:
        return ""
    return told if isinstance(told, str) else str(told.decode("utf-8", "replace"))


if __name__ == "__main__":
    main()
