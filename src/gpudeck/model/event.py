"""Events in the fleet or of the hub, as they are stored, sent and shown, and flap detection. Pure.

The kind of an event is an open set: a new kind needs no line here. Those of `KINDS` come from the hub itself.
`Reliability` ranks GPUs and hosts by such events and by alerts.
"""

import hashlib
from collections.abc import Callable, Hashable, Iterable
from typing import Final, Literal

from msgspec import Struct, field

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
    "xid": "a GPU's driver reported a fault",
    "health_raised": "a GPU is not well",
    "health_cleared": "a GPU is well again",
    "flapping": "something is flapping; further events are suppressed until it is stable",
    "duplicate_host": "two hosts cannot be distinguished",
    "watch_fired": "GPUs of a watch are free",
    "message_delivered": "a simulated user got a message",
    "message_failed": "a message could not be delivered",
    "hub_started": "the hub was started",
    "hub_stopped": "the hub was stopped",
    "history_problem": "the history is late or not kept",
    "history_recovered": "the history is up to date again",
    "history_damaged": "a part of the history cannot be read and was set aside or left out",
    "clock_doubted": "the hub's clock may be wrong, and old data are not deleted",
    "clock_confirmed": "the hub's clock is right",
    "alert_fired": "an alert fired",
    "alert_acknowledged": "an alert was acknowledged",
    "alert_unacknowledged": "the acknowledgement of an alert was withdrawn",
    "alert_resolved": "an alert was resolved",
    "alert_muted": "alerts were muted",
    "alert_mute_ended": "a mute has ended",
    "maintenance_started": "the maintenance of a host or GPU began",
    "maintenance_ended": "the maintenance of a host or GPU ended",
    "maintenance_changed": "maintenance was planned, changed or cancelled",
    "reservation_conflict": "a GPU is in use that another user has reserved",
    "reservation_overrun": "a GPU is still in use after its reservation has ended",
    "reservation_unused": "a reservation is not used",
    "idle_policy_notify": "the owner of an idle GPU was notified",
    "idle_policy_warn": "the owner of an idle GPU was warned",
    "idle_policy_act": "the hook of the idle policy is run for a GPU",
    "idle_policy_hook": "the hook of the idle policy has ended",
    "idle_policy_stopped": "nobody can be warned of an idle GPU, so nothing happens to it",
    "reservation_released": "an unused reservation was released",
}

MAX_TITLE = 256
MAX_DETAIL = 2000
_LAST_MOMENT = 9e9
"""Unix seconds; the first eleven digits of an id reach no further than the year 2527."""


class Event(Struct, frozen=True, kw_only=True):
    """`at` is in Unix seconds on the hub's clock. `id` grows with `at`, so it is also the position in a list. `host` is
    its name at that time, `gpu` a UUID and `label` that GPU's number; None if no single one is concerned. `user` is the
    user of the process, None if unknown. `title` is a sentence without its full stop."""

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


class EventList(Struct, frozen=True):
    """The newest first. `next` is the `before` of the next page; null if there are no older ones."""

    events: list[Event]
    next: str | None


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
    """An event with an id derived from its content: reporting it twice gives the same one."""
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
        title=_cut(title, MAX_TITLE),
        detail=_cut(detail, MAX_DETAIL),
    )


def id_at(at: float) -> str:
    """The prefix of the ids at that time: all earlier events have smaller ids."""
    return f"{int(round(min(max(at, 0.0), _LAST_MOMENT), 3) * 1000):011x}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


RankedBy = Literal["gpu", "host"]


PENALTIES: Final[dict[str, tuple[float, float]]] = {
    "xid_critical": (20.0, 60.0),
    "xid_warning": (5.0, 20.0),
    "gpu_lost": (20.0, 60.0),
    "health_raised": (5.0, 20.0),
    "flapping": (10.0, 20.0),
    "ecc": (15.0, 30.0),
    "row_remaps": (10.0, 30.0),
    "ecc_rate": (10.0, 20.0),
    "nvlink_errors": (10.0, 20.0),
    "gpu_slow": (10.0, 20.0),
    "pcie_degraded": (10.0, 10.0),
    "gpu_throttled": (3.0, 15.0),
    "thermal_headroom": (2.0, 10.0),
}
"""The points that each fault takes from a GPU's 100, and their maximum, by the kind of event or the alert rule."""
MAX_LOST_POINTS: Final = 20.0


