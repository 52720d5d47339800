"""What answers are made from: the embedded store as those see it who only read.

Everything is by the store's own small numbers; `Names` tells whose they are. What is still being written is part of
every answer: an hour that is not sealed yet comes like any other.
"""

from collections.abc import Collection, Iterator
from typing import Protocol

from msgspec import Struct

from gpudeck.history.base import UsageAmounts, UseKey
from gpudeck.history.hour import Hour
from gpudeck.history.rollup import Quarters
from gpudeck.history.totals import TotalsStack


class KnownGpu(Struct, frozen=True):
    """`first` and `last` are when it was first and last sampled."""

    key: int
    uuid: str
    host: int
    label: str
    model: str
    first: float
    last: float


class KnownHost(Struct, frozen=True):
    key: int
    host_id: str
    name: str
    first: float
    last: float


class KnownRun(Struct, frozen=True):
    """As it is in the store's table, without its parts of hours that are not sealed yet."""

    key: int
    host: int
    gpus: tuple[int, ...]
    user: str | None
    first: float
    last: float


class HistoryReader(Protocol):
    """Hours come in order of time. `metrics` are the names wanted: nothing else need be decoded."""

    def gpus(self) -> dict[int, KnownGpu]: ...
    def hosts(self) -> dict[int, KnownHost]: ...
    def run(self, key: int) -> KnownRun | None: ...
    def raw_since(self) -> float:
        """From when on samples are kept; before it there are quarter hours only."""
        ...

    def hours(
        self, host: int, start: float, end: float, metrics: Collection[str], *, runs: bool = False
    ) -> Iterator[Hour]:
        """`metrics` are names of the catalog for GPUs, and with `host_` before them for the host itself."""
        ...

    def quarters(self, host: int, start: float, end: float, metrics: Collection[str]) -> Iterator[Quarters]: ...
    def host_hours(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        """Each host's totals over its GPUs: all that begin from `start` until before `end`."""
        ...

    def fleet_quarters(self, start: int, end: int, metrics: Collection[str]) -> TotalsStack:
        """Those of all hosts together."""
        ...

    def uses(self, start: int, end: int, *, by_host: bool) -> Iterator[tuple[UseKey, UsageAmounts]]:
        """Of all the hours from `start` until before `end`, both whole ones: the key's hour is `start`. May come in
        several parts. Without `by_host` the hosts are summed up and the key's host is empty: much less to read."""
        ...

    def hourly_uses(self, start: int, end: int) -> Iterator[tuple[UseKey, UsageAmounts]]:
        """Hour by hour, of all hosts together."""
        ...

    def observed(self, start: int, end: int) -> float:
        """GPU-seconds that were observed."""
        ...

    def owner(self, run: int) -> str | None:
        """The user of a run."""
        ...
