import pytest

from gpudeck.model.quantity import parse_bytes, show_amount, show_exactly, show_length, show_span


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000),
        ("40G", 40_000_000_000),
        ("40GB", 40_000_000_000),
        ("40GiB", 40 * 2**30),
        (" 1.5 MiB ", 1_572_864),
    ],
)
def test_amounts_of_memory_are_understood(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "forty", "-1G", "1e9", "G", "40Gx", "٤٠G", "1" * 30, "40 G B"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not an amount of memory"):
        parse_bytes(text)


def test_a_card_sold_as_80_gb_is_found_by_80g() -> None:
    assert parse_bytes("80G") <= 81_559 * 2**20


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (3600, "1h 0m"), (90_000, "1d 1h"), (864_000, "10d"), (-5, "0s"), (None, "–")],
)
def test_spans_are_shown_in_their_largest_units(seconds: float | None, shown: str) -> None:
    assert show_span(seconds) == shown


@pytest.mark.parametrize(
    ("typed", "shown"),
    [
        ("40G", "40 GB"),
        ("40GB", "40 GB"),
        ("40GiB", "40 GiB"),
        ("37.5GiB", "37.5 GiB"),
        ("0.5G", "0.5 GB"),
        ("1T", "1000 GB"),
        ("123456789", "0.1 GiB"),
    ],
)
def test_amount_is_repeated_as_it_was_written(typed: str, shown: str) -> None:
    assert show_amount(parse_bytes(typed)) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (5 * 86_400 - 1, "5d"),
        (4 * 3600 - 0.4, "4h"),
        (3600 - 20, "1h"),
        (30 * 3600, "1d 6h"),
        (59.6, "1m"),
        (14 * 60 + 31, "15m"),
        (29.7 * 86_400, "30d"),
        (0.0, "0s"),
        (-3.0, "0s"),
    ],
)
def test_length_is_the_nearest(seconds: float, shown: str) -> None:
    assert show_length(seconds) == shown


def test_length_that_is_refused_is_told_to_the_second() -> None:
    assert [show_exactly(seconds) for seconds in (604_860, 604_800, 3661, 0.2)] == ["7d 1m", "7d", "1h 1m 1s", "0s"]


def test_an_amount_that_no_card_has_is_shown_all_the_same() -> None:
    assert show_amount(parse_bytes("999999999999999999TiB")).endswith(" GiB")
