"""What a source is: the hub's side of one way in, for one host.

What sources read goes to the hub in an envelope, as if the host had pushed it. Which module makes them for which way
stands in `app.ways`; who calls them, how often and with which deadline is `poller`'s.
"""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from gpudeck.model.target import Target
from gpudeck.wire import Envelope


class Arrival(Struct, frozen=True):
    """A report that was fetched. `sent_at` is the host's own clock when it answered; None where it does not tell."""

    envelope: Envelope
    sent_at: float | None = None


class Source(Protocol):
    """Reads one host over and over. `read` is never called again before it has returned, and may be cancelled.

    It raises Temporary when the host cannot be reached or answers nonsense, Refused when credentials or host keys are
    not accepted, Absent when there is nothing to read on that host. The message is shown beside the host: it names the
    step that failed and the next thing to do, and no secret. What was opened is kept until `close`, which may be called
    at any time; after a failed or cancelled `read` the next one starts afresh.
    """

    async def read(self, now: float) -> Arrival: ...

    async def close(self) -> None: ...


MakeSource = Callable[[Target], Source]
"""Makes the source of a target. Opens nothing yet. Raises UsageError for a target that cannot be read that way."""
