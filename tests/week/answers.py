"""What the hub says of the week, as it is recorded: events, alerts, messages, states and the history.

Each is lines that a person can read and check. `python -m week` in the folder `tests` records them again.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from gpudeck.alerts.record import AlertRecord
from gpudeck.history.base import HeatQuery, RunsQuery, SeriesQuery, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.model.event import Event
from gpudeck.model.usage import By, UsageRow
from week.hosts import HOUR, START
from week.hub import WeekHub

FOLDER: Final = Path(__file__).parent / "recorded"
DAY_HOURS: Final = 24.0
WEEK_HOURS: Final = 168.0
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun", "Mon")

Answers = dict[str, Any]


def file_of(hours: float) -> Path:
    return FOLDER / ("day.json" if hours == DAY_HOURS else "week.json")


def read(hours: float) -> Answers:
    answers: Answers = json.loads(file_of(hours).read_text())
    return answers


def write(hours: float, answers: Answers) -> None:
    file_of(hours).write_text(json.dumps(answers, indent=1, ensure_ascii=False) + "\n")


def collect(hub: WeekHub, hours: float) -> Answers:
    end = START + hours * HOUR
    side = hub.new
    answers = {
        "events": sorted(tell_event(event) for event in side.events),
        "alerts": sorted(tell_record(record) for record in side.records.values()),
        "messages": [
            f"{clock(message.at)} {message.title} → {', '.join(message.accounts)}" for message in side.messages
        ],
        "states": hub.states,
        "usage": {by: list(tell_usage(hub.store, by, end)) for by in ("user", "host", "model")},
        "series": dict(tell_series(hub.store, end)),
        "heat": list(tell_heat(hub.store, end)),
        "runs": list(tell_runs(hub.store, end)),
    }
    # As it is read from the file.
    plain: Answers = json.loads(json.dumps(answers))
    return plain


def clock(at: float | None) -> str:
    """Mon 09:00:10"""
    if at is None:
        return "-"
    seconds = round(at - START)
    return f"{_DAYS[seconds // 86_400]} {seconds // 3600 % 24:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def tell_event(event: Event) -> str:
    """Days in the order of the week: their numbers come first."""
    day = int((event.at - START) // 86_400)
    user = f" [{event.user}]" if event.user else ""
    # An alert's id follows from its time, which is there already.
    detail = event.detail.partition(". ")[2] if event.kind.startswith("alert_") else event.detail
    return f"{day} {clock(event.at)} {event.kind} {event.severity}: {event.title}{user}. {detail}".rstrip()


def tell_record(record: AlertRecord) -> str:
    told = f"{record.rule} {record.severity}, {record.host or 'fleet'} {record.label or ''} {record.part}".rstrip()
    times = f"since {clock(record.since)}, fired {clock(record.fired_at)}, resolved {clock(record.resolved_at)}"
    people = f", for {', '.join(record.accounts)}" if record.accounts else ""
    return f"{told}: {times}{people}: {record.title}{f' ({record.note})' if record.note else ''}"


def tell_usage(store: EmbeddedStore, by: By, end: float) -> Iterator[str]:
    usage = store.usage(UsageQuery(by=by, start=START, end=end, daily=True))
    yield f"coverage {number(usage.coverage)}, {number(usage.monitored_gpu_hours)} GPU-hours observed"
    for row in (*sorted(usage.rows, key=lambda row: str(row.name_by(by))), usage.total):
        yield f"{'total' if row is usage.total else row.name_by(by)}: {tell_row(row)}"


def tell_row(row: UsageRow) -> str:
    figures = {
        "GPU-hours": row.gpu_hours,
        "measured": row.measured_hours,
        "active": row.active_hours,
        "idle": row.idle_hours,
        "share": row.share,
        "GiB": None if row.peak_memory_bytes is None else row.peak_memory_bytes / 2**30,
        "kWh": row.energy_kwh,
    }
    days = "; ".join(f"{day.day[-2:]}: {number(day.gpu_hours)}" for day in row.days)
    return ", ".join(f"{name} {number(value)}" for name, value in figures.items()) + (f" ({days})" if days else "")


def tell_series(store: EmbeddedStore, end: float) -> Iterator[tuple[str, list[str]]]:
    """Samples of a few hours, quarter hours, and hours of the whole time."""
    monday = {"start": START + 9.5 * HOUR, "end": START + 13 * HOUR, "points": 84}
    asks = [
        SeriesQuery("temperature_celsius", gpu="GPU-a01-1", **monday),
        SeriesQuery("utilization_percent", gpu="GPU-far-0", start=START + 2 * HOUR, end=START + 7 * HOUR, points=60),
        SeriesQuery("host_cpu_percent", host="a01", start=START, end=end, points=48),
        *(SeriesQuery(metric, fleet=True, start=START, end=end, points=48) for metric in ("gpus_busy", "gpus_idle")),
        SeriesQuery("gpus_unknown", fleet=True, start=START, end=end, points=48),
        SeriesQuery("gpus_used", user="alice", start=START, end=end, points=48),
        SeriesQuery("memory_used_bytes", gpu="GPU-a01-3", by="user", start=START, end=START + 24 * HOUR, points=48),
    ]
    for ask in asks:
        answer = store.series(ask)
        for series in answer.series:
            whose = series.gpu or series.host or series.user or "fleet"
            name = f"{ask.metric} of {whose}{f', {series.user}' if ask.by else ''} every {answer.step:g} s"
            yield f"{name}, {answer.resolution}", [tell_point(point) for point in series.points]


def tell_point(point: tuple[float, float | None, float | None, float | None]) -> str:
    at, mean, low, high = point
    values = number(mean) if low == high == mean else " ".join(map(number, (mean, low, high)))
    return f"{clock(at)} {values}"


def tell_heat(store: EmbeddedStore, end: float) -> Iterator[str]:
    heat = store.heat(HeatQuery("utilization_percent", START, end, step=6 * 3600))
    for row in sorted(heat.rows, key=lambda row: row.name):
        yield f"{row.name}: {' '.join(map(number, row.values))}"


def tell_runs(store: EmbeddedStore, end: float) -> Iterator[str]:
    """Of two hosts: one that was away, and one whose card was moved."""
    for host in ("far01", "m-old"):
        found = store.runs(RunsQuery(start=START, end=end, host=host, limit=1000))
        for run in sorted(found.runs, key=lambda run: (run.seen_at, run.pid)):
            times = f"{clock(run.started_at)} until {clock(run.ended_at)}"
            figures = (run.gpu_seconds / HOUR, run.mean_utilization_percent, run.idle_seconds / HOUR)
            yield f"{host} {run.pid} {run.user} on {'+'.join(run.labels)}: {times}, {' '.join(map(number, figures))}"


def number(value: float | None) -> str:
    return "-" if value is None else f"{round(value, 3) + 0.0:g}"
