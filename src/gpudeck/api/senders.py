"""What the limits in front of everything ask about senders that are not our agents: they report on paths of their own,
bring no token that our routes know, and understand no 429."""

from collections.abc import Hashable
from typing import Literal, Protocol

from msgspec import Struct

from gpudeck.api.asgi import Scope, Send


class Sender(Struct, frozen=True):
    """A request of somebody who may send. `reports` are measured by `id`, wherever they come from; `registrations` by
    the address, as nobody has an id yet."""

    kind: Literal["reports", "registrations"]
    id: Hashable = None


class Senders(Protocol):
    """Asked for every request, before anything of it is read: what it answers costs a few microseconds."""

    def owns(self, path: str) -> bool:
        """Whether that path, without the hub's prefix, is one on which they report or register."""
        ...

    def recognize(self, path: str, scope: Scope) -> Sender | None:
        """None for a stranger, and for one that nobody has registered: those count like all else of their address."""
        ...

    def is_refusal(self, body: bytes) -> bool:
        """Whether that answer says of a report, which had to be read for it, that it is not taken."""
        ...

    async def refuse(self, send: Send) -> None:
        """Answer one that comes too often, so that the sender goes on and tries again later."""
        ...
