"""What a courier's process is asked, and what it answers: one line of JSON each."""

from typing import Literal

from msgspec import Struct

from gpudeck.alerts.message import Message
from gpudeck.model.errors import PluginError, Refused, Temporary


class Order(Struct, frozen=True, kw_only=True):
    """One message to one place. `url` is a secret. `recipient` is a mail address or a member ID of Slack, where it is
    for somebody by themselves; `page` is the address of our page."""

    url: str
    message: Message
    recipient: str | None = None
    page: str | None = None
    seconds: float = 20.0


class Outcome(Struct, frozen=True):
    """What came of it. `words` are a sentence about the place, and hold neither its address nor a secret. `hint` is the
    next step, for who keeps the settings. `unreached`: the service is well, and refuses this recipient."""

    kind: Literal["sent", "temporary", "refused", "unreached"]
    words: str = ""
    hint: str = ""


SENT = Outcome("sent")


class Unreached(Refused):
    """One recipient cannot be reached; the channel takes what is for others."""


def error_of(outcome: Outcome) -> PluginError:
    """As an error, for one that is not `sent`."""
    kinds: dict[str, type[PluginError]] = {"refused": Refused, "unreached": Unreached}
    return kinds.get(outcome.kind, Temporary)(outcome.words, outcome.hint)
