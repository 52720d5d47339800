"""Times as people type them, also in the nights in which clocks are changed."""

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gpudeck.model.errors import UsageError
from gpudeck.model.times import read_moment, read_past_moment, read_span, show_moment

BERLIN = ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 15, 16, 20, 30, tzinfo=BERLIN).timestamp()


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("now", "2026-11-15T15:20:30"),
        ("+2h", "2026-11-15T17:20:30"),
        ("+1d 6h", "2026-11-16T21:20:30"),
        ("18:00", "2026-11-15T17:00:00"),
        ("16:19", "2026-11-15T15:19:00"),
        ("9:00", "2026-11-16T08:00:00"),
        ("today 9:00", "2026-11-15T08:00:00"),
        ("Tomorrow 9:00", "2026-11-16T08:00:00"),
        ("2026-11-20", "2026-11-19T23:00:00"),
        ("2026-11-20 09:30", "2026-11-20T08:30:00"),
        ("2026-11-20T09:30", "2026-11-20T08:30:00"),
        ("2026-11-20T09:30Z", "2026-11-20T09:30:00"),
        ("2026-11-20T09:30+05:30", "2026-11-20T04:00:00"),
        ("1790000000", "2026-09-21T14:13:20"),
        # The clock shows this twice: the first is meant.
        ("2026-10-25 02:30", "2026-10-25T00:30:00"),
        ("2026-10-25 03:00", "2026-10-25T02:00:00"),
        ("2027-03-28 03:00", "2027-03-28T01:00:00"),
    ],
)
def test_time_is_the_one_that_is_meant(typed: str, meant: str) -> None:
    at = read_moment("--from", typed, NOW, BERLIN)
    assert datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat() == meant


@pytest.mark.parametrize("typed", ["", "soon", "25:00", "2026-13-01", "2026-02-30 10:00", "-2h", "yesterday", "+x"])
def test_what_is_no_time_is_refused_with_examples(typed: str) -> None:
    with pytest.raises(UsageError, match=r"is no time: .*tomorrow 9:00"):
        read_moment("--from", typed, NOW, BERLIN)


def test_time_that_the_clock_skips_is_refused() -> None:
    with pytest.raises(UsageError, match="the clock skips it in Europe/Berlin"):
        read_moment("--from", "2027-03-28 02:30", NOW, BERLIN)


@pytest.mark.parametrize(
    ("typed", "reason"),
    [
        ("1969-12-31", "before 1970"),
        ("0002-01-01", "before 1970"),
        ("+999999999y", "after the year 9999"),
        ("999999999999", "after the year 9999"),
    ],
)
def test_time_beyond_all_calendars_is_refused(typed: str, reason: str) -> None:
    with pytest.raises(UsageError, match=f"is no time: it is {reason}"):
        read_moment("--from", typed, NOW, BERLIN)


@pytest.mark.parametrize(
    ("begin", "end", "hours"),
    [
        ("tomorrow 9:00", "17:00", 8),
        ("2027-03-27 22:00", "2027-03-28 5:00", 6),
        ("2027-03-28 1:00", "5:00", 3),
    ],
)
def test_time_of_day_as_an_end_is_on_the_day_of_the_start(begin: str, end: str, hours: int) -> None:
    start = read_moment("--from", begin, NOW, BERLIN)
    assert read_moment("--until", end, NOW, BERLIN, start=start) - start == hours * 3600


@pytest.mark.parametrize("end", ["6:00", "22:00", "today 23:00", "2026-11-01"])
def test_end_before_the_start_is_an_error_that_names_both(end: str) -> None:
    start = read_moment("--from", "tomorrow 22:00", NOW, BERLIN)
    with pytest.raises(
        UsageError, match=rf"--until '{end}': \S+ \S+ is not after the start, {show_moment(start, BERLIN)}"
    ):
        read_moment("--until", end, NOW, BERLIN, start=start)


def test_night_of_changing_clocks_is_as_long_as_it_is() -> None:
    start = read_moment("--from", "2026-10-25 00:00", NOW, BERLIN)
    assert read_moment("--until", "2026-10-26 00:00", NOW, BERLIN) - start == 25 * 3600
    assert show_moment(start + read_span("--for", "24h"), BERLIN) == "2026-10-25 23:00"


def test_time_that_is_shown_twice_says_which() -> None:
    first = read_moment("--from", "2026-10-25 02:30", NOW, BERLIN)
    assert show_moment(first, BERLIN) == "2026-10-25 02:30 +0200"
    assert show_moment(first + 3600, BERLIN) == "2026-10-25 02:30 +0100"
    assert show_moment(NOW, BERLIN, NOW) == "16:20"


def test_span_may_have_blanks() -> None:
    assert read_span("--for", "1d 6h") == 30 * 3600
    with pytest.raises(UsageError, match="--for: 'soon' is not a duration"):
        read_span("--for", "soon")
    with pytest.raises(UsageError, match="--for: '999999999y' is too long"):
        read_span("--for", "999999999y")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("now", "2026-11-15T15:20:30"),
        ("03:12", "2026-11-15T02:12:00"),
        ("18:00", "2026-11-14T17:00:00"),
        ("16:20", "2026-11-15T15:20:00"),
        ("today 9:00", "2026-11-15T08:00:00"),
        ("yesterday 9:00", "2026-11-14T08:00:00"),
        ("2h", "2026-11-15T13:20:30"),
        ("1d 6h ago", "2026-11-14T09:20:30"),
        ("2026-11-10", "2026-11-09T23:00:00"),
        ("2026-11-10 09:30", "2026-11-10T08:30:00"),
        # The clock shows it twice: the first one, unless an offset says which.
        ("2026-10-25 02:30", "2026-10-25T00:30:00"),
        ("2026-10-25T02:30+01:00", "2026-10-25T01:30:00"),
        ("1790000000", "2026-09-21T14:13:20"),
    ],
)
def test_past_time_is_the_one_that_is_meant(typed: str, meant: str) -> None:
    at = read_past_moment("--at", typed, NOW, BERLIN)
    assert datetime.fromtimestamp(at, UTC).replace(tzinfo=None).isoformat() == meant


@pytest.mark.parametrize(
    "typed", ["", "soon", "today 18:00", "25:00", "2026-11-16", "+2h", "60y", "2026-03-29 02:30", "tomorrow 9:00"]
)
def test_time_that_was_not_is_refused(typed: str) -> None:
    with pytest.raises(UsageError, match="--at"):
        read_past_moment("--at", typed, NOW, BERLIN)
