"""The source of top's fleet: a hub's stream, or this machine read once a second. Each is a thread that retries
failures: after the first screen they are shown, and never end it."""

import threading
import time
from collections.abc import Callable

from msgspec import Struct

from gpudeck.client import Client
from gpudeck.client.live_fleet import Delta
from gpudeck.model.backoff import Backoff
from gpudeck.model.errors import GpudeckError, Unreachable
from gpudeck.model.view import Fleet

SILENCE = 10.0
"""Seconds without an event after which a hub, which sends one per second, counts as away."""
FIRST_PAUSE, MAX_PAUSE = 0.5, 15.0


class FeedLost(Struct, frozen=True):
    """Everything is unknown until a snapshot or a delta arrives."""

    reason: str


Update = Fleet | Delta | FeedLost
"""A fleet is a snapshot."""
Take = Callable[[Update], object]


class Feed:
    """`first` blocks and raises what the user must know at once, such as a wrong address. After `start` updates arrive
    in another thread, until `stop`."""

    is_local = False

    def __init__(self, place: str) -> None:
        self.place = place
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def first(self) -> Fleet:
        raise NotImplementedError

    def start(self, take: Take) -> None:
        self._thread = threading.Thread(target=self._run, args=(take,), name="feed", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def _run(self, take: Take) -> None:
        raise NotImplementedError


class HubFeed(Feed):
    """`client` must not retry by itself: a lost connection must be shown."""

    def __init__(self, client: Client) -> None:
        super().__init__(client.shown)
        self._client = client
        self._updates = client.stream()

    def first(self) -> Fleet:
        update = next(self._updates)
        self.place = self._client.shown
        if not isinstance(update, Fleet):
            raise Unreachable(f"{self.place} answers, but does not send its fleet.")
        return update

    def _run(self, take: Take) -> None:
        """Ends with the next event after `stop`; it is not waited for."""
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE)
        while not self._stopping.is_set():
            try:
                take(next(self._updates))
                backoff.succeed()
            except GpudeckError as error:
                take(FeedLost(error.message))
                self._stopping.wait(backoff.fail())
                self._updates = self._client.stream()
                self.place = self._client.shown


class LocalFeed(Feed):
    """`read` returns this machine as a fleet of one host, and blocks meanwhile."""

    is_local = True

    def __init__(self, read: Callable[[], Fleet], close: Callable[[], None], seconds: float = 1.0) -> None:
        super().__init__("this machine")
        self._read = read
        self._close = close
        self._seconds = seconds

    def first(self) -> Fleet:
        return self._read()

    def stop(self) -> None:
        """The child processes that read drivers are ended too; one that hangs is not waited for."""
        super().stop()
        if self._thread is not None:
            self._thread.join(2.0)
        self._close()

    def _run(self, take: Take) -> None:
        due = time.monotonic() + self._seconds
        while not self._stopping.wait(max(0.0, due - time.monotonic())):
            due = max(due + self._seconds, time.monotonic())
            try:
                take(self.first())
            except (GpudeckError, OSError) as error:
                take(
                    FeedLost(
                        error.message
                        if isinstance(error, GpudeckError)
                        else f"nothing comes from {self.place} any more."
                    )
                )
