"""Metrics over time as returned by the history, its state and its problems. Pure. Times are Unix seconds."""

from typing import Literal

from msgspec import Struct

from gpudeck.model.event import Severity
from gpudeck.model.text import show_span

Point = tuple[float, float | None, float | None, float | None]
"""The start of a step, and the mean, the minimum and the maximum in it. None: unknown."""
Resolution = Literal["raw", "quarter_hour", "hour"]


class Series(Struct, omit_defaults=True):
    """Exactly one of the names is set; with `by` two, such as `gpu` and `user`. `label` is the display name of the GPU
    or host, `model` the model of a GPU, if the store knows it. With `by: user` the series without a user is that of
    unknown users."""

    points: list[Point]
    gpu: str | None = None
    label: str | None = None
    model: str | None = None
    host: str | None = None
    user: str | None = None
    run: int | None = None
    fleet: bool | None = None


class Answer(Struct):
    """`step` is the length of a point in seconds, `resolution` the kind of record."""

    metric: str
    unit: str
    step: float
    start: float
    end: float
    resolution: Resolution
    series: list[Series]


class HistoryState(Struct, frozen=True):
    """`kind` is `off` without a history. `reason` is why its figures are unknown. Times are Unix seconds."""

    kind: str
    size_bytes: int | None = None
    oldest: float | None = None
    newest: float | None = None
    samples_taken: int | None = None
    samples_dropped: int | None = None
    samples_late: int | None = None
    behind_seconds: float | None = None
    problem: str | None = None
    reason: str | None = None


class HistoryTrouble(Struct, frozen=True):
    """`queued`: samples wait on disk and nothing is lost; `losing`: the queue is full; `failing`: nothing is stored;
    `damaged`: part of the past cannot be read. `title` is for everyone who is notified, without its full stop; `detail`
    may name the store, and is for admins."""

    kind: Literal["queued", "losing", "failing", "damaged"]
    severity: Severity
    title: str
    detail: str


class Backlog(Struct, frozen=True):
    """Samples that wait on the hub's disk for a remote store. `reason` is why the store does not accept them, None
    while it catches up. `room_seconds` is how long the queue lasts at the current rate; None: not known yet.
    `lost_seconds` is the time span of the samples dropped since the store fell behind."""

    behind_seconds: float
    reason: str | None = None
    room_seconds: float | None = None
    lost_seconds: float | None = None


def judge_backlog(backlog: Backlog) -> HistoryTrouble:
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
    if problem is None:
        return None
    return HistoryTrouble("failing", "critical", "The history is not kept", problem)


def judge_damage(damage: str | None) -> HistoryTrouble | None:
    if damage is None:
        return None
    return HistoryTrouble("damaged", "critical", "Part of the history is damaged", damage)
