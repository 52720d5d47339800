"""Whatever is said fits into Slack's limits, and nothing is cut in the middle of its markup."""

from hypothesis import given
from hypothesis import strategies as st

from fakes.slack_shapes import check_blocks, check_markup
from gpudeck.chat.blocks import (
    MAX_LINES,
    ChatAnswer,
    attach,
    cut,
    escape,
    list_answer,
    show_time,
    text_answer,
)

LINES = st.lists(st.text(max_size=50).map(lambda text: escape(text * 80, 3000)).filter(bool), min_size=1, max_size=60)


def is_fine(answer: ChatAnswer) -> bool:
    return list(check_blocks(list(answer.blocks))) == [] and list(check_markup(answer.text)) == []


@given(LINES)
def test_lines_of_any_length_fit(lines: list[str]) -> None:
    assert is_fine(text_answer(*lines))
    assert is_fine(list_answer("title", lines, lambda: "sheet", "all", lines))


@given(st.text(st.sampled_from("a<>&`"), min_size=1, max_size=80), st.integers(1, 60))
def test_what_is_cut_is_whole_markup(text: str, most: int) -> None:
    short = cut(f"{escape(text)} {show_time(1_790_000_000)} {escape(text)}", most)
    assert len(short) <= most
    assert list(check_markup(short)) == []


def test_a_phone_gets_lines_and_more_of_them_are_a_snippet() -> None:
    assert list_answer("t", ["line"] * MAX_LINES, lambda: "sheet", "all").snippet is None
    long = list_answer("t", ["line"] * (MAX_LINES + 1), lambda: "sheet", "all").snippet
    assert long is not None
    assert (long.text, long.name) == ("sheet", "gpudeck-all.txt")


def test_a_notification_holds_no_markup() -> None:
    said = attach(f"*gpu01* until {show_time(1_790_000_000)}", "sheet", "all").text
    assert said == "gpu01 until 2026-09-21 14:13 UTC"
