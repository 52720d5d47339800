"""The queue of `gpudeck wait`: stored in the database, so that it survives a restart, and served every second from the
live fleet. Granted GPUs are claimed for a while, which is visible as a reservation.

One event loop owns it, and changes are serialised: no request is served twice or lost."""

import asyncio
import contextlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import Any, Final, Protocol

import msgspec
from msgspec.structs import replace
from sqlalchemy import delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from gpudeck.auth.auth import UserDirectory
from gpudeck.database.engine import Database, FleetStore
from gpudeck.database.schema import REAL
from gpudeck.database.schema import queue_requests as table
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.history.base import HistoryRefused, RunsQuery, Store
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import GpudeckError, RequestRefused, Temporary
from gpudeck.model.gpu_request import CandidateGpu, GpuRequest, Granted, QueuePosition, from_row, to_row
from gpudeck.queueing.scheduler import (
    PositionFinder,
    Request,
    Schedule,
    ScheduledGrant,
    grant_of,
    schedule,
)
from gpudeck.queueing.settings import QueueSettings
from gpudeck.reservations.calendar import ReservationCalendar

log = logging.getLogger(__name__)

MAX_WAITING: Final = 1000
MOST_OF_ONE: Final = 100
MAX_POLL: Final = 25.0
"""The longest time in seconds for which `ask` waits."""
_REFUSED_SECONDS: Final = 10.0
"""How long a GPU is skipped after a claim of it failed: a reservation may be about to begin."""

LoginsOf = Callable[[Request], Collection[str]]
"""The logins of the user of a request on the hosts."""
FindOutdated = Callable[[Set[str]], Set[str]]
"""The GPUs among these, by UUID, that have to be read again before they are granted."""


class QueueStore(FleetStore):
    """The requests of one fleet. All methods raise Temporary if the database does not answer."""

    async def list(self) -> list[Request]:
        """The oldest first."""
        wanted = select(table).where(table.c.fleet == self._fleet).order_by(table.c.created_at, table.c.id)
        return [_read(dict(row)) for row in (await self._database.execute(wanted)).mappings()]

    async def add(self, key: str, user: str, account: str | None, wanted: GpuRequest, now: float) -> Request:
        """The request with that key, a new one if there is none."""
        row = to_row(wanted) | {"fleet": self._fleet, "key": key, "user": user, "account": account}
        row |= {"created_at": now, "last_seen_at": now}
        try:
            made = (await self._database.execute(insert(table).values(row).returning(table))).mappings().one()
            return _read(dict(made))
        except IntegrityError:
            known = select(table).where(table.c.fleet == self._fleet, table.c.key == key)
            return _read(dict((await self._database.execute(known)).mappings().one()))

    async def note_seen(self, numbers: dict[int, float]) -> None:
        """When the client of each request last asked, by id."""
        async with self._database.begin() as connection:
            for number, at in numbers.items():
                later = (table.c.id == number) & (table.c.last_seen_at < at)
                await connection.execute(update(table).where(later).values(last_seen_at=at))

    async def write_grant(self, number: int, granted: Granted, *, is_first: bool) -> bool:
        """False if the request is gone, or if `is_first` and another hub has granted it."""
        text = msgspec.json.encode(granted).decode()
        is_expected = (table.c.id == number) & (table.c.granted.is_(None) == is_first)
        return (await self._database.execute(update(table).where(is_expected).values(granted=text))).rowcount == 1

    async def remove(self, number: int) -> None:
        await self._database.execute(delete(table).where(table.c.id == number))


def _read(row: dict[str, Any]) -> Request:
    granted = None if row["granted"] is None else msgspec.json.decode(row["granted"], type=Granted)
    own = {name: row[name] for name in ("id", "key", "user", "account", "created_at", "last_seen_at")}
    return Request(**own, wanted=from_row(row), granted=granted)


class Claims(Protocol):
    """The part of ReservationCalendar that the queue needs. Raises Temporary, or another GpudeckError for a GPU that is
    taken."""

    async def claim(self, gpus: Sequence[CandidateGpu], user: str, seconds: float) -> int: ...
    async def extend_claim(self, number: int, until: float) -> bool: ...
    async def end_claim(self, number: int) -> None: ...


