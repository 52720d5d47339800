import re
from collections.abc import Callable

import pytest

from gpudeck.model.text import parse_bytes, parse_memory, show_amount, show_exactly, show_length, show_span


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1000", 1000),
        ("20G", 20 * 10**9),
        ("20GB", 20 * 10**9),
        ("40GiB", 40 * 2**30),
        (" 1.5 MiB ", 1_572_864),
        ("2P", 2 * 10**15),
        ("7B", 7),
        ("0", 0),
    ],
)
def test_sizes_of_files_are_understood(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("40G", 40 * 2**30),
        ("40GB", 40 * 2**30),
        ("40gib", 40 * 2**30),
        (" 1.5 MiB ", 1_572_864),
        ("512M", 512 * 2**20),
        ("1T", 2**40),
        ("0", 0),
    ],
)
def test_memory_is_in_1024s_whatever_its_unit_looks_like(text: str, expected: int) -> None:
    assert parse_memory(text) == expected


@pytest.mark.parametrize("text", ["", "MiB", "1GiBs", "1 2", "forty", "-1G", "1e9", "40Gx", "٤٠G", "1" * 30, "40 G B"])
@pytest.mark.parametrize("parse", [parse_bytes, parse_memory])
def test_other_text_is_refused(parse: Callable[[str], int], text: str) -> None:
    with pytest.raises(ValueError, match="is not a"):
        parse(text)


@pytest.mark.parametrize(("text", "told"), [("40", "40 what? Write 40G"), ("1.5", "1.5 what? Write 1.5G")])
def test_memory_without_a_unit_is_refused_with_the_way_to_write_it(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        parse_memory(text)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (3600, "1h 0m"), (90_000, "1d 1h"), (864_000, "10d"), (-5, "0s"), (None, "–")],
)
def test_spans_are_shown_in_their_largest_units(seconds: float | None, shown: str) -> None:
    assert show_span(seconds) == shown


@pytest.mark.parametrize(
    ("typed", "shown"),
    [("40G", "40 GiB"), ("37.5GiB", "37.5 GiB"), ("0.5G", "512 MiB"), ("1T", "1024 GiB"), ("300M", "300 MiB")],
)
def test_memory_is_repeated_in_gib(typed: str, shown: str) -> None:
    assert show_amount(parse_memory(typed)) == shown


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
    assert show_amount(parse_memory("999999999999999999TiB")).endswith(" GiB")
