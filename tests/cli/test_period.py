"""Periods as people type them."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gpudeck.cli.period import local_zone, read_period
from gpudeck.model.errors import UsageError

ZONE = "Europe/Berlin"
NOW = "2026-11-15T15:30"


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(ZONE)).timestamp()


@pytest.mark.parametrize(
    ("since", "until", "start", "end"),
    [
        ("12h", None, "2026-11-15T03:30", NOW),
        ("-12h", None, "2026-11-15T03:30", NOW),
        ("now-1d12h", "-12h", "2026-11-14T03:30", "2026-11-15T03:30"),
        ("1d 12h", "12h", "2026-11-14T03:30", "2026-11-15T03:30"),
        ("today", None, "2026-11-15", NOW),
        ("yesterday", None, "2026-11-14", "2026-11-15"),
        ("yesterday", "now", "2026-11-14", NOW),
        ("this-month", None, "2026-11-01", NOW),
        ("last-month", None, "2026-10-01", "2026-11-01"),
        ("last-month", "yesterday", "2026-10-01", "2026-11-15"),
        ("2026-10-01", None, "2026-10-01", NOW),
        ("2026-10-01", "2026-10-31", "2026-10-01", "2026-11-01"),
        ("2026-10-25", "2026-10-25", "2026-10-25", "2026-10-26"),
        ("2026-10-01T12:00", "2026-10-01 13:30", "2026-10-01T12:00", "2026-10-01T13:30"),
        ("2026-10-01T12:00+05:30", None, "2026-10-01T08:30", NOW),
    ],
)
def test_a_period_is_what_people_mean(since: str, until: str | None, start: str, end: str) -> None:
    assert read_period(since, until, at(NOW), ZONE) == (at(start), at(end))


def test_last_month_of_january_is_december() -> None:
    period = read_period("last-month", None, at("2027-01-31"), ZONE)
    assert period == (at("2026-12-01"), at("2027-01-01"))


def test_a_day_with_25_hours_is_one_day() -> None:
    start, end = read_period("2026-10-25", "2026-10-25", at(NOW), ZONE)
    assert end - start == 25 * 3600


@pytest.mark.parametrize(
    "text",
    ["soon", "", "2026-13-01", "2026-02-30", "2026-10-01Tnoon", "9999-12-31", "--5d", "tomorrow", "30", "99999y"],
)
def test_what_is_no_time_is_told(text: str) -> None:
    with pytest.raises(UsageError, match="--until"):
        read_period("1d", text, at(NOW), ZONE)


@pytest.mark.parametrize(("since", "until"), [("1d", "2d"), ("2026-12-01", None), ("now", None)])
def test_a_period_that_ends_before_it_begins_is_told(since: str, until: str | None) -> None:
    with pytest.raises(UsageError, match="ends before it begins"):
        read_period(since, until, at(NOW), ZONE)


@pytest.mark.parametrize(
    ("named", "zone"),
    [
        ("Asia/Tokyo", "Asia/Tokyo"),
        (":Asia/Tokyo", "Asia/Tokyo"),
        (":/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo"),
        ("CET-1CEST,M3.5.0,M10.5.0/3", "UTC"),
        ("../../etc/passwd", "UTC"),
    ],
)
def test_the_zone_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, named: str, zone: str) -> None:
    monkeypatch.setenv("TZ", named)
    assert local_zone() == zone


def test_without_any_word_the_zone_is_one_that_exists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    assert ZoneInfo(local_zone())
