"""Messages, and their text, escaped for chats. Pure.

Names of hosts, jobs and users are untrusted: none may mention a whole channel, look like a link or be taken for HTML. A
zero-width space separates characters that a chat would interpret, which works for all services of Apprise.
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
    """The body of a mail in place of the message's lines: the same as HTML and as plain text, escaped."""

    html: str
    text: str


class Message(Struct, frozen=True, kw_only=True):
    """Each key is sent to a destination once, also after a restart of the hub.

    `rule` is the topic that users mute and routes name: the name of the alert's rule, "watch", "ask" or "digest".
    `title` is one line without its full stop, `lines` are the details, one subject each, `action` is the next step.
    `labels` are those of the host, with "host" and "model" if it is about one. `accounts` are the accounts that it
    concerns: their own channels get it in addition to those of the routes. Text is plain: the sender escapes it.
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
    """The channel's own text, sent as it is in place of title and lines; `{host}` is replaced by the host's name."""
    is_personal: bool = False
    """It is sent to `accounts` alone."""
    mail: MailContent | None = None
    subjects: tuple[Subject, ...] = ()
    """The alerts of a grouped message: it goes to all destinations of each of them."""


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
"""The size that Telegram, Slack and ntfy take in one message."""

Escape = Callable[[str], str]


def for_chat(text: str) -> str:
    """Text without markup for any chat."""
    return _MARKS.sub(_GAP, clean(text))


def for_slack(text: str) -> str:
    """The same for Slack's own API, where three more characters are escaped."""
    return for_chat(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class RenderedMessage(Struct, frozen=True):
    """`title` is one line. `body` may be empty."""

    title: str
    body: str
    mood: str
    """Apprise's type: info, success, warning, failure."""


def render(message: Message, escaped: Escape, page: str | None = None) -> RenderedMessage:
    """`escaped` is the function for its destination (see `escape_for`), `page` the address of the hub's page."""
    lines = [escaped(_cut(line, _MAX_LINE)) for line in message.lines[:_MAX_LINES]]
    if more := len(message.lines) - _MAX_LINES:
        lines += [f"… and {more} more"] if more > 0 else []
    action = [escaped(_cut(message.action, _MAX_LINE))] if message.action else []
    body = _cut("\n".join([*lines, *action]), _MAX_BODY)
    link = f"{page.rstrip('/')}/{message.link}" if page and message.link else page or ""
    title = escaped(_cut(message.title, _MAX_TITLE))
    if message.text:
        # The operator's text may have markup, the host's name not.
        title = message.text.replace("{host}", escaped(message.labels.get("host", "")))
    moods = {"info": "info", "warning": "warning", "critical": "failure"}
    mood = "success" if message.kind in {"resolved", "watch"} else moods[message.severity]
    return RenderedMessage(title, "\n".join(part for part in (body, link) if part), mood)


def escape_for(scheme: str) -> Escape:
    """Mail and machines get the text as it is, all others text without markup."""
    return clean if scheme in _AS_IT_IS else for_chat


_AS_IT_IS = {"mailto", "mailtos", "json", "jsons", "xml", "xmls", "form", "forms", "syslog", "mqtt", "mqtts"}


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
