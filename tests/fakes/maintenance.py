"""Maintenance windows for tests."""

from typing import Any

from gpudeck.model.reservation import MaintenanceWindow


def make_window(**changes: Any) -> MaintenanceWindow:
    """One of the whole host gpu01 that began long ago and has no end."""
    values: dict[str, Any] = {
        "id": 1,
        "host": "gpu01",
        "host_id": "gpu01",
        "gpu": None,
        "label": None,
        "start": 0.0,
        "end": None,
        "reason": "new fans",
        "created_at": 0.0,
        "created_by": "root",
    }
    return MaintenanceWindow(**values | changes)
