"""Parses messages to the bot: the command and its words, case-insensitive. Pure.

The predecessor vesta's commands are the same: HOSTS, ALL, ALL_cmd, ALL_detail, WHERE, HELP and the name of a host.

Requests for GPUs are parsed here too: `2 h100 40G same-host`.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, tzinfo
from typing import Final, Literal, get_args

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.chat.blocks import unescape
from gpudeck.history.base import UsageQuery
from gpudeck.model.errors import UsageError
from gpudeck.model.gpu_request import MAX_GPUS, GpuRequest, read_memory
from gpudeck.model.text import AMOUNT
from gpudeck.model.times import parse_duration, parse_time, read_moment, read_span
from gpudeck.model.usage import By
from gpudeck.reservations.requests import ReservationDraft, ReservationRequest

_Look = Literal["free", "who", "where", "hosts", "all", "all_cmd", "all_detail", "users", "alerts", "report", "help"]
_Change = Literal["reserve", "release", "reservations", "watch", "watches", "unwatch"]
Name = Literal[_Look, _Change, "runs", "other"]
LONGEST: Final = 1000
"""Characters that are read; no command is longer."""
_COMMANDS: Final[dict[str, Name]] = {
    **{name: name for name in get_args(Name) if name != "other"},
    "show": "all",
    "problems": "alerts",
    "book": "reserve",
    "bookings": "reservations",
}
_MAX_WORDS: Final[dict[Name, int]] = {
    **dict.fromkeys(("hosts", "all", "all_cmd", "all_detail", "users", "runs", "watches", "help"), 0),
    **dict.fromkeys(("who", "where", "alerts", "release", "reservations", "unwatch"), 1),
}
"""After a command that does not address the bot: sentences of users begin with `all` and `who`, too."""
_FEW: Final = 6
_TOKEN: Final = re.compile(r'[^\s"]*"[^"]*"|\S+')
_MENTION: Final = re.compile(r"<@([UW][A-Z0-9]+)(?:\|[^<>]*)?>")
_RESERVE_HINT: Final = "Such as `reserve gpu07:0,1 for 4h`, or `reserve 2 h100 for 4h from tomorrow 9:00`."
_COUNT: Final = re.compile(r"[0-9]{1,2}|[0-9]{1,4}x")
"""Longer numbers are models: 4090."""
_LEAST: Final = re.compile(r"(?:>=?)([0-9].*)")
_FILLERS: Final = {"gpu", "gpus", "with", "any"}
_FLAGS: Final = {"same_host": "same_host", "one_host": "same_host", "mig": "mig", "allow_mig": "allow_mig"}
_CLAUSES: Final = ("for", "from", "until", "note")
_REPORT_FILLERS: Final = {"by", "since", "last", "the"}
_PLURALS: Final = {f"{by}s": by for by in get_args(By)}


class Command(Struct, frozen=True):
    """`words` are as typed, quotes taken off. `other` is no command of ours: the name of a host, or nothing."""

    name: Name
    words: tuple[str, ...] = ()


class TooLong(ValueError):
    """Longer than any command."""


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
    if [word.lower() for word in words[:2]] == ["my", "runs"]:
        words = words[1:]
    first = words[0].lower().lstrip("/").replace("-", "_").rstrip("?!:,.") or "help"
    if first in _COMMANDS:
        return Command(_COMMANDS[first], tuple(words[1:]))
    return Command("other", tuple(words))


def is_conversation(command: Command) -> bool:
    """Whether a message in the bot's channel is not meant for the bot. A single word that is not a command may be the
    name of a host: the caller decides."""
    if command.name == "other":
        return len(command.words) != 1
    if command.name == "reserve":
        return not {"for", "until"} & {word.lower() for word in command.words}
    return len(command.words) > _MAX_WORDS.get(command.name, _FEW)


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


class ParsedRequest(Struct, frozen=True):
    """`words` are what is left: of the search, or a model. `is_counted` says that so many were asked for."""

    wanted: GpuRequest
    words: tuple[str, ...]
    is_counted: bool


def read_request(words: Sequence[str]) -> ParsedRequest:
    """A number is how many, an amount how much memory; the rest stays words. Raises UsageError."""
    count = memory = host = None
    flags: set[str] = set()
    rest: list[str] = []
    queue = iter(words)
    for word in queue:
        plain = word.lower().replace("-", "_")
        if plain in _FLAGS:
            flags.add(_FLAGS[plain])
        elif plain == "on":
            host = _name("host", next(queue, ""))
        elif count is None and _COUNT.fullmatch(plain):
            count = int(plain.rstrip("x"))
        elif memory is None and _is_amount(plain):
            memory = read_memory(word)
        elif plain not in _FILLERS:
            rest.append(word)
    if count is not None and not 1 <= count <= MAX_GPUS:
        raise UsageError(f"how many GPUs must be a number from 1 to {MAX_GPUS}, not {count}.")
    if "allow_mig" in flags and not memory:
        raise UsageError(
            "`allow-mig` needs an amount of memory.", "Such as `2 20G allow-mig`; `mig` asks for any slice."
        )
    if {"mig", "allow_mig"} <= flags:
        raise UsageError("`mig` and `allow-mig` exclude each other.")
    wanted = GpuRequest(
        gpus=count or 1,
        memory_bytes=memory,
        same_host="same_host" in flags,
        host=host,
        mig="mig" in flags,
        allow_mig="allow_mig" in flags,
    )
    return ParsedRequest(wanted, tuple(rest), count is not None)


def read_kind(words: Sequence[str]) -> GpuRequest:
    """As `read_request`, where every word has to mean something: `>=40G` is memory, any other the model. Raises
    UsageError."""
    asked = read_request([_least(word) for word in words])
    return replace(asked.wanted, model=_name("model", " ".join(asked.words))) if asked.words else asked.wanted


def read_reservation(words: Sequence[str], now: float, zone: tzinfo) -> ReservationDraft:
    """`gpu07:0,1 for 4h from tomorrow 9:00 note a paper`; times are of `zone`. Raises UsageError."""
    place, clauses = split_clauses(words, _CLAUSES)
    if ("for" in clauses) == ("until" in clauses):
        raise UsageError("a reservation needs `for` or `until`, and not both.", _RESERVE_HINT)
    start = read_moment("from", clauses["from"], now, zone) if "from" in clauses else None
    return ReservationDraft(
        wanted=_read_place(place),
        start=start,
        end=read_moment("until", clauses["until"], now, zone, start=start) if "until" in clauses else None,
        length=read_span("for", clauses["for"]) if "for" in clauses else None,
        note=clauses.get("note", "")[:1000],
    )


def split_clauses(words: Iterable[str], names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The words before the first of `names`, and the words after each. A note goes to the end. Raises UsageError."""
    place: list[str] = []
    clauses: dict[str, list[str]] = {}
    into = place
    for word in words:
        name = word.lower()
        if name not in names or "note" in clauses:
            into.append(word)
        elif name in clauses:
            raise UsageError(f"`{name}` is given twice.")
        else:
            into = clauses.setdefault(name, [])
    if empty := [name for name, said in clauses.items() if not said and name != "note"]:
        raise UsageError(f"what comes after `{empty[0]}` is missing.", _RESERVE_HINT)
    return place, {name: " ".join(said) for name, said in clauses.items()}


