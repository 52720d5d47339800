"""`gpudeck doctor`: finds problems on this machine, and names the next step. A check is a function that returns
findings, each ok, warn, fail or skip. It changes nothing, and nothing that it does can hang for long."""

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct

from gpudeck.model.errors import GpudeckError

Verdict = Literal["ok", "warn", "fail", "skip"]


class Finding(Struct, frozen=True):
    """`told` is what was found; `next_step` what to do about it. `skip` is what could not be asked, and never a
    success."""

    area: str
    name: str
    verdict: Verdict
    told: str
    next_step: str = ""


class Area:
    """Makes the findings of one area."""

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
    """What a check finds, up to where it breaks: that costs itself only, and is said."""
    found: list[Finding] = []
    try:
        found.extend(check())
    except GpudeckError as error:
        found.append(Finding(area, name, "fail", error.message, error.hint))
    except Exception as error:  # noqa: BLE001 - a failing check is a finding, not a failure of the doctor
        told = f"this check itself failed: {type(error).__name__}: {error}"
        found.append(Finding(area, name, "fail", told, "Report it as a bug, with `gpudeck doctor --bundle`."))
    return found
