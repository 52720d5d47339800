"""What is wrong with the history, for events, alerts and the page: late is not lost. Pure."""

from typing import Literal

from msgspec import Struct

from gpudeck.model.event import Severity
from gpudeck.model.quantity import show_span


class HistoryTrouble(Struct, frozen=True):
    """`queued`: samples wait on the disk and nothing is lost; `losing`: the queue is full; `failing`: nothing is kept;
    `damaged`: part of the past cannot be read.

    `title` is for everybody who is told, without its full stop; `detail` may name the store, for who may look at the
    hub.
    """

    kind: Literal["queued", "losing", "failing", "damaged"]
    severity: Severity
    title: str
    detail: str


class Backlog(Struct, frozen=True):
    """Samples that wait on the hub's disk for a store elsewhere. `reason` is why it does not take them, None while it
    catches up. `room_seconds` is for how much longer there is room as they come now; None: not known yet.
    `lost_seconds` is the time whose samples were dropped since the store fell behind."""

    behind_seconds: float
    reason: str | None = None
    room_seconds: float | None = None
    lost_seconds: float | None = None


def judge_backlog(backlog: Backlog) -> HistoryTrouble:
    """What to say of it."""
    behind = f"{show_span(backlog.behind_seconds)} behind"
    room = "" if backlog.room_seconds is None else f", room for {show_span(backlog.room_seconds)} more"
    cause = "" if backlog.reason is None else f"{backlog.reason.rstrip('.')}. "
    if backlog.lost_seconds is not None:
        lost = show_span(backlog.lost_seconds)
        title = f"History is being lost: the queue for its store is full, and samples of {lost} were dropped"
        return HistoryTrouble("losing", "critical", title, f"{cause}{title}.")
    if backlog.reason is None:
        title = f"The history store is catching up: {behind}"
    else:
        title = f"The history store does not take samples: they are kept in the queue on disk, {behind}{room}"
    return HistoryTrouble("queued", "warning", title, f"{cause}{title}.")


def judge_problem(problem: str | None) -> HistoryTrouble | None:
    """A store of this machine that does not keep what it is given."""
    if problem is None:
        return None
    return HistoryTrouble("failing", "critical", "The history is not kept", problem)


def judge_damage(damage: str | None) -> HistoryTrouble | None:
    """What of the past cannot be read, or was set aside."""
    if damage is None:
        return None
    return HistoryTrouble("damaged", "critical", "Part of the history is damaged", damage)
