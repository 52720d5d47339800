"""What somebody types to the bot, read: the command and its words. Case does not matter. Pure.

The predecessor vesta's commands are the same: HOSTS, ALL, ALL_cmd, ALL_detail, WHERE, HELP and the name of a host.
"""

import difflib
import re
from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

from gpudeck.chat.escape import unescape

Name = Literal[
    "free",
    "who",
    "where",
    "hosts",
    "all",
    "all_cmd",
    "all_detail",
    "users",
    "alerts",
    "book",
    "release",
    "bookings",
    "watch",
    "watches",
    "unwatch",
    "report",
    "help",
    "other",
]

LONGEST: Final = 1000
"""Characters that are read; more is nobody's command."""
_COMMANDS: Final[dict[str, Name]] = {
    "free": "free",
    "who": "who",
    "where": "where",
    "hosts": "hosts",
    "all": "all",
    "show": "all",
    "all_cmd": "all_cmd",
    "all_detail": "all_detail",
    "users": "users",
    "alerts": "alerts",
    "problems": "alerts",
    "book": "book",
    "reserve": "book",
    "release": "release",
    "bookings": "bookings",
    "reservations": "bookings",
    "watch": "watch",
    "watches": "watches",
    "unwatch": "unwatch",
    "report": "report",
    "help": "help",
}
_MOST_WORDS: Final[dict[Name, int]] = {
    "who": 1,
    "where": 1,
    "hosts": 0,
    "all": 0,
    "all_cmd": 0,
    "all_detail": 0,
    "users": 0,
    "alerts": 1,
    "release": 1,
    "bookings": 1,
    "watches": 0,
    "unwatch": 1,
    "help": 0,
}
"""After a command where the bot was not addressed: people who talk begin sentences with `all` and `who`."""
_FEW: Final = 6
_TOKEN: Final = re.compile(r'[^\s"]*"[^"]*"|\S+')
_MENTION: Final = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")


class Command(Struct, frozen=True):
    """`words` are as typed, quotes taken off. `other` is no command of ours: the name of a host, or nothing."""

    name: Name
    words: tuple[str, ...] = ()


class TooLong(ValueError):
    """More than anybody's command has."""


def read_command(text: str, bot: str | None = None, keywords: Mapping[str, Name] | None = None) -> Command:
    """From the text as Slack sends it; `bot` is the bot's own ID, whose mention is no part of it. `keywords` are words
    of the site's own for commands. Raises TooLong."""
    if len(text) > LONGEST:
        raise TooLong
    if bot is not None:
        text = re.sub(rf"<@{re.escape(bot)}(?:\|[^<>]*)?>[:,]?", " ", text)
    words = split_words(unescape(text))
    if not words:
        return Command("help")
    if keywords and (named := keywords.get(words[0].lower())) is not None:
        return Command(named, tuple(words[1:]))
    first = words[0].lower().lstrip("/").replace("-", "_").rstrip("?!:,.") or "help"
    if first in _COMMANDS:
        return Command(_COMMANDS[first], tuple(words[1:]))
    return Command("other", tuple(words))


def is_talk(command: Command) -> bool:
    """Whether what was said where people talk to each other is not meant for the bot. A single word that is no command
    may be the name of a host: whoever knows the hosts decides."""
    if command.name == "other":
        return len(command.words) != 1
    if command.name == "book":
        return not {"for", "until", "--for", "--until"} & {word.lower() for word in command.words}
    return len(command.words) > _MOST_WORDS.get(command.name, _FEW)


def near_commands(word: str) -> list[str]:
    """The command that is most like this word, if one is."""
    return difflib.get_close_matches(word.lower(), _COMMANDS, 1, 0.7)


def split_words(text: str) -> list[str]:
    """By blanks; quotes keep a phrase together and are taken off."""
    words = (token.replace('"', "") for token in _TOKEN.findall(text))
    return [word for word in words if word]


def read_mention(word: str) -> str | None:
    """The Slack ID in `<@U012AB3CD>`; None where it is something else."""
    found = _MENTION.fullmatch(word)
    return None if found is None else found[1]
