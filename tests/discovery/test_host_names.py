"""Names of many hosts in one word."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.discovery.host_names import MAX_EXPANDED, expand, is_host_name, quote


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu01", ["gpu01"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[08-11]", ["gpu08", "gpu09", "gpu10", "gpu11"]),
        ("gpu[099-101].lab", ["gpu099.lab", "gpu100.lab", "gpu101.lab"]),
        ("gpu[98-101]", ["gpu98", "gpu99", "gpu100", "gpu101"]),
        ("gpu[08-11,20, 3]", ["gpu08", "gpu09", "gpu10", "gpu11", "gpu20", "gpu3"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("[7]", ["7"]),
        ("10.0.0.[1-2]", ["10.0.0.1", "10.0.0.2"]),
    ],
)
def test_range_means_its_names_in_order(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu[16-01]", "[16-01] goes down; write [01-16]"),
        ("gpu[01-9]", "[01-9] mixes numbers with and without zeros in front"),
        ("gpu[1-016]", "[1-016] mixes numbers with and without zeros in front"),
        ("n[1-3]-g[a]", "'[a]' is no range of numbers such as [01-16] or [1-4,7]"),
        ("gpu[]", "'[]' is no range of numbers such as [01-16] or [1-4,7]"),
        ("gpu[1-]", "'[1-]' is no range of numbers such as [01-16] or [1-4,7]"),
        ("gpu[1", "'gpu[1' has a bracket without its other half"),
        ("gpu1]", "'gpu1]' has a bracket without its other half"),
        ("gpu[[1]]", "'gpu[[1]]' has a bracket without its other half"),
        ("gpu[1-10001]", "'[1-10001]' means more than 10000 hosts"),
        ("gpu[0-999999999]", "'[0-999999999]' means more than 10000 hosts"),
        ("r[1-200]n[1-200]", "'r[1-200]n[1-200]' means more than 10000 hosts"),
        ("gpu[1-3,2]", "'gpu[1-3,2]' names gpu2 twice"),
    ],
)
def test_wrong_range_is_explained(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        expand(text)


@pytest.mark.parametrize("text", ["", "-a", "a b", "a\n", "gpu[1-2]-", "ä", "a" * 254, "a\x1b[0m"])
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no name of a host|bracket|range"):
        expand(text)


def test_as_many_hosts_as_allowed_are_taken() -> None:
    assert len(expand(f"gpu[1-{MAX_EXPANDED}]")) == MAX_EXPANDED


@given(st.text(alphabet="ab1029[],-. \n\x00é", max_size=30) | st.text(max_size=30))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    names: list[str] = []
    problem = ""
    try:
        names = expand(text)
    except ValueError as error:
        problem = str(error)
    assert bool(names) != bool(problem)
    assert problem.isprintable()
    assert all(map(is_host_name, names))


@given(st.text(max_size=200))
def test_quoted_text_is_short_and_printable(text: str) -> None:
    assert quote(text).isprintable()
    assert len(quote(text)) <= 60
