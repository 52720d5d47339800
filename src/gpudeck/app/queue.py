"""The queue of this hub: off its live fleet every second, with holds that everybody sees, and guesses from its history.
Wiring of queueing."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from typing import Final

from gpudeck.auth.people import PeopleDirectory
from gpudeck.database.engine import Database
from gpudeck.database.schema import name_fleet
from gpudeck.history.base import HistoryRefused, RunsAsk, Store
from gpudeck.hub.hub import Hub
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.errors import Temporary
from gpudeck.model.reservation import BookedGpu
from gpudeck.model.wanted import OfferedGpu
from gpudeck.queueing.queue import QueueStore, WaitQueue
from gpudeck.queueing.request import Request
from gpudeck.queueing.scheduler import Estimator, RunLengths, count_stays
from gpudeck.queueing.settings import QueueSettings
from gpudeck.reservations.calendar import Reservations

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 1.0
STAYS_SECONDS: Final = 600.0
_LOOK_BACK: Final = 7 * 86_400.0
_RUNS: Final = 1000
"""The newest so many programs say how long one stays."""


class ReservedHolds:
    """Holds as reservations of a short time: they stand at the GPUs, for everybody to see."""

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations

    async def hold(self, gpus: Sequence[OfferedGpu], user: str, seconds: float) -> int:
        booked = [BookedGpu(gpu.uuid, gpu.host, gpu.label) for gpu in gpus]
        return (await self._reservations.hold(booked, user, seconds, "starting")).id

    async def extend_hold(self, number: int, until: float) -> bool:
        return await self._reservations.extend_hold(number, until) is not None

    async def end_hold(self, number: int) -> None:
        await self._reservations.end_hold(number)


class WaitingLine:
    """`queue` is what the API asks. `open` before the hub serves, `start` when it does, `stop` before it ends, all in
    the event loop that owns the hub."""

    def __init__(
        self,
        hub: Hub,
        database: Database,
        reservations: Reservations,
        settings: QueueSettings,
        people: PeopleDirectory,
        *,
        history: Store | None = None,
        demo: int | None = None,
        now: Clock = clock.wall,
    ) -> None:
        """`demo` is how many hosts are simulated, None when none are."""
        self._hub = hub
        self._people = people
        self._history = history
        self._now = now
        self._estimator = Estimator()
        self._tasks: list[asyncio.Task[None]] = []
        store = QueueStore(database, name_fleet(demo))
        self.queue = WaitQueue(
            store,
            settings,
            ReservedHolds(reservations),
            logins_of=self._logins_of,
            estimate=self._estimator,
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
            self._tasks.append(loop.create_task(self._look_back_forever(self._history)))

    async def stop(self) -> None:
        """Whoever waits is answered at once, and comes back when there is a hub again."""
        await self.queue.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _step_forever(self) -> None:
        is_told = False
        while True:
            self.queue.wake.clear()
            try:
                await self.queue.step(self._offered())
                is_told = False
            except Temporary as error:
                if not is_told:
                    log.warning("nobody in the queue can be served: %s", error)
                is_told = True
            except Exception:
                log.exception("a step of the queue failed")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.queue.wake.wait(), STEP_SECONDS)

    def _offered(self) -> list[OfferedGpu]:
        if self.queue.is_empty:
            return []
        return [gpu for host in self._hub.fleet.ordered() for gpu in host.offers()]

    def _logins_of(self, one: Request) -> Collection[str]:
        return (one.user,) if one.account is None else self._people.logins_of(one.account)

    async def _look_back_forever(self, history: Store) -> None:
        """How long programs stayed lately; asked only while somebody waits."""
        asked_at = float("-inf")
        while True:
            await asyncio.sleep(STEP_SECONDS)
            if self.queue.is_empty or self._now() - asked_at < STAYS_SECONDS:
                continue
            asked_at = self._now()
            try:
                self._estimator.learn(await asyncio.to_thread(_ask_stays, history, asked_at))
            except (HistoryRefused, Temporary) as error:
                log.debug("how long programs stay cannot be told: %s", error)
            except Exception:
                log.exception("how long programs stay cannot be told")


def _ask_stays(store: Store, now: float) -> dict[str, RunLengths]:
    runs = store.runs(RunsAsk(start=now - _LOOK_BACK, end=now, limit=_RUNS)).runs
    return count_stays(
        (run.gpus, run.ended_at - (run.seen_at if run.started_at is None else run.started_at))
        for run in runs
        if run.ended_at is not None
    )
