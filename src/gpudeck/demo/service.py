"""The past of a demo: made by a child process while the hub serves, and written into its history and its events."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gpudeck.demo.backfill import Backfill, is_needed, mark_done
from gpudeck.events.log import EventLog
from gpudeck.fleet.observers import Service
from gpudeck.history.service import OpeningStore

if TYPE_CHECKING:
    from gpudeck.history.embedded.store import EmbeddedStore


class DemoService(Service):
    """Fills the history of `hosts` simulated hosts with `days` until `until`. Closed before the history."""

    name = "demo"

    def __init__(
        self, hosts: int, store: OpeningStore, events: EventLog, data_dir: Path, *, days: float, until: float
    ) -> None:
        self._hosts = hosts
        self._store = store
        self._events = events
        self._data_dir = data_dir
        self._days = days
        self._until = until
        self._backfill: Backfill | None = None
        self._waiting: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._days > 0:
            self._waiting = asyncio.create_task(self._fill())

    async def close(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        if self._backfill is not None:
            await self._backfill.stop()

    async def _fill(self) -> None:
        store = cast("EmbeddedStore | None", await asyncio.to_thread(self._store.wait))
        if store is None:
            return
        since = None if is_needed(self._data_dir, self._hosts) else store.newest
        self._backfill = Backfill(
            self._hosts,
            days=self._days,
            until=self._until,
            since=since,
            when_done=lambda: None if store.problem or store.dropped else mark_done(self._data_dir, self._hosts),
        )
        self._backfill.start(store.take, lambda: store.has_room, self._events.keep)
