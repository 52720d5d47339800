"""The hub's history: opened beside the start, never in its way; a demo has a file of its own.

Opening reads numpy and the journal of last time, which takes a moment: the page is up by then, samples wait, and who
asks waits for up to some seconds. A history that cannot be opened is a problem that the hub shows, not one it ends of.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

from gpudeck.collectors.simulated import SimulatedFleet
from gpudeck.demo.backfill import DAYS, SEED, Backfill, TakeEvents, is_needed, mark_done
from gpudeck.history.base import Answer, Ask, Heat, HeatAsk, Run, Runs, RunsAsk, Store, StoreStats, UsageAsk
from gpudeck.history.sample import HostSample
from gpudeck.history.settings import DEMO_FILE, FILE, HistorySettings, UsageSettings
from gpudeck.hub.hub import Hub
from gpudeck.hub.recorder import Recorder
from gpudeck.model import clock
from gpudeck.model.clock import Clock
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.history_trouble import HistoryTrouble, judge_problem
from gpudeck.model.retention import RetentionClock
from gpudeck.model.usage import Usage

if TYPE_CHECKING:
    from gpudeck.history.embedded.store import EmbeddedStore

log = logging.getLogger(__name__)

_PATIENCE: Final = 10.0
_AGAIN: Final = 30.0
"""Seconds until a history that could not be opened is tried again."""
_MOST_WAITING: Final = 20_000


class OpeningStore:
    """A store that another thread opens: what is taken meanwhile waits, who asks waits too."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._store: Store | None = None
        self._why_not: str | None = None
        self._open_store = open_store
        self._waiting: list[HostSample] = []
        self._lock = threading.Lock()
        self._is_decided = threading.Event()
        self._is_closed = False
        self._closing = threading.Event()
        threading.Thread(target=self._open, name="history-opening", daemon=True).start()

    @property
    def problem(self) -> str | None:
        return self._why_not if self._store is None else self._store.problem

    @property
    def damage(self) -> str | None:
        """What of the past cannot be read, or was set aside; None: nothing that was asked for."""
        return getattr(self._store, "damage", None)

    @property
    def trouble(self) -> HistoryTrouble | None:
        """As `problem`, and whether anything is lost by it."""
        trouble: HistoryTrouble | None = getattr(self._store, "trouble", None)
        return trouble or judge_problem(self.problem)

    @property
    def has_room(self) -> bool:
        """Whether it is open and keeps up with what it is given."""
        return self._store is not None and bool(getattr(self._store, "has_room", True))

    def take(self, samples: list[HostSample]) -> None:
        with self._lock:
            if self._store is not None:
                self._store.take(samples)
            elif len(self._waiting) < _MOST_WAITING:
                self._waiting += samples

    def wait(self) -> Store | None:
        """Block until it is open; None if it cannot be opened, or not soon."""
        self._is_decided.wait(_PATIENCE)
        return self._store

    def close(self) -> None:
        """Blocks until everything taken is written. One that is still being opened is closed by its own thread."""
        self._closing.set()
        with self._lock:
            self._is_closed = True
            store = self._store
        if store is not None:
            store.close()

    def settle(self) -> bool:
        """Block until what was taken is on the disk; False if that takes long. A store elsewhere has its own queue."""
        from gpudeck.history.embedded.store import EmbeddedStore  # noqa: PLC0415 - it is imported, where there is one

        store = self.wait()
        return store.flush(_PATIENCE) if isinstance(store, EmbeddedStore) else store is not None

    def series(self, ask: Ask) -> Answer:
        return self._opened().series(ask)

    def heat(self, ask: HeatAsk) -> Heat:
        return self._opened().heat(ask)

    def usage(self, ask: UsageAsk) -> Usage:
        return self._opened().usage(ask)

    def runs(self, ask: RunsAsk) -> Runs:
        return self._opened().runs(ask)

    def run(self, key: int) -> Run | None:
        return self._opened().run(key)

    def stats(self) -> StoreStats:
        return self._opened().stats()

    def _opened(self) -> Store:
        store = self.wait()
        if store is None:
            raise Temporary(
                self.problem or "the history is still being opened.", "" if self.problem else "Ask again in a moment."
            )
        return store

    def _open(self) -> None:
        """Again and again: a disk may be mounted, made writable or cleared while the hub runs."""
        while not self._try_to_open() and not self._closing.wait(_AGAIN):
            pass

    def _try_to_open(self) -> bool:
        before, store = self._why_not, None
        try:
            store = self._open_store()
        except GpudeckError as error:
            self._why_not = str(error)
            if self._why_not != before:
                log.error("%s", error)  # noqa: TRY400 - the message says all
        except Exception as error:
            self._why_not = "the history cannot be opened: see the hub's log."
            if self._why_not != before:
                log.exception("the history cannot be opened", exc_info=error)
        else:
            self._hand_over(store)
        self._is_decided.set()
        return store is not None

    def _hand_over(self, store: Store) -> None:
        with self._lock:
            is_wanted = not self._is_closed
            if is_wanted:
                store.take(self._waiting)
                self._store = store
            self._waiting = []
        if not is_wanted:
            store.close()


