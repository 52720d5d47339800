"""The history service of a hub. It opens the store in the background: meanwhile samples wait, and queries wait for some
seconds. If the history cannot be opened, the hub shows the problem and retries."""

import asyncio
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.history.base import Store
from gpudeck.history.recorder import Recorder, Sample, count_samples
from gpudeck.history.settings import DEMO_FILE, FILE, HistorySettings, UsageSettings
from gpudeck.history.usage import unix_group
from gpudeck.model import clock
from gpudeck.model.clock import Clock, RetentionClock
from gpudeck.model.errors import GpudeckError, Temporary
from gpudeck.model.event import Event, Severity, make_event
from gpudeck.model.history import HistoryTrouble, judge_damage, judge_problem

log = logging.getLogger(__name__)

_PATIENCE: Final = 10.0
RETRY_SECONDS: Final = 30.0
"""Seconds until a history that could not be opened is tried again."""
_MAX_WAITING: Final = 20_000
_QUESTIONS: Final = frozenset(
    {
        *("series", "heat", "usage", "overview", "waste", "idle", "samples"),
        *("runs", "run", "verdicts", "moment", "stats"),
    }
)


class OpeningStore:
    """A `Store` that another thread opens. Samples wait until then, and queries too."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._store: Store | None = None
        self._why_not: str | None = None
        self._open_store = open_store
        self._waiting: list[Sample] = []
        self._lock = threading.Lock()
        self._is_decided, self._is_closed = threading.Event(), threading.Event()
        threading.Thread(target=self._open, name="history-opening", daemon=True).start()

    @property
    def problem(self) -> str | None:
        return self._why_not if self._store is None else self._store.problem

    @property
    def damage(self) -> str | None:
        return getattr(self._store, "damage", None)

    @property
    def trouble(self) -> HistoryTrouble | None:
        trouble: HistoryTrouble | None = getattr(self._store, "trouble", None)
        return trouble or judge_problem(self.problem)

    @property
    def has_room(self) -> bool:
        return self._store is not None and bool(getattr(self._store, "has_room", True))

    def take(self, samples: Sequence[Sample]) -> None:
        with self._lock:
            if self._store is not None:
                self._store.take(samples)
            elif count_samples(self._waiting) < _MAX_WAITING:
                self._waiting += samples

    def wait(self) -> Store | None:
        """Block until the store is open. Returns None if it cannot be opened, or not in time."""
        self._is_decided.wait(_PATIENCE)
        return self._store

    def close(self) -> None:
        """Blocks until all samples are written. A store that is still being opened is closed by its own thread."""
        with self._lock:
            self._is_closed.set()
        if self._store is not None:
            self._store.close()

    def settle(self) -> bool:
        from gpudeck.history.embedded.store import EmbeddedStore  # noqa: PLC0415 - it is imported, where there is one

        store = self.wait()
        return store.flush(_PATIENCE) if isinstance(store, EmbeddedStore) else store is not None

    def __getattr__(self, name: str) -> Any:
        """The query methods of the store. Blocks until it is open; raises Temporary if it cannot be opened."""
        if name not in _QUESTIONS:
            raise AttributeError(name)
        store = self.wait()
        if store is None and self._why_not is None:
            raise Temporary("the history is still being opened.", "Ask again in a moment.")
        if store is None:
            raise Temporary(self._why_not or "")
        return getattr(store, name)

    def _open(self) -> None:
        """Retries: a disk may be mounted, made writable or cleared while the hub runs."""
        while not self._is_closed.is_set():
            try:
                self._hand_over(self._open_store())
            except Exception as error:
                is_known = isinstance(error, GpudeckError)
                why_not = str(error) if is_known else "the history cannot be opened: see the hub's log."
                if why_not != self._why_not:
                    log.exception("%s", why_not, exc_info=None if is_known else error)
                self._why_not = why_not
                self._is_decided.set()
                self._is_closed.wait(RETRY_SECONDS)
            else:
                return

    def _hand_over(self, store: Store) -> None:
        with self._lock:
            if self._is_closed.is_set():
                store.close()
            else:
                store.take(self._waiting)
                self._store = store
            self._waiting = []
        self._is_decided.set()


class HistoryService(Service):
    """The history of a hub, and the recorder that fills it. `store` is None if the history is off."""

    name = "history"

    def __init__(
        self,
        hub: Hub,
        settings: HistorySettings,
        usage: UsageSettings,
        data_dir: Path,
        *,
        add_event: Callable[[Event], None],
        now: Clock = clock.wall,
        demo: int | None = None,
        prepare: Callable[[], None] | None = None,
        find_group: Callable[[str], str | None] | None = None,
        hub_name: str | None = None,
    ) -> None:
        """`demo` is the number of simulated hosts, which have a file of their own. `prepare` is called before the store
        is opened, and may block. `hub_name` is the name of this hub among several."""
        self._hub_name = hub_name
        self._hub = hub
        self._settings = settings
        self.usage = usage
        self._data_dir = data_dir
        self._add_event = add_event
        self._now = now
        self._demo = demo
        self._prepare = prepare
        self.find_group = find_group or unix_group
        self._trouble: HistoryTrouble | None = None
        self._is_damage_reported = False
        self.store: OpeningStore | None = None
        if settings.kind != "off":
            self.store = OpeningStore(self._open)
            self._recorder = Recorder(settings.every, self.store.take, self.store.settle)
            hub.fleet.observers.add(self._recorder)

    @property
    def trouble(self) -> HistoryTrouble | None:
        return None if self.store is None else self.store.trouble or judge_damage(self.store.damage)

    def on_second(self) -> None:
        if self.store is None:
            return
        problem, damage = self.store.problem, self.store.damage
        self._hub.fleet.set_problems("history", [] if problem is None else [problem])
        self._hub.fleet.set_problems("history damage", [] if damage is None else [damage])
        self._report_trouble(self.store.trouble)
        if damage is not None and not self._is_damage_reported:
            self._is_damage_reported = True
            self._report("history_damaged", "A part of the history is damaged", "warning", damage)

    async def close(self) -> None:
        if self.store is not None:
            self._hub.fleet.settle()
            self._recorder.hand_over()
            await asyncio.to_thread(self.store.close)

    def _report_trouble(self, trouble: HistoryTrouble | None) -> None:
        """One event per kind of trouble: the text may change while it lasts."""
        before, self._trouble = self._trouble, trouble
        if trouble is not None and (before is None or trouble.kind != before.kind):
            self._report("history_problem", trouble.title, trouble.severity, trouble.detail)
        elif trouble is None and before is not None:
            lost = before.title + "." if before.kind == "losing" else ""
            self._report("history_recovered", "The history is up to date again", "info", lost)

    def _report(self, kind: str, title: str, severity: Severity, detail: str) -> None:
        self._add_event(make_event(self._now(), kind, title, severity=severity, detail=detail))

    def _open(self) -> Store:
        """Called in a thread of its own: importing the store takes a moment."""
        from gpudeck.history.embedded.store import EmbeddedStore  # noqa: PLC0415

        if self._prepare is not None:
            self._prepare()
        is_remote = self._settings.kind == "prometheus" and self._demo is None
        local = EmbeddedStore(
            self._data_dir / (FILE if self._demo is None else DEMO_FILE.format(self._demo)),
            self._settings,
            self._now,
            prices=self.usage,
            find_group=self.find_group,
            keep_samples=not is_remote,
            # Nothing of a simulated fleet can be lost.
            retention=self._hub.retention if self._demo is None else RetentionClock(now=self._now),
        )
        if not is_remote:
            return local
        from gpudeck.history.remote.store import RemoteStore  # noqa: PLC0415

        return RemoteStore(self._settings, self._data_dir, local, self._now, hub=self._hub_name)