def _read_place(words: list[str]) -> ReservationRequest:
    if not words:
        raise UsageError("which GPUs?", _RESERVE_HINT)
    first = words[0]
    if len(words) == 1 and not _COUNT.fullmatch(first.lower()):
        return read_named(first)
    asked = read_request([_least(word) for word in words])
    if not asked.is_counted and "any" not in {word.lower() for word in words}:
        raise UsageError("how many GPUs?", _RESERVE_HINT)
    return ReservationRequest(any=read_kind(words))


def read_named(place: str) -> ReservationRequest:
    """HOST, HOST:0,1 or a UUID. Raises UsageError."""
    if place.upper().startswith(("GPU-", "MIG-")) and len(place) > 30:
        return ReservationRequest(gpus=(place,))
    host, colon, labels = place.partition(":")
    named = tuple(label.strip() for label in labels.split(",") if label.strip())
    if not host or (colon and not named) or len(named) > MAX_GPUS:
        raise UsageError(f"{place[:80]!r} is not HOST or HOST:GPU,GPU.", "Such as gpu07:0,1.")
    return ReservationRequest(host=host, labels=named)


def _least(word: str) -> str:
    """`>=40G` as `40G`: at least that much is meant."""
    found = _LEAST.fullmatch(word)
    return found[1] if found and _is_amount(found[1]) else word


def _is_amount(word: str) -> bool:
    """With its unit: without one it is a number of something."""
    return re.match(AMOUNT, word) is not None


def _name(option: str, text: str) -> str:
    if not 1 <= len(text) <= 256 or not text.isprintable():
        raise UsageError(f"{option} must have between 1 and 256 characters.")
    return text


def read_report(words: tuple[str, ...], now: float, zone: tzinfo = UTC) -> UsageQuery:
    """`host 7d`, `by user since 2026-10-01`; the last 30 days by user if nothing is said. Raises UsageError."""
    by: By = "user"
    start = now - 30 * 86_400
    for word in (word.lower() for word in words):
        if word in get_args(By) or word in _PLURALS:
            by = _PLURALS.get(word, word)
        elif word not in _REPORT_FILLERS:
            start = _read_start(word, now, zone)
    if start >= now:
        raise UsageError("the period ends before it begins.", "Such as `report 7d`.")
    return UsageQuery(by, start, now)


def _read_start(word: str, now: float, zone: tzinfo) -> float:
    try:
        return now - parse_duration(word)
    except ValueError:
        pass
    try:
        return parse_time(word, now, zone)
    except ValueError as error:
        raise UsageError(f"{word[:40]!r} is not understood.", "Such as `report host 7d`.") from error
