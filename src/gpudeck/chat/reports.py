"""Who used how much, for a phone. Pure."""

import math
from datetime import UTC, tzinfo
from typing import Any, Final, get_args

from gpudeck.chat.blocks import Answer, say, show_time, tell
from gpudeck.chat.escape import escape
from gpudeck.history.base import UsageAsk
from gpudeck.model.errors import UsageError
from gpudeck.model.names import without_maker
from gpudeck.model.times import parse_span, parse_time
from gpudeck.model.usage import By
from gpudeck.views.usage import render_usage

_FILLERS: Final = {"by", "since", "last", "the"}
_PLURALS: Final = {f"{by}s": by for by in get_args(By)}


def read_report(words: tuple[str, ...], now: float, zone: tzinfo = UTC) -> UsageAsk:
    """`host 7d`, `by user since 2026-10-01`; the last 30 days by user if nothing is said. Raises UsageError."""
    by: By = "user"
    start = now - 30 * 86_400
    for word in (word.lower() for word in words):
        if word in get_args(By) or word in _PLURALS:
            by = _PLURALS.get(word, word)
        elif word not in _FILLERS:
            start = _read_start(word, now, zone)
    if start >= now:
        raise UsageError("the period ends before it begins.", "Such as `report 7d`.")
    return UsageAsk(by, start, now)


def answer_report(usage: dict[str, Any]) -> Answer:
    """`usage` as the API's JSON has it. What is unknown is a dash."""
    days = (usage["end"] - usage["start"]) / 86_400
    title = (
        f"Use by {usage['by']}, last {days:.0f} days" if days >= 2 else f"Use by {usage['by']}, last {days * 24:.0f} h"
    )
    if not usage["rows"]:
        return say(f"*{title}*", "Nobody was seen on any GPU.", _coverage(usage))
    lines = [_line(row, _name(usage, row)) for row in usage["rows"]] + [_line(usage["total"], "all together")]
    return tell(title, lines, lambda: render_usage(usage, UTC, width=120), "report", [_coverage(usage)])


def _line(row: dict[str, Any], name: str) -> str:
    worked, idle = row["worked_hours"], row["idle_held_hours"]
    parts = [f"{_number(row['gpu_hours'])} GPU-hours", f"{_number(worked)} worked", f"{_number(idle)} held idle"]
    return f"*{escape(name)}*  {', '.join(parts)}"


def _name(usage: dict[str, Any], row: dict[str, Any]) -> str:
    name = row.get(usage["by"])
    if row.get("unknown"):
        return "(unknown)"
    if name is None:
        return "no group"
    return without_maker(name) if usage["by"] == "model" else str(name)


def _coverage(usage: dict[str, Any]) -> str:
    """Rounded down: what was not observed in full is never called 100 %."""
    since = usage.get("known_since")
    if usage["coverage"] is None:
        return f"No GPU was known in the period{'' if since is None else f': the records begin {show_time(since)}'}."
    span = "the period" if since is None else f"the time since {show_time(since)}"
    return f"Observed {math.floor(1000 * usage['coverage'] + 1e-9) / 10:.1f} % of {span}."


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}"


def _read_start(word: str, now: float, zone: tzinfo) -> float:
    try:
        return now - parse_span(word)
    except ValueError:
        pass
    try:
        return parse_time(word, now, zone)
    except ValueError as error:
        raise UsageError(f"{word[:40]!r} is not understood.", "Such as `report host 7d`.") from error
