"""Duties of a cluster: each belongs to one hub at a time, by a row in PostgreSQL with owner, epoch and expiry.

Times are by the database's clock. A hub renews its leases every two seconds, and stops working before a lease expires
by its own monotonic clock; every write of a duty checks the epoch in its own transaction (`fence`). Hubs take over free
duties, and hand over those that another hub should have.
"""

import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import CursorResult, Executable, Float, Select, and_, cast, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gpudeck import __version__
from gpudeck.database.engine import Database
from gpudeck.database.schema import cluster_hubs, cluster_leases
from gpudeck.model.cluster import ClusterDuty, ClusterHub, Duty, LostDuty
from gpudeck.model.errors import Temporary

log = logging.getLogger(__name__)

LEASE_SECONDS: Final = 10.0
RENEW_SECONDS: Final = 2.0
_MARGIN: Final = 2.0
"""The owner stops this long before its lease expires: its clock may run a little slower."""
SETTLED_SECONDS: Final = 20.0
"""A hub takes duties from others when it has been up to date for this long."""
_FORGET_SECONDS: Final = 7 * 86_400.0
POLLING_SHARDS: Final = 16

_hubs, _leases = cluster_hubs.c, cluster_leases.c
_now = cast(func.extract("epoch", func.clock_timestamp()), Float(53))


class Held(Struct):
    epoch: int
    until: float


class NameInUse(Temporary):
    """Another hub of the cluster has the same name."""


class Leases:
    """The duties of one hub: `held` are its own; `duties` and `hubs` are those of all hubs as of the last renewal."""

    def __init__(self, database: Database, name: str, run: str, duties: Iterable[str], *, started_at: float) -> None:
        self._database = database
        self._name = name
        self._run = run
        self._names = tuple(duties)
        self._started_at = started_at
        self.held: dict[str, Held] = {}
        self.hubs: list[ClusterHub] = []
        self.duties: list[ClusterDuty] = []
        self.renewed_at: float | None = None

    def duty(self, name: str) -> Duty:
        return Duty(name, lambda: self.holds(name))

    def holds(self, name: str) -> bool:
        held = self.held.get(name)
        return held is not None and time.monotonic() < held.until

    def fence(self, name: str) -> Database:
        return _FencedDatabase(self._database, lambda connection: self._check(connection, name))

    async def renew(self, *, can_work: bool, lag: float | None) -> None:
        """Announce this hub, renew its leases, take over free duties, and hand over those of others. Without `can_work`
        it releases all. Raises Temporary."""
        began = time.monotonic()
        async with self._database.begin() as connection:
            now = float((await connection.execute(select(_now))).scalar_one())
            await self._note_presence(connection, now, can_work=can_work, lag=lag)
            hubs = (await connection.execute(select(cluster_hubs))).mappings().all()
            # In a fixed order, so that hubs that renew at once cannot deadlock.
            rows = await connection.execute(select(cluster_leases).order_by(_leases.duty).with_for_update())
            leases = {row["duty"]: dict(row) for row in rows.mappings()}
            held: dict[str, Held] = {}
            able = _find_able(hubs, now)
            for name in self._names:
                lease = await self._settle(connection, name, leases.get(name), able, now, can_work=can_work)
                if lease is not None and self._is_mine(lease, now):
                    held[name] = Held(lease["epoch"], began + LEASE_SECONDS - _MARGIN)
                    leases[name] = lease
        self._note_changes(held)
        self.held, self.renewed_at = held, began
        self.hubs = sorted((self._show_hub(row, now) for row in hubs), key=lambda hub: hub.name)
        self.duties = [_show_duty(name, leases.get(name), now) for name in self._names]

    async def release(self) -> None:
        self.held = {}
        mine = update(cluster_leases).where(_leases.owner == self._name, _leases.run == self._run)
        async with self._database.begin() as connection:
            await connection.execute(mine.values(owner=None, expires_at=0.0))
            await connection.execute(delete(cluster_hubs).where(_hubs.name == self._name, _hubs.run == self._run))

    async def _note_presence(
        self, connection: AsyncConnection, now: float, *, can_work: bool, lag: float | None
    ) -> None:
        mine = (await connection.execute(select(cluster_hubs).where(_hubs.name == self._name))).mappings().first()
        if mine is not None and mine["run"] != self._run and mine["seen_at"] > now - LEASE_SECONDS:
            raise NameInUse(
                f"another hub has the name {self._name} too, or this one was restarted a moment ago.",
                "Give each hub a name of its own: cluster.name.",
            )
        is_same = mine is not None and mine["run"] == self._run and mine["able_since"] is not None
        values = {
            "run": self._run,
            "version": __version__,
            "started_at": self._started_at,
            "seen_at": now,
            "able_since": None if not can_work else mine["able_since"] if mine is not None and is_same else now,
            "lag_seconds": lag,
        }
        made = self._database.insert(cluster_hubs).values(name=self._name, **values)
        await connection.execute(made.on_conflict_do_update(index_elements=["name"], set_=values))
        await connection.execute(delete(cluster_hubs).where(_hubs.seen_at < now - _FORGET_SECONDS))

    async def _settle(
        self,
        connection: AsyncConnection,
        name: str,
        lease: dict[str, Any] | None,
        able: list[str],
        now: float,
        *,
        can_work: bool,
    ) -> dict[str, Any] | None:
        wanted = choose_owner(name, able)
        if lease is not None and self._is_mine(lease, now):
            if not can_work or wanted not in {self._name, None}:
                # It expires now, not in the past, so that the hub that should have it goes first.
                await self._write(connection, lease | {"owner": None, "expires_at": now})
                return None
            return await self._write(connection, lease | {"expires_at": now + LEASE_SECONDS})
        is_free = lease is None or lease["owner"] is None or lease["expires_at"] <= now
        if not (can_work and is_free):
            return None
        if wanted not in {self._name, None} and lease is not None and lease["expires_at"] > now - LEASE_SECONDS:
            return None  # that hub has its turn first
        epoch = 1 if lease is None else lease["epoch"] + 1
        return await self._write(
            connection,
            {"duty": name, "owner": self._name, "run": self._run, "epoch": epoch, "since": now}
            | {"expires_at": now + LEASE_SECONDS},
        )

    async def _write(self, connection: AsyncConnection, lease: dict[str, Any]) -> dict[str, Any]:
        made = self._database.insert(cluster_leases).values(**lease)
        rest = {key: value for key, value in lease.items() if key != "duty"}
        await connection.execute(made.on_conflict_do_update(index_elements=["duty"], set_=rest))
        return lease

    def _is_mine(self, lease: dict[str, Any], now: float) -> bool:
        return bool(lease["owner"] == self._name and lease["run"] == self._run and lease["expires_at"] > now)

    async def _check(self, connection: AsyncConnection, name: str) -> None:
        held = self.held.get(name)
        mine = and_(
            _leases.duty == name,
            _leases.owner == self._name,
            _leases.run == self._run,
            _leases.epoch == (-1 if held is None else held.epoch),
            _leases.expires_at > _now,
        )
        # Until this transaction ends, no hub can take the duty over.
        found = await connection.execute(select(_leases.duty).where(mine).with_for_update(read=True))
        if found.first() is None:
            raise LostDuty(f"another hub has the duty {name} now.", "Ask again in a moment.")

    def _note_changes(self, held: dict[str, Held]) -> None:
        if taken := sorted(held.keys() - self.held.keys()):
            log.info("this hub has these duties now: %s", ", ".join(taken))
        if lost := sorted(self.held.keys() - held.keys()):
            log.info("this hub no longer has these duties: %s", ", ".join(lost))

    def _show_hub(self, row: Any, now: float) -> ClusterHub:
        ago = max(0.0, now - row["seen_at"])
        return ClusterHub(
            row["name"],
            row["version"],
            row["started_at"],
            round(ago, 1),
            ago < LEASE_SECONDS,
            row["lag_seconds"],
            row["name"] == self._name,
        )


