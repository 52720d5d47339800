"""A hub in a cluster: publishes its reports, applies those of the others, and has its share of the duties. Used only
with the setting `cluster`."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from gpudeck.cluster.bus import LOST_SECONDS, Answer, Bus
from gpudeck.cluster.leases import POLLING_SHARDS, RENEW_SECONDS, Leases, NameInUse, shard_of
from gpudeck.cluster.replication import WHOLE_SECONDS, Replicator
from gpudeck.cluster.settings import ClusterSettings
from gpudeck.database.background import LocalCopy
from gpudeck.database.engine import Database
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model.cluster import Cluster, Duty
from gpudeck.model.cpu_budget import cancel_tasks
from gpudeck.model.errors import Temporary

log = logging.getLogger(__name__)

FILE_NAME: Final = "cluster.json"
_FLUSH_SECONDS: Final = 0.05
_HEARTBEAT_SECONDS: Final = 1.0
_SHARE_RETRY_SECONDS: Final = 20.0
_ALONE_SECONDS: Final = 15.0
"""A hub that starts without the bus takes reports after this time."""
_RETURN_SECONDS: Final = 15.0
"""After an outage of the bus, agents have this long to find a hub before their hosts are down."""
_ASLEEP_SECONDS: Final = 1.5
_CATCH_UP_SECONDS: Final = 60.0
"""A hub that catches up takes reports after this time in any case."""
_KEEP_SECONDS: Final = 10.0
_RESUBSCRIBE_SECONDS: Final = 10.0
DUTIES: Final = ("alerts", "chat", "digests", "events", "reservations", "schedulers")


class _Position(Struct, frozen=True):
    """How far this hub has read the bus, in the bus's time."""

    at: float


