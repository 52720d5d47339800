"""Who wants to be told when GPUs are free: they ask, are told once, and it is over. No promise: nothing is held.

One event loop owns it. A GPU that somebody in the queue is about to get is not free for anybody else: what fits has to
stay for a moment, in which the queue has its turn.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from gpudeck.alerts.message import Message
from gpudeck.alerts.watch_store import WatchStore
from gpudeck.model import clock
from gpudeck.model.errors import GpudeckError
from gpudeck.model.quantity import show_gib
from gpudeck.model.wanted import OfferedGpu, Wanted, choose, is_usable
from gpudeck.model.watch import FoundGpu, Watch

SETTLED_SECONDS: Final = 3.0
"""The queue takes a step every second."""
LONGEST: Final = 30 * 86_400.0
USUAL: Final = 7 * 86_400.0
MOST_OF_ONE: Final = 50
MOST: Final = 1000


class TooManyWatches(GpudeckError):
    """Somebody watches for too much already."""


class Watches:
    """`load` once. Whatever asks the database raises Temporary."""

    def __init__(self, store: WatchStore, *, is_loaded: bool = True, now: clock.Clock = clock.wall) -> None:
        self._store = store
        self._now = now
        self._known: dict[int, Watch] = {}
        self._since: dict[int, float] = {}
        self.is_loaded = is_loaded
        """False: they have not been read yet."""

    async def trim(self, now: float) -> None:
        """Delete those that are over at that time."""
        await self._store.trim(now)

    async def load(self) -> None:
        """Also what other hubs changed."""
        self._known = {one.id: one for one in await self._store.list(self._now())}
        self.is_loaded = True

    @property
    def is_shared(self) -> bool:
        """Whether other hubs may write to the same tables."""
        return self._store.is_shared

    @property
    def open(self) -> list[Watch]:
        """Those that have not fired and still count, in the order in which they came."""
        now = self._now()
        return [one for one in self._known.values() if one.fired_at is None and one.expires_at > now]

    def list_of(self, user: str | None = None) -> list[Watch]:
        """Of somebody, or of all: those that are open, and those that fired lately."""
        now = self._now()
        return [
            one
            for one in self._known.values()
            if user in {None, one.user} and (one.fired_at is not None or one.expires_at > now)
        ]

    def find(self, number: int) -> Watch | None:
        return self._known.get(number)

    async def add(self, user: str, account: str | None, wanted: Wanted, seconds: float = USUAL) -> Watch:
        """Raises TooManyWatches."""
        mine = [one for one in self.open if one.user == user]
        if same := next((one for one in mine if one.wanted == wanted), None):
            await self._forget(same.id)
        elif len(mine) >= MOST_OF_ONE or len(self.open) >= MOST:
            raise TooManyWatches(f"{user} watches for {len(mine)} things already.", "Remove some of them first.")
        now = self._now()
        made = await self._store.add(user, account, wanted, now, now + min(seconds, LONGEST))
        self._known[made.id] = made
        return made

    async def remove(self, number: int) -> bool:
        """False where there is none."""
        return await self._forget(number)

    def look(
        self, gpus: Sequence[OfferedGpu], spoken_for: Collection[str] = frozenset()
    ) -> list[tuple[Watch, list[OfferedGpu]]]:
        """The watches whose GPUs are free, and have been for a moment. `gpus` are those that are free or booked;
        `spoken_for` are the UUIDs of those that somebody in the queue waits for."""
        now = self._now()
        free = [gpu for gpu in gpus if gpu.uuid not in spoken_for]
        since: dict[int, float] = {}
        found = []
        for one in self.open:
            chosen = choose(one.wanted, [gpu for gpu in free if is_usable(gpu, (one.user,))])
            if chosen is None:
                continue
            since[one.id] = self._since.get(one.id, now)
            if now - since[one.id] >= SETTLED_SECONDS:
                found.append((one, chosen))
        self._since = since
        return found

    async def fire(self, one: Watch, gpus: Iterable[OfferedGpu]) -> bool:
        """Note that it was told. False where another hub did, or it is gone."""
        found = [FoundGpu(gpu.uuid, gpu.host, gpu.host_id, gpu.label, gpu.display_name) for gpu in gpus]
        fired = await self._store.fire(one.id, self._now(), found)
        await self.load()
        return fired

    async def _forget(self, number: int) -> bool:
        self._since.pop(number, None)
        is_there = await self._store.remove(number)
        self._known.pop(number, None)
        return is_there


def message_of(one: Watch, gpus: Sequence[OfferedGpu], now: float, prefix: str = "") -> Message:
    """What the person is told. `prefix` stands before the title."""
    return Message(
        key=f"watch {one.id}",
        at=now,
        kind="watch",
        rule="watch",
        severity="info",
        title=f"{prefix}{one.wanted.describe()} {'is' if one.wanted.gpus == 1 else 'are'} free",
        lines=tuple(_line(gpu) for gpu in gpus),
        action="Nothing is held: `gpudeck reserve` books, `gpudeck wait` starts a program when it is your turn.",
        link="#/",
        people=() if one.account is None else (one.account,),
        is_personal=True,
    )


def _line(gpu: OfferedGpu) -> str:
    memory = f", {show_gib(gpu.memory_total_bytes)} GiB" if gpu.memory_total_bytes else ""
    return f"{gpu.host}, GPU {gpu.label}: {gpu.display_name}{memory}"
