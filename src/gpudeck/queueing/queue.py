"""The queue of requests for GPUs (`gpudeck wait`), stored in the database, so that it survives a restart.

One event loop owns it, and changes are serialised: no request is served twice or lost.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.database.schema import queue_requests as table
from gpudeck.model import clock
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.wanted import OfferedGpu, Wanted
from gpudeck.queueing.request import Granted, Request, grant_of
from gpudeck.queueing.scheduler import Estimate, PositionFinder, QueuePosition, ScheduledGrant, schedule
from gpudeck.queueing.settings import QueueSettings

_WANTED: Final = ("gpus", "memory_bytes", "model", "same_host", "host", "near")
log = logging.getLogger(__name__)

MOST_WAITING: Final = 1000
MOST_OF_ONE: Final = 100
LONGEST_POLL: Final = 25.0
"""Seconds for which a question about a place is kept open."""
_REFUSED_SECONDS: Final = 10.0
"""For how long a GPU is left alone that could not be held: somebody else's booking may be about to begin."""

LoginsOf = Callable[[Request], Collection[str]]
"""The names on the hosts of whoever waits."""


class QueueStore:
    """One fleet's line. All of it raises Temporary where the database does not answer."""

    def __init__(self, database: Database, fleet: str = REAL) -> None:
        self._database = database
        self._fleet = fleet

    @property
    def is_shared(self) -> bool:
        """Whether other hubs may write to the same tables."""
        return self._database.kind == "postgresql"

    async def list(self) -> list[Request]:
        """In the order in which they came."""
        wanted = select(table).where(table.c.fleet == self._fleet).order_by(table.c.created_at, table.c.id)
        async with self._database.begin() as connection:
            return [_read(dict(row)) for row in (await connection.execute(wanted)).mappings()]

    async def add(self, key: str, user: str, account: str | None, wanted: Wanted, now: float) -> Request:
        """The request with that key, a new one where there is none."""
        row = {name: getattr(wanted, name) for name in _WANTED} | {"same_host": int(wanted.same_host)}
        row |= {"fleet": self._fleet, "key": key, "user": user, "account": account}
        row |= {"created_at": now, "last_seen_at": now}
        try:
            async with self._database.begin() as connection:
                made = (await connection.execute(insert(table).values(row).returning(table))).mappings().one()
                return _read(dict(made))
        except IntegrityError:
            async with self._database.begin() as connection:
                known = select(table).where(table.c.fleet == self._fleet, table.c.key == key)
                return _read(dict((await connection.execute(known)).mappings().one()))

    async def note_seen(self, numbers: dict[int, float]) -> None:
        """When those who wait were last heard of, by id."""
        async with self._database.begin() as connection:
            for number, at in numbers.items():
                later = (table.c.id == number) & (table.c.last_seen_at < at)
                await connection.execute(update(table).where(later).values(last_seen_at=at))

    async def grant(self, number: int, granted: Granted) -> bool:
        """False where it is gone, or another hub was first."""
        text = msgspec.json.encode(granted).decode()
        is_waiting = (table.c.id == number) & table.c.granted.is_(None)
        async with self._database.begin() as connection:
            return (await connection.execute(update(table).where(is_waiting).values(granted=text))).rowcount == 1

    async def extend(self, number: int, granted: Granted) -> None:
        """What was granted is kept for longer."""
        text = msgspec.json.encode(granted).decode()
        is_granted = (table.c.id == number) & table.c.granted.is_not(None)
        async with self._database.begin() as connection:
            await connection.execute(update(table).where(is_granted).values(granted=text))

    async def remove(self, number: int) -> None:
        async with self._database.begin() as connection:
            await connection.execute(delete(table).where(table.c.id == number))


def _read(row: dict[str, Any]) -> Request:
    wanted = {name: row[name] for name in _WANTED} | {"same_host": bool(row["same_host"])}
    granted = row["granted"]
    return Request(
        id=row["id"],
        key=row["key"],
        user=row["user"],
        account=row["account"],
        wanted=Wanted(**wanted),
        created_at=row["created_at"],
        last_seen_at=row["last_seen_at"],
        granted=None if granted is None else msgspec.json.decode(granted, type=Granted),
    )


class Holds(Protocol):
    """What keeps GPUs free for a while, and shows it to everybody. Raises Temporary, or another GpudeckError where
    somebody else has one of them."""

    async def hold(self, gpus: Sequence[OfferedGpu], user: str, seconds: float) -> int: ...
    async def extend_hold(self, number: int, until: float) -> bool: ...
    async def end_hold(self, number: int) -> None: ...


