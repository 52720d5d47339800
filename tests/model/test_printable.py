"""No character that a terminal acts upon, whatever comes from outside."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.model.text import clean, escape


@given(st.text(max_size=60))
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    assert clean(text).isprintable()
    assert escape(text).isprintable()


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("gpu-07 é 漢", "gpu-07 é 漢"),
        ("a\x1b[31m", r"a\x1b[31m"),
        ("a\u202eb\u2028", r"a\u202eb\u2028"),
        ("a\nb\x9b", r"a\nb\x9b"),
        ("\ud800", r"\ud800"),
    ],
)
def test_each_is_told_by_its_number(text: str, escaped: str) -> None:
    assert escape(text) == escaped
