"""A message to people, about one alert or many. Pure."""

from typing import Final, Literal

from msgspec import Struct, field

from gpudeck.model.event import Severity

DEMO_PREFIX: Final = "Demo: "
"""Before the titles of all messages about a simulated fleet."""

MessageKind = Literal["alert", "resolved", "reservation", "watch", "ask", "test"]


class Subject(Struct, frozen=True):
    """One of several alerts in a message: what its routing depends on, as if it were sent alone."""

    rule: str
    labels: dict[str, str]
    accounts: tuple[str, ...] = ()


class Message(Struct, frozen=True, kw_only=True):
    """`key` says which news it is: the same key is sent to a channel once, also after a restart of the hub.

    `rule` is what people mute and routes name: the name of the alert's rule, of the reservation's event, "watch" or
    "ask". `title` is one line without its full stop, `lines` are the details, one subject each, `action` is the next
    step. `labels` are those of the host, with "host" and "model" where one is concerned. `accounts` are the accounts
    that it concerns: their own channels get it beside those of the routes. Text is plain: the
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
    subjects: tuple[Subject, ...] = ()
    """The alerts of a grouped message: it goes to every destination that one of them would go to."""
