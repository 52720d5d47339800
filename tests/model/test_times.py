import contextlib
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.model.times import parse_span, parse_time

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


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), ("90m", 5_400), ("1d12h", 129_600), ("0.5h", 1_800)])
def test_spans_are_understood(text: str, seconds: float) -> None:
    assert parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "d", "-30d", "30 d x", "1e3s", "1.s"])
def test_other_text_is_no_span(text: str) -> None:
    with pytest.raises(ValueError, match="not a span of time"):
        parse_span(text)


ALMOST = r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9:]{5,8}[Z+ -]?[0-9:]{0,5}"


@given(st.text(max_size=40) | st.from_regex(ALMOST, fullmatch=True))
def test_any_text_is_a_time_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_time(text, NOW), float)
