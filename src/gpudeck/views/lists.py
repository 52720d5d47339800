"""Events, reservations, watches, maintenance and free GPUs as lines and tables for a terminal."""

from collections.abc import Sequence
from datetime import datetime, tzinfo

from gpudeck.model.cluster import Cluster, ClusterHub
from gpudeck.model.event import Event, FaultEvidence, Reliability, ReliabilityRow
from gpudeck.model.gpu_request import CandidateGpu, WatchView
from gpudeck.model.reservation import ReservedGpu, ShownMaintenance, ShownReservation
from gpudeck.model.text import clean, show_gib, show_length, show_span
from gpudeck.model.times import show_moment
from gpudeck.views.table import SEVERITY_COLOURS, SEVERITY_SIGNS, Cell, CellColumn, end_lines, paint, tabulate, wrap
from gpudeck.views.text import join_places


def render_events(events: Sequence[Event], zone: tzinfo, *, colour: bool = False) -> str:
    """Grouped by day: one line per event with time, severity and title, and another with its details. Ends in a
    newline."""
    lines, last = list[str](), ""
    for event in events:
        moment = datetime.fromtimestamp(event.at, zone)
        if (day := f"{moment:%A %Y-%m-%d}") != last:
            lines.append(paint(day, "bold", colour))
            last = day
        title = clean(f"{event.title}{f' ({event.user})' if event.user else ''}")
        sign, painted = SEVERITY_SIGNS.get(event.severity, "·"), SEVERITY_COLOURS.get(event.severity, "")
        lines.append(f"{moment:%H:%M:%S}  {paint(f'{sign} {title}', painted, colour)}")
        lines += [paint(f"{' ' * 12}{clean(event.detail)}", "grey", colour)] if event.detail else []
    return end_lines(lines)


def render_free(gpus: Sequence[CandidateGpu], *, width: int | None = None, colour: bool = False) -> str:
    """Ends in a newline."""
    columns: list[CellColumn[CandidateGpu]] = [
        CellColumn("HOST", 5, cell=lambda gpu: gpu.host),
        CellColumn("GPU", 4, "right", cell=lambda gpu: gpu.label),
        CellColumn("MODEL", 2, cell=lambda gpu: gpu.display_name),
        CellColumn("GiB", 3, "right", cell=lambda gpu: show_gib(gpu.memory_total_bytes, 0)),
        CellColumn("UUID", 1, widest=48, cell=lambda gpu: gpu.uuid),
    ]
    return end_lines(tabulate(columns, gpus, width, colour))


def render_reservations(
    found: Sequence[ShownReservation], now: float, zone: tzinfo, *, width: int | None = None, colour: bool = False
) -> str:
    """By their start, in the time of `zone`. GPUs that are no longer in the fleet are marked."""
    columns: list[CellColumn[ShownReservation]] = [
        CellColumn(
            "ID", 100, "right", 20, cell=lambda one: f"{one.id}" if one.name is None else f"{one.scheduler}:{one.name}"
        ),
        CellColumn("WHO", 99, widest=32, cell=lambda one: (one.user, "bold")),
        CellColumn("GPUS", 95, widest=60, least=12, cell=lambda one: _show_gpus(one.gpus)),
        CellColumn("FROM", 80, widest=22, cell=lambda one: (show_moment(one.start, zone), "grey")),
        CellColumn("UNTIL", 90, widest=22, cell=lambda one: show_moment(one.end, zone)),
        CellColumn("STATE", 70, widest=24, cell=lambda one: _reservation_state(one, now)),
        CellColumn("NOTE", 60, widest=60, least=8, cell=lambda one: (one.note, "grey")),
    ]
    return end_lines(tabulate(columns, found, width, colour))


def _show_gpus(gpus: Sequence[ReservedGpu]) -> str:
    return " ".join(
        join_places((gpu.host, f"{gpu.label}{'' if gpu.is_there is not False else ' (gone)'}") for gpu in gpus)
    )


def _reservation_state(one: ShownReservation, now: float) -> Cell:
    if one.kind == "claim":
        return f"claimed, {show_length(one.end - now)} left", "yellow"
    if one.state == "running":
        return f"{show_length(one.end - now)} left", "magenta"
    return (f"in {show_length(one.start - now)}", "grey") if one.state == "planned" else (one.state, "grey")


def render_maintenance(
    found: Sequence[ShownMaintenance], now: float, zone: tzinfo, *, width: int | None = None, colour: bool = False
) -> str:
    """By their start, in the time of `zone`. Hosts and GPUs that are no longer in the fleet are marked."""
    columns: list[CellColumn[ShownMaintenance]] = [
        CellColumn(
            "WHERE", 100, widest=60, least=12, cell=lambda one: (one.place + " (gone)" * (not one.is_there), "bold")
        ),
        CellColumn("FROM", 80, widest=22, cell=lambda one: (show_moment(one.start, zone), "grey")),
        CellColumn("UNTIL", 90, widest=22, cell=lambda one: None if one.end is None else show_moment(one.end, zone)),
        CellColumn("STATE", 70, widest=24, cell=lambda one: _maintenance_state(one, now)),
        CellColumn("BY", 60, widest=32, cell=lambda one: one.created_by),
        CellColumn("REASON", 95, widest=80, least=12, cell=lambda one: one.reason),
    ]
    return end_lines(tabulate(columns, found, width, colour))