class QueueFull(RequestRefused):
    """There are too many requests."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(409, "full", message, hint)


class WaitQueue:
    """`load` once; `step` every second, and when `wake` is set; `stop` at the end, which ends every `ask`.

    Methods that use the database raise Temporary.
    """

    def __init__(
        self,
        store: QueueStore,
        settings: QueueSettings,
        claims: Claims,
        *,
        logins_of: LoginsOf = lambda one: (one.user,),
        find_outdated: FindOutdated = lambda _: frozenset(),
        is_loaded: bool = True,
        now: clock.Clock = clock.wall,
    ) -> None:
        """GPUs that `find_outdated` returns are not granted now."""
        self.settings = settings
        self.wake = asyncio.Event()
        self._store = store
        self._claims = claims
        self._logins_of = logins_of
        self._find_outdated = find_outdated
        self._now = now
        self._requests: dict[int, Request] = {}
        self.positions = PositionFinder()
        self._noted: dict[int, float] = {}
        self._starting: dict[int, float] = {}
        self._refused: dict[str, float] = {}
        self._lock = asyncio.Lock()
        self._changed = asyncio.Condition()
        self._is_over = False
        self.is_loaded = is_loaded
        """False: the requests have not been read yet, and `list` is empty."""

    @property
    def claimed(self) -> dict[str, int]:
        """Free GPUs that are claimed for a request: its id by their UUID."""
        return self.positions.claimed

    @property
    def is_empty(self) -> bool:
        """False also if another hub may have requests, as the database is shared."""
        return not self._requests and not self._store.is_shared

    def list(self) -> list[QueuePosition]:
        """Granted requests first, then the queue in its order."""
        in_order = sorted(self._requests.values(), key=lambda one: (one.granted is None, one.order))
        return [self.positions.show(one) for one in in_order]

    def find(self, number: int) -> Request | None:
        return self._requests.get(number)

    async def load(self) -> None:
        """No client could ask while there was no hub: all requests count as seen now."""
        async with self._lock:
            now = self._now()
            self._requests = {one.id: replace(one, last_seen_at=now) for one in await self._store.list()}
            self._noted = dict.fromkeys(self._requests, 0.0)
            self.is_loaded = True

    async def join(self, key: str, user: str, account: str | None, wanted: GpuRequest) -> QueuePosition:
        """A new request, or the one with that key. Raises QueueFull."""
        async with self._lock:
            known = next((one for one in self._requests.values() if one.key == key), None)
            if known is None:
                self._check_room(user)
                known = await self._store.add(key, user, account, wanted, self._now())
            if known.user != user:
                raise QueueFull("another user's request has that key.", "Choose another key.")
            self._requests[known.id] = seen = replace(known, last_seen_at=self._now())
            self.positions.arrange(self._requests.values())
        self.wake.set()
        return self.positions.show(seen)

    async def ask(self, number: int, wait: float = 0.0, seen: str = "") -> QueuePosition | None:
        """The position of a request, and a sign of life of its client; None if there is no such request. Waits for up
        to `wait` seconds while the version of the position is `seen`. A client that knows that its request was granted
        and asks again says that its command runs and does not use the GPUs yet."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(wait, MAX_POLL, self.settings.forget / 2)
        while (one := self._requests.get(number)) is not None:
            self._requests[number] = one = replace(one, last_seen_at=self._now())
            place = self.positions.show(one)
            if one.granted is not None and place.version == seen:
                self._starting[number] = self._now()
            left = deadline - loop.time()
            if place.version != seen or left <= 0 or self._is_over:
                return place
            async with self._changed:
                try:
                    await asyncio.wait_for(self._changed.wait(), left)
                except TimeoutError:
                    continue
        return None

    async def leave(self, number: int) -> bool:
        """Give up a request, or its granted GPUs. False if there is no such request."""
        async with self._lock:
            one = self._requests.get(number)
            if one is None:
                return False
            await self._drop(one)
            self.positions.arrange(self._requests.values())
        self.wake.set()
        return True

    async def step(self, gpus: Sequence[CandidateGpu], awaited: Collection[str] = ()) -> None:
        """Remove requests that ended, and grant free GPUs to those that are next. `awaited` are hosts whose GPUs are
        not known yet, by name and id."""
        async with self._lock:
            if self._store.is_shared:
                await self._reload()
            if not self._requests:
                self.positions.settle((), Schedule([], {}, frozenset()), gpus)
                return
            await self._note_seen()
            await self._remove_departed(gpus)
            await self._serve(gpus, awaited)
        await self._notify()

    async def stop(self) -> None:
        self._is_over = True
        await self._notify()

    def _check_room(self, user: str) -> None:
        if len(self._requests) >= MAX_WAITING:
            raise QueueFull(f"{MAX_WAITING} wait already.", "Come back later.")
        if sum(one.user == user for one in self._requests.values()) >= MOST_OF_ONE:
            raise QueueFull(f"{user} waits {MOST_OF_ONE} times already.", "`gpudeck wait` ends with Ctrl-C.")

    async def _reload(self) -> None:
        """Other hubs may have changed the queue. Each hub notes when its own clients asked."""
        found = await self._store.list()
        before = self._requests
        self._requests = {
            one.id: replace(one, last_seen_at=max(one.last_seen_at, before.get(one.id, one).last_seen_at))
            for one in found
        }

    async def _note_seen(self) -> None:
        """For other hubs. Written to the database rarely."""
        due = self.settings.forget / 4
        seen = {
            one.id: one.last_seen_at
            for one in self._requests.values()
            if one.last_seen_at - self._noted.get(one.id, one.created_at) > due
        }
        if seen:
            await self._store.note_seen(seen)
        self._noted = {number: at for number, at in (self._noted | seen).items() if number in self._requests}

    async def _remove_departed(self, gpus: Iterable[CandidateGpu]) -> None:
        now = self._now()
        users = {gpu.uuid: gpu.users for gpu in gpus}
        for one in list(self._requests.values()):
            if one.granted is None:
                if now - one.last_seen_at > self.settings.forget:
                    await self._drop(one)
                continue
            logins = frozenset(self._logins_of(one))
            has_started = all(users.get(gpu.uuid, frozenset()) & logins for gpu in one.granted.gpus)
            if has_started or now >= one.granted.until:
                await self._drop(one)
            else:
                await self._extend(one, one.granted)

    async def _extend(self, one: Request, granted: Granted) -> None:
        """Extend the claim of a command that runs and does not use its GPUs yet, before it ends."""
        now = self._now()
        until = min(now + self.settings.claim, granted.at + self.settings.longest_claim)
        is_due = granted.until - now <= self.settings.claim / 2 and until > granted.until
        is_starting = now - self._starting.get(one.id, float("-inf")) <= self.settings.forget
        if not is_due or not is_starting or granted.claim is None:
            return
        try:
            is_claimed = await self._claims.extend_claim(granted.claim, until)
        except Temporary:
            raise
        except GpudeckError as error:
            log.debug("the claim of %s cannot be extended: %s", one.user, error)
            return
        if is_claimed:
            longer = replace(granted, until=until)
            await self._store.write_grant(one.id, longer, is_first=False)
            self._requests[one.id] = replace(one, granted=longer)

    async def _drop(self, one: Request) -> None:
        await self._store.remove(one.id)
        self._requests.pop(one.id, None)
        self._starting.pop(one.id, None)
        if one.granted is not None and one.granted.claim is not None:
            await self._claims.end_claim(one.granted.claim)

    async def _serve(self, gpus: Sequence[CandidateGpu], awaited: Collection[str]) -> None:
        now = self._now()
        self._refused = {uuid: until for uuid, until in self._refused.items() if until > now}
        offered = [replace(gpu, state="taken") if gpu.uuid in self._refused else gpu for gpu in gpus]
        found = schedule(self._requests.values(), offered, now, patience=self.settings.patience)
        for grant in found.grants:
            if not self._find_outdated({gpu.uuid for gpu in grant.gpus}):
                await self._give(grant)
        self.positions.settle(self._requests.values(), found, gpus, awaited)

    async def _give(self, grant: ScheduledGrant) -> None:
        """Claim first: a hub that dies in between leaves a claim that ends soon, and no GPU that is granted twice."""
        one = self._requests[grant.request]
        now = self._now()
        try:
            claim = await self._claims.claim(grant.gpus, one.user, self.settings.claim)
        except Temporary:
            raise
        except GpudeckError as error:
            log.info("GPUs could not be claimed for %s: %s", one.user, error)
            self._refused |= {gpu.uuid: now + _REFUSED_SECONDS for gpu in grant.gpus}
            return
        granted = Granted([grant_of(gpu) for gpu in grant.gpus], now, now + self.settings.claim, claim)
        if await self._store.write_grant(one.id, granted, is_first=True):
            self._requests[one.id] = replace(one, granted=granted)
        else:
            await self._claims.end_claim(claim)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


