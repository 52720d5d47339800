import pytest

from gpudeck.model.quantity import parse_bytes, show_span


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
