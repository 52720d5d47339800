"""The fleet as text over HTTP: what was asked for, and how it is to look.

?detail=true  ?users  ?free  ?user=NAME  ?q=WORDS  ?width=N  ?color=never|always|auto  ?term=true  ?refresh=SECONDS
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from gpudeck.model.printable import clean
from gpudeck.model.view import Fleet
from gpudeck.views.filter import choose_hosts, choose_user, choose_words, near_hosts, parse_query
from gpudeck.views.people import render_people
from gpudeck.views.table import LEAST
from gpudeck.views.text import NO_HOST, render_fleet

_WIDEST = 1000
_LONGEST = 256
_LONGEST_PAUSE = 86_400
_NOTHING_FITS = "Nothing fits."
_NAMES = ("detail", "users", "free", "user", "q", "width", "color", "term", "refresh")
_FLAGS = {"detail", "users", "free", "term"}
_OFF = {"false", "0", "no", "off"}
_ON = {"", "true", "1", "yes", "on"}
_PAGE_NAMES = ("view", "sort")
"""In addresses copied from the page. They mean nothing here."""


class Wish(Struct, frozen=True):
    """What of the fleet, and how it is to look."""

    host: str | None = None
    detail: bool = False
    users: bool = False
    query: str = ""
    user: str | None = None
    width: int | None = None
    colour: bool = False


class TextAnswer(Struct, frozen=True):
    status: Literal[200, 400, 404]
    text: bytes


class NotUnderstood(Exception):
    """A parameter that says nothing, in words for the caller."""


def read_wish(parameters: Mapping[str, str], terminal: str, host: str | None) -> Wish:
    """What the parameters ask for; raises NotUnderstood. A mistyped one would otherwise show every GPU there is.

    `terminal` is what the client says of its own: see `_wants_colour`.
    """
    for name, value in parameters.items():
        if name not in _NAMES and name not in _PAGE_NAMES:
            raise NotUnderstood(f"there is no parameter {clean(name[:40])!r}: {_propose(name)}")
        if len(value) > _LONGEST:
            raise NotUnderstood(f"{name} is longer than {_LONGEST} characters")
        if name in _FLAGS and value.lower() not in _ON | _OFF:
            raise NotUnderstood(f"{name} has to be true or false, not {clean(value[:40])!r}")
    query = f"{'free ' if is_on(parameters.get('free')) else ''}{parameters.get('q', '')}".strip()
    if unclear := parse_query(query).unclear:
        raise NotUnderstood(f"{clean(unclear[0])!r} is not understood: see the words of `gpudeck show --help`")
    return Wish(
        host=host,
        detail=is_on(parameters.get("detail")),
        users=is_on(parameters.get("users")),
        query=query,
        user=parameters.get("user") or None,
        width=_read_width(parameters.get("width")),
        colour=_wants_colour(parameters.get("color", "auto"), terminal),
    )


def read_refresh(text: str | None) -> int | None:
    """Seconds after which a browser is to ask again; None where it is not. Raises NotUnderstood."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _LONGEST_PAUSE:
        raise NotUnderstood(f"refresh has to be 1 to {_LONGEST_PAUSE} seconds, not {clean(text[:40])!r}")
    return int(text)


def is_on(flag: str | None) -> bool:
    """`?free`, `?free=true` and `?free=1` are one."""
    return flag is not None and flag.lower() not in _OFF


def _propose(name: str) -> str:
    import difflib  # noqa: PLC0415 - needed by mistakes alone

    near = difflib.get_close_matches(name, _NAMES, 1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(_NAMES)}"


def _read_width(text: str | None) -> int | None:
    """Nothing at all, as in `width=$COLUMNS` where a script has no COLUMNS, means any width."""
    if not text:
        return None
    if not text.isascii() or not text.isdigit():
        raise NotUnderstood(f"width has to be a number of columns, not {clean(text[:40])!r}")
    return min(max(int(text[:9]), LEAST), _WIDEST)


def _wants_colour(wanted: str, terminal: str) -> bool:
    """Nobody can tell from here whether curl writes to a terminal or into a file. A client that knows says so with its
    $TERM in the header Term, and is believed."""
    if wanted not in {"never", "always", "auto"}:
        raise NotUnderstood(f"color has to be never, always or auto, not {clean(wanted[:40])!r}")
    return wanted == "always" or (wanted == "auto" and terminal not in {"", "dumb"})


def answer_wish(fleet: Fleet, wish: Wish) -> TextAnswer:
    """What was asked for. Takes a while where the fleet is large."""
    part = choose_hosts(fleet, [wish.host]) if wish.host else fleet
    if wish.host and not part.hosts:
        return TextAnswer(404, _no_host(fleet, wish.host).encode())
    if wish.query:
        part, _ = choose_words(part, wish.query)
    if wish.user:
        part = choose_user(part, wish.user)
    if wish.users:
        return TextAnswer(200, render_people(part, width=wish.width, colour=wish.colour).encode())
    empty = _NOTHING_FITS if fleet.hosts else NO_HOST
    return TextAnswer(
        200, render_fleet(part, detail=wish.detail, width=wish.width, colour=wish.colour, empty=empty).encode()
    )


def _no_host(fleet: Fleet, name: str) -> str:
    near = near_hosts(fleet, name)
    hint = f"Did you mean {' or '.join(map(clean, near))}?" if near else "Without a name all hosts are shown."
    return f"no host is called {clean(name[:80])}. {hint}\n"
