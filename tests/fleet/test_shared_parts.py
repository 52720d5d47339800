"""An answer that several callers wait for at the same time is made once, and is whole for all of them."""

from collections.abc import Iterator

import pytest

from gpudeck.fleet.stream import SharedParts


def count_up(made: list[int], until: int) -> Iterator[bytes]:
    for number in range(until):
        made.append(number)
        yield b"%d" % number


def test_callers_that_overtake_each_other_get_the_same_and_it_is_made_once() -> None:
    made: list[int] = []
    parts = SharedParts(count_up(made, 3))
    assert [parts.get(0), parts.get(0), parts.get(1)] == [(b"0", True), (b"0", False), (b"1", True)]
    assert [parts.get(1), parts.get(2), parts.get(3), parts.get(3)] == [
        (b"1", False),
        (b"2", True),
        (None, True),
        (None, True),
    ]
    assert made == [0, 1, 2]
    assert parts.size == 3


def test_an_answer_that_fails_is_whole_for_nobody() -> None:
    def fail() -> Iterator[bytes]:
        yield b"a"
        raise RuntimeError("no more")

    parts = SharedParts(fail())
    assert parts.get(0) == (b"a", True)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no more"):
            parts.get(1)
    assert parts.get(0) == (b"a", False)
