"""This machine through nvidia-smi, as a hub reads another one over SSH: the command runs in a local shell."""

import subprocess

from gpudeck.collectors.nvidia_smi import SmiReader
from gpudeck.model.report import Report


def run_here(command: str) -> str:
    """What the command prints, whatever its exit code."""
    found = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False, timeout=60)
    return found.stdout.decode(errors="replace")


class LocalSmi:
    """Readings one after the other; with an `answer` that one each time."""

    def __init__(self, answer: str | None = None) -> None:
        self._answer = answer
        self._reader = SmiReader()

    def collect(self, now: float) -> Report:
        command = self._reader.shell_command()
        return self._reader.parse(run_here(command) if self._answer is None else self._answer, now).report
