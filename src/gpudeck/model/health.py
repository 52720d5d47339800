"""Whether a GPU is well, apart from whether it is available: ok, warning or critical, with reason and next step."""

from typing import Literal

from msgspec import Struct

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
_UNREAD = Health("unknown", "its temperature could not be read", "See the host's problems for the cause.")


def judge_health(missing: str | None, temperature_celsius: float | None, settings: HealthSettings) -> Health:
    """The health of a GPU whose reading is fresh. What could not be read is unknown, never ok."""
    if missing is not None:
        return Health("critical", missing, "Look at the host's problems and at its kernel log (dmesg).")
    if temperature_celsius is None:
        return _UNREAD
    if temperature_celsius < settings.hot_celsius:
        return OK
    level: HealthLevel = "critical" if temperature_celsius >= settings.critical_celsius else "warning"
    return Health(level, f"{temperature_celsius:.0f} °C", "Check the fans and the airflow of the host.")
