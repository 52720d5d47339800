"""Who used how much, for a phone. Pure."""

import math
from datetime import UTC, tzinfo
from typing import Final, get_args

from gpudeck.chat.blocks import Answer, say, show_time, tell
from gpudeck.chat.escape import escape
from gpudeck.history.base import UsageAsk
from gpudeck.model.errors import UsageError
from gpudeck.model.times import parse_span, parse_time
from gpudeck.model.usage import By, Usage, UsageRow
from gpudeck.views.usage import name_of, render_usage

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


def answer_report(usage: Usage) -> Answer:
    """What is unknown is a dash."""
    days = (usage.end - usage.start) / 86_400
    title = f"Use by {usage.by}, last {days:.0f} days" if days >= 2 else f"Use by {usage.by}, last {days * 24:.0f} h"
    if not usage.rows:
        return say(f"*{title}*", "Nobody was seen on any GPU.", _coverage(usage))
    lines = [_line(row, name_of(usage, row)) for row in usage.rows] + [_line(usage.total, "all together")]
    return tell(title, lines, lambda: render_usage(usage, UTC, width=120), "report", [_coverage(usage)])


def _line(row: UsageRow, name: str) -> str:
    worked, idle = row.worked_hours, row.idle_held_hours
    parts = [f"{_number(row.gpu_hours)} GPU-hours", f"{_number(worked)} worked", f"{_number(idle)} held idle"]
    return f"*{escape(name)}*  {', '.join(parts)}"


def _coverage(usage: Usage) -> str:
    """Rounded down: what was not observed in full is never called 100 %."""
    since = usage.known_since
    if usage.coverage is None:
        return f"No GPU was known in the period{'' if since is None else f': the records begin {show_time(since)}'}."
    span = "the period" if since is None else f"the time since {show_time(since)}"
    return f"Observed {math.floor(1000 * usage.coverage + 1e-9) / 10:.1f} % of {span}."


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
