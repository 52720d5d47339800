"""A message, and as text that is sent, escaped for chats. Pure.

Names of hosts, jobs and people come from anywhere: none may mention a whole channel, look like a link or be taken for
HTML. Characters that a chat acts upon are separated with a zero-width space, which works for all services of Apprise.
"""

import re
from collections.abc import Callable
from typing import Final, Literal

from msgspec import Struct, field

from gpudeck.model.event import Severity
from gpudeck.model.text import clean

DEMO_PREFIX: Final = "Demo: "
"""Before the titles of all messages about a simulated fleet."""

MessageKind = Literal["alert", "resolved", "reservation", "watch", "ask", "digest", "test"]


class Subject(Struct, frozen=True):
    """One of several alerts in a message: what its routing depends on, as if it were sent alone."""

    rule: str
    labels: dict[str, str]
    accounts: tuple[str, ...] = ()


class MailContent(Struct, frozen=True):
    """What a mail says in place of a message's lines: the same as HTML and as plain text, escaped."""

    html: str
    text: str


class Message(Struct, frozen=True, kw_only=True):
    """`key` says which news it is: the same key is sent to a channel once, also after a restart of the hub.

    `rule` is what people mute and routes name: the name of the alert's rule, of the reservation's event, "watch",
    "ask" or "digest". `title` is one line without its full stop, `lines` are the details, one subject each, `action` is
    the next step. `labels` are those of the host, with "host" and "model" where one is concerned. `accounts` are the
    accounts that it concerns: their own channels get it in addition to those of the routes. Text is plain: the
    sender escapes it for where it goes.
    """

    key: str
    at: float
    kind: MessageKind
    rule: str
    severity: Severity
    title: str
    lines: tuple[str, ...] = ()
    action: str = ""
    link: str = ""
    """Where the page shows it: a fragment such as #/host/gpu-01."""
    labels: dict[str, str] = field(default_factory=dict)
    accounts: tuple[str, ...] = ()
    text: str = ""
    """The channel's own words in place of all others, sent as they are; `{host}` in it is the host's name."""
    is_personal: bool = False
    """For `accounts` alone, and for no channel of the operators."""
    mail: MailContent | None = None
    subjects: tuple[Subject, ...] = ()
    """The alerts of a grouped message: it goes to every destination that one of them would go to."""


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
_MAX_TITLE = 200
_MAX_LINES = 30
_MAX_LINE = 400
_MAX_BODY = 3000
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
    lines = [escaped(_cut(line, _MAX_LINE)) for line in message.lines[:_MAX_LINES]]
    if more := len(message.lines) - _MAX_LINES:
        lines += [f"… and {more} more"] if more > 0 else []
    action = [escaped(_cut(message.action, _MAX_LINE))] if message.action else []
    body = _cut("\n".join([*lines, *action]), _MAX_BODY)
    link = f"{page.rstrip('/')}/{message.link}" if page and message.link else page or ""
    title = escaped(_cut(message.title, _MAX_TITLE))
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
