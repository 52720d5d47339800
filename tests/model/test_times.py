import contextlib
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.model.times import format_duration, parse_duration, parse_time

NOW = 1_767_225_600.0  # 2026-01-01T00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1767225600", NOW),
        ("1767225600.5", NOW + 0.5),
        ("0", 0.0),
        ("now", NOW),
        (" now ", NOW),
        ("-24h", NOW - 86_400),
        ("now-24h", NOW - 86_400),
        ("-1d12h", NOW - 129_600),
        ("-1.5h", NOW - 5_400),
        ("-2w", NOW - 14 * 86_400),
        ("-1y", NOW - 365 * 86_400),
        ("2026-01-01", NOW),
        ("2026-01-01T00:00Z", NOW),
        ("2026-01-01t00:00:00z", NOW),
        ("2026-01-01 00:00:00", NOW),
        ("2026-01-01T00:00:00.250Z", NOW + 0.25),
        ("2026-01-01T01:00+01:00", NOW),
        ("2026-01-01T01:00 01:00", NOW),
        ("2026-01-01 01:00 +0100", NOW),
        ("2025-12-31T19:00-05:00", NOW),
    ],
)
def test_times_are_understood(text: str, expected: float) -> None:
    assert parse_time(text, NOW) == expected


def test_time_without_a_zone_is_one_of_the_zone_given() -> None:
    assert parse_time("2026-01-01", NOW, ZoneInfo("Europe/Berlin")) == NOW - 3600
    assert parse_time("2026-07-01T02:00", NOW, ZoneInfo("Europe/Berlin")) == parse_time("2026-07-01", NOW)


def test_time_with_a_zone_keeps_it() -> None:
    assert parse_time("2026-01-01T00:00Z", NOW, ZoneInfo("Europe/Berlin")) == NOW


@pytest.mark.parametrize(
    "text",
    [
        *("", "nan", "inf", "-inf", "1e9", "-5", "+5", "24h", "--24h", "-24x", "-h", "yesterday", "٢٠٢٦-01-01"),
        *("2026-13-01", "2026-02-30", "2026-01-01T25:00", "2026-01-01T", "20260101T000000", "9" * 16, "2026-01-01Z"),
        *("2026-01-01T00:00+99:99", "now-", "-24h\x00", "2026-01-01T00:00Z; drop"),
    ],
)
def test_other_text_is_no_time_and_the_refusal_says_what_is(text: str) -> None:
    with pytest.raises(ValueError, match="give Unix seconds"):
        parse_time(text, NOW)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(("10s", 10.0), ("250ms", 0.25), ("5m", 300.0), ("2h", 7200.0), ("1d 6h", 108000.0), ("1h30m", 5400.0)),
        *(
            ("1.5h", 5400.0),
            ("1w", 604800.0),
            ("10 s", 10.0),
            ("30d", 2_592_000),
            ("1d12h", 129_600),
            ("12h 1d", 129_600),
        ),
    ],
)
def test_durations_are_read_as_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("90", 90.0), ("0.5", 0.5), ("0", 0.0), ("2h", 7200.0)])
def test_a_plain_number_is_seconds_where_that_is_allowed(text: str, seconds: float) -> None:
    assert parse_duration(text, allow_plain_seconds=True) == seconds


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        *("", "s", "-1s", "-30d", "5 minutes", "30 d x", "010", "1:30", "1e3", "1e3s", "1.s", "٣s", "10S", "1" * 400),
        "1d" + " " * 9999 + "x",
    ],
)
def test_other_text_is_no_duration(text: str, is_plain: bool) -> None:
    with pytest.raises(ValueError, match="is not a duration such as"):
        parse_duration(text, allow_plain_seconds=is_plain)


def test_a_number_without_a_unit_is_no_duration() -> None:
    with pytest.raises(ValueError, match="'30' is not a duration"):
        parse_duration("30")


@given(st.integers(0, 10**14))
def test_every_duration_in_milliseconds_survives_writing_and_reading(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.floats(1e-6, 1e9))
def test_every_other_duration_survives_writing_and_reading(seconds: float) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (600.0, "10m"), (90061.25, "1d 1h 1m 1s 250ms"), (0.1, "100ms")]
)
def test_duration_is_written_in_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


ALMOST = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{5,8}[Z+ -]?[0-9:]{0,5}"


@given(st.text(max_size=40) | st.from_regex(ALMOST, fullmatch=True))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_time(text, NOW), float)
