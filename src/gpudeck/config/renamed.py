"""Settings and values that had other names in earlier configuration files: a mistake names the new one."""

from collections.abc import Mapping
from typing import Final

from gpudeck.config.mistakes import Path

_ANY: Final = "*"
"""In a path: any name, or any place in a list."""
_RULES: Final = {
    "gpu_held_idle": "gpu_idle",
    "booking_conflict": "reservation_conflict",
    "booking_no_show": "reservation_no_show",
    "booking_overrun": "reservation_overrun",
}
_EVENTS: Final = {
    "twin": "duplicate_host",
    "alert_silenced": "alert_muted",
    "alert_silence_ended": "alert_mute_ended",
}
SETTINGS: Final[dict[Path, str]] = {
    ("people",): "users",
    ("fleet", "availability", "held_after"): "idle_after",
    ("queue", "hold"): "claim",
    ("queue", "longest_hold"): "longest_claim",
    ("notify", "routes", _ANY, "people"): "users",
}
VALUES: Final[Mapping[Path, Mapping[str, str]]] = {
    ("chat", "slack", "read"): {"people": "users"},
    ("alerts", "rules", _ANY): _RULES,
    ("alerts", "overrides", _ANY, "rules", _ANY): _RULES,
    ("users", _ANY, "mute", _ANY): _RULES,
    ("notify", "routes", _ANY, "rules", _ANY): _RULES,
    ("notify", "channels", _ANY, "events", _ANY): _EVENTS,
    ("notify", "channels", _ANY, "texts", _ANY): _EVENTS,
}


def renamed_setting(path: Path) -> str | None:
    """The new name of the setting that had this path; None if it was not renamed."""
    return next((name for known, name in SETTINGS.items() if _fits(known, path)), None)


def misplaced_setting(path: Path) -> str | None:
    """The whole path, as it is now, of the setting or rule that had the last name of this path at another level: that
    in the same section, if there were several. None if there was none."""
    rules = {("alerts", "rules", old): new for old, new in _RULES.items()}
    found = {known: new for known, new in (SETTINGS | rules).items() if known[-1] == path[-1]}
    if not found:
        return None
    known = max(found, key=lambda one: one[0] == path[0])
    return "".join("[]" if part is _ANY else f".{part}" for part in (*known[:-1], found[known])).lstrip(".")


def renamed_value(path: Path, value: str) -> str | None:
    """The new name of a value, or of a key that names a rule or an event; None if it was not renamed."""
    return next((names[value] for known, names in VALUES.items() if value in names and _fits(known, path)), None)


def _fits(known: Path, path: Path) -> bool:
    return len(known) == len(path) and all(one in {_ANY, other} for one, other in zip(known, path, strict=True))
