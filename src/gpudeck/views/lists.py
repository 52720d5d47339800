"""Events, reservations, watches, maintenance and free GPUs as lines and tables for a terminal."""

from collections.abc import Sequence
from datetime import datetime, tzinfo
from typing import Final

from gpudeck.model.cluster import Cluster
from gpudeck.model.event import Event, FaultEvidence, Reliability, ReliabilityRow
from gpudeck.model.gpu_request import CandidateGpu, WatchView
from gpudeck.model.reservation import ReservedGpu, ShownMaintenance, ShownReservation
from gpudeck.model.text import clean, show_gib, show_length, show_span
from gpudeck.model.times import show_moment
from gpudeck.views.table import SEVERITY_COLOURS, SEVERITY_SIGNS, Cell, Column, paint, render, wrap
from gpudeck.views.text import join_places

_FREE_COLUMNS = (
    Column("HOST", 5),
    Column("GPU", 4, "right"),
    Column("MODEL", 2),
    Column("GiB", 3, "right"),
    Column("UUID", 1, widest=48),
)
_RESERVATION_COLUMNS: Final = (
    Column("ID", keep=100, align="right", widest=20),
    Column("WHO", keep=99, widest=32),
    Column("GPUS", keep=95, widest=60, least=12),
    Column("FROM", keep=80, widest=22),
    Column("UNTIL", keep=90, widest=22),
    Column("STATE", keep=70, widest=24),
    Column("NOTE", keep=60, widest=60, least=8),
)
_MAINTENANCE_COLUMNS: Final = (
    Column("WHERE", keep=100, widest=60, least=12),
    Column("FROM", keep=80, widest=22),
    Column("UNTIL", keep=90, widest=22),
    Column("STATE", keep=70, widest=24),
    Column("BY", keep=60, widest=32),
    Column("REASON", keep=95, widest=80, least=12),
)
_CLUSTER_COLUMNS: Final = (
    Column("HUB", keep=100, widest=40, least=8),
    Column("STATE", keep=95, widest=24),
    Column("VERSION", keep=60, widest=16),
    Column("LAG", keep=70, align="right", widest=10),
    Column("POLLING", keep=80, widest=10),
    Column("DUTIES", keep=90, widest=120, least=12),
)
_WATCH_COLUMNS = (
    Column("ID", keep=100, align="right", widest=20),
    Column("USER", keep=60, widest=24),
    Column("WANTED", keep=95, widest=60),
    Column("STATE", keep=90, widest=24),
    Column("FOUND", keep=50, widest=48),
)


def render_day(at: float, zone: tzinfo, *, colour: bool) -> str:
    """What stands above the events of a day."""
    day = f"{datetime.fromtimestamp(at, zone):%A %Y-%m-%d}"
    return paint(day, "bold", colour)


def render_event(event: Event, zone: tzinfo, *, colour: bool) -> str:
    """One line: when, how bad, what; and a second one with what else is known."""
    moment = f"{datetime.fromtimestamp(event.at, zone):%H:%M:%S}"
    owner = f" ({event.user})" if event.user else ""
    title = clean(f"{event.title}{owner}")
    severity = event.severity
    said = paint(f"{SEVERITY_SIGNS.get(severity, '·')} {title}", SEVERITY_COLOURS.get(severity, ""), colour)
    line = f"{moment}  {said}"
    if not event.detail:
        return line
    more = f"{' ' * 12}{clean(event.detail)}"
    return f"{line}\n{paint(more, 'grey', colour)}"


def render_free(gpus: Sequence[CandidateGpu], *, width: int | None = None, colour: bool = False) -> str:
    """Ends in a newline."""
    fields = [(gpu.host, gpu.label, gpu.display_name, show_gib(gpu.memory_total_bytes, 0), gpu.uuid) for gpu in gpus]
    rows = [[(clean(text), "") for text in own] for own in fields]
    return "\n".join(render(_FREE_COLUMNS, rows, width, colour)) + "\n"


def render_reservations(
    found: Sequence[ShownReservation], now: float, zone: tzinfo, width: int | None, colour: bool
) -> str:
    """By their start, in the time of `zone`. A GPU that the fleet no longer has is marked."""
    rows = [
        [
            (str(one.id) if one.name is None else clean(f"{one.scheduler}:{one.name}"), ""),
            (clean(one.user), "bold"),
            (_show_gpus(one.gpus), ""),
            (show_moment(one.start, zone), "grey"),
            (show_moment(one.end, zone), ""),
            _reservation_state(one, now),
            (clean(one.note), "grey"),
        ]
        for one in found
    ]
    return "".join(f"{line.rstrip()}\n" for line in render(_RESERVATION_COLUMNS, rows, width, colour))


def render_maintenance(
    found: Sequence[ShownMaintenance], now: float, zone: tzinfo, width: int | None, colour: bool
) -> str:
    """By their start, in the time of `zone`. A host or GPU that the fleet no longer has is marked."""
    rows: list[list[Cell]] = [
        [
            (f"{clean(one.place)}{'' if one.is_there else ' (gone)'}", "bold"),
            (show_moment(one.start, zone), "grey"),
            ("–" if one.end is None else show_moment(one.end, zone), ""),
            _maintenance_state(one, now),
            (clean(one.created_by), ""),
            (clean(one.reason), ""),
        ]
        for one in found
    ]
    return "".join(f"{line.rstrip()}\n" for line in render(_MAINTENANCE_COLUMNS, rows, width, colour))