class FaultEvidence(Struct):
    """The evidence of a row: `kind` is a kind of event, or the name of an alert rule. `is_incident` is whether it
    counts as an incident, `points` are taken from the score of a GPU. `seconds` is its duration, None if unknown or
    meaningless. `last_at` is when it last began."""

    kind: str
    title: str
    count: int
    is_incident: bool
    last_at: float
    seconds: float | None = None
    points: float = 0.0

    def rate(self, name: str) -> None:
        """Set the points of a fault with that name in `PENALTIES`; each hour of a loss counts once more."""
        each, most = PENALTIES.get(name, (0.0, 0.0))
        lost = min((self.seconds or 0.0) / 3600.0, MAX_LOST_POINTS) if name == "gpu_lost" else 0.0
        self.points = round(min(self.count * each, most) + lost, 1)


class ReliabilityRow(Struct):
    """A GPU, or a host if `gpu` is None. `host`, `label` and `model` are the current ones if it is still in the fleet,
    else those of its last event; `model` is None then. `incidents` are driver errors that no program caused, times that
    a GPU was lost or a host down, bad health, flapping, and drivers that did not answer; those of a host include its
    GPUs'. `lost_seconds` is how long it was lost or down, `throttled_seconds` how long throttling alerts fired. `score`
    of a GPU is 100 minus the points of its evidence, at least 0; None for a host."""

    host: str
    host_id: str
    incidents: int
    lost_seconds: float
    throttled_seconds: float
    gpu: str | None = None
    label: str | None = None
    model: str | None = None
    score: float | None = None
    evidence: list[FaultEvidence] = field(default_factory=list)


class Reliability(Struct):
    """The worst first: GPUs by their score, then by incidents, lost and throttled time. `total` is how many had any of
    these, even if fewer were requested. `problems` says what is not included."""

    by: RankedBy
    start: float
    end: float
    total: int
    rows: list[ReliabilityRow]
    problems: list[str] = field(default_factory=list)


HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
MAX_AN_HOUR: Final = 5
CALM: Final = 2
"""Up to this many falls in an hour, each is an event."""
_MAX_FALLS: Final = 63


def recent_falls(falls: Iterable[float], now: float) -> list[float]:
    """The times within an hour before `now` at which something went down, up to a limit: their number decides whether
    it is flapping. Times after a clock that was set back are dropped."""
    return [at for at in falls if 0 <= now - at < HOUR][-_MAX_FALLS:]


class _Subject:
    def __init__(self) -> None:
        self.falls: list[float] = []
        self.is_muted = False
        self.reported_at = 0.0
        self.suppressed: Event | None = None


class FlapSuppressor:
    """Follows each subject, by any key, from its first fall until it has been stable for an hour."""

    def __init__(self) -> None:
        self._subjects: dict[Hashable, _Subject] = {}

    def fall(self, key: Hashable, event: Event, sum_up: Callable[[int], Event]) -> Event | None:
        """It went down, or got worse: the event to report, if any. While it is flapping, that is the result of `sum_up`
        with the number of falls within an hour, once a day."""
        subject = self._subjects.setdefault(key, _Subject())
        subject.falls = [*recent_falls(subject.falls, event.at), event.at]
        if subject.is_muted and len(subject.falls) <= CALM:
            subject.is_muted = False
        if len(subject.falls) <= MAX_AN_HOUR and not subject.is_muted:
            subject.suppressed = None
            return event
        subject.suppressed = event
        if subject.is_muted and event.at - subject.reported_at < DAY:
            return None
        subject.is_muted, subject.reported_at = True, event.at
        return sum_up(len(subject.falls))

    def rise(self, key: Hashable) -> bool:
        """It came back. Returns whether to report it: if the fall was reported."""
        subject = self._subjects.get(key)
        if subject is None or subject.suppressed is None:
            return True
        subject.suppressed = None
        return False

    def overdue(self, now: float) -> list[Event]:
        """The suppressed falls without a return for an hour: each is reported now, once. Stable subjects are forgotten
        here."""
        calm = [key for key, subject in self._subjects.items() if now - subject.falls[-1] >= HOUR]
        ended = [self._subjects.pop(key).suppressed for key in calm]
        return [event for event in ended if event is not None]