STEP_SECONDS: Final = 1.0
_ESTIMATE_SECONDS: Final = 600.0
_LOOK_BACK: Final = 7 * 86_400.0
_RUNS: Final = 1000
"""How many of the newest runs count."""


class QueueService(Service):
    """`queue` is for the API. `close` may be called twice: every `ask` ends before the server stops."""

    name = "queue"

    def __init__(
        self,
        hub: Hub,
        database: Database,
        reservations: ReservationCalendar,
        settings: QueueSettings,
        users: UserDirectory,
        *,
        history: Store | None = None,
        find_outdated: FindOutdated = lambda _: frozenset(),
        fleet: str = REAL,
        now: Clock = clock.wall,
    ) -> None:
        """`fleet` separates the queue of a demo from that of real hosts."""
        self._hub = hub
        self._users = users
        self._history = history
        self._now = now
        self._tasks: list[asyncio.Task[None]] = []
        self.queue = WaitQueue(
            QueueStore(database, fleet),
            settings,
            reservations,
            logins_of=self._logins_of,
            find_outdated=find_outdated,
            is_loaded=False,
            now=now,
        )

    async def open(self) -> None:
        """Raises Temporary when the database does not answer, and is called again then."""
        await self.queue.load()

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._step_forever())]
        if self._history is not None:
            self._tasks.append(loop.create_task(self._estimate_forever(self._history)))

    async def close(self) -> None:
        """Every `ask` ends at once; clients ask again when a hub serves."""
        await self.queue.stop()
        await cancel_tasks(*self._tasks)

    async def _step_forever(self) -> None:
        is_told = False
        while True:
            self.queue.wake.clear()
            try:
                hosts = [] if self.queue.is_empty else self._hub.fleet.ordered()
                candidates = [gpu for host in hosts for gpu in host.candidates()]
                # Hosts that have never reported, or whose GPUs could never be read.
                silent = [host for host in hosts if host.last_report_at is None or host.facts.gpus_reason is not None]
                awaited = {name for host in silent if not host.gpus for name in (host.name, host.id)}
                await self.queue.step(candidates, awaited)
                is_told = False
            except Temporary as error:
                if not is_told:
                    log.warning("the queue is stopped: %s", error)
                is_told = True
            except Exception:
                log.exception("a step of the queue failed")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.queue.wake.wait(), STEP_SECONDS)

    def _logins_of(self, one: Request) -> Collection[str]:
        return (one.user,) if one.account is None else self._users.logins_of(one.account)

    async def _estimate_forever(self, history: Store) -> None:
        """Read how long programs ran lately, only while the queue is not empty."""
        asked_at = float("-inf")
        while True:
            await asyncio.sleep(STEP_SECONDS)
            if self.queue.is_empty or self._now() - asked_at < _ESTIMATE_SECONDS:
                continue
            asked_at = self._now()
            try:
                found = await asyncio.to_thread(_query_run_lengths, history, asked_at)
                self.queue.positions.estimate_from(found)
            except (HistoryRefused, Temporary) as error:
                log.debug("cannot estimate waiting times: %s", error)
            except Exception:
                log.exception("cannot estimate waiting times")


def _query_run_lengths(store: Store, now: float) -> dict[str, list[float]]:
    lengths: dict[str, list[float]] = defaultdict(list)
    for run in store.runs(RunsQuery(start=now - _LOOK_BACK, end=now, limit=_RUNS)).runs:
        if run.ended_at is not None:
            for uuid in run.gpus:
                lengths[uuid].append(run.ended_at - (run.seen_at if run.started_at is None else run.started_at))
    return lengths
