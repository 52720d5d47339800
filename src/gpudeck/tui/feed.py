"""Where top's fleet comes from: a hub's stream, or this machine read once a second. Each is a thread that never ends
by itself: what fails after the first picture is shown, and tried again."""

import threading
import time
from collections.abc import Callable, Generator

import msgspec
from msgspec import Struct

from gpudeck.client import Client
from gpudeck.client.answers import explain_misfit
from gpudeck.client.connection import StreamEvent
from gpudeck.client.live_fleet import Delta, read_event
from gpudeck.http_client import TROUBLE
from gpudeck.model.clock import Backoff
from gpudeck.model.errors import GpudeckError, Unreachable
from gpudeck.model.view import Fleet

SILENCE = 10.0
"""Seconds without an event after which a hub, which sends one a second, counts as away."""
FIRST_PAUSE, MAX_PAUSE = 0.5, 15.0


class FeedLost(Struct, frozen=True):
    """From now on nothing is known, until a snapshot or a delta comes."""

    reason: str


News = Fleet | Delta | FeedLost
"""A fleet is a snapshot."""
Take = Callable[[News], object]


class Feed:
    """`first` blocks and raises what a user has to know at once, such as a wrong address. After `start` news come in
    another thread, until `stop`."""

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
    def __init__(self, client: Client) -> None:
        super().__init__(client.shown)
        self._client = client
        self._events: Generator[StreamEvent, None, None] | None = None
        self._last_id = ""

    def first(self) -> Fleet:
        news = self._next()
        if not isinstance(news, Fleet):
            raise Unreachable(f"{self.place} answers, but does not send its fleet.")
        return news

    def stop(self) -> None:
        """The thread ends with the next event; it is not waited for."""
        super().stop()
        if self._thread is None:
            self._close()

    def _run(self, take: Take) -> None:
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE)
        while not self._stopping.is_set():
            try:
                take(self._next())
                backoff.succeed()
            except (GpudeckError, msgspec.DecodeError, *TROUBLE) as error:
                self._close()
                take(FeedLost(_reason(error, self.place)))
                self._stopping.wait(backoff.fail())
        self._close()

    def _close(self) -> None:
        if self._events is not None:
            self._events.close()
            self._events = None

    def _next(self) -> Fleet | Delta:
        if self._events is None:
            self._events = self._client.stream_events(self._last_id)
            self.place = self._client.shown
        event = next(self._events, None)
        if event is None:
            raise Unreachable(f"{self.place} has ended the stream.")
        self._last_id = event.id
        try:
            return read_event(event.kind, event.data)
        except msgspec.DecodeError as error:
            raise explain_misfit(error, event.data, self.place) from error


class LocalFeed(Feed):
    """`read` gives this machine as a fleet of one host, and blocks until it was read."""

    is_local = True

    def __init__(self, read: Callable[[], Fleet], close: Callable[[], None], seconds: float = 1.0) -> None:
        super().__init__("this machine")
        self._read = read
        self._close = close
        self._seconds = seconds

    def first(self) -> Fleet:
        return self._read()

    def stop(self) -> None:
        """What reads drivers is ended with it; one that hangs is not waited for."""
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
                take(FeedLost(_reason(error, self.place)))


def _reason(error: Exception, place: str) -> str:
    if isinstance(error, GpudeckError):
        return error.message
    return f"nothing comes from {place} any more."
