"""What people type, in whatever case, is understood; what they say to each other is not taken for a command."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.chat.commands import LONGEST, Command, TooLong, is_conversation, read_command, read_mention


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("free", Command("free")),
        ("FREE H100 &gt;40G", Command("free", ("H100", ">40G"))),
        ("HOSTS", Command("hosts")),
        ("ALL", Command("all")),
        ("ALL_cmd", Command("all_cmd")),
        ("All-Detail", Command("all_detail")),
        ("WHERE ada", Command("where", ("ada",))),
        ("WHERE", Command("where")),
        ("HELP", Command("help")),
        ("help?", Command("help")),
        ("", Command("help")),
        ("   ", Command("help")),
        ("<@UBOT> free", Command("free")),
        ("<@UBOT|gpudeck>: who gpu07:3", Command("who", ("gpu07:3",))),
        ("reserve gpu07 for 4h", Command("reserve", ("gpu07", "for", "4h"))),
        ("gpu07", Command("other", ("gpu07",))),
        ('all "RTX 6000"', Command("all", ("RTX 6000",))),
    ],
)
def test_commands_are_read(text: str, command: Command) -> None:
    assert read_command(text, "UBOT") == command


@given(st.text(max_size=LONGEST))
def test_any_text_is_read(text: str) -> None:
    assert read_command(text, "UBOT").name


def test_a_novel_is_no_command() -> None:
    with pytest.raises(TooLong):
        read_command("free " * LONGEST)


@pytest.mark.parametrize(
    "text", ["all good?", "hello everybody", "help me please", "who wants coffee", "reserve a table"]
)
def test_talk_is_told_from_commands(text: str) -> None:
    assert is_conversation(read_command(text))


@pytest.mark.parametrize("text", ["all", "free h100", "gpu07", "help", "who gpu07", "reserve gpu07 for 4h"])
def test_commands_without_a_mention_are_commands(text: str) -> None:
    assert not is_conversation(read_command(text))


def test_mentions_name_people() -> None:
    assert read_mention("<@U012AB3CD>") == read_mention("<@U012AB3CD|ada>") == "U012AB3CD"
    assert read_mention("ada") is None
