"""CSV: read back by a CSV reader as it was, and harmless to spreadsheets and terminals."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.views.csv import write_csv


def test_lines_end_and_fields_are_quoted_as_rfc_4180_says() -> None:
    assert write_csv([["user", "gpu_hours"], ['a,"b"', 1.5], [None, 3]]) == (
        'user,gpu_hours\r\n"a,""b""",1.5\r\n,3\r\n'
    )


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", " =1+1", "\t=1", "\r\n=1", "\u00a0=1"])
def test_a_text_is_never_a_formula(text: str) -> None:
    field = next(csv.reader(io.StringIO(write_csv([[text]]), newline="")))[0]
    assert field.lstrip()[0] not in "=+-@"


def test_a_negative_number_stays_a_number() -> None:
    assert write_csv([[-1.5]]) == "-1.5\r\n"


def test_nothing_reaches_a_terminal_that_it_would_act_upon() -> None:
    assert "\x1b" not in write_csv([["\x1b[2J"]])


@given(st.lists(st.lists(st.text(st.characters(categories=["L", "N", "P"]), min_size=1), min_size=1)))
def test_what_is_written_is_what_is_read_but_for_the_apostrophe(rows: list[list[str]]) -> None:
    again = csv.reader(io.StringIO(write_csv(rows), newline=""))
    assert [[field.removeprefix("'") for field in row] for row in again] == [
        [field.removeprefix("'") for field in row] for row in rows
    ]
