"""What is said to people: one message, however many alerts are behind it. Pure."""

from typing import Final, Literal

from msgspec import Struct, field

from gpudeck.model.event import Severity

DEMO_PREFIX: Final = "Demo: "
"""Before the titles of all that is said of a simulated fleet."""

MessageKind = Literal["alert", "resolved", "booking", "watch", "test"]


class Subject(Struct, frozen=True):
    """One of several things that a message tells of, as far as its way depends on it: as if it were told alone."""

    rule: str
    labels: dict[str, str]
    people: tuple[str, ...] = ()


class Message(Struct, frozen=True, kw_only=True):
    """`key` says which news it is: the same key is sent to a channel once, also after a restart of the hub.

    `rule` is what people mute and routes name: the name of the alert's rule, of the booking's event, or "watch".
    `title` is one line without its full stop, `lines` are the details, one subject each, `action` is the next step.
    `labels` are those of the host, with "host" and "model" where one is concerned. `people` are the accounts whose
    business it is: their own ways get it beside the channels of the routes. Text is plain: whoever sends it escapes it
    for where it goes.
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
    people: tuple[str, ...] = ()
    text: str = ""
    """The channel's own words in place of all others, sent as they are; `{host}` in it is the host's name."""
    is_personal: bool = False
    """For `people` alone, and for no channel of the operators."""
    subjects: tuple[Subject, ...] = ()
    """Where several are behind it, each: the message goes wherever one of them would."""
