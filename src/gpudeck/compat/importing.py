"""What an import is: the files of another monitor become a plan, and the plan is carried out on a running hub.

Reading a file changes nothing and asks nobody. A plan's steps are asked one by one whether they are needed, so an
import that is repeated does nothing twice, and one that ended halfway goes on where it stopped. What a file says that
cannot be taken stands in the plan with its place, and hides nothing else.
"""

import importlib
from collections.abc import Callable, Iterator, Sequence
from datetime import tzinfo
from functools import cached_property
from pathlib import Path
from typing import Literal, Protocol

from msgspec import Struct, field

from gpudeck.client import Client
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.reservation import ReservationList, ShownReservation
from gpudeck.model.view import Host, HostList

KINDS: dict[str, str] = {
    "vesta": "gpudeck.compat.vesta.importer:read",
    "gpumonitor": "gpudeck.compat.gpumonitor.importer:read",
    "web-gpu-monitor": "gpudeck.compat.web_gpu_monitor.importer:read",
    "gpu-monitor": "gpudeck.compat.gpu_monitor.importer:read",
}
"""What reads the files of each monitor: a `Read`. Its module is imported when that kind is."""

BYTES_AT_MOST = 16 * 1024 * 1024
"""Of a file with settings or bookings: one that is larger is something else."""

Outcome = Literal["new", "there", "failed", "unasked"]


class Desk:
    """The running hub, asked as its admin. What it knows is read once, when a step first needs it."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @cached_property
    def hosts(self) -> dict[str, Host]:
        """The hosts that the hub has, by name."""
        return {host.name: host for host in self.client.read(self.client.hosts(), HostList).hosts}

    @cached_property
    def reservations(self) -> list[ShownReservation]:
        """What is booked now and later."""
        return self.client.read(self.client.reservations({}), ReservationList).reservations


class Step(Protocol):
    """One thing to be done. `kind` is a word for counting ("host", "booking"), `what` a line for people.

    `find` says what of it is there already, None where it has to be done; `apply` does it, and says the same where it
    turns out to be there after all. Both may raise GpudeckError, which costs that step alone; Unreachable ends the
    import.
    """

    @property
    def kind(self) -> str: ...

    @property
    def what(self) -> str: ...

    def find(self, desk: Desk) -> str | None: ...

    def apply(self, desk: Desk) -> str | None: ...


class Left(Struct, frozen=True):
    """Something in the file that is not taken, where it stands, and why."""

    place: str
    reason: str


class Plan(Struct):
    """What a file means for a hub. `settings` is a piece of gpudeck.yaml, which the admin adds: a hub never rewrites
    its own configuration. `over` is what needs no taking, such as a booking that has ended; `left` could not be taken.
    """

    steps: list[Step] = field(default_factory=list)
    settings: str = ""
    notes: list[str] = field(default_factory=list)
    over: list[Left] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


class Here(Struct, frozen=True):
    """When and where an import runs: files of others have local times without a zone. `data_dir` is the hub's."""

    now: float
    zone: tzinfo
    data_dir: Path


Read = Callable[[Path, Here], Plan]
"""Makes the plan of a file. Raises UsageError for one that is not of its kind, with what such a file looks like."""


class Result(Struct, frozen=True):
    """How a step went. `told` is what is there already, or why it failed."""

    kind: str
    what: str
    outcome: Outcome
    told: str = ""


def find_reader(kind: str) -> Read:
    """Raises UsageError where the kind needs a part that is not installed."""
    module, _, name = KINDS[kind].partition(":")
    try:
        read: Read = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UsageError(f"importing {kind} needs {error.name}.", "pip install 'gpudeck[hub]'") from error
    return read


def look(steps: Sequence[Step], desk: Desk) -> Iterator[Result]:
    """What would be done. Without a hub nobody can say what is there already, and the steps are told as `unasked`."""
    for number, step in enumerate(steps):
        try:
            found = step.find(desk)
        except Unreachable:
            yield from (Result(each.kind, each.what, "unasked") for each in steps[number:])
            return
        except GpudeckError as error:
            yield Result(step.kind, step.what, "failed", str(error))
            continue
        yield Result(step.kind, step.what, "new" if found is None else "there", found or "")


def carry_out(steps: Sequence[Step], desk: Desk) -> Iterator[Result]:
    """Do what is not there yet; each result as soon as it is known. Raises Unreachable when the hub is gone."""
    for step in steps:
        try:
            found = step.find(desk)
            if found is None:
                found = step.apply(desk)
        except Unreachable:
            raise
        except GpudeckError as error:
            yield Result(step.kind, step.what, "failed", str(error))
            continue
        yield Result(step.kind, step.what, "new" if found is None else "there", found or "")


def read_small_file(file: Path) -> bytes:
    """The content of a file with settings or bookings. Raises UsageError."""
    try:
        with file.open("rb") as opened:
            content = opened.read(BYTES_AT_MOST + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{file} cannot be read: {reason.lower()}.") from error
    if len(content) > BYTES_AT_MOST:
        raise UsageError(f"{file} has more than {BYTES_AT_MOST // 2**20} MiB: it is something else.")
    return content
