import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.history.base import MAX_POINTS, HistoryRefused
from gpudeck.history.time_range import DAY, LONGEST, STEPS, align, check_points, check_range, choose_grid

moments = st.floats(0, 4e9)
lengths = st.floats(1, LONGEST)


@given(moments, lengths, st.integers(1, MAX_POINTS))
def test_steps_cover_the_range_and_are_about_as_many_as_asked_for(start: float, length: float, points: int) -> None:
    grid = choose_grid(start, start + length, points)
    assert grid.start <= start
    assert grid.end >= start + length
    assert grid.start % grid.step == 0
    assert grid.step in STEPS
    assert grid.count <= 1.2 * points + 2


@pytest.mark.parametrize(
    ("length", "points", "step"),
    [(DAY, 500, 300), (3600, 500, 10), (7 * DAY, 500, 1800), (30 * DAY, 500, 7200), (365 * DAY, 500, DAY), (60, 1, 60)],
)
def test_step_is_a_round_one(length: float, points: int, step: int) -> None:
    assert choose_grid(1_790_000_000, 1_790_000_000 + length, points).step == step


def test_no_step_is_smaller_than_the_least() -> None:
    assert choose_grid(0, 3600, 500, 900).step == 900


def test_the_first_step_begins_before_a_range_that_begins_within_it() -> None:
    assert align(950, 1850, 900).times() == [900.0, 1800.0]


@pytest.mark.parametrize(
    ("start", "end", "code", "word"),
    [
        (math.nan, 1, "bad_range", "Unix seconds"),
        (0, math.nan, "bad_range", "Unix seconds"),
        (0, math.inf, "bad_range", "Unix seconds"),
        (-math.inf, 0, "bad_range", "Unix seconds"),
        (-1, 1, "bad_range", "Unix seconds"),
        (1_790_000_000_000, 1_790_000_000_001, "bad_range", "not milliseconds"),
        (1e300, 1e301, "bad_range", "Unix seconds"),
        (5, 5, "bad_range", "before `end`"),
        (6, 5, "bad_range", "before `end`"),
        (0, 4_000 * DAY, "too_long", "10 years"),
    ],
)
def test_what_is_no_range_is_refused_with_what_would_be(start: float, end: float, code: str, word: str) -> None:
    with pytest.raises(HistoryRefused) as refused:
        check_range(start, end)
    assert refused.value.code == code
    assert word in refused.value.hint


@pytest.mark.parametrize(("points", "code"), [(0, "bad_points"), (-5, "bad_points"), (10**9, "too_many_points")])
def test_absurd_numbers_of_points_are_refused_with_the_limit(points: int, code: str) -> None:
    with pytest.raises(HistoryRefused, match="1 to 5,000") as refused:
        check_points(points)
    assert refused.value.code == code
