"""Imports: the files of another monitor become a plan of steps, which a running hub is asked to do.

Reading a file changes nothing and needs no hub. Each step first checks whether it is needed, so an import can be
repeated. Entries that cannot be imported are in the plan with their place in the file.
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
"""The `Read` of each monitor. Its module is imported when that kind is."""

MAX_BYTES = 16 * 1024 * 1024
"""Of a file with settings or reservations."""

Outcome = Literal["new", "there", "failed", "unasked"]
_THERE = "is there already"
"""The hub's message for a host that it has: see `Book` in `app.host_book`."""
_SCHEME = re.compile(r"[A-Za-z]+://")


class ImportTarget:
    """The running hub, asked as its admin. Hosts and reservations are read once, when a step first needs them."""

    def __init__(self, client: Client) -> None:
        self.client = client

    @cached_property
    def hosts(self) -> dict[str, Host]:
        return {host.name: host for host in self.client.hosts()}

    @cached_property
    def reservations(self) -> list[ShownReservation]:
        return self.client.read(self.client.get("/api/v1/reservations"), ReservationList).reservations


class ImportStep(Protocol):
    """One thing to import. `kind` is a word for counting, `what` a line for users.

    `run` returns what is there already, or None for something new, which it adds only with `apply`. It may raise
    GpudeckError, which costs this step alone; Unreachable and Forbidden end the import."""

    @property
    def kind(self) -> str: ...

    @property
    def what(self) -> str: ...

    def run(self, hub: ImportTarget, *, apply: bool) -> str | None: ...


class SkippedEntry(Struct, frozen=True):
    """An entry of the file that is not imported, its place, and why."""

    place: str
    reason: str


class ImportPlan(Struct):
    """The steps for a file. `settings` is a part of gpudeck.yaml that the admin adds. `over` are entries that need no
    import, such as reservations that have ended; `left` could not be imported."""

    steps: list[ImportStep] = field(default_factory=list)
    settings: str = ""
    notes: list[str] = field(default_factory=list)
    over: list[SkippedEntry] = field(default_factory=list)
    left: list[SkippedEntry] = field(default_factory=list)

    def skip(self, place: str, reason: str) -> None:
        self.over.append(SkippedEntry(place, reason))

    def leave(self, place: str, reason: str) -> None:
        self.left.append(SkippedEntry(place, reason))


class ImportContext(Struct, frozen=True):
    """When and where an import runs: times without a zone are in `zone`. Imported jobs are of `scheduler`."""

    now: float
    zone: tzinfo
    scheduler: str = "slurm"


Read = Callable[[Path, ImportContext], ImportPlan]
"""Makes the plan of a file. Raises UsageError for a file of another kind, with an example of a valid one."""


class ImportResult(Struct, frozen=True):
    """The result of a step. `detail` is what is there already, or why it failed. `counts` are the outcomes of a step
    with several things."""

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
    """The results of a dry run. Without a hub the steps are `unasked`."""
    for number, step in enumerate(steps):
        try:
            yield _run(step, hub, apply=False)
        except Unreachable:
            yield from (_make_result(each, "unasked") for each in steps[number:])
            return


def apply_steps(steps: Sequence[ImportStep], hub: ImportTarget) -> Iterator[ImportResult]:
    """Add what is not there yet; each result as soon as it is known. Raises Unreachable when the hub is gone."""
    return (_run(step, hub, apply=True) for step in steps)


def _run(step: ImportStep, hub: ImportTarget, *, apply: bool) -> ImportResult:
    try:
        present = step.run(hub, apply=apply)
    except (Unreachable, Forbidden):
        raise
    except GpudeckError as error:
        return _make_result(step, "failed", str(error))
    return _make_result(step, "new" if present is None else "there", present or "")


def _make_result(step: ImportStep, outcome: Outcome, detail: str = "") -> ImportResult:
    return ImportResult(step.kind, step.what, outcome, detail, getattr(step, "counts", None))


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


def read_yaml_mapping(file: Path, of: str, look: str) -> yaml.MappingNode:
    """A YAML file as nodes with their lines. Raises UsageError: `of` is the monitor whose settings it should be, `look`
    an example of them."""
    try:
        root = yaml.compose(read_small_file(file), Loader=yaml.SafeLoader)
    except (yaml.YAMLError, UnicodeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{file}{place}: this is no YAML.", look) from error
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{file} is no settings file of {of}.", look)
    return root


def write_yaml(settings: dict[str, Any]) -> str:
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=200) if settings else ""


class HostStep(Struct, frozen=True):
    """A host to be watched. `reach` are the fields of `POST /api/v1/hosts` other than its name."""

    name: str
    reach: dict[str, Any]

    kind = "host"

    @property
    def what(self) -> str:
        details = ", ".join(f"{field} {value}" for field, value in self.reach.items() if field != "via")
        return f"watch {self.name} via {self.reach['via']}{f' ({details})' if details else ''}"

    def run(self, hub: ImportTarget, *, apply: bool) -> str | None:
        if (host := hub.hosts.get(self.name)) is not None:
            return f"{self.name} is there, via {host.via or 'none yet'}"
        try:
            if apply:
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

    def run(self, hub: ImportTarget, *, apply: bool) -> str | None:
        host = hub.hosts.get(self.host)
        if host is None:
            raise GpudeckError(f"the hub knows no host {self.host}.", "Have it watched first, then import again.")
        if all(gpu.label != self.label for gpu in host.gpus):
            raise GpudeckError(f"{self.host} has no GPU {self.label}.")
        # All that the hub lists ends later than now.
        others = [each for each in hub.reservations if each.start < self.end and self._is_among(each.gpus)]
        for other in others:
            if other.user == self.user and abs(other.end - self.end) < 60:
                return f"that is reservation {other.id}"
        if others:
            message = f"{self.host}:{self.label} is reserved by {others[0].user}: reservation {others[0].id}."
            raise GpudeckError(message)
        wanted = {"host": self.host, "indexes": [self.label], "end": self.end, "note": self.note, "user": self.user}
        try:
            if apply:
                hub.client.post("/api/v1/reservations", wanted)
        except ReservationTaken as error:
            raise GpudeckError(error.message) from error
        return None

    def _is_among(self, gpus: list[ReservedGpu]) -> bool:
        return any(gpu.host == self.host and gpu.label == self.label for gpu in gpus)


def make_host_step(text: str, via: str, **reach: Any) -> HostStep:
    """The host of a word in a file: a name, an address, or a URL, whose path is ignored. User and port in the
    word go before `reach`. Raises ValueError."""
    word = _SCHEME.sub("", text.strip(), count=1).partition("/")[0]
    if word.count(":") > 1 and not word.startswith("["):
        word = f"[{word}]"
    place = read_host_address(word)
    if not is_host_name(place.host):
        raise ValueError(f"{quote(text)} is no name of a host: that is {NAME_WORDS}")
    given = {"address": place.address or None, "port": place.port, "user": place.user}
    return HostStep(place.host, {"via": via} | reach | {key: value for key, value in given.items() if value})


def add_hosts(plan: ImportPlan, words: Iterable[tuple[str, str]], via: str, **reach: Any) -> None:
    """Add a step for each host once. `words` are places in the file and the words there; `reach` is for all of them."""
    names: set[str] = set()
    for place, word in words:
        try:
            step = make_host_step(word, via, **reach)
        except ValueError as error:
            plan.leave(place, str(error))
            continue
        if step.name in names:
            plan.skip(place, f"{step.name} is listed twice")
        else:
            names.add(step.name)
            plan.steps.append(step)
