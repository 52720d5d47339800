"""An answer as Slack shows it: Block Kit within its limits, and a snippet for longer ones. Pure.

Everything that comes from outside goes through `escape` on its way out: names of hosts, users and
models, notes, questions.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from gpudeck.model.text import clean

MAX_NAME_LENGTH = 120
"""Characters of one name. Longer ones are cut: a phone shows forty on a line."""
_ENTITIES = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", "`": "ˋ"})
_QUOTES = str.maketrans({"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " "})
_LINK = re.compile(r"<(?!@)[^<>|]*\|([^<>]*)>|<(?!@)(?:mailto:|https?://)?([^<>|]*)>")
_DASH = re.compile(r"(?<!\S)[—–](?=[a-z])")
"""Two hyphens, as a phone types them."""
Block = dict[str, Any]
SECTION: Final = 3000
MAX_BLOCKS: Final = 50
MAX_URL: Final = 3000
MAX_LINES: Final = 25
"""In the message itself. More is a snippet, which is folded up."""
MAX_TEXT: Final = 6000
_FALLBACK: Final = 300
_DATE: Final = re.compile(r"<!date\^\d+\^[^<>|]*\|([^<>|]*)>")
_HALF: Final = re.compile(r"(?:&[a-z]*|<[^<>]*)\Z")


def escape(text: str, longest: int = MAX_NAME_LENGTH) -> str:
    """Text that Slack shows as it is: no mention, no link, no markup that begins or ends within it, on one line.

    A backtick, for which Slack has no escape, becomes a letter that looks like one.
    """
    shown = text if len(text) <= longest else f"{text[: longest - 1]}…"
    return clean(shown).translate(_ENTITIES)


def unescape(text: str) -> str:
    """The text that a user typed, from a message of Slack: links as their text, entities as characters, the quotes and
    dashes of phones as plain ones. Mentions of users stay: <@U012AB3CD>."""
    plain = _LINK.sub(lambda found: found[1] if found[1] is not None else found[2], text)
    plain = plain.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return _DASH.sub("--", plain.translate(_QUOTES))


class Snippet(Struct, frozen=True):
    """A text file below the message."""

    title: str
    name: str
    text: str


class ChatAnswer(Struct, frozen=True):
    """`text` is what notifications and screen readers say; it is escaped as the blocks are.

    `is_private`: only the user who asked sees it, not the channel.
    """

    text: str
    blocks: tuple[Block, ...]
    snippet: Snippet | None = None
    is_private: bool = False


def text_answer(*lines: str, is_private: bool = False) -> ChatAnswer:
    """A few lines, already escaped. Lines that do not fit into a message are cut."""
    return ChatAnswer(_fallback(lines[0]), tuple(_sections(lines)[:MAX_BLOCKS]), is_private=is_private)


def list_answer(
    title: str, lines: Sequence[str], sheet: Callable[[], str], name: str, notes: Iterable[str] = ()
) -> ChatAnswer:
    """A list below its title: as lines where a phone can show them, else as a snippet of `sheet`, plain text.

    `notes` stand below in small print.
    """
    if len(lines) > MAX_LINES or sum(map(len, lines)) > MAX_TEXT:
        return attach(title, sheet(), name, notes)
    return ChatAnswer(_fallback(title), (*_sections([f"*{title}*", *lines]), *_small(notes)))


def attach(title: str, text: str, name: str, notes: Iterable[str] = ()) -> ChatAnswer:
    snippet = Snippet(f"gpudeck {name}", f"gpudeck-{name}.txt", text)
    return ChatAnswer(_fallback(title), (*_sections([f"*{title}*"]), *_small(notes)), snippet)


def add_note(blocks: Sequence[Block], note: str) -> list[Block]:
    return [*blocks[: MAX_BLOCKS - 1], *_small([note])]


def add_link(answer: ChatAnswer, text: str, url: str) -> ChatAnswer:
    """With a button that opens an address of ours. Slack reports that it was pressed; that is ignored."""
    label = {"type": "plain_text", "text": text, "emoji": False}
    link = {"type": "button", "text": label, "action_id": "open_page", "url": url[:MAX_URL]}
    return replace(answer, blocks=(*answer.blocks[: MAX_BLOCKS - 1], {"type": "actions", "elements": [link]}))


def show_time(at: float) -> str:
    """A moment in the time zone of the reader, which Slack knows."""
    plain = datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"<!date^{int(at)}^{{date_short_pretty}} {{time}}|{plain}>"


def _fallback(text: str) -> str:
    """For notifications, which show no dates and no bold."""
    return cut(_DATE.sub(r"\1", text).replace("*", ""), _FALLBACK)


def cut(text: str, most: int) -> str:
    """The beginning of marked-up text, without half an entity or half a date at its end."""
    return text if len(text) <= most else f"{_HALF.sub('', text[: most - 1])}…"


def _sections(lines: Iterable[str]) -> list[Block]:
    """As few sections as hold the lines; none is cut in two."""
    texts: list[str] = []
    for line in lines:
        short = cut(line, SECTION)
        if texts and len(texts[-1]) + 1 + len(short) <= SECTION:
            texts[-1] += f"\n{short}"
        else:
            texts.append(short)
    # With verbatim, names that look like addresses do not become links.
    return [{"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}} for text in texts if text]


def _small(notes: Iterable[str]) -> list[Block]:
    texts = [{"type": "mrkdwn", "text": cut(note, SECTION), "verbatim": True} for note in notes]
    return [{"type": "context", "elements": texts[:10]}] if texts else []
