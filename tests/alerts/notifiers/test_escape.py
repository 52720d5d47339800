"""Names from anywhere in messages: nothing that a chat acts upon is left of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alerts.notifiers.sinks import make_message
from gpudeck.alerts.notifiers.rendering import for_chat, for_slack
from gpudeck.alerts.notifiers.sender import write_text

HOSTILE = st.text(alphabet="<>!@#|&[]()*`:/\\abcdehilnorvwy.\u202e\u200b\n\x1b ", max_size=60)
ACTS = re.compile(r"@(everyone|here|channel|\w)|<[!@#\w/]|\]\(|\]\[|://|\bwww\.|mailto:", re.IGNORECASE)


@pytest.mark.parametrize(
    "name",
    [
        "<!channel>",
        "<!here|here>",
        "<@U012AB3CD>",
        "<@&12345>",
        "<#C024BE7LR>",
        "@everyone",
        "@here",
        "[your bank](https://evil.example)",
        "<https://evil.example|your bank>",
        "https://evil.example",
        "www.evil.example",
        "<a href=x>",
        "<img src=x>",
        "</b>",
    ],
)
def test_what_a_chat_acts_upon_is_taken_apart_and_reads_the_same(name: str) -> None:
    shown = for_chat(name)
    assert not ACTS.search(shown)
    assert shown.replace("\u200b", "") == name
    assert "<" not in for_slack(name)


@given(HOSTILE)
def test_nothing_is_left_to_act_upon(text: str) -> None:
    assert not ACTS.search(for_chat(text))
    assert not set("<>") & set(for_slack(text))
    assert for_chat(text).isprintable() or "\u200b" in for_chat(text)


@pytest.mark.parametrize("name", ["gpu-07.cs.example.org", "a < b", "x <= 3", "GPU 0: 40.0 GiB", "ada@", "1:30"])
def test_usual_text_stays_as_it_is(name: str) -> None:
    assert for_chat(name) == name


def test_texts_of_the_operator_are_sent_as_they_are() -> None:
    """vesta posted them so: a text may be in bold, or call a channel. Only the host's name is somebody else's."""
    text = "⬇︎ ` Down ` *{host}* is lost <!here>"
    message = make_message(title="gpu1 is down", lines=(), action="", labels={"host": "<!channel>"}, text=text)
    assert write_text(message, None).replace("\u200b", "") == "⬇︎ ` Down ` *&lt;!channel&gt;* is lost <!here>"