class QueueFull(GpudeckError):
    """Too many wait."""


class WaitQueue:
    """`load` once; `step` every second, and when `wake` is set; `stop` at the end, which answers all open questions.

    Whatever asks the database raises Temporary.
    """

    def __init__(
        self,
        store: QueueStore,
        settings: QueueSettings,
        holds: Holds,
        *,
        logins_of: LoginsOf = lambda one: (one.user,),
        estimate: Estimate | None = None,
        is_loaded: bool = True,
        now: clock.Clock = clock.wall,
    ) -> None:
        self.settings = settings
        self.wake = asyncio.Event()
        self._store = store
        self._holds = holds
        self._logins_of = logins_of
        self._now = now
        self._requests: dict[int, Request] = {}
        self._places = PositionFinder(estimate)
        self._noted: dict[int, float] = {}
        self._starting: dict[int, float] = {}
        self._refused: dict[str, float] = {}
        self._lock = asyncio.Lock()
        self._news = asyncio.Condition()
        self._is_over = False
        self.is_loaded = is_loaded
        """False: who waits has not been read yet, and `list` does not know."""

    @property
    def kept(self) -> dict[str, int]:
        """The free GPUs that wait for a request, by UUID: its id."""
        return self._places.kept

    @property
    def is_empty(self) -> bool:
        """Whether nobody is known to wait; another hub may know of somebody, where the database is shared."""
        return not self._requests and not self._store.is_shared

    def list(self) -> list[QueuePosition]:
        """Those who were granted something first, then the line in its order."""
        return [self._place(one) for one in sorted(self._requests.values(), key=_listed)]

    def find(self, number: int) -> Request | None:
        return self._requests.get(number)

    async def load(self) -> None:
        """Nobody could be heard of while there was no hub: all who waited then are taken to be there still."""
        async with self._lock:
            now = self._now()
            self._requests = {one.id: replace(one, last_seen_at=now) for one in await self._store.list()}
            self._noted = dict.fromkeys(self._requests, 0.0)
            self.is_loaded = True

    async def join(self, key: str, user: str, account: str | None, wanted: Wanted) -> QueuePosition:
        """Stand in line; with a key that stands there already the same place. Raises QueueFull."""
        async with self._lock:
            known = next((one for one in self._requests.values() if one.key == key), None)
            if known is None:
                self._check_room(user)
                known = await self._store.add(key, user, account, wanted, self._now())
            if known.user != user:
                raise QueueFull("somebody else waits with that key.", "Make up another.")
            self._requests[known.id] = self._hear_of(known)
            self._places.arrange(self._requests.values())
        self.wake.set()
        return self._place(self._requests[known.id])

    async def ask(self, number: int, wait: float = 0.0, seen: str = "") -> QueuePosition | None:
        """A place, and that whoever has it is still there; None where there is no such place. It may take up to `wait`
        seconds, as long as the place is still as its version `seen`. Who has seen that it was granted and asks again
        says that the command runs and is still about to use the GPUs."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait, LONGEST_POLL, self.settings.forget / 2)
        while (one := self._requests.get(number)) is not None:
            self._requests[number] = one = self._hear_of(one)
            place = self._place(one)
            if one.granted is not None and place.version == seen:
                self._starting[number] = self._now()
            left = deadline - loop.time()
            if place.version != seen or left <= 0 or self._is_over:
                return place
            async with self._news:
                try:
                    await asyncio.wait_for(self._news.wait(), left)
                except TimeoutError:
                    continue
        return None

    async def leave(self, number: int) -> bool:
        """Give up a place, or what was granted. False where there is no such place."""
        async with self._lock:
            one = self._requests.get(number)
            if one is None:
                return False
            await self._drop(one)
            self._places.arrange(self._requests.values())
        self.wake.set()
        return True

    async def step(self, gpus: Sequence[OfferedGpu]) -> None:
        """Let time pass: who is gone goes, who started has started, and who comes next gets what is free."""
        async with self._lock:
            if self._store.is_shared:
                await self._look_again()
            if not self._requests:
                self._places.settle((), None, gpus)
                return
            await self._note_seen()
            await self._part_with_the_gone(gpus)
            await self._serve(gpus)
        await self._tell()

    async def stop(self) -> None:
        self._is_over = True
        await self._tell()

    def _place(self, one: Request) -> QueuePosition:
        return self._places.show(one)

    def _check_room(self, user: str) -> None:
        if len(self._requests) >= MOST_WAITING:
            raise QueueFull(f"{MOST_WAITING} wait already.", "Come back later.")
        if sum(one.user == user for one in self._requests.values()) >= MOST_OF_ONE:
            raise QueueFull(f"{user} waits {MOST_OF_ONE} times already.", "`gpudeck wait` ends with Ctrl-C.")

    def _hear_of(self, one: Request) -> Request:
        return replace(one, last_seen_at=self._now())

    async def _look_again(self) -> None:
        """What other hubs changed. They hear of their own waiters."""
        found = await self._store.list()
        before = self._requests
        self._requests = {one.id: _heard_later(one, before.get(one.id)) for one in found}

    async def _note_seen(self) -> None:
        """The database is told rarely: what it misses is made up for by `load`."""
        due = self.settings.forget / 4
        news = {
            one.id: one.last_seen_at
            for one in self._requests.values()
            if one.last_seen_at - self._noted.get(one.id, one.created_at) > due
        }
        if news:
            await self._store.note_seen(news)
        self._noted = {number: at for number, at in (self._noted | news).items() if number in self._requests}

    async def _part_with_the_gone(self, gpus: Iterable[OfferedGpu]) -> None:
        now = self._now()
        users = {gpu.uuid: gpu.users for gpu in gpus}
        for one in list(self._requests.values()):
            if one.granted is None:
                is_over = now - one.last_seen_at > self.settings.forget
            else:
                is_over = now >= one.granted.until or self._has_started(one, one.granted, users)
            if is_over:
                await self._drop(one)
            elif one.granted is not None:
                await self._extend(one, one.granted)

    def _has_started(self, one: Request, granted: Granted, users: dict[str, frozenset[str]]) -> bool:
        logins = frozenset(self._logins_of(one))
        return all(users.get(gpu.uuid, frozenset()) & logins for gpu in granted.gpus)

    async def _extend(self, one: Request, granted: Granted) -> None:
        """Keep the GPUs of a command that runs and is not on them yet, in time before they are others'."""
        now = self._now()
        until = min(now + self.settings.hold, granted.at + self.settings.longest_hold)
        is_due = granted.until - now <= self.settings.hold / 2 and until > granted.until
        is_starting = now - self._starting.get(one.id, float("-inf")) <= self.settings.forget
        if not is_due or not is_starting or granted.hold is None:
            return
        try:
            is_held = await self._holds.extend_hold(granted.hold, until)
        except Temporary:
            raise
        except GpudeckError as error:
            log.debug("GPUs for %s cannot be held any longer: %s", one.user, error)
            return
        if is_held:
            longer = replace(granted, until=until)
            await self._store.extend(one.id, longer)
            self._requests[one.id] = replace(one, granted=longer)

    async def _drop(self, one: Request) -> None:
        await self._store.remove(one.id)
        self._requests.pop(one.id, None)
        self._starting.pop(one.id, None)
        if one.granted is not None and one.granted.hold is not None:
            await self._holds.end_hold(one.granted.hold)

    async def _serve(self, gpus: Sequence[OfferedGpu]) -> None:
        now = self._now()
        self._refused = {uuid: until for uuid, until in self._refused.items() if until > now}
        offered = [replace(gpu, state="taken") if gpu.uuid in self._refused else gpu for gpu in gpus]
        found = schedule(self._requests.values(), offered, now, patience=self.settings.patience)
        for grant in found.grants:
            await self._give(grant)
        self._places.settle(self._requests.values(), found, gpus)

    async def _give(self, grant: ScheduledGrant) -> None:
        """Hold first: whoever dies in between leaves a short hold behind, never two with the same GPU."""
        one = self._requests[grant.request]
        now = self._now()
        try:
            hold = await self._holds.hold(grant.gpus, one.user, self.settings.hold)
        except Temporary:
            raise
        except GpudeckError as error:
            log.info("GPUs for %s could not be held: %s", one.user, error)
            self._refused |= {gpu.uuid: now + _REFUSED_SECONDS for gpu in grant.gpus}
            return
        granted = Granted([grant_of(gpu) for gpu in grant.gpus], now, now + self.settings.hold, hold)
        if await self._store.grant(one.id, granted):
            self._requests[one.id] = replace(one, granted=granted)
        else:
            await self._holds.end_hold(hold)

    async def _tell(self) -> None:
        async with self._news:
            self._news.notify_all()


def _listed(one: Request) -> tuple[bool, tuple[float, int]]:
    return one.granted is None, one.order


def _heard_later(one: Request, known: Request | None) -> Request:
    return one if known is None else replace(one, last_seen_at=max(one.last_seen_at, known.last_seen_at))
