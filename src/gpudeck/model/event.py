"""Something that happened in the fleet or to the hub, as it is kept, sent out and shown. Pure.

A kind is an open word: whoever adds one needs no line here. Those of `KINDS` are told by the hub itself.
"""

import hashlib
from typing import Literal

from msgspec import Struct

Severity = Literal["info", "warning", "critical"]
SEVERITIES: tuple[Severity, ...] = ("info", "warning", "critical")

KINDS: dict[str, str] = {
    "host_seen": "a host reported for the first time",
    "host_up": "a host reports again",
    "host_down": "a host has stopped reporting",
    "host_rebooted": "a host was booted",
    "driver_changed": "a host has another driver",
    "agent_changed": "a host has another agent",
    "gpu_lost": "a GPU cannot be read any more, or is gone",
    "gpu_found": "a GPU is there, or there again",
    "gpu_moved": "a GPU is in another host",
    "xid": "a GPU's driver told of a fault",
    "health_raised": "a GPU is not well",
    "health_cleared": "a GPU is well again",
    "flapping": "something comes and goes, and is not told each time",
    "twin": "two hosts cannot be told apart",
    "watch_fired": "GPUs are free that somebody wanted to know of",
    "message_failed": "a message to people was given up",
    "hub_started": "the hub was started",
    "hub_stopped": "the hub was stopped",
    "history_problem": "the history is late or not kept",
    "history_recovered": "the history is up to date again",
    "history_damaged": "a part of the history cannot be read and was set aside or left out",
    "clock_doubted": "the hub's clock may be wrong, and old data are not deleted",
    "clock_confirmed": "the hub's clock is right",
    "alert_fired": "something is wrong, and people are told",
    "alert_acknowledged": "somebody looks after an alert",
    "alert_resolved": "what an alert was about is over",
    "alert_silenced": "nobody is told of some alerts for a while",
    "alert_silence_ended": "a silence is over",
    "reservation_conflict": "somebody is on a GPU that another has booked",
    "reservation_overrun": "somebody stays after the end of their booking",
    "reservation_unused": "nobody has come for a booking",
    "reservation_released": "a booking that nobody came for is over",
}
"""What the hub tells by itself."""

MOST_TITLE = 256
MOST_DETAIL = 2000
_LAST_MOMENT = 9e9
"""Unix seconds; the first eleven digits of an id reach no further than the year 2527."""


class Event(Struct, frozen=True, kw_only=True):
    """`at` is in Unix seconds on the hub's clock. `id` grows with `at`, so that it also is where a list goes on.

    `host` is the name it had then, `gpu` a UUID and `label` that GPU's number; None where no single one is concerned.
    `user` is whose process it was, None where nobody's, or nobody knows. `title` is a sentence without its full stop.
    """

    id: str
    at: float
    kind: str
    severity: Severity
    host: str | None
    host_id: str | None
    gpu: str | None
    label: str | None
    user: str | None
    title: str
    detail: str


def make_event(
    at: float,
    kind: str,
    title: str,
    *,
    severity: Severity = "info",
    host: str | None = None,
    host_id: str | None = None,
    gpu: str | None = None,
    label: str | None = None,
    user: str | None = None,
    detail: str = "",
) -> Event:
    """An event with its id, which follows from what happened: told twice, it is the same one."""
    at = round(min(max(at, 0.0), _LAST_MOMENT), 3)
    key = "\0".join((kind, host_id or host or "", gpu or "", title, user or ""))
    return Event(
        id=id_at(at) + hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=5).hexdigest(),
        at=at,
        kind=kind,
        severity=severity,
        host=host,
        host_id=host_id,
        gpu=gpu,
        label=label,
        user=user,
        title=_cut(title, MOST_TITLE),
        detail=_cut(detail, MOST_DETAIL),
    )


def id_at(at: float) -> str:
    """What the ids of that moment begin with: all earlier events have smaller ids."""
    return f"{int(round(min(max(at, 0.0), _LAST_MOMENT), 3) * 1000):011x}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
