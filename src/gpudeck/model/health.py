"""Whether a GPU is well, apart from whether it is available: ok, warning or critical, with reason and next step."""

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from gpudeck.model.report import GpuEvent
from gpudeck.model.xid import find_xid

HealthLevel = Literal["ok", "warning", "critical", "unknown"]


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
    ("remapped_rows_pending", "memory rows wait to be replaced", _RESET),
    ("ecc_uncorrected_count", "{count} uncorrected memory errors since the driver was loaded", _RESET),
    ("nvlink_inactive_count", "NVLink: {count} down", "Look at nvidia-smi nvlink -s, and reseat or replace."),
)
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
    """The health of a GPU whose reading is fresh. What could not be read is unknown, never ok.

    `faults` is what `judge_faults` said, `wear` what `judge_wear` did. `why_unread` is the reason why there is no
    temperature.
    """
    if missing is not None:
        return Health("critical", f"{missing} ({faults.reason})" if faults.reason else missing, faults.action or _DMESG)
    heat = _judge_heat(temperature_celsius, settings) if temperature_celsius is not None else _admit(why_unread)
    # Of two that are equally bad the first one here is told: a fault says more than the wear behind it.
    return max((faults, wear, heat), key=lambda health: _SEVERITY[health.level])


def judge_faults(events: Sequence[GpuEvent]) -> Health:
    """What the driver's faults that still count say: by the newest of the worst. A fault of a program says nothing of
    the GPU. The reason does not tell their age: it would be another one on every beat."""
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
