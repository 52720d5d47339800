"""What each rule goes by when nobody decided otherwise: one table. Pure.

A healthy fleet is quiet with these. What is so for a moment only, or is nobody's fault, is told to nobody.
"""

from typing import Literal

from msgspec import Struct

from gpudeck.model.event import Severity

RuleName = Literal[
    "host_down",
    "host_unreadable",
    "host_late",
    "gpu_lost",
    "driver_not_answering",
    "gpu_hot",
    "gpu_throttled",
    "xid",
    "ecc",
    "gpu_held_idle",
    "orphaned_memory",
    "power_capped",
    "disk_full",
    "ram_full",
    "clock_skew",
    "agent_outdated",
    "booking_conflict",
    "booking_no_show",
    "booking_overrun",
    "history_failing",
    "fleet_nearly_full",
]

_MINUTE = 60.0
_HOUR = 3600.0
_DAY = 86_400.0


class Limits(Struct, frozen=True, kw_only=True):
    """A rule fires once it has been so for `wait` seconds, and is over once it has not been so for `clear_after`.

    `above` is the value from which on it is so, `clear` the lower one below which it no longer is; None for rules that
    know yes and no alone. `unit` is that of both.
    """

    severity: Severity
    wait: float = 0.0
    clear_after: float = 0.0
    above: float | None = None
    clear: float | None = None
    unit: str = ""
    is_on: bool = True

    @property
    def begin(self) -> float:
        """`above`, for rules that have it."""
        return self.above or 0.0

    @property
    def end(self) -> float:
        """`clear`, for rules that have it."""
        return self.clear or 0.0


DEFAULTS: dict[str, Limits] = {
    "host_down": Limits(severity="critical"),
    # Whoever adds a host needs a while to set it up.
    "host_unreadable": Limits(severity="critical", wait=10 * _MINUTE),
    "host_late": Limits(severity="warning", above=6.0, clear=2.0, unit="times an hour"),
    "gpu_lost": Limits(severity="critical", wait=_MINUTE, clear_after=_MINUTE),
    "driver_not_answering": Limits(severity="critical", wait=_MINUTE, clear_after=_MINUTE),
    "gpu_hot": Limits(severity="warning", wait=5 * _MINUTE, clear_after=_MINUTE, above=87.0, clear=82.0, unit="°C"),
    "gpu_throttled": Limits(severity="warning", wait=5 * _MINUTE, clear_after=5 * _MINUTE),
    "xid": Limits(severity="critical", clear_after=_HOUR),
    "ecc": Limits(severity="warning", wait=_MINUTE, above=1.0, clear=1.0, unit="errors"),
    "gpu_held_idle": Limits(severity="info", wait=2 * _HOUR, clear_after=_MINUTE),
    "orphaned_memory": Limits(severity="warning", wait=10 * _MINUTE, clear_after=_MINUTE),
    "power_capped": Limits(
        severity="info", wait=10 * _MINUTE, clear_after=_MINUTE, above=10.0, clear=5.0, unit="percent"
    ),
    "disk_full": Limits(severity="warning", wait=_MINUTE, clear_after=_MINUTE, above=95.0, clear=93.0, unit="percent"),
    "ram_full": Limits(
        severity="warning", wait=10 * _MINUTE, clear_after=_MINUTE, above=95.0, clear=90.0, unit="percent"
    ),
    "clock_skew": Limits(severity="warning", wait=5 * _MINUTE, above=10.0, clear=5.0, unit="seconds"),
    "agent_outdated": Limits(severity="info", wait=_DAY),
    # Both are told within half a minute: a moment for who is just leaving, then the wait of the message.
    "booking_conflict": Limits(severity="warning", wait=5.0, clear_after=_MINUTE),
    "booking_no_show": Limits(severity="warning"),
    "booking_overrun": Limits(severity="warning", wait=10 * _MINUTE, clear_after=_MINUTE),
    "history_failing": Limits(severity="critical", wait=2 * _MINUTE, clear_after=_MINUTE),
    "fleet_nearly_full": Limits(
        severity="info", wait=_HOUR, clear_after=10 * _MINUTE, above=95.0, clear=90.0, unit="percent"
    ),
}
