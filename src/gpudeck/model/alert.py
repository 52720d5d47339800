"""Something that is wrong, from when it was noticed until it is over, as it is kept, sent out and shown. Pure.

pending       it is so, but not for long enough yet
firing        it is so, and people are told
acknowledged  it is so, and somebody looks after it
resolved      it is over
"""

from typing import Literal

from msgspec import Struct, field

from gpudeck.model.event import Severity

AlertState = Literal["pending", "firing", "acknowledged", "resolved"]
ALERT_STATES: tuple[AlertState, ...] = ("pending", "firing", "acknowledged", "resolved")


class Alert(Struct, frozen=True, kw_only=True):
    """Times are Unix seconds on the hub's clock: `since` is when it began, as far as that is known.

    `title` is a sentence without its full stop, `action` the next step. `note` says what is not known of it now, or
    that it comes and goes. `silenced_by` is the silence because of which nobody is told. `people` are the accounts
    whose business it is.
    """

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
    people: list[str]
    since: float
    fired_at: float | None
    acknowledged_at: float | None
    acknowledged_by: str | None
    resolved_at: float | None
    silenced_by: str | None


class Silence(Struct, frozen=True, kw_only=True):
    """Nobody is told of alerts that it fits from `start` until before `end`. All that is given has to fit: `host` and
    `rule` may have `*` in them, `labels` are those of the host."""

    id: str
    start: float
    end: float
    created_at: float
    created_by: str
    reason: str
    host: str | None = None
    rule: str | None = None
    labels: dict[str, str] = field(default_factory=dict)


class AlertList(Struct, frozen=True):
    """The worst first; those that are over come after all others, the newest first. `time` is the hub's."""

    alerts: list[Alert]
    time: float


class SilenceList(Struct, frozen=True):
    """Those that count now or later, by their end."""

    silences: list[Silence]
    time: float
