"""The bot's answer about the runs of the asker, with the verdict and one suggestion each. Pure."""

from collections.abc import Sequence
from typing import Final

from gpudeck.chat.blocks import ChatAnswer, escape, show_time, text_answer
from gpudeck.model.job import RATING_WORDS, Rating, Run
from gpudeck.model.text import show_span

MAX_RUNS: Final = 10
_SIGNS: Final[dict[Rating, str]] = {"good": "🟢", "could_be_better": "🟡", "poor": "🔴", "unknown": "⚪"}


def answer_runs(runs: Sequence[Run], now: float) -> ChatAnswer:
    """The newest first. Only the asker sees it."""
    lines = [line for run in runs[:MAX_RUNS] for line in _lines(run, now)]
    title = "*Your newest runs*" if lines else "You had no runs in the last seven days."
    return text_answer(title, *lines, is_private=True)


def _lines(run: Run, now: float) -> list[str]:
    start, verdict = run.started_at or run.seen_at, run.verdict
    rating: Rating = "unknown" if verdict is None else verdict.rating
    lasted = show_span((now if run.ended_at is None else run.ended_at) - start)
    running = ", running" if run.ended_at is None else ""
    place = f"*{escape(run.host_name)}:{escape(','.join(run.labels))}*"
    told = [f"{_SIGNS[rating]} {place}  {show_time(start)}, {lasted}{running}: {RATING_WORDS[rating]}"]
    if verdict is not None and verdict.suggestions:
        one = verdict.suggestions[0]
        told.append(f"      {escape(one.text)}: {escape(one.evidence, 400)}. {escape(one.fix)}")
    return told
