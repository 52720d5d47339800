"""A fleet's JSON as the table needs it. Most of a fleet are figures that only the details show: leaving them out makes
reading it twice as quick."""

from typing import Any, NotRequired, TypedDict

import msgspec

from gpudeck.views.filter import Json


class _Gpu(TypedDict):
    uuid: str
    label: str
    name: str
    display_name: str
    availability: str
    availability_reason: str | None
    since: float
    health: str
    health_reason: str | None
    users: list[str]
    reservation: dict[str, Any] | None
    reservation_conflict: str | None
    utilization_percent: float | None
    memory_used_bytes: float | None
    memory_total_bytes: float | None
    temperature_celsius: float | None
    power_watts: float | None


class _Host(TypedDict):
    id: str
    name: str
    display_name: str
    status: str
    last_report_at: float | None
    labels: dict[str, str]
    problems: list[str]
    reasons: dict[str, str]
    gpus: list[_Gpu]


class _Fleet(TypedDict):
    demo: bool
    time: float
    totals: dict[str, Any]
    problems: list[str]
    alerts: NotRequired[list[dict[str, Any]]]
    hosts: list[_Host]


_TABLE = msgspec.json.Decoder(_Fleet)


def read_for_table(document: bytes) -> Json:
    """What the table, the search and the totals look at. Boxes and sheets need the whole."""
    return _TABLE.decode(document)