class Archive:
    """The history of a hub, and what fills it. `store` is what others ask; None where none is kept."""

    def __init__(
        self,
        hub: Hub,
        settings: HistorySettings,
        usage: UsageSettings,
        data_dir: Path,
        *,
        now: Clock = clock.wall,
        demo: int | None = None,
        demo_days: float = DAYS,
    ) -> None:
        """`demo` is how many hosts are simulated, None when none are; `demo_days` how much of a past they get."""
        self._hub = hub
        self._settings = settings
        self._usage = usage
        self._data_dir = data_dir
        self._now = now
        self._demo = demo
        self._demo_days = demo_days
        self._backfill: Backfill | None = None
        self._filling: asyncio.Task[None] | None = None
        self.store: OpeningStore | None = None
        if settings.kind != "off":
            self.store = OpeningStore(partial(self._open, demo))
            self._recorder = Recorder(settings.every, self.store.take, self.store.settle)
            hub.fleet.observers.add(self._recorder)

    def start(self, take_events: TakeEvents | None = None) -> None:
        """With the event loop: samples are handed over once a second; a demo gets its past, and `take_events` what
        happened in it."""
        if self.store is not None and self._demo is not None and self._demo_days > 0:
            self._filling = asyncio.create_task(self._fill(self._demo, take_events))

    def tick(self) -> None:
        """Once a second."""
        if self.store is not None:
            problem = self.store.problem
            self._hub.fleet.say("history", [] if problem is None else [problem])
            damage = self.store.damage
            self._hub.fleet.say("history damage", [] if damage is None else [damage])

    async def close(self) -> None:
        if self.store is not None:
            self._hub.fleet.settle()
            self._recorder.hand_over()
            if self._filling is not None:
                self._filling.cancel()
            if self._backfill is not None:
                await self._backfill.stop()
            await asyncio.to_thread(self.store.close)

    async def _fill(self, hosts: int, take_events: TakeEvents | None) -> None:
        assert self.store is not None  # noqa: S101 - started with one
        embedded = cast("EmbeddedStore | None", await asyncio.to_thread(self.store.wait))
        if embedded is None:
            return
        since = None if is_needed(self._data_dir, hosts) else embedded.newest
        self._backfill = Backfill(
            hosts,
            days=self._demo_days,
            until=self._hub.started_at,
            since=since,
            when_done=lambda: None if embedded.problem or embedded.dropped else mark_done(self._data_dir, hosts),
        )
        self._backfill.start(embedded.take, lambda: embedded.has_room, take_events)

    def _open(self, demo: int | None) -> Store:
        """Called in a thread of its own: only now is numpy read."""
        from gpudeck.history.embedded.store import EmbeddedStore  # noqa: PLC0415
        from gpudeck.history.usage import unix_group  # noqa: PLC0415

        is_remote = self._settings.kind == "prometheus" and demo is None
        name = FILE if demo is None else DEMO_FILE.format(demo)
        local = EmbeddedStore(
            self._data_dir / name,
            self._settings,
            self._now,
            prices=self._usage,
            find_group=unix_group if demo is None else SimulatedFleet(demo, SEED).group_of,
            keep_samples=not is_remote,
            # Of a simulated fleet nothing can be lost.
            retention=self._hub.retention if demo is None else RetentionClock(now=self._now),
        )
        if not is_remote:
            return local
        from gpudeck.history.remote.store import RemoteStore  # noqa: PLC0415

        return RemoteStore(self._settings, self._data_dir, local, self._now)
