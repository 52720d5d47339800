"""Health of a GPU (ok, warning, critical or unknown, with reason and next step), and what NVIDIA's XID codes mean.

An XID is critical (do not use the GPU), application (a program's own fault; the GPU is well) or warning.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from msgspec import Struct

from gpudeck.model.report import GpuEvent

FAULT_SECONDS: Final = 24 * 3600.0
"""For how long a driver fault counts against a GPU's health."""

XidKind = Literal["critical", "application", "warning"]
HealthLevel = Literal["ok", "warning", "critical", "unknown"]


class Xid(Struct, frozen=True):
    """One code. `text` continues the words "XID 79:", `action` is a whole sentence."""

    kind: XidKind
    text: str
    action: str


_WATCH = "Look at the kernel log (dmesg) of the host. If it comes again, reset the GPU."
_TELL = "Tell the owner of the process."
_RESET_CARD = "Take the GPU out of use and reset it. If it comes again, have the card checked."
_RESTART = (
    "Take the GPU out of use and restart the host. If it comes again, update the driver or have the card checked."
)

_CRITICAL = {
    48: ("a memory error that could not be corrected", _RESET_CARD),
    62: ("its internal controller halted", _RESET_CARD),
    64: ("a broken part of its memory could not be replaced", "Take the GPU out of use and have the card replaced."),
    74: ("an NVLink failed", "Reset the GPU. If it comes again, have its NVLink connections checked."),
    79: ("it fell off the bus", "Check the card's power, seat and cooling, then power the host off and on."),
    95: ("a memory error that may have reached other programs", "Stop all work on it, then reset the GPU."),
    119: ("its firmware (GSP) does not answer", _RESTART),
    120: ("its firmware (GSP) failed", _RESTART),
}
_APPLICATION = {
    13: "a program made it execute something invalid",
    31: "illegal memory access by a program",
    43: "a program's work was stopped because it failed",
    45: "a program's work was removed: it was killed or had failed before",
    68: "a program made the video decoder fail",
    69: "a program gave it an invalid command",
    137: "a program accessed memory of another GPU without permission",
}
_WARNING = {
    8: "it stopped working on a program and was stirred up again",
    32: "commands reached it damaged",
    38: "its driver's firmware failed",
    61: "its internal controller stopped at a fault",
    63: "a broken part of its memory is to be replaced at the next reset",
    92: "it corrects unusually many memory errors",
    94: "a memory error that stopped one program and no other",
    109: "it could not switch between programs in time",
    110: "it refused something for its own security",
    121: "its link to the CPU had errors that were corrected",
    122: "its memory for settings could not be read",
    140: "memory errors that could not be corrected",
    143: "it could not be set up",
    154: "the driver asks for a step to recover it",
}

XIDS: dict[int, Xid] = {
    **{code: Xid("critical", text, action) for code, (text, action) in _CRITICAL.items()},
    **{code: Xid("application", text, _TELL) for code, text in _APPLICATION.items()},
    **{code: Xid("warning", text, _WATCH) for code, text in _WARNING.items()},
}
"""The codes known here."""

_OTHER = Xid("warning", "a fault without a known meaning", _WATCH)


def find_xid(code: int) -> Xid:
    return XIDS.get(code, _OTHER)


_BURST_SECONDS: Final = 600.0
_BURST_PROCESSES: Final = 4


def is_repeat(fault: GpuEvent, known: Iterable[GpuEvent]) -> bool:
    """Whether it says no more than what is known of the same GPU: within ten minutes each code counts once a process,
    and for four processes at most. A driver may log it hundreds of thousands of times."""
    same = [one for one in known if one.code == fault.code and abs(fault.at - one.at) < _BURST_SECONDS]
    return len(same) >= _BURST_PROCESSES or any(one.process == fault.process for one in same)


class Health(Struct, frozen=True):
    """`reason` and `action` are None exactly when `level` is ok."""

    level: HealthLevel
    reason: str | None = None
    action: str | None = None


class HealthSettings(Struct, frozen=True):
    """From which temperature on a GPU is worth a look."""

    hot_celsius: float = 87.0
    """A GPU this hot is a warning."""
    critical_celsius: float = 95.0
    """A GPU this hot is critical."""

    def __post_init__(self) -> None:
        if self.hot_celsius > self.critical_celsius:
            raise ValueError("hot_celsius has to be at most critical_celsius")


OK = Health("ok")
_UNREAD = "its temperature could not be read"


_RESET = "Let its jobs end, then reset the GPU (nvidia-smi -r) or restart the host."
_SIGNS = (
    ("remapped_rows_pending", "row remap pending", _RESET),
    ("ecc_uncorrected_count", "{count} uncorrected memory errors since the driver was loaded", _RESET),
    ("nvlink_inactive_count", "NVLink: {count} down", "Look at nvidia-smi nvlink -s, and reseat or replace."),
)
WEAR = tuple(name for name, _, _ in _SIGNS)
"""The counters that `judge_wear` reads."""
_DMESG = "Look at the host's problems and at its kernel log (dmesg)."
_SEVERITY: dict[HealthLevel, int] = {"ok": 0, "unknown": 1, "warning": 2, "critical": 3}


def judge_health(
    missing: str | None,
    temperature_celsius: float | None,
    settings: HealthSettings,
    faults: Health = OK,
    why_unread: str | None = None,
    *,
    wear: Health = OK,
) -> Health:
    """The health of a GPU whose reading is fresh. What could not be read is unknown, never ok."""
    if missing is not None:
        return Health("critical", f"{missing} ({faults.reason})" if faults.reason else missing, faults.action or _DMESG)
    heat = _judge_heat(temperature_celsius, settings) if temperature_celsius is not None else _admit(why_unread)
    # Of two that are equally bad the first one here is shown: a fault says more than the wear behind it.
    return max((faults, wear, heat), key=lambda health: _SEVERITY[health.level])


def judge_faults(events: Sequence[GpuEvent]) -> Health:
    """By the newest of the worst faults that still count. A fault of a program says nothing of the GPU."""
    worst = OK
    for event in events:
        xid = find_xid(event.code)
        if xid.kind != "application" and _SEVERITY[xid.kind] >= _SEVERITY[worst.level]:
            worst = Health(xid.kind, f"XID {event.code}: {xid.text}", xid.action)
    return worst


def judge_wear(metrics: Mapping[str, float | None]) -> Health:
    """What a GPU's own counters say, by the names of the catalog. A counter that is not known says nothing."""
    for name, text, action in _SIGNS:
        count = metrics.get(name)
        if count:
            return Health("warning", text.format(count=f"{count:.0f}"), action)
    return OK


def _admit(why: str | None) -> Health:
    return Health("unknown", f"{_UNREAD} ({why})" if why else _UNREAD, "See the host's problems for the cause.")


def _judge_heat(temperature_celsius: float, settings: HealthSettings) -> Health:
    if temperature_celsius < settings.hot_celsius:
        return OK
    level: HealthLevel = "critical" if temperature_celsius >= settings.critical_celsius else "warning"
    return Health(level, f"{temperature_celsius:.0f} °C", "Check the fans and the airflow of the host.")