def _find_able(hubs: Sequence[Any], now: float) -> list[str]:
    """The hubs among which duties are spread: those that have been up to date for long enough. Without any, duties stay
    where they are, and any hub takes a free one."""
    return sorted(
        row["name"]
        for row in hubs
        if row["seen_at"] > now - LEASE_SECONDS
        and row["able_since"] is not None
        and now - row["able_since"] >= SETTLED_SECONDS
    )


def choose_owner(duty: str, hubs: Sequence[str]) -> str | None:
    """The hub that should have the duty (rendezvous hashing): all hubs choose the same, and few duties move when a hub
    comes or goes."""
    return max(hubs, key=lambda hub: hashlib.blake2b(f"{duty} {hub}".encode()).digest(), default=None)


def shard_of(target: str) -> int:
    return int.from_bytes(hashlib.blake2b(target.encode(), digest_size=4).digest()) % POLLING_SHARDS


def _show_duty(name: str, lease: dict[str, Any] | None, now: float) -> ClusterDuty:
    if lease is None:
        return ClusterDuty(name, None, 0, None)
    is_held = lease["owner"] is not None and lease["expires_at"] > now
    return ClusterDuty(name, lease["owner"] if is_held else None, lease["epoch"], lease["since"] if is_held else None)


class _FencedDatabase(Database):
    """A database whose transactions begin with a check."""

    def __init__(self, inner: Database, check: Callable[[AsyncConnection], Any]) -> None:
        self.kind = inner.kind
        self.place = inner.place
        self.engine = inner.engine
        self._inner = inner
        self._check = check

    async def execute(
        self, statement: Executable, rows: Sequence[Mapping[str, Any]] | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Reads need no duty."""
        if isinstance(statement, Select):
            return await self._inner.execute(statement, rows)
        return await super().execute(statement, rows)

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[AsyncConnection]:
        async with self._inner.begin() as connection:
            await self._check(connection)
            yield connection
