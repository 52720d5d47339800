"""What an import is: the files of another monitor become a plan, and the plan is carried out on a running hub.

Reading a file changes nothing and asks nobody. A plan's steps are asked one by one whether they are needed, so an
import that is repeated does nothing twice, and one that ended halfway goes on where it stopped. What a file says that
cannot be taken stands in the plan with its place, and hides nothing else.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import tzinfo
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from gpudeck.client import Client, Taken
from gpudeck.discovery.host_names import NAME_WORDS, is_host_name, quote, read_host_address
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.reservation import BookedGpu, ReservationList, ShownReservation
from gpudeck.model.view import Host, HostList

KINDS: dict[str, str] = {
    "vesta": "gpudeck.compat.vesta.history_import:read",
    "gpumonitor": "gpudeck.compat.gpumonitor.importer:read",
    "web-gpu-monitor": "gpudeck.compat.web_gpu_monitor.importer:read",
    "gpu-monitor": "gpudeck.compat.gpu_monitor.importer:read",
}
"""What reads the files of each monitor: a `Read`. Its module is imported when that kind is."""

BYTES_AT_MOST = 16 * 1024 * 1024
"""Of a file with settings or bookings: one that is larger is something else."""

Outcome = Literal["new", "there", "failed", "unasked"]
_THERE = "is there already"
"""What the hub says of a host that it has: see `Book` in `app.host_book`."""
_SCHEME = re.compile(r"[A-Za-z]+://")


class ImportTarget:
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


class ImportStep(Protocol):
    """One thing to be done. `kind` is a word for counting ("host", "booking"), `what` a line for people.

    `find` says what of it is there already, None where it has to be done; `apply` does it, and says the same where it
    turns out to be there after all. Both may raise GpudeckError, which costs that step alone; Unreachable ends the
    import.
    """

    @property
    def kind(self) -> str: ...

    @property
    def what(self) -> str: ...

    def find(self, desk: ImportTarget) -> str | None: ...

    def apply(self, desk: ImportTarget) -> str | None: ...


class Left(Struct, frozen=True):
    """Something in the file that is not taken, where it stands, and why."""

    place: str
    reason: str


class ImportPlan(Struct):
    """What a file means for a hub. `settings` is a piece of gpudeck.yaml, which the admin adds: a hub never rewrites
    its own configuration. `over` is what needs no taking, such as a booking that has ended; `left` could not be taken.
    """

    steps: list[ImportStep] = field(default_factory=list)
    settings: str = ""
    notes: list[str] = field(default_factory=list)
    over: list[Left] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)


class Here(Struct, frozen=True):
    """When and where an import runs: files of others have local times without a zone. `data_dir` is the hub's."""

    now: float
    zone: tzinfo
    data_dir: Path


Read = Callable[[Path, Here], ImportPlan]
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


def look(steps: Sequence[ImportStep], desk: ImportTarget) -> Iterator[Result]:
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


def carry_out(steps: Sequence[ImportStep], desk: ImportTarget) -> Iterator[Result]:
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


class HostStep(Struct, frozen=True):
    """A host to be watched. `reach` are the fields of `POST /api/v1/hosts` beside its name."""

    name: str
    reach: dict[str, Any]

    kind = "host"

    @property
    def what(self) -> str:
        login = f"{self.reach['user']}@" if "user" in self.reach else ""
        address = self.reach.get("address", self.name if login else "")
        port = f" port {self.reach['port']}" if "port" in self.reach else ""
        place = f" ({login}{address}{port})".replace("( ", "(") if login or address or port else ""
        return f"watch {self.name} via {self.reach['via']}{place}"

    def find(self, desk: ImportTarget) -> str | None:
        host = desk.hosts.get(self.name)
        return None if host is None else f"{self.name} is there, via {host.via or 'none yet'}"

    def apply(self, desk: ImportTarget) -> str | None:
        try:
            desk.client.add_host({"name": self.name} | self.reach)
        except UsageError as error:
            # One that was added a moment ago is not among the hosts yet.
            if _THERE not in error.message:
                raise
            return error.message
        return None


class BookingStep(Struct, frozen=True):
    """A booking from now until `end`, Unix seconds. `label` is the number of the GPU on its host."""

    host: str
    label: str
    user: str
    end: float
    note: str
    until: str
    """`end` as it is shown."""

    kind = "booking"

    @property
    def what(self) -> str:
        return f"book {self.host}:{self.label} for {self.user} until {self.until}"

    def find(self, desk: ImportTarget) -> str | None:
        same = (
            one.id
            for one in desk.reservations
            if one.user == self.user and abs(one.end - self.end) < 60 and self._is_among(one.gpus)
        )
        host = desk.hosts.get(self.host)
        if host is None:
            raise GpudeckError(f"the hub knows no host {self.host}.", "Have it watched first, then import again.")
        if all(gpu.label != self.label for gpu in host.gpus):
            raise GpudeckError(f"{self.host} has no GPU {self.label}.")
        number = next(same, None)
        if number is None:
            self._check_free(desk)
        return None if number is None else f"that is reservation {number}"

    def _check_free(self, desk: ImportTarget) -> None:
        """A dry run names what is in the way as the real run does. All that the hub lists ends later than now."""
        for one in desk.reservations:
            if one.start < self.end and self._is_among(one.gpus):
                raise GpudeckError(f"{self.host}:{self.label} is reserved by {one.user}: reservation {one.id}.")

    def _is_among(self, gpus: list[BookedGpu]) -> bool:
        return any(gpu.host == self.host and gpu.label == self.label for gpu in gpus)

    def apply(self, desk: ImportTarget) -> str | None:
        wanted = {"host": self.host, "indexes": [self.label], "end": self.end, "note": self.note, "user": self.user}
        try:
            desk.client.reserve(wanted)
        except Taken as error:
            raise GpudeckError(error.message) from error
        return None


def make_host_step(text: str, via: str, **reach: Any) -> HostStep:
    """The host that a word in a foreign file means: a name, an address, or a URL of which only the place counts. What
    the word itself says goes before `reach`. Raises ValueError."""
    word = _SCHEME.sub("", text.strip(), count=1).partition("/")[0]
    if word.count(":") > 1 and not word.startswith("["):
        word = f"[{word}]"
    place = read_host_address(word)
    if not is_host_name(place.host):
        raise ValueError(f"{quote(text)} is no name of a host: that is {NAME_WORDS}")
    told = {"address": place.address or None, "port": place.port, "user": place.user}
    return HostStep(place.host, {"via": via} | reach | {key: value for key, value in told.items() if value})


def add_hosts(plan: ImportPlan, words: Iterable[tuple[str, str]], via: str, **reach: Any) -> None:
    """A step for each host once. `words` are places in the file with what stands there; `reach` is for all of them."""
    seen: set[str] = set()
    for place, word in words:
        try:
            step = make_host_step(word, via, **reach)
        except ValueError as error:
            plan.left.append(Left(place, str(error)))
            continue
        if step.name in seen:
            plan.over.append(Left(place, f"{step.name} stands there twice"))
            continue
        seen.add(step.name)
        plan.steps.append(step)
