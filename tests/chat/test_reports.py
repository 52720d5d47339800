"""Who used how much: periods as people type them, and figures of which the unknown ones are dashes."""

import pytest

from fakes.chats import NOW, ZONE
from fakes.fleets import make
from gpudeck.chat.answers import answer_report
from gpudeck.chat.blocks import ChatAnswer
from gpudeck.chat.commands import read_report
from gpudeck.model.errors import UsageError
from gpudeck.model.usage import Usage, UsageRow

DAY = 86_400


@pytest.mark.parametrize(
    ("text", "by", "start"),
    [
        ("", "user", NOW - 30 * DAY),
        ("host 7d", "host", NOW - 7 * DAY),
        ("by Groups since 12h", "group", NOW - DAY / 2),
        # Midnight in Berlin.
        ("model since 2026-09-01", "model", 1_788_213_600.0),
    ],
)
def test_periods_are_read(text: str, by: str, start: float) -> None:
    ask = read_report(tuple(text.split()), NOW, ZONE)
    assert (ask.by, ask.start, ask.end) == (by, start, NOW)


@pytest.mark.parametrize("text", ["since ever", "2030-01-01", "by colour"])
def test_what_is_no_period_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_report(tuple(text.split()), NOW, ZONE)


def report(coverage: float | None, *rows: UsageRow) -> ChatAnswer:
    total = make(UsageRow, gpu_hours=3.0, idle_hours=1.0)
    return answer_report(
        make(Usage, by="user", start=NOW - 7 * DAY, end=NOW, coverage=coverage, rows=rows, total=total)
    )


def test_what_is_unknown_is_a_dash_and_what_was_not_all_observed_is_not_100_percent() -> None:
    answer = report(0.99999, make(UsageRow, user="<!here>", gpu_hours=1234.56))
    assert answer.blocks[0]["text"]["text"].splitlines()[:2] == [
        "*Usage by user, last 7 days*",
        "*&lt;!here&gt;*  1,234.6 GPU-hours, – active, – idle",
    ]
    assert answer.blocks[-1]["elements"][0]["text"] == "Coverage 99.9 %."


def test_nobody_is_told_as_nobody() -> None:
    assert "Nobody used a GPU" in report(0.5).blocks[0]["text"]["text"]
    unmonitored = report(None).blocks[0]["text"]["text"]
    assert ("No GPU was monitored" in unmonitored, "Nobody" in unmonitored) == (True, False)
