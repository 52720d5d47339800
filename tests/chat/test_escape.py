"""No name and no note can mention anybody, link anywhere or mark up what stands around it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.slack_shapes import check_markup
from gpudeck.chat.blocks import MAX_NAME_LENGTH, escape, unescape
from gpudeck.model.text import clean

HOSTILE = st.text(st.sampled_from("<>!@#&|`*_~\n\r\x00\u202e abcUC0:/;")) | st.text()


@given(HOSTILE)
def test_nothing_that_slack_acts_upon_is_left(text: str) -> None:
    shown = escape(text)
    assert not re.search(r"[<>`\n\r]", shown)
    assert list(check_markup(shown)) == []
    assert shown.isprintable()


@given(HOSTILE)
def test_what_is_escaped_is_read_again_as_it_was(text: str) -> None:
    back = escape(text, 10_000).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    assert back == clean(text).replace("`", "ˋ")


@given(HOSTILE, st.integers(2, 200))
def test_a_cut_name_is_whole_markup(text: str, longest: int) -> None:
    shown = escape(text, longest)
    assert list(check_markup(shown)) == []
    assert len(shown) <= 5 * longest


@pytest.mark.parametrize(
    "attack", ["<!channel>", "<!here|x>", "<@U012AB3CD>", "<#C012AB3CD>", "<https://evil.example|gpu07>", "`code`"]
)
def test_attacks_become_text(attack: str) -> None:
    assert list(check_markup(escape(attack))) == []
    assert "`" not in escape(attack)


def test_long_names_are_cut() -> None:
    assert escape("x" * 500) == "x" * (MAX_NAME_LENGTH - 1) + "…"


@pytest.mark.parametrize(
    ("sent", "typed"),
    [
        ("free &gt;40G", "free >40G"),
        ("who <http://gpu07.example.org|gpu07.example.org>", "who gpu07.example.org"),
        ("who <http://gpu07.example.org>", "who gpu07.example.org"),
        ("where <@U012AB3CD>", "where <@U012AB3CD>"),
        ("reserve 2 “RTX 6000” for 4h", 'reserve 2 "RTX 6000" for 4h'),
        ("free —gpus 2", "free --gpus 2"),
        ("a &amp;lt; b", "a &lt; b"),
    ],
)
def test_what_phones_and_slack_make_of_text_is_undone(sent: str, typed: str) -> None:
    assert unescape(sent) == typed
