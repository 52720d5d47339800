"""The flakiest GPUs or hosts as a table for people with a terminal, with what stands behind each."""

import textwrap
from datetime import datetime, tzinfo

from gpudeck.model.reliability import FaultEvidence, Reliability, ReliabilityRow
from gpudeck.model.text import clean, show_span
from gpudeck.views.table import Cell, Column, render


def render_reliability(found: Reliability, zone: tzinfo, *, width: int | None = None, colour: bool = False) -> str:
    """The period, a line a row, and how many more there are. Ends in a newline; times are those of the zone."""

    def show(at: float) -> str:
        return f"{datetime.fromtimestamp(at, zone):%Y-%m-%d %H:%M}"

    what = "GPUs" if found.by == "gpu" else "Hosts"
    lines = _wrap(f"{what} by faults, {show(found.start)} to {show(found.end)} ({zone})", width)
    if found.rows:
        columns = [
            Column(found.by.upper(), keep=100, widest=40),
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
        lines += ["", *_wrap(problem, width)]
    return "\n".join(lines) + "\n"


def _row(row: ReliabilityRow) -> list[Cell]:
    name = clean(row.host) if row.gpu is None else f"{clean(row.host)}:{clean(row.label or '?')}"
    evidence = ", ".join(map(_describe, row.evidence))
    cells = [name, str(row.incidents), _span(row.lost_seconds), _span(row.throttled_seconds), evidence]
    return [(cell, "") for cell in cells]


def _describe(one: FaultEvidence) -> str:
    times = f"{one.count} × " if one.count else ""
    return f"{times}{clean(one.title)}"


def _span(seconds: float) -> str:
    return show_span(seconds) if seconds >= 1 else "–"


def _wrap(text: str, width: int | None) -> list[str]:
    return textwrap.wrap(text, width or len(text))
