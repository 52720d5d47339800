"""Imports: the files of another monitor become a plan, which is then executed on a running hub.

Reading a file changes nothing and needs no hub. A plan's steps are asked one by one whether they are needed, so an
import can be repeated. What cannot be taken stands in the plan with its place, and hides nothing else.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import tzinfo
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

import yaml
from msgspec import Struct, field

from gpudeck.client import Client, Forbidden, ReservationTaken
from gpudeck.discovery.host_names import NAME_WORDS, is_host_name, quote, read_host_address
from gpudeck.model.errors import GpudeckError, Unreachable, UsageError
from gpudeck.model.plugins import need_hub_python
from gpudeck.model.reservation import ReservationList, ReservedGpu, ShownReservation
from gpudeck.model.view import Host

KINDS: dict[str, str] = {
    "vesta": "gpudeck.compat.vesta.import_database:read",
    "gpumonitor": "gpudeck.compat.gpumonitor:read",
    "web-gpu-monitor": "gpudeck.compat.web_gpu_monitor:read",
    "gpu-monitor": "gpudeck.compat.gpu_monitor_import:read",
    "jobstats": "gpudeck.compat.jobstats_import:read",
}
"""What reads the files of each monitor: a `Read`. Its module is imported when that kind is."""

MAX_BYTES = 16 * 1024 * 1024
"""Of a file with settings or reservations: one that is larger is something else."""

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
        return {host.name: host for host in self.client.hosts()}

    @cached_property
    def reservations(self) -> list[ShownReservation]:
        return self.client.read(self.client.get("/api/v1/reservations"), ReservationList).reservations


class ImportStep(Protocol):
    """One thing to be done. `kind` is a word for counting, `what` a line for people. `find` says what of it is there
    already; `apply` does it, and says the same. Both may raise GpudeckError, which costs that step alone; Unreachable
    and Forbidden end the import."""

    @property
    def kind(self) -> str: ...

    @property
    def what(self) -> str: ...

    def find(self, hub: ImportTarget) -> str | None: ...

    def apply(self, hub: ImportTarget) -> str | None: ...


class SkippedEntry(Struct, frozen=True):
    """Something in the file that is not taken, where it stands, and why."""

    place: str
    reason: str


class ImportPlan(Struct):
    """What a file means for a hub. `settings` is a piece of gpudeck.yaml, which the admin adds. `over` needs no import,
    such as a reservation that has ended; `left` could not be imported."""

    steps: list[ImportStep] = field(default_factory=list)
    settings: str = ""
    notes: list[str] = field(default_factory=list)
    over: list[SkippedEntry] = field(default_factory=list)
    left: list[SkippedEntry] = field(default_factory=list)

    def leave(self, place: str, reason: str) -> None:
        self.left.append(SkippedEntry(place, reason))


class ImportContext(Struct, frozen=True):
    """When and where an import runs: files of others have local times without a zone. `data_dir` is the hub's. Imported
    jobs are of `scheduler`."""

    now: float
    zone: tzinfo
    data_dir: Path
    scheduler: str = "slurm"


Read = Callable[[Path, ImportContext], ImportPlan]
"""Makes the plan of a file. Raises UsageError for one that is not of its kind, with what such a file looks like."""


class ImportResult(Struct, frozen=True):
    """How a step went. `detail` is what is there already, or why it failed. `counts` is how many things of a step
    went how; None where it is a single one."""

    kind: str
    what: str
    outcome: Outcome
    detail: str = ""
    counts: dict[Outcome, int] | None = None


def find_reader(kind: str) -> Read:
    need_hub_python(f"importing {kind}")
    module, _, name = KINDS[kind].partition(":")
    try:
        read: Read = getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise UsageError(f"importing {kind} needs {error.name}.", "pip install 'gpudeck[hub]'") from error
    return read


def check_steps(steps: Sequence[ImportStep], hub: ImportTarget) -> Iterator[ImportResult]:
    """What would be done. Without a hub the steps are `unasked`."""
    for number, step in enumerate(steps):
        try:
            yield _try(step, hub, apply=False)
        except Unreachable:
            yield from (ImportResult(each.kind, each.what, "unasked", "", _count(each)) for each in steps[number:])
            return


def apply_steps(steps: Sequence[ImportStep], hub: ImportTarget) -> Iterator[ImportResult]:
    """Do what is not there yet; each result as soon as it is known. Raises Unreachable when the hub is gone."""
    return (_try(step, hub, apply=True) for step in steps)


def _count(step: ImportStep) -> dict[Outcome, int] | None:
    return getattr(step, "counts", None)


def _try(step: ImportStep, hub: ImportTarget, *, apply: bool) -> ImportResult:
    try:
        found = step.find(hub)
        if found is None and apply:
            found = step.apply(hub)
    except (Unreachable, Forbidden):
        raise
    except GpudeckError as error:
        return ImportResult(step.kind, step.what, "failed", str(error), _count(step))
    return ImportResult(step.kind, step.what, "new" if found is None else "there", found or "", _count(step))


def read_small_file(file: Path) -> bytes:
    """The content of a file with settings or reservations. Raises UsageError."""
    try:
        with file.open("rb") as opened:
            content = opened.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UsageError(f"{file} cannot be read: {reason.lower()}.") from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"{file} has more than {MAX_BYTES // 2**20} MiB: it is something else.")
    return content


def read_yaml_mapping(file: Path, of: str, look: str) -> tuple[yaml.MappingNode, bytes]:
    """A YAML file as nodes with their lines, and its content. Raises UsageError: `of` is the monitor whose settings it
    should be, `look` what they look like."""
    content = read_small_file(file)
    try:
        root = yaml.compose(content, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{file}{place}: this is no YAML.", look) from error
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{file} is no settings file of {of}.", look)
    return root, content


class HostStep(Struct, frozen=True):
    """A host to be watched. `reach` are the fields of `POST /api/v1/hosts` other than its name."""

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

    def find(self, hub: ImportTarget) -> str | None:
        host = hub.hosts.get(self.name)
        return None if host is None else f"{self.name} is there, via {host.via or 'none yet'}"

    def apply(self, hub: ImportTarget) -> str | None:
        try:
            hub.client.post("/api/v1/hosts", {"name": self.name} | self.reach)
        except UsageError as error:
            # One that was added a moment ago is not among the hosts yet.
            if _THERE not in error.message:
                raise
            return error.message
        return None


class ReservationStep(Struct, frozen=True):
    """A reservation from now until `end`, Unix seconds. `label` is the number of the GPU on its host."""

    host: str
    label: str
    user: str
    end: float
    note: str
    until: str

    kind = "reservation"

    @property
    def what(self) -> str:
        return f"reserve {self.host}:{self.label} for {self.user} until {self.until}"

    def find(self, hub: ImportTarget) -> str | None:
        same = (
            one.id
            for one in hub.reservations
            if one.user == self.user and abs(one.end - self.end) < 60 and self._is_among(one.gpus)
        )
        host = hub.hosts.get(self.host)
        if host is None:
            raise GpudeckError(f"the hub knows no host {self.host}.", "Have it watched first, then import again.")
        if all(gpu.label != self.label for gpu in host.gpus):
            raise GpudeckError(f"{self.host} has no GPU {self.label}.")
        number = next(same, None)
        if number is not None:
            return f"that is reservation {number}"
        # A dry run names what is in the way as the real run does. All that the hub lists ends later than now.
        for one in hub.reservations:
            if one.start < self.end and self._is_among(one.gpus):
                raise GpudeckError(f"{self.host}:{self.label} is reserved by {one.user}: reservation {one.id}.")
        return None

    def _is_among(self, gpus: list[ReservedGpu]) -> bool:
        return any(gpu.host == self.host and gpu.label == self.label for gpu in gpus)

    def apply(self, hub: ImportTarget) -> str | None:
        wanted = {"host": self.host, "indexes": [self.label], "end": self.end, "note": self.note, "user": self.user}
        try:
            hub.client.post("/api/v1/reservations", wanted)
        except ReservationTaken as error:
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
    given = {"address": place.address or None, "port": place.port, "user": place.user}
    return HostStep(place.host, {"via": via} | reach | {key: value for key, value in given.items() if value})


def add_hosts(plan: ImportPlan, words: Iterable[tuple[str, str]], via: str, **reach: Any) -> None:
    """A step for each host once. `words` are places in the file with what stands there; `reach` is for all of them."""
    seen: set[str] = set()
    for place, word in words:
        try:
            step = make_host_step(word, via, **reach)
        except ValueError as error:
            plan.leave(place, str(error))
            continue
        if step.name in seen:
            plan.over.append(SkippedEntry(place, f"{step.name} is listed twice"))
            continue
        seen.add(step.name)
        plan.steps.append(step)