def _maintenance_state(one: ShownMaintenance, now: float) -> Cell:
    if one.state == "planned":
        return f"in {show_length(one.start - now)}", "grey"
    return ("no end yet" if one.end is None else f"{show_length(one.end - now)} left"), "yellow"


def _show_gpus(gpus: Sequence[ReservedGpu]) -> str:
    labels = ((gpu.host, f"{gpu.label}{'' if gpu.is_there is not False else ' (gone)'}") for gpu in gpus)
    return clean(" ".join(join_places(labels)))


def _reservation_state(one: ShownReservation, now: float) -> Cell:
    if one.kind == "claim":
        return f"claimed, {show_length(one.end - now)} left", "yellow"
    if one.state == "running":
        return f"{show_length(one.end - now)} left", "magenta"
    return (f"in {show_length(one.start - now)}", "grey") if one.state == "planned" else (one.state, "grey")


def render_watches(watches: Sequence[WatchView], now: float, width: int | None, *, colour: bool) -> str:
    rows = [
        (
            (str(one.id), ""),
            (clean(one.user), ""),
            (clean(one.description), ""),
            _watch_state(one, now),
            (clean(", ".join(f"{gpu.host}:{gpu.label}" for gpu in one.found)), ""),
        )
        for one in watches
    ]
    return "".join(f"{line}\n" for line in render(_WATCH_COLUMNS, rows, width, colour))


def _watch_state(one: WatchView, now: float) -> Cell:
    if one.fired_at is not None:
        return f"notified {show_span(now - one.fired_at)} ago", "green"
    return f"for {show_length(one.expires_at - now)}", ""


def render_reliability(found: Reliability, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, a line a row, and how many more there are. Ends in a newline; times are those of the zone."""

    def show(at: float) -> str:
        return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"

    what = "GPUs" if found.by == "gpu" else "Hosts"
    lines = wrap(f"{what} by faults, {show(found.start)} to {show(found.end)} ({zone})", width)
    if found.rows:
        columns = [
            Column(found.by.upper(), keep=100, widest=40),
            *([Column("SCORE", keep=99, align="right", widest=5)] if found.by == "gpu" else ()),
            Column("INCIDENTS", keep=99, align="right", widest=9),
            Column("LOST", keep=98, align="right", widest=10),
            Column("THROTTLED", keep=90, align="right", widest=10),
            Column("EVIDENCE", keep=95, widest=120),
        ]
        lines += ["", *render(columns, [_row(row) for row in found.rows], width, colour)]
        if found.total > len(found.rows):
            lines += ["", f"{found.total - len(found.rows):,} more had faults."]
    else:
        lines += ["", "No faults were recorded."]
    for problem in found.problems:
        lines += ["", *wrap(problem, width)]
    return "\n".join(lines) + "\n"


def _row(row: ReliabilityRow) -> list[Cell]:
    name = clean(row.host) if row.gpu is None else f"{clean(row.host)}:{clean(row.label or '?')}"
    evidence = ", ".join(map(_describe, row.evidence))
    score = [] if row.gpu is None else ["–" if row.score is None else f"{row.score:.0f}"]
    cells = [name, *score, str(row.incidents), _span(row.lost_seconds), _span(row.throttled_seconds), evidence]
    return [(cell, "") for cell in cells]


def _describe(one: FaultEvidence) -> str:
    times = f"{one.count} × " if one.count else ""
    return f"{times}{clean(one.title)}{f' (-{one.points:.0f})' if one.points >= 0.5 else ''}"


def _span(seconds: float) -> str:
    return show_span(seconds) if seconds >= 1 else "–"


def render_cluster(found: Cluster, now: float, width: int | None, colour: bool) -> str:
    """The hubs with their duties. Polling is shared out in many parts: how many each hub has says enough."""
    shards = [duty for duty in found.duties if duty.name.startswith("polling-")]
    others = [duty for duty in found.duties if duty not in shards]
    rows: list[list[Cell]] = []
    for hub in found.hubs:
        polled = sum(duty.owner == hub.name for duty in shards)
        duties = [
            f"{duty.name} ({show_length(now - (duty.since or now))})" for duty in others if duty.owner == hub.name
        ]
        seen = ("up", "green") if hub.lag_seconds is not None else ("no bus", "red")
        seen = seen if hub.is_alive else (f"not seen for {show_length(hub.seen_seconds_ago)}", "red")
        lag = "–" if hub.lag_seconds is None else f"{1000 * hub.lag_seconds:.0f} ms"
        rows.append(
            [
                (f"{clean(hub.name)}{' *' if hub.is_this else ''}", "bold"),
                seen,
                (clean(hub.version), "grey"),
                (lag, ""),
                (f"{polled} of {len(shards)}", ""),
                (", ".join(duties) or "–", ""),
            ]
        )
    lines = [line.rstrip() for line in render(_CLUSTER_COLUMNS, rows, width, colour)]
    unowned = [duty.name for duty in found.duties if duty.owner is None]
    lines += [f"No hub has: {', '.join(unowned)}."] if unowned else []
    return "".join(f"{line}\n" for line in [*lines, *map(clean, found.problems)])
