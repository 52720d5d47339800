"""Reports waiting to be sent: bounded, in order, oldest dropped first. Shared by the beat (puts) and the sender."""

import threading
from collections import deque

from msgspec import Struct


class Parcel(Struct, frozen=True):
    """One encoded envelope and the host it is about."""

    host: str
    body: bytes


class Outbox:
    """Never blocks the beat: when full, the oldest report makes room and `dropped` counts it."""

    def __init__(self, most_reports: int, most_bytes: int) -> None:
        self._most_reports = most_reports
        self._most_bytes = most_bytes
        self._parcels: deque[Parcel] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self.dropped = 0

    def put(self, parcel: Parcel) -> None:
        with self._changed:
            self._parcels.append(parcel)
            self._bytes += len(parcel.body)
            while len(self._parcels) > self._most_reports or (
                self._bytes > self._most_bytes and len(self._parcels) > 1
            ):
                self._bytes -= len(self._parcels.popleft().body)
                self.dropped += 1
            self._changed.notify()

    def take_over(self, other: "Outbox") -> None:
        """All that waits in another, which nobody uses any more."""
        for parcel in other._parcels:
            self.put(parcel)

    def wait(self, timeout: float) -> Parcel | None:
        """The oldest report, left in its place; None when there is none within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._parcels), timeout)
            return self._parcels[0] if self._parcels else None

    def done(self, parcel: Parcel) -> None:
        """Take the report out after it was sent. It may have been dropped meanwhile."""
        with self._changed:
            if self._parcels and self._parcels[0] is parcel:
                self._bytes -= len(self._parcels.popleft().body)

    def __len__(self) -> int:
        return len(self._parcels)
