"""Runs for people with a terminal: a table with the verdict on each, and verdicts in full. Unknown is a dash."""

import textwrap
from collections.abc import Sequence
from datetime import tzinfo

from msgspec import Struct

from gpudeck.model.job import RATING_WORDS, Rating, RunVerdict
from gpudeck.model.text import clean, show_gib, show_span, without_maker
from gpudeck.model.times import show_moment
from gpudeck.views.table import Cell, Column, render

RATING_SIGNS: dict[Rating, str] = {"good": "●", "could_be_better": "▲", "poor": "✗", "unknown": "?"}
_COLOURS: dict[Rating, str] = {"good": "green", "could_be_better": "yellow", "poor": "red", "unknown": ""}


class ShownRun(Struct):
    """What a client reads of a run."""

    id: int
    host_name: str
    user: str | None
    command: str | None
    job: str | None
    labels: list[str]
    model: str | None
    started_at: float | None
    seen_at: float
    ended_at: float | None
    gpu_seconds: float
    peak_memory_bytes: float | None
    mean_utilization_percent: float | None
    verdict: RunVerdict | None = None


class ShownRuns(Struct):
    runs: list[ShownRun]
    next: int | None = None


_COLUMNS = [
    Column("RUN", keep=90, align="right"),
    Column("GPUS", keep=100, widest=28),
    Column("MODEL", keep=40, widest=20),
    Column("USER", keep=80, widest=16),
    Column("START", keep=85),
    Column("TIME", keep=95, align="right"),
    Column("UTIL", keep=96, align="right"),
    Column("MEM GiB", keep=60, align="right"),
    Column("VERDICT", keep=99),
    Column("COMMAND", keep=70, widest=40),
]


def render_runs(
    runs: Sequence[ShownRun], zone: tzinfo, now: float, *, width: int | None = None, colour: bool = False
) -> str:
    """A line a run, the newest first, and its first suggestion below it. Ends in a newline."""
    table = render(_COLUMNS, [_row(run, zone, now) for run in runs], width, colour)
    lines = table[: len(table) - len(runs)]
    for run, line in zip(runs, table[len(lines) :], strict=True):
        lines.append(line)
        for one in [] if run.verdict is None else run.verdict.suggestions[:1]:
            lines += _indent(f"{one.text}: {one.evidence}. {one.fix}", width, "    ")
    return "\n".join(lines) + "\n"


def show_verdict(verdict: RunVerdict, width: int | None) -> list[str]:
    """All of it."""
    told = f"{RATING_SIGNS[verdict.rating]} Verdict: {RATING_WORDS[verdict.rating]}."
    lines = _indent(told if verdict.suggestions else f"{told} {verdict.text}", width, "")
    for one in verdict.suggestions:
        lines += _indent(f"- {one.text}: {one.evidence}. {one.fix} (From: {one.threshold}.)", width, "  ")
    return lines


def _indent(text: str, width: int | None, indent: str) -> list[str]:
    return textwrap.wrap(clean(text), width or 10_000, initial_indent=indent, subsequent_indent=indent + "  ")


def _row(run: ShownRun, zone: tzinfo, now: float) -> list[Cell]:
    start, level = run.started_at or run.seen_at, run.mean_utilization_percent
    rating = None if run.verdict is None else run.verdict.rating
    cells = [
        str(run.id),
        f"{clean(run.host_name)}:{','.join(map(clean, run.labels))}",
        "–" if run.model is None else clean(without_maker(run.model)),
        clean(run.user or "–"),
        show_moment(start, zone, now),
        show_span((now if run.ended_at is None else run.ended_at) - start),
        "–" if level is None else f"{level:.0f}%",
        show_gib(run.peak_memory_bytes),
        "–" if rating is None else f"{RATING_SIGNS[rating]} {RATING_WORDS[rating]}",
        clean(run.command or "–"),
    ]
    return [(text, _COLOURS[rating] if at == 8 and rating is not None else "") for at, text in enumerate(cells)]
