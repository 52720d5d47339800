"""Several hubs as one: the duties that one of them has at a time, and how the API describes them."""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from gpudeck.model.errors import Temporary


class Duty:
    """Work that one hub of a cluster does at a time, such as evaluating alerts. Without a cluster a hub always has all
    duties."""

    def __init__(self, name: str, is_held: Callable[[], bool] = lambda: True) -> None:
        self.name = name
        self._is_held = is_held

    @property
    def is_held(self) -> bool:
        return self._is_held()


class LostDuty(Temporary):
    """Another hub has the duty now: nothing was written."""


class ClusterHub(Struct, frozen=True):
    """A hub of the cluster. `seen_seconds_ago` is the age of its last heartbeat by the database's clock. `lag_seconds`
    is how long its own messages took to come back from the bus, null while they do not."""

    name: str
    version: str
    started_at: float
    seen_seconds_ago: float
    is_alive: bool
    lag_seconds: float | None
    is_this: bool


class ClusterDuty(Struct, frozen=True):
    """A duty and the hub that has it, null if there is none. `epoch` counts how often it changed hands."""

    name: str
    owner: str | None
    epoch: int
    since: float | None


class Cluster(Struct, frozen=True):
    """The hubs that serve this fleet together. `state` is `alone` if this hub cannot reach the others."""

    state: Literal["ok", "catching_up", "alone"]
    problems: list[str]
    hubs: list[ClusterHub]
    duties: list[ClusterDuty]
    reports_forwarded: int
    reports_received: int
    reports_dropped: int
    duplicates: int
