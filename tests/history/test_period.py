"""Parts of hours: at the ends of a period, on days that are shorter or longer, in zones between the hours."""

from datetime import date, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.history.base import HistoryRefused
from gpudeck.history.time_range import Period, day_begins, load_zone

HOUR = 3600
T0 = 1_780_272_000  # 2026-06-01 00:00 UTC
LATER = 4e9


def begins(day: str, zone: str) -> float:
    return day_begins(date.fromisoformat(day), load_zone(zone))


def hours_by_day(period: Period) -> dict[str, float]:
    """How many hours of the period lie on each day."""
    found = dict.fromkeys((day for day, _ in period.days), 0.0)
    for hour in range(period.first_hour, period.end_hour, HOUR):
        for day, share in period.parts(hour):
            found[period.days[day][0]] += share
    return found


def test_hours_at_the_ends_count_by_their_part_inside() -> None:
    period = Period(T0 + 900, T0 + 2 * HOUR + 1800, LATER)
    assert (period.first_hour, period.end_hour) == (T0, T0 + 3 * HOUR)
    assert [period.weight(T0 + HOUR * at) for at in range(-1, 4)] == [0, 0.75, 1, 0.5, 0]


def test_the_hour_that_is_running_has_time_until_now() -> None:
    now = T0 + 1200
    assert Period(T0, now, now).weight(T0) == 1
    assert Period(T0 + 600, now, now).weight(T0) == 0.5
    assert Period(T0, T0 + HOUR, now).weight(T0) == 1


def test_an_hour_of_a_clock_that_was_ahead_counts_whole() -> None:
    assert Period(T0, T0 + HOUR, T0 - 500).weight(T0) == 1


@pytest.mark.parametrize(
    ("day", "zone", "hours"),
    [
        ("2026-03-29", "Europe/Berlin", 23),
        ("2026-10-25", "Europe/Berlin", 25),
        ("2026-10-24", "Europe/Berlin", 24),
        ("2026-04-05", "Australia/Lord_Howe", 24.5),
        ("2018-11-04", "America/Sao_Paulo", 23),  # the clock skips midnight
        ("2026-06-01", "Asia/Kolkata", 24),
    ],
)
def test_days_have_as_many_hours_as_the_clock_there_says(day: str, zone: str, hours: float) -> None:
    start = begins(day, zone)
    period = Period(start - 5 * HOUR, start + 30 * HOUR, LATER, zone)
    assert hours_by_day(period)[day] == hours
    assert sum(hours_by_day(period).values()) == 35


def test_a_day_that_a_zone_leaves_out_has_no_time() -> None:
    start = begins("2011-12-29", "Pacific/Apia")
    period = Period(start, start + 48 * HOUR, LATER, "Pacific/Apia")
    assert hours_by_day(period) == {"2011-12-29": 24, "2011-12-30": 0, "2011-12-31": 24}


def test_an_hour_over_midnight_of_a_zone_between_the_hours_is_split() -> None:
    midnight = begins("2026-06-02", "Asia/Kolkata")
    period = Period(midnight - 24 * HOUR, midnight + 24 * HOUR, LATER, "Asia/Kolkata")
    assert period.parts(int(midnight) - 1800) == [(0, 0.5), (1, 0.5)]


def test_days_are_named_by_their_date_there_and_begin_at_their_midnight() -> None:
    zone = "Europe/Berlin"
    noon = datetime(2026, 6, 1, 12, tzinfo=ZoneInfo(zone)).timestamp()
    days = Period(noon, noon + 24 * HOUR, LATER, zone).days
    assert days == [("2026-06-01", noon - 12 * HOUR), ("2026-06-02", noon + 12 * HOUR)]


@given(
    st.integers(T0, T0 + 400 * 86_400),
    st.integers(1, 20 * 86_400),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Havana", "Pacific/Chatham"]),
)
def test_no_time_is_lost_and_none_counts_twice(start: int, seconds: int, zone: str) -> None:
    assert sum(hours_by_day(Period(start, start + seconds, LATER, zone)).values()) == pytest.approx(seconds / HOUR)


@given(
    st.integers(T0, T0 + 400 * 86_400),
    st.integers(1, 20 * 86_400),
    st.sampled_from([None, "UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Havana", "Pacific/Chatham"]),
    st.integers(-86_400, 30 * 86_400),
)
def test_what_is_so_of_the_first_hour_of_a_stretch_is_so_of_all(
    start: int, seconds: int, zone: str | None, now: int
) -> None:
    period = Period(start, start + seconds, start + now, zone)
    stretches = [range(begin, end, HOUR) for begin, end in period.stretches()]
    assert [hour for hours in stretches for hour in hours] == list(range(period.first_hour, period.end_hour, HOUR))
    for hours in stretches:
        assert all(period.parts(hour) == period.parts(hours[0]) for hour in hours)


def test_a_month_without_days_is_one_stretch() -> None:
    assert list(Period(T0, T0 + 720 * HOUR, LATER).stretches()) == [(T0, T0 + 720 * HOUR)]


@pytest.mark.parametrize(
    "zone", ["Europe/Nowhere", "Europe", "../../etc/passwd", "/etc/passwd", "", "a\x00b", "x" * 999]
)
def test_a_zone_that_nobody_knows_is_refused(zone: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        Period(T0, T0 + HOUR, LATER, zone)
    assert (refused.value.code, len(str(refused.value)) < 200) == ("unknown_zone", True)


@pytest.mark.parametrize(
    ("start", "end", "zone", "code"),
    [
        (T0, T0, None, "bad_range"),
        (T0, T0 - 1, None, "bad_range"),
        (-5, T0, None, "bad_range"),
        (float("nan"), T0, None, "bad_range"),
        (T0, float("inf"), None, "bad_range"),
        (253_402_300_799 - HOUR, 253_402_300_799, "Pacific/Apia", "bad_range"),
        (0, T0, None, "too_long"),
        (T0, T0 + 401 * 86_400, "UTC", "too_long"),
    ],
)
def test_a_period_that_makes_no_sense_is_refused(start: float, end: float, zone: str | None, code: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        Period(start, end, LATER, zone)
    assert refused.value.code == code
