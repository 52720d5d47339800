"""The queue of a hub: served from its live fleet every second, with claims that are visible as reservations, and
waiting times estimated from its history."""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Sequence
from typing import Final

from gpudeck.auth.auth import UserDirectory
from gpudeck.database.engine import Database
from gpudeck.database.schema import REAL
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.history.base import HistoryRefused, RunsQuery, Store
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary
from gpudeck.model.gpu_request import CandidateGpu
from gpudeck.model.reservation import ReservedGpu
from gpudeck.queueing.queue import FindOutdated, QueueStore, WaitQueue
from gpudeck.queueing.scheduler import Estimator, Request, RunLengths, count_run_lengths
from gpudeck.queueing.settings import QueueSettings
from gpudeck.reservations.calendar import ReservationCalendar

log = logging.getLogger(__name__)

STEP_SECONDS: Final = 1.0
STAYS_SECONDS: Final = 600.0
_LOOK_BACK: Final = 7 * 86_400.0
_RUNS: Final = 1000
"""The newest so many programs say how long one stays."""


class ReservationClaims:
    """Claims as short reservations: they are visible at the GPUs."""

    def __init__(self, reservations: ReservationCalendar) -> None:
        self._reservations = reservations

    async def claim(self, gpus: Sequence[CandidateGpu], user: str, seconds: float) -> int:
        reserved = [ReservedGpu(gpu.uuid, gpu.host, gpu.label) for gpu in gpus]
        return (await self._reservations.claim(reserved, user, seconds, "starting")).id

    async def extend_claim(self, number: int, until: float) -> bool:
        return await self._reservations.extend_claim(number, until) is not None

    async def end_claim(self, number: int) -> None:
        await self._reservations.end_claim(number)


class QueueService(Service):
    """`queue` is what the API asks. `close` may be called twice: open requests are answered before the server stops."""

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
        """`fleet` is the name under which a demo's queue is kept apart. See WaitQueue for `find_outdated`."""
        self._hub = hub
        self._users = users
        self._history = history
        self._now = now
        self._estimator = Estimator()
        self._tasks: list[asyncio.Task[None]] = []
        store = QueueStore(database, fleet)
        self.queue = WaitQueue(
            store,
            settings,
            ReservationClaims(reservations),
            logins_of=self._logins_of,
            estimate=self._estimator,
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
        """Open requests are answered at once; their clients ask again when a hub serves."""
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
        """How long programs stayed lately; asked only while the queue is not empty."""
        asked_at = float("-inf")
        while True:
            await asyncio.sleep(STEP_SECONDS)
            if self.queue.is_empty or self._now() - asked_at < STAYS_SECONDS:
                continue
            asked_at = self._now()
            try:
                self._estimator.learn(await asyncio.to_thread(_query_run_lengths, history, asked_at))
            except (HistoryRefused, Temporary) as error:
                log.debug("cannot estimate how long programs stay: %s", error)
            except Exception:
                log.exception("cannot estimate how long programs stay")


def _query_run_lengths(store: Store, now: float) -> dict[str, RunLengths]:
    runs = store.runs(RunsQuery(start=now - _LOOK_BACK, end=now, limit=_RUNS)).runs
    return count_run_lengths(
        (run.gpus, run.ended_at - (run.seen_at if run.started_at is None else run.started_at))
        for run in runs
        if run.ended_at is not None
    )
