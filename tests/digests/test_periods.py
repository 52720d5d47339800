"""Weeks and months in a time zone: lengths, changes of the clock, and when a digest is due."""

from datetime import datetime
from typing import Literal, get_args
from zoneinfo import ZoneInfo

import pytest

from gpudeck.digests.content import Digest, DigestSection, Figure
from gpudeck.digests.periods import find_period
from gpudeck.digests.render import render_html, render_lines, render_text
from gpudeck.digests.settings import DigestSettings
from gpudeck.model.text import clean
from gpudeck.model.usage import NumberFormat, show_number

BERLIN, HOUR = ZoneInfo("Europe/Berlin"), 3600.0
Every = Literal["week", "month"]


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("every", "now", "name", "hours"),
    [
        ("week", "2026-11-16 07:00", "2026-W46", 168),
        # It is not due yet: the week before is the newest.
        ("week", "2026-11-16 06:59", "2026-W45", 168),
        # The clock was set back on Sunday, and forward in March.
        ("week", "2026-10-26 09:00", "2026-W43", 169),
        ("week", "2026-03-30 09:00", "2026-W13", 167),
        ("week", "2027-01-04 09:00", "2026-W53", 168),
        ("month", "2026-11-01 07:00", "2026-10", 31 * 24 + 1),
        ("month", "2026-11-01 06:59", "2026-09", 30 * 24),
        ("month", "2026-03-31 12:00", "2026-02", 28 * 24),
        ("month", "2028-03-01 12:00", "2028-02", 29 * 24),
        ("month", "2026-01-15 12:00", "2025-12", 31 * 24),
    ],
)
def test_the_newest_period_whose_digest_is_due(every: Every, now: str, name: str, hours: int) -> None:
    found = find_period(every, DigestSettings(), BERLIN, at(now))
    assert (found.name, (found.end - found.start) / HOUR) == (name, hours)
    assert found.due <= at(now)


def test_the_period_before_a_month_is_a_whole_month_of_its_own_length() -> None:
    found = find_period("month", DigestSettings(), BERLIN, at("2026-03-31 12:00"))
    assert (found.start - found.before) / HOUR == 31 * 24


def test_a_later_day_of_the_week_and_an_hour_that_the_clock_skips() -> None:
    settings = DigestSettings(day="sun", at="02:30")
    found = find_period("week", settings, BERLIN, at("2026-03-29 12:00"))
    assert (found.name, found.due) == ("2026-W12", at("2026-03-29 03:30"))
    assert find_period("week", settings, BERLIN, found.due - 1).name == "2026-W11"


@pytest.mark.parametrize(("numbers", "told"), [("en", "1,234,567.5"), ("de", "1.234.567,5"), ("fr", "1 234 567,5")])
def test_numbers_have_the_marks_of_a_language(numbers: NumberFormat, told: str) -> None:
    assert show_number(1_234_567.46, numbers) == told


@pytest.mark.parametrize("numbers", get_args(NumberFormat))
def test_numbers_of_all_languages_reach_html_text_and_chats(numbers: NumberFormat) -> None:
    figure = Figure("GPU-hours", show_number(1234567.5, numbers), f"of {show_number(1234567.5, numbers)}")
    row = ("alice", show_number(1234567.5, numbers))
    section = DigestSection("Your GPUs", [figure], head=("User", "Hours"), rows=[row])
    digest = Digest(f"{show_number(1e6, numbers)} GPUs", [section], [], "#/", None)
    for shown in (render_html(digest), render_text(digest), clean(" ".join(render_lines(digest))), clean(digest.title)):
        assert "\ufffd" not in shown
    assert figure.value.replace(" ", "&#8239;") in render_html(digest)
