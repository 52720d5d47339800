"""An alert from its first sign until it is resolved, and mutes.

pending       the condition holds, but not for long enough yet
firing        it holds, and notifications go out
acknowledged  it holds, and an account has acknowledged it
resolved      it has ended
"""

from typing import Final, Literal

from msgspec import Struct, field

from gpudeck.model.event import Severity

AlertState = Literal["pending", "firing", "acknowledged", "resolved"]
ALERT_STATES: tuple[AlertState, ...] = ("pending", "firing", "acknowledged", "resolved")


MAINTENANCE: Final = "maintenance"
"""The value of `muted_by` for alerts of a drained host or GPU."""


class Alert(Struct, frozen=True, kw_only=True):
    """Times are Unix seconds on the hub's clock: `since` is when it began, as far as known. `title` is a sentence
    without its full stop, `action` the next step. `note` says what is currently unknown about it, or that it is
    flapping. `muted_by` is the id of the mute that suppresses its notifications, or `maintenance` while its host or GPU
    is drained. `accounts` are the accounts concerned."""

    id: str
    rule: str
    severity: Severity
    state: AlertState
    title: str
    action: str
    note: str | None
    host: str | None
    host_id: str | None
    gpu: str | None
    label: str | None
    accounts: list[str]
    since: float
    fired_at: float | None
    acknowledged_at: float | None
    acknowledged_by: str | None
    resolved_at: float | None
    muted_by: str | None


class Mute(Struct, frozen=True, kw_only=True):
    """No notifications are sent for matching alerts from `start` up to `end`. All conditions must match: `host` and
    `rule` may contain `*`, `labels` are those of the host, `hosts` are sorted names of which one must match; empty:
    any."""

    id: str
    start: float
    end: float
    created_at: float
    created_by: str
    reason: str
    host: str | None = None
    rule: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    hosts: list[str] = field(default_factory=list)


_MAX_NAMED: Final = 5


def name_hosts(hosts: list[str]) -> str:
    more = len(hosts) - _MAX_NAMED
    return f"{', '.join(hosts[:_MAX_NAMED])} and {more} more" if more > 0 else ", ".join(hosts)


class AlertCounts(Struct, frozen=True):
    """`total` are all that fire or are acknowledged. `needs_attention` are the critical ones and warnings among them
    that are neither acknowledged nor muted; `critical` are the critical ones of these."""

    total: int = 0
    needs_attention: int = 0
    critical: int = 0


class AlertList(Struct, frozen=True):
    """The worst first, then resolved ones, the newest first. `time` is the hub's."""

    alerts: list[Alert]
    time: float


class PastFiring(Struct, frozen=True, kw_only=True):
    """An alert that a rule would have sent. Times are Unix seconds: `since` is when its condition began to hold,
    `fired_at` when it would have fired, `resolved_at` when the condition ended, null if it held until the end. `gpu` is
    a UUID and `label` its index, both null for a host."""

    title: str
    host: str
    host_id: str
    gpu: str | None
    label: str | None
    since: float
    fired_at: float
    resolved_at: float | None


class AlertTest(Struct, frozen=True, kw_only=True):
    """The result of testing a rule from `start` up to `end`. `step` is the length in seconds of the means that were
    tested, null if there were none. `known` is the share of the time, 0 to 1, in which the condition could be decided.
    `hosts` were tested, `hosts_left` were not: the test has a time limit. `firings` are in the order of time, at most
    1,000 of `count`."""

    rule: str | None
    expr: str
    start: float
    end: float
    step: float | None
    known: float | None
    hosts: int
    hosts_left: int
    count: int
    firings: list[PastFiring]


class MuteList(Struct, frozen=True):
    """Current and future mutes, by their end."""

    mutes: list[Mute]
    time: float
