"""A message as text that is sent, escaped for chats. Pure.

Names of hosts, jobs and people come from anywhere: none may mention a whole channel, look like a link or be taken for
HTML. Characters that a chat acts upon are separated with a zero-width space, which works for all services of Apprise.
"""

import re
from collections.abc import Callable

from msgspec import Struct

from gpudeck.alerts.message import Message
from gpudeck.model.text import clean

_GAP = "\u200b"
_MARKS = re.compile(
    r"""
      (?<=@)(?=[\w&!])        # @everyone, @here, <@U012>, <@&role>
    | (?<=<)(?=[^\s=])        # <!channel>, <https://…|bank>, <b>
    | (?<=\])(?=\()           # [bank](https://…)
    | (?<=\])(?=\[)           # [bank][1]
    | (?<=:)(?=//)            # https://…
    | (?<=\bwww)(?=\.)        # www.…
    | (?<=\bmailto)(?=:)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_MOST_TITLE = 200
_MOST_LINES = 30
_MOST_LINE = 400
_MOST_BODY = 3000
"""What Telegram, Slack and ntfy take in one piece."""

Escape = Callable[[str], str]


def for_chat(text: str) -> str:
    """Text that no chat interprets as markup."""
    return _MARKS.sub(_GAP, clean(text))


def for_slack(text: str) -> str:
    """The same for what is sent to Slack as it is: three characters have to be written in another way."""
    return for_chat(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class RenderedMessage(Struct, frozen=True):
    """`title` is one line. `body` may be empty. `page` is the address of the page, of ours alone."""

    title: str
    body: str
    mood: str
    """How Apprise calls it: info, success, warning, failure."""


def render(message: Message, escaped: Escape, page: str | None = None) -> RenderedMessage:
    """`escaped` is for where it goes: see `escape`."""
    lines = [escaped(_cut(line, _MOST_LINE)) for line in message.lines[:_MOST_LINES]]
    if more := len(message.lines) - _MOST_LINES:
        lines += [f"… and {more} more"] if more > 0 else []
    action = [escaped(_cut(message.action, _MOST_LINE))] if message.action else []
    body = _cut("\n".join([*lines, *action]), _MOST_BODY)
    link = f"{page.rstrip('/')}/{message.link}" if page and message.link else page or ""
    title = escaped(_cut(message.title, _MOST_TITLE))
    if message.text:
        # Its marks are meant; a host's name is not the operator's.
        title = message.text.replace("{host}", escaped(message.labels.get("host", "")))
    return RenderedMessage(title, "\n".join(part for part in (body, link) if part), _mood(message))


def escape_for(scheme: str) -> Escape:
    """Mail and machines get the text as it is, all others what no chat acts upon."""
    return clean if scheme in _AS_IT_IS else for_chat


_AS_IT_IS = {"mailto", "mailtos", "json", "jsons", "xml", "xmls", "form", "forms", "syslog", "mqtt", "mqtts"}


def _mood(message: Message) -> str:
    if message.kind in {"resolved", "watch"}:
        return "success"
    return {"info": "info", "warning": "warning", "critical": "failure"}[message.severity]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