class ClusterService(Service):
    """`leases` has the duties. `share` and `notify` publish this hub's results to all hubs, `subscribe` receives those
    of others."""

    name = "cluster"

    def __init__(self, hub: Hub, settings: ClusterSettings, database: Database, data_dir: Path) -> None:
        self._hub = hub
        self._settings = settings
        self._started = time.monotonic()
        self._run = secrets.token_hex(8)
        self._copy = LocalCopy(data_dir / FILE_NAME, _Position)
        self._shared: dict[str, Raw] = {}
        self._share_at: dict[str, float] = {}
        self._subscribers: dict[str, Callable[[Raw], None]] = {}
        self._answer: Answer | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._lease_problem: str | None = None
        self._current_since: float | None = None
        self._was_current = self._has_been_current = False
        self._lost_at: float | None = None
        self._awake_at = self._started
        self._heartbeat_at = self._kept_at = 0.0
        known, oldest = self._copy.read(), time.time() - settings.keep
        self.missed = "" if known is None or known.at >= oldest else _explain_missed(known.at, oldest)
        """Why data are missing for good: this hub was away for longer than the bus keeps reports."""
        since = max(oldest, known.at if known is not None else time.time()) - 1.5 * WHOLE_SECONDS
        self.bus = Bus(settings, self._receive, self._serve, since=since)
        self._replicator = Replicator(hub, settings.hub_name, self._run, self.bus.publish, self._use_shared)
        duties = (*DUTIES, *(f"polling-{shard:02}" for shard in range(POLLING_SHARDS)))
        self.leases = Leases(database, settings.hub_name, self._run, duties, started_at=hub.started_at)
        hub.fleet.join_cluster(self._replicator.forward, lambda: self.is_cut_off)
        hub.ingest.refuse_with(self._find_refusal)

    @property
    def state(self) -> Literal["ok", "catching_up", "alone"]:
        if self._is_current:
            return "ok"
        return "catching_up" if self.bus.problem is None else "alone"

    @property
    def _is_current(self) -> bool:
        """Whether this hub has read everything published until a moment ago. After a suspension it has not until its
        next own message comes back: what waits in its sockets is older than it looks."""
        if time.monotonic() - self._awake_at > _ASLEEP_SECONDS:
            self._replicator.reset_echo()
        return self._replicator.silent_seconds < LOST_SECONDS

    @property
    def is_cut_off(self) -> bool:
        """Whether reports may be at other hubs and unknown here. After that, agents have some time to find a hub before
        their hosts are down. A suspended hub is cut off from the moment it resumes."""
        if not self._is_current:
            self._current_since = None
        since = self._current_since
        return since is None or time.monotonic() - since < _RETURN_SECONDS

    def _find_refusal(self) -> str | None:
        """Why no reports are taken. A hub that catches up would give wrong times to reports that others took long ago.
        A hub that is cut off from the bus alone would withhold its reports from the others, which would call those
        hosts down."""
        is_starting = not self._has_been_current and time.monotonic() - self._started < _ALONE_SECONDS
        is_overdue = self._lost_at is not None and time.monotonic() - self._lost_at > _CATCH_UP_SECONDS
        if not self._is_current and self._is_another_current:
            return "this hub is cut off from its cluster, and another hub is not"
        if self._is_current or ((self.bus.problem is not None or is_overdue) and not is_starting):
            return None
        return "this hub is catching up with the other hubs of its cluster"

    @property
    def _is_another_current(self) -> bool:
        """Whether another hub recently recorded in the database that its messages come back from the bus."""
        renewed_at = self.leases.renewed_at
        ago = float("inf") if renewed_at is None else time.monotonic() - renewed_at
        return any(
            not hub.is_this and hub.lag_seconds is not None and hub.seen_seconds_ago + ago < LOST_SECONDS
            for hub in self.leases.hubs
        )

    def duty(self, name: str) -> Duty:
        return self.leases.duty(name)

    def polls(self, target: str) -> bool:
        return self.leases.holds(f"polling-{shard_of(target):02}")

    @property
    def polling_shards(self) -> frozenset[int]:
        return frozenset(shard for shard in range(POLLING_SHARDS) if self.leases.holds(f"polling-{shard:02}"))

    def share(self, name: str, content: Any) -> None:
        """Show this hub's state to all hubs; it replaces the previous one of that name."""
        self._shared[name] = Raw(msgspec.msgpack.encode(content))
        self._share_at[name] = 0.0

    def notify(self, name: str, content: Any) -> None:
        """Notify all hubs once."""
        self._replicator.notify(name, Raw(msgspec.msgpack.encode(content)))

    def subscribe(self, name: str, use: Callable[[Raw], None]) -> None:
        """Call `use` with what another hub shares or notifies of under that name."""
        self._subscribers[name] = use

    def answer_with(self, answer: Answer) -> None:
        self._answer = answer

    def owner_of(self, duty: str) -> str | None:
        """The hub that has the duty, as of the last renewal of leases."""
        return next((one.owner for one in self.leases.duties if one.name == duty), None)

    def describe(self) -> Cluster:
        counters = self._replicator.counters
        return Cluster(
            state=self.state,
            problems=self.problems,
            hubs=self.leases.hubs,
            duties=self.leases.duties,
            reports_forwarded=counters["forwarded"],
            reports_received=counters["received"],
            reports_dropped=self.bus.dropped,
            duplicates=counters["duplicates"],
        )

    @property
    def problems(self) -> list[str]:
        found = []
        if self.bus.problem is not None:
            problem = f"the bus cannot be used: {self.bus.problem}"
            found.append(f"{problem}. The hubs cannot reach each other, and hosts of other hubs are shown as late.")
        elif not self._is_current:
            found.append("this hub is catching up with the other hubs: some hosts are shown as late.")
        if self._replicator.counters["unreadable"]:
            found.append("another hub is more than one version ahead: its hosts are shown as late. Upgrade this hub.")
        if self._lease_problem is not None:
            found.append(f"no duties can be assigned: {self._lease_problem}")
        return found

    def start(self) -> None:
        if self.missed:
            log.warning("%s", self.missed)
        self.bus.start()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._flush_forever()), loop.create_task(self._renew_forever())]

    def on_second(self) -> None:
        now = time.monotonic()
        if self._is_current:
            if self._current_since is None:
                self._current_since = now
                self._has_been_current, self._lost_at = True, None
                log.info("this hub is up to date with its cluster")
        else:
            if self._was_current:
                log.warning("this hub is cut off from its cluster")
                self._lost_at = now
                self._replicator.reset_echo()
            self._current_since = None
            if self.bus.problem is None and self.bus.idle_seconds > _RESUBSCRIBE_SECONDS:
                self.bus.note_lost()
        self._was_current = self._current_since is not None
        self._hub.fleet.set_problems("cluster", self.problems)

    async def close(self) -> None:
        self._hub.fleet.join_cluster(None, lambda: True)
        await cancel_tasks(*self._tasks)
        with contextlib.suppress(Temporary):
            await self.leases.release()
        self._replicator.flush()
        await self.bus.close()
        await self._keep_position()

    async def _receive(self, body: bytes, at: float) -> None:
        await self._replicator.receive(body, at)

    async def _serve(self, body: bytes) -> bytes:
        return b"" if self._answer is None else await self._answer(body)

    def _use_shared(self, hub: str, name: str, content: Raw) -> None:
        use = self._subscribers.get(name)
        if use is None:
            return
        try:
            use(content)
        except msgspec.DecodeError as error:
            log.debug("what %s shares as %s cannot be read: %s", hub, name, error)

    async def _flush_forever(self) -> None:
        while True:
            await asyncio.sleep(_FLUSH_SECONDS)
            is_current = self._is_current
            now = self._awake_at = time.monotonic()
            try:
                self._replicator.forward_whole(not is_current)
                is_due = now - self._heartbeat_at >= _HEARTBEAT_SECONDS
                if is_due:
                    self._heartbeat_at = now
                    self._replicator.forget()
                self._replicator.flush(self._take_shared(now), is_heartbeat=is_due)
                if now - self._kept_at >= _KEEP_SECONDS:
                    self._kept_at = now
                    await self._keep_position()
            except Exception:
                log.exception("the reports of this hub could not be published")

    def _take_shared(self, now: float) -> dict[str, Raw]:
        due = {name: raw for name, raw in self._shared.items() if now >= self._share_at[name]}
        self._share_at |= dict.fromkeys(due, now + _SHARE_RETRY_SECONDS)
        return due

    async def _renew_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(5.0):
                    # A host that is only late here would resolve an alert that another hub fires again.
                    await self.leases.renew(can_work=not self.is_cut_off, lag=self._replicator.lag)
                if self._lease_problem is not None:
                    log.info("leases can be renewed again")
                self._lease_problem = None
            except (Temporary, TimeoutError) as error:
                if self._lease_problem is None:
                    log.warning("leases cannot be renewed: %s", str(error) or "the database does not answer in time.")
                # Without the database's address: every reader can see it.
                problem = error.message if isinstance(error, NameInUse) else "the hub's database does not answer."
                self._lease_problem = problem
            except Exception:
                log.exception("leases could not be renewed")
            await asyncio.sleep(RENEW_SECONDS)

    async def _keep_position(self) -> None:
        if self._replicator.lag is not None:
            await self._copy.write(_Position(self.bus.position))


def _explain_missed(since: float, until: float) -> str:
    start, end = (f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M}" for at in (since, until))
    return (
        f"It was away for longer than the bus keeps reports (cluster.keep): its usage lacks {start} to {end} UTC. "
        "To fill the gap, stop this hub and another one, and copy history.db of that one."
    )
