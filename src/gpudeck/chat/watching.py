"""What the bot needs of whoever keeps watches: "tell me when 2 GPUs with 40 GiB are free"."""

from collections.abc import Sequence
from typing import Protocol

from gpudeck.auth.caller import Caller
from gpudeck.model.wanted import Wanted


class ShownWatch(Protocol):
    """One that waits. `expires_at` is when it is given up, in Unix seconds."""

    @property
    def id(self) -> int: ...
    @property
    def wanted(self) -> Wanted: ...
    @property
    def expires_at(self) -> float: ...


class WatchDesk(Protocol):
    """Raises GpudeckError for what cannot be."""

    async def add(self, wanted: Wanted, caller: Caller, seconds: float | None) -> ShownWatch: ...

    async def of(self, caller: Caller) -> Sequence[ShownWatch]: ...

    async def end(self, number: int, caller: Caller) -> bool:
        """False where they have none of that number."""
        ...
