"""Watches: a user asks to be notified when GPUs are free, and is notified once. The GPUs are not reserved.

One event loop owns it. The queue comes first: GPUs have to stay free for a moment, in which it can claim them.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, delete, func, insert, or_, select, update

from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.database.engine import Database, FleetStore, delete_old
from gpudeck.database.schema import REAL
from gpudeck.database.schema import watches as table
from gpudeck.model import clock
from gpudeck.model.errors import RequestRefused
from gpudeck.model.gpu_request import CandidateGpu, FoundGpu, GpuRequest, Watch, choose, from_row, is_usable, to_row
from gpudeck.model.text import show_gib

_LISTED_SECONDS: Final = 7 * 86_400.0
"""How long a watch is listed after it fired."""
SETTLED_SECONDS: Final = 3.0
"""How long GPUs have to stay free: the queue is served every second."""
LONGEST: Final = 30 * 86_400.0
USUAL: Final = 7 * 86_400.0
MOST_OF_ONE: Final = 50
MOST: Final = 1000


def _is_over(now: float) -> ColumnElement[bool]:
    is_expired = table.c.fired_at.is_(None) & (table.c.expires_at < now)
    return or_(func.coalesce(table.c.fired_at, now) < now - _LISTED_SECONDS, is_expired)


def _read(row: Mapping[Any, Any]) -> Watch:
    found = msgspec.json.decode(row["found"] or "[]", type=list[FoundGpu])
    own = {name: row[name] for name in ("id", "user", "account", "created_at", "expires_at", "fired_at")}
    return Watch(**own, wanted=from_row(dict(row)), found=found)


class TooManyWatches(RequestRefused):
    """The user has too many watches."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(409, "full", message, hint)


class Watches(FleetStore):
    """The watches of one fleet. `load` once. Methods that use the database raise Temporary."""

    def __init__(
        self, database: Database, fleet: str = REAL, *, is_loaded: bool = True, now: clock.Clock = clock.wall
    ) -> None:
        super().__init__(database, fleet)
        self._now = now
        self._known: dict[int, Watch] = {}
        self._since: dict[int, float] = {}
        self.is_loaded = is_loaded
        """False: watches have not been read yet."""

    async def trim(self, now: float) -> None:
        """Delete watches of every fleet that ended long before that time."""
        await delete_old(self._database, table, table.c.created_at, _is_over(now))

    async def load(self) -> None:
        """Read watches that are open or fired lately; also again, as other hubs may change them."""
        wanted = select(table).where(table.c.fleet == self._fleet, ~_is_over(self._now())).order_by(table.c.id)
        self._known = {one.id: one for one in map(_read, (await self._database.execute(wanted)).mappings())}
        self.is_loaded = True

    @property
    def open(self) -> list[Watch]:
        """Watches that have not fired or expired, the oldest first."""
        now = self._now()
        return [one for one in self._known.values() if one.fired_at is None and one.expires_at > now]

    def list_of(self, user: str | None = None) -> list[Watch]:
        """Watches of one user, or of all, that are open or fired lately."""
        now = self._now()
        return [
            one
            for one in self._known.values()
            if user in {None, one.user} and (one.fired_at is not None or one.expires_at > now)
        ]

    def find(self, number: int) -> Watch | None:
        return self._known.get(number)

    async def add(self, user: str, account: str | None, wanted: GpuRequest, seconds: float = USUAL) -> Watch:
        """Raises TooManyWatches."""
        mine = [one for one in self.open if one.user == user]
        if same := next((one for one in mine if one.wanted == wanted), None):
            await self.remove(same.id)
        elif len(mine) >= MOST_OF_ONE or len(self.open) >= MOST:
            raise TooManyWatches(f"{user} watches for {len(mine)} things already.", "Remove some of them first.")
        now = self._now()
        row = to_row(wanted) | {"fleet": self._fleet, "user": user, "account": account}
        row |= {"created_at": now, "expires_at": now + min(seconds, LONGEST)}
        made = _read((await self._database.execute(insert(table).values(row).returning(table))).mappings().one())
        self._known[made.id] = made
        return made

    async def remove(self, number: int) -> bool:
        """False if there is no such watch."""
        self._since.pop(number, None)
        mine = (table.c.id == number) & (table.c.fleet == self._fleet)
        removed = await self._database.execute(delete(table).where(mine))
        self._known.pop(number, None)
        return removed.rowcount == 1

    def evaluate(
        self, gpus: Sequence[CandidateGpu], claimed: Collection[str] = frozenset()
    ) -> list[tuple[Watch, list[CandidateGpu]]]:
        """The watches whose GPUs have been free for a moment, with these GPUs. `gpus` are those that are free or
        reserved; `claimed` are the UUIDs of those that are claimed for the queue."""
        now = self._now()
        free = [gpu for gpu in gpus if gpu.uuid not in claimed]
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

    async def fire(self, one: Watch, gpus: Iterable[CandidateGpu]) -> bool:
        """Note that the user is notified. False if another hub did so, or the watch is gone."""
        found = [FoundGpu(gpu.uuid, gpu.host, gpu.host_id, gpu.label, gpu.display_name) for gpu in gpus]
        is_open = (table.c.id == one.id) & table.c.fired_at.is_(None)
        values = {"fired_at": self._now(), "found": msgspec.json.encode(found).decode()}
        fired = await self._database.execute(update(table).where(is_open).values(values))
        await self.load()
        return fired.rowcount == 1


def message_of(one: Watch, gpus: Sequence[CandidateGpu], now: float, prefix: str = "") -> Message:
    """The message to the user. `prefix` stands before the title."""
    return Message(
        key=f"watch {one.id}",
        at=now,
        kind="watch",
        rule="watch",
        severity="info",
        title=f"{prefix}{one.wanted.describe()} {'is' if one.wanted.gpus == 1 else 'are'} free",
        lines=tuple(_line(gpu) for gpu in gpus),
        action="They are not reserved: `gpudeck reserve` does that, `gpudeck wait` queues and starts a program.",
        link="#/",
        accounts=() if one.account is None else (one.account,),
        is_personal=True,
    )


def _line(gpu: CandidateGpu) -> str:
    memory = f", {show_gib(gpu.memory_total_bytes)} GiB" if gpu.memory_total_bytes else ""
    return f"{gpu.host}, GPU {gpu.label}: {gpu.display_name}{memory}"