def _maintenance_state(one: ShownMaintenance, now: float) -> Cell:
    if one.state == "planned":
        return f"in {show_length(one.start - now)}", "grey"
    return ("no end yet" if one.end is None else f"{show_length(one.end - now)} left"), "yellow"


def render_watches(watches: Sequence[WatchView], now: float, *, width: int | None = None, colour: bool = False) -> str:
    columns: list[CellColumn[WatchView]] = [
        CellColumn("ID", 100, "right", 20, cell=lambda one: str(one.id)),
        CellColumn("USER", 60, widest=24, cell=lambda one: one.user),
        CellColumn("WANTED", 95, widest=60, cell=lambda one: one.description),
        CellColumn("STATE", 90, widest=24, cell=lambda one: _watch_state(one, now)),
        CellColumn("FOUND", 50, widest=48, cell=lambda one: ", ".join(f"{gpu.host}:{gpu.label}" for gpu in one.found)),
    ]
    return end_lines(tabulate(columns, watches, width, colour))


def _watch_state(one: WatchView, now: float) -> Cell:
    if one.fired_at is not None:
        return f"notified {show_span(now - one.fired_at)} ago", "green"
    return f"for {show_length(one.expires_at - now)}", ""


def render_reliability(found: Reliability, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, one line per row, and how many more there are. Ends in a newline; times are in `zone`."""
    period = " to ".join(f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}" for at in (found.start, found.end))
    lines = wrap(f"{'GPUs' if found.by == 'gpu' else 'Hosts'} by faults, {period} ({zone})", width)
    score: CellColumn[ReliabilityRow] = CellColumn(
        "SCORE", 99, "right", 5, cell=lambda row: None if row.score is None else f"{row.score:.0f}"
    )
    columns: list[CellColumn[ReliabilityRow]] = [
        CellColumn(
            found.by.upper(), 100, cell=lambda row: row.host if row.gpu is None else f"{row.host}:{row.label or '?'}"
        ),
        *([score] if found.by == "gpu" else ()),
        CellColumn("INCIDENTS", 99, "right", 9, cell=lambda row: str(row.incidents)),
        CellColumn("LOST", 98, "right", 10, cell=lambda row: _span(row.lost_seconds)),
        CellColumn("THROTTLED", 90, "right", 10, cell=lambda row: _span(row.throttled_seconds)),
        CellColumn("EVIDENCE", 95, widest=120, cell=lambda row: ", ".join(map(_describe, row.evidence))),
    ]
    if found.rows:
        lines += ["", *tabulate(columns, found.rows, width, colour)]
        if found.total > len(found.rows):
            lines += ["", f"{found.total - len(found.rows):,} more had faults."]
    else:
        lines += ["", "No faults were recorded."]
    for problem in found.problems:
        lines += ["", *wrap(problem, width)]
    return end_lines(lines)


def _describe(one: FaultEvidence) -> str:
    times = f"{one.count} × " if one.count else ""
    return f"{times}{one.title}{f' (-{one.points:.0f})' if one.points >= 0.5 else ''}"


def _span(seconds: float) -> str | None:
    return show_span(seconds) if seconds >= 1 else None


def render_cluster(found: Cluster, now: float, *, width: int | None = None, colour: bool = False) -> str:
    """The hubs with their duties. Only the number of polling shards per hub is shown."""
    shards = [duty for duty in found.duties if duty.name.startswith("polling-")]
    others = [duty for duty in found.duties if duty not in shards]

    def state(hub: ClusterHub) -> Cell:
        if not hub.is_alive:
            return f"not seen for {show_length(hub.seen_seconds_ago)}", "red"
        return ("up", "green") if hub.lag_seconds is not None else ("no bus", "red")

    def duties(hub: ClusterHub) -> str | None:
        own = (duty for duty in others if duty.owner == hub.name)
        return ", ".join(f"{duty.name} ({show_length(now - (duty.since or now))})" for duty in own) or None

    columns: list[CellColumn[ClusterHub]] = [
        CellColumn("HUB", 100, least=8, cell=lambda hub: (f"{hub.name}{' *' if hub.is_this else ''}", "bold")),
        CellColumn("STATE", 95, widest=24, cell=state),
        CellColumn("VERSION", 60, widest=16, cell=lambda hub: (hub.version, "grey")),
        CellColumn(
            "LAG",
            70,
            "right",
            10,
            cell=lambda hub: None if hub.lag_seconds is None else f"{1000 * hub.lag_seconds:.0f} ms",
        ),
        CellColumn(
            "POLLING",
            80,
            widest=10,
            cell=lambda hub: f"{sum(duty.owner == hub.name for duty in shards)} of {len(shards)}",
        ),
        CellColumn("DUTIES", 90, widest=120, least=12, cell=duties),
    ]
    lines = tabulate(columns, found.hubs, width, colour)
    unowned = [duty.name for duty in found.duties if duty.owner is None]
    lines += [f"No hub has: {', '.join(unowned)}."] if unowned else []
    return end_lines([*lines, *map(clean, found.problems)])
