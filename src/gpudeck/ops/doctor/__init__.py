"""`gpudeck doctor`: finds problems on this machine, and names the next step. A check is a function that returns
findings, each ok, warn, fail or skip. Checks change nothing, and have deadlines."""

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from gpudeck.model.errors import GpudeckError

Verdict = Literal["ok", "warn", "fail", "skip"]


class Finding(Struct, frozen=True):
    """`told` is the result; `next_step` what to do about it. `skip` is a check that could not be made, and is never a
    success."""

    area: str
    name: str
    verdict: Verdict
    told: str
    next_step: str = ""


class Area:
    """Creates the findings of one area."""

    def __init__(self, name: str) -> None:
        self._name = name

    def ok(self, name: str, told: str) -> Finding:
        return Finding(self._name, name, "ok", told)

    def warn(self, name: str, told: str, next_step: str) -> Finding:
        return Finding(self._name, name, "warn", told, next_step)

    def fail(self, name: str, told: str, next_step: str) -> Finding:
        return Finding(self._name, name, "fail", told, next_step)

    def skip(self, name: str, told: str, next_step: str = "") -> Finding:
        return Finding(self._name, name, "skip", told, next_step)


def guarded(area: str, name: str, check: Callable[[], Iterable[Finding]]) -> list[Finding]:
    """The findings of a check up to the point where it fails: a failure affects only itself, and is reported."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except GpudeckError as error:
        found.append(Finding(area, name, "fail", error.message, error.hint))
    except Exception as error:  # noqa: BLE001 - a failing check is a finding, not a failure of the doctor
        told = f"this check itself failed: {type(error).__name__}: {error}"
        found.append(Finding(area, name, "fail", told, "Report it as a bug, with `gpudeck doctor --bundle`."))
    return found
