"""Maps Slurm's GPU indexes to the GPUs of this node. Slurm counts the device files of its gres.conf, whose order
differs from NVML's on some machines: `slurmd -G` prints it, and the kernel knows the PCI address of each file."""

import contextlib
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from gpudeck.child_process import ChildFailed, run
from gpudeck.collectors.base import is_due
from gpudeck.model.report import Report

_AGAIN_SECONDS = 600.0
_TIMEOUT_SECONDS = 5.0
_SYSTEM_PATH = "/usr/sbin:/usr/local/sbin:/opt/slurm/sbin:/usr/bin:/usr/local/bin"
_GPUS = re.compile(r"Gres Name=gpu .*?Index=(\d+) .*?File=(\S+)(?:.*?UniqueId=(MIG-[\w/-]+))?")
_NUMBERED = re.compile(r"(.*?)(?:\[([\d,-]+)\])?", re.DOTALL)
_MINOR = re.compile(r"^Device Minor:\s*(\d+)", re.MULTILINE)
_MOST = 512


class SlurmCollector:
    """Reports `slurm_gpus` where slurmd is installed. `root` is where /proc and /sys are found."""

    name = "slurm"

    def __init__(self, root: Path = Path("/"), command: Sequence[str] | None = None) -> None:
        self._root = root
        self._command = command
        self._asked_at: float | None = None
        self._found: list[str] = []

    def collect(self, now: float) -> Report:
        if is_due(self._asked_at, _AGAIN_SECONDS, now):
            self._asked_at = now
            slurmd = shutil.which("slurmd") or shutil.which("slurmd", path=_SYSTEM_PATH)
            command = self._command or ([slurmd, "-G"] if slurmd else None)
            if command is not None:
                with contextlib.suppress(ChildFailed):
                    printed = run(command, seconds=_TIMEOUT_SECONDS, stderr=subprocess.STDOUT).output
                    self._found = find_addresses(parse_devices(printed.decode(errors="replace")), self._root)
        return Report(slurm_gpus=self._found)

    def close(self) -> None:
        return


def parse_devices(text: str) -> list[str]:
    """The device files in the order of Slurm's indexes, from what `slurmd -G` prints; of a MIG instance its UUID."""
    files: dict[int, str] = {}
    for index, path, instance in _GPUS.findall(text):
        named = [instance] if instance else _expand(path)
        files |= {int(index) + place: file for place, file in enumerate(named) if place < _MOST}
    return [files[index] for index in sorted(files)]


def _expand(path: str) -> list[str]:
    """`/dev/nvidia[0-3,5]` as single files."""
    match = _NUMBERED.fullmatch(path)
    if match is None or match[2] is None:
        return [path]
    numbers: list[int] = []
    for part in match[2].split(","):
        first, _, last = part.partition("-")
        numbers += range(int(first), min(int(last or first), int(first) + _MOST) + 1)
    return [f"{match[1]}{number}" for number in numbers]


def find_addresses(files: Sequence[str], root: Path) -> list[str]:
    """The PCI address of each file, or the UUID of an instance; nothing at all where one of them is not known, as the
    order would be wrong then."""
    found = {f"nvidia{minor}": address for minor, address in _nvidia_minors(root).items()}
    for file in files:
        name = Path(file).name
        if name.startswith("renderD"):
            found[name] = (root / "sys/class/drm" / name / "device").resolve().name
    addresses = [file if file.startswith("MIG-") else found.get(Path(file).name, "") for file in files]
    return addresses if all(addresses) else []


def _nvidia_minors(root: Path) -> dict[int, str]:
    minors = {}
    for folder in (root / "proc/driver/nvidia/gpus").glob("*"):
        try:
            match = _MINOR.search((folder / "information").read_text(errors="replace"))
        except OSError:
            continue
        if match:
            minors[int(match[1])] = folder.name.lower()
    return minors
