"""The user, command, start, container and job of a process, cached while the process lives: pids are reused.

The uid alone misleads: root in a container was started by a user, and uid 1000 of an image is not the host's. In order
of trust: the uid of the Slurm job, a user's own uid outside of containers, the login uid, the login session, a user's
uid among the parents. Otherwise the uid's name is all that is known.
"""

import contextlib
import pwd
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from gpudeck.collectors.containers import ContainerNames, Placement
from gpudeck.collectors.proc import FIRST_PID_NAMESPACE, Proc, Stat
from gpudeck.collectors.redaction import Commands, clean, show
from gpudeck.model.report import GpuReading, Process

_FIRST_PERSON, _NOBODY, _NO_UID = 1000, 65534, 2**32 - 1
_MAX_PARENTS = 64
_STEP = re.compile(r"slurmstepd: \[(\d{1,20})\b")
_ID_LENGTH, _SHORT_ID_LENGTH = 64, 12
MAX_PROCESSES = 1024
MAX_PLAUSIBLE_BYTES = 2**53 - 1
"""A larger amount of memory is an error of the driver."""
GONE = "the process is not in /proc"
DEAD = "no such process: memory in use by a dead process"
ALL_HIDDEN = (
    "none of the listed processes is in /proc: this looks like a PID namespace (run the agent on the host, or with the "
    "host's PID namespace), a /proc that hides other users' processes, or a driver struct mismatch in the process list"
)
OTHER_NAMESPACE = (
    "the agent has a PID namespace of its own, and the driver speaks of the host's processes: run it on the host, or "
    "with the host's PID namespace"
)
HIDDEN = "/proc hides other users' processes (hidepid): run the agent as root, or in the group that may see them"
_UNREADABLE = "not permitted to read it from /proc"
NOT_SENT = "commands are not sent (commands: none)"
_ENDED = "the process has ended but is not gone (zombie): its memory is still in use"
_STUCK = "stuck in the kernel (state D)"

# A program may rename itself (workers of a server do), and an account may be renamed.
_REFRESH_SECONDS = 60.0
# Every program waits for a disk at times; one that does for so long can often not even be killed.
_STUCK_SECONDS = 30.0


class Attributed(Struct, frozen=True):
    """`container` and `job` are None where there is none; a pod's UID is a job. `evidence` is a sentence for people."""

    user: str
    evidence: str
    container: str | None = None
    job: str | None = None


def is_person(uid: int | None) -> bool:
    """Whether a uid belongs to people by the common rule (login.defs), and not to the system or to `nobody`."""
    return uid is not None and _FIRST_PERSON <= uid < _NO_UID and uid != _NOBODY


ContainerName = Callable[[str, int | None], str | None]


class Attribution:
    """`container_name` gives the name of a container by its id, as `ContainerNames.find` does; `user_name` that of an
    account by its uid, or the number as text."""

    def __init__(self, proc: Proc, container_name: ContainerName, user_name: Callable[[int], str]) -> None:
        self._proc = proc
        self._container_name = container_name
        self._user_name = user_name

    def attribute(self, pid: int, uid: int) -> Attributed:
        """Never raises because of the process: one that ends meanwhile just leaves fewer traces."""
        place, login_uid = self._proc.placement(pid), self._proc.login_uid(pid)
        person, how = self._find_person(pid, uid, place, login_uid)
        job, how_known = self._find_job(pid, place)
        container = self._name(place.container, place)
        # For example: "root in container trainer, started by alice (login uid 1000)".
        evidence = [] if job is None else [f"slurm job {job} of {self._show_user(person)}{how_known}"]
        if container is not None:
            evidence.append(self._describe_container(uid, container, place))
        elif how:
            evidence.append(self._show_user(uid))
        elif job is None:
            evidence.append(f"uid {uid} of /proc/{pid}")
        if how:
            evidence.append(f"started by {self._show_user(person)} ({how})")
        elif container is not None and place.job_uid is None and is_person(uid):
            evidence.append("a uid that its image may use for itself")
        elif login_uid is not None and is_person(login_uid) and login_uid != person:
            evidence.append(f"logged in as {self._show_user(login_uid)}")
        shown = clean(", ".join(evidence))[:1024]
        return Attributed(self._user_name(person), shown, container, job or place.pod)

    def _find_person(self, pid: int, uid: int, place: Placement, login_uid: int | None) -> tuple[int, str]:
        if place.job_uid is not None:
            return place.job_uid, ""
        if place.container is None and is_person(uid):
            # Before the login: a daemon that was started by hand passes its login uid on to all users it works for.
            return uid, ""
        if login_uid is not None and is_person(login_uid):
            return login_uid, f"login uid {login_uid}"
        if place.session_uid is not None and is_person(place.session_uid):
            return place.session_uid, f"session of uid {place.session_uid}"
        return self._find_parent(pid) or (uid, "")

    def _find_parent(self, pid: int) -> tuple[int, str] | None:
        """The nearest parent that is a person's. A uid within any container may be one of its image."""
        with contextlib.suppress(OSError, ValueError):
            for parent in self._parents(pid):
                uid = self._proc.uid(parent)
                if is_person(uid) and self._proc.placement(parent).container is None:
                    return uid, f"uid {uid} of its parent {parent}"
        return None

    def _parents(self, pid: int) -> Iterator[int]:
        """The nearest first. Raises OSError, ValueError where a process of them has ended."""
        for _ in range(_MAX_PARENTS):
            if (pid := self._proc.stat(pid).parent) <= 1:
                return
            yield pid

    def _find_job(self, pid: int, place: Placement) -> tuple[str | None, str]:
        if place.job is not None:
            return place.job, ""
        named = self._proc.variable(pid, "SLURM_JOB_ID") or ""
        is_named = named.isascii() and named.isdigit() and len(named) <= 20
        if not is_named and place.sluid is None:
            return None, ""
        if step := self._find_step(pid):
            return step, " (its slurmstepd)"
        return (named, " (SLURM_JOB_ID of its environment)") if is_named else (place.sluid, "")

    def _find_step(self, pid: int) -> str | None:
        """The job in the title of the slurmstepd above it, which is root's: users choose their own environment."""
        with contextlib.suppress(OSError, ValueError):
            for parent in self._parents(pid):
                if self._proc.stat(parent).name == "slurmstepd" and self._proc.uid(parent) == 0:
                    title = _STEP.match(" ".join(self._proc.arguments(parent)))
                    return title[1] if title else None
        return None

    def _name(self, container: str | None, place: Placement) -> str | None:
        if container is None or len(container) < _ID_LENGTH:
            return container and clean(container)[:256]
        return self._container_name(container, place.session_uid) or container[:_SHORT_ID_LENGTH]

    def _describe_container(self, uid: int, container: str, place: Placement) -> str:
        within = f" within {self._name(place.within, place)}" if place.within else ""
        pod = f" of pod {place.pod}" if place.pod else ""
        return f"{self._show_user(uid)} in container {container}{within}{pod}"

    def _show_user(self, uid: int) -> str:
        name = self._user_name(uid)
        return f"uid {uid}" if name == str(uid) else name


class ProcessOwner(Struct, frozen=True):
    """A process as /proc describes it. None is unknown, with its reason in `reasons` by field. `container` and `job`
    are also None for a process outside of them."""

    name: str = ""
    user: str | None = None
    command: str | None = None
    started_at: float | None = None
    evidence: str | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    container: str | None = None
    job: str | None = None


class ProcessUse(Struct):
    """One process on one GPU. None is unknown, with its reason in `reasons` by field of Process. A process with
    `graphics_only` may be a display server."""

    pid: int
    memory_bytes: int | None
    percent: float | None = None
    graphics_only: bool = False
    reasons: dict[str, str] = field(default_factory=dict)


class GpuDraft(Struct, frozen=True):
    """A GPU of a report before its processes have owners. `uses` is None where they are unknown."""

    gpu: GpuReading
    uses: list[ProcessUse] | None = None

    def finish(self, owners: Mapping[int, ProcessOwner], is_display: Callable[[str], bool], **more: Any) -> GpuReading:
        processes = None if self.uses is None else [_name_owner(use, owners[use.pid], is_display) for use in self.uses]
        return msgspec.structs.replace(self.gpu, processes=processes, **more)


def _name_owner(use: ProcessUse, owner: ProcessOwner, is_display: Callable[[str], bool]) -> Process:
    return Process(
        pid=use.pid,
        user=owner.user,
        command=owner.command,
        memory_used_bytes=use.memory_bytes,
        started_at=owner.started_at,
        utilization_percent=use.percent,
        container=owner.container,
        job=owner.job,
        evidence=owner.evidence,
        display=use.graphics_only and is_display(owner.name),
        reasons=owner.reasons | use.reasons,
    )


def merge_uses(uses: Iterable[ProcessUse]) -> list[ProcessUse]:
    """Merges to one entry per process, most memory first, and no more than a report may hold. A driver may list a
    process that both computes and renders twice, each time with all of its memory."""
    merged: dict[int, ProcessUse] = {}
    for use in uses:
        before = merged.setdefault(use.pid, use)
        before.graphics_only = before.graphics_only and use.graphics_only
        if before.memory_bytes is None or (use.memory_bytes or 0) > before.memory_bytes:
            before.memory_bytes, before.reasons = use.memory_bytes, use.reasons
    return sorted(merged.values(), key=lambda use: -(use.memory_bytes or 0))[:MAX_PROCESSES]


class _CachedOwner(Struct, frozen=True):
    owner: ProcessOwner
    start_ticks: int
    read_at: float

    def is_of(self, stat: Stat) -> bool:
        return self.start_ticks == stat.start_ticks and self.owner.name == stat.name


def find_user_name(uid: int) -> str:
    """The account's name, or the number as text where there is no such account. May ask a directory server."""
    try:
        return clean(pwd.getpwuid(uid).pw_name) or str(uid)
    except KeyError:
        return str(uid)


class Owners:
    """Finds owners, and caches them while their processes live. For one thread at a time. `are_hosts_pids`: the pids
    are the host's also in a container, as those of a driver. `describe_missing` describes a process that is not in
    /proc; its argument is whether any other listed process is."""

    def __init__(
        self,
        proc: Proc | None = None,
        user_name: Callable[[int], str] = find_user_name,
        *,
        commands: Commands = "redacted",
        container_name: ContainerName | None = None,
        are_hosts_pids: bool = False,
        describe_missing: Callable[[bool], ProcessOwner] | None = None,
    ) -> None:
        self._are_hosts_pids = are_hosts_pids
        self._blindness: str | None = None
        self._proc = proc or Proc()
        self._describe_missing = describe_missing or _describe_missing
        self._commands: Commands = commands
        self._find_name = user_name
        self._names: dict[int, str] = {}
        self._names_at = 0.0
        self._attribution = Attribution(self._proc, container_name or ContainerNames().find, self._user_name)
        self._kept: dict[int, _CachedOwner] = {}
        self._seen: set[int] = set()
        self._waiting_since: dict[tuple[int, int], float] = {}

    def find(self, pids: Iterable[int], now: float) -> dict[int, ProcessOwner]:
        """The owner of each pid. Never raises for a process: what cannot be read is None with its reason."""
        if abs(now - self._names_at) >= _REFRESH_SECONDS:
            self._names, self._names_at = {}, now
            self._blindness = self._find_blindness()
        if self._blindness is OTHER_NAMESPACE:
            return dict.fromkeys(pids, _unseen_owner(OTHER_NAMESPACE))
        found = {pid: self._find(pid, now) for pid in set(pids)}
        alive = {pid for pid, owner in found.items() if owner is not None}
        # Owners die with their processes. A pid that was seen and no longer is does not hide in a namespace.
        self._seen = (self._seen | alive).intersection(found)
        self._kept = {pid: kept for pid, kept in self._kept.items() if pid in alive}
        self._waiting_since = {key: since for key, since in self._waiting_since.items() if key[0] in alive}
        blindness = self._blindness
        gone = _unseen_owner(blindness) if blindness else self._describe_missing(bool(alive or self._seen))
        return {pid: owner or gone for pid, owner in found.items()}

    def _find_blindness(self) -> str | None:
        """Why /proc may not show a listed process, or may show another one under its pid."""
        if self._are_hosts_pids and self._proc.pid_namespace not in {"", FIRST_PID_NAMESPACE}:
            return OTHER_NAMESPACE
        return HIDDEN if self._proc.hides_others else None

    def _find(self, pid: int, now: float) -> ProcessOwner | None:
        try:
            stat = self._proc.stat(pid)
        except PermissionError:
            return self._find_user_only(pid)
        except (OSError, ValueError):
            return None
        kept = self._kept.get(pid)
        if kept and kept.is_of(stat) and abs(now - kept.read_at) < _REFRESH_SECONDS:
            owner: ProcessOwner | None = kept.owner
        else:
            owner = self._describe(pid, stat, now)
        return owner and self._note_state(owner, pid, stat, now)

    def _describe(self, pid: int, stat: Stat, now: float) -> ProcessOwner | None:
        reasons: dict[str, str] = {}
        try:
            uid = self._proc.uid(pid)
            arguments = self._read_arguments(pid, reasons)
            who = self._attribution.attribute(pid, uid)
            if self._proc.stat(pid).start_ticks != stat.start_ticks:
                return None  # the pid went to another process between the reads
        except (OSError, ValueError):
            return None
        command = None if "command" in reasons else show(arguments, stat.name, self._commands)
        started_at = self._started_at(stat.start_ticks, reasons)
        owner = ProcessOwner(stat.name, who.user, command, started_at, who.evidence, reasons, who.container, who.job)
        # A process that is just being started has no command line yet: look again next time.
        if arguments or reasons or self._commands == "name":
            self._kept[pid] = _CachedOwner(owner, stat.start_ticks, now)
        return owner

    def _find_user_only(self, pid: int) -> ProcessOwner | None:
        """With hidepid=1 the directory's owner is all that other users may see."""
        try:
            uid = self._proc.folder_uid(pid)
        except OSError:
            return None
        reasons = {"command": _UNREADABLE, "started_at": _UNREADABLE}
        return ProcessOwner(user=self._user_name(uid), evidence=f"uid {uid} of /proc/{pid}", reasons=reasons)

    def _note_state(self, owner: ProcessOwner, pid: int, stat: Stat, now: float) -> ProcessOwner:
        """Adds to the evidence that the process is dead or stuck, so that it cannot free its memory."""
        if stat.state in {"Z", "X"}:
            return msgspec.structs.replace(owner, evidence=f"{owner.evidence}; {_ENDED}")
        key = (pid, stat.start_ticks)
        if stat.state != "D":
            self._waiting_since.pop(key, None)
        elif now - self._waiting_since.setdefault(key, now) >= _STUCK_SECONDS:
            return msgspec.structs.replace(owner, evidence=f"{owner.evidence}; {_STUCK}")
        return owner

    def _read_arguments(self, pid: int, reasons: dict[str, str]) -> list[str]:
        if self._commands == "none":
            reasons["command"] = NOT_SENT
        if self._commands in {"none", "name"}:
            return []
        try:
            return self._proc.arguments(pid)
        except PermissionError:
            reasons["command"] = _UNREADABLE
            return []

    def _started_at(self, start_ticks: int, reasons: dict[str, str]) -> float | None:
        try:
            booted_at = self._proc.boot_time()
        except (OSError, ValueError):
            reasons["started_at"] = "the time of boot is not known"
            return None
        return booted_at + start_ticks / self._proc.ticks_per_second

    def _user_name(self, uid: int) -> str:
        """Kept for a minute: a directory server may be slow, and a server's processes are often one person's."""
        if uid not in self._names:
            self._names[uid] = self._find_name(uid)[:256]
        return self._names[uid]


def _describe_missing(has_others: bool) -> ProcessOwner:
    reasons = {"user": GONE if has_others else ALL_HIDDEN, "command": GONE, "started_at": GONE}
    return ProcessOwner(evidence=DEAD if has_others else None, reasons=reasons)


def _unseen_owner(reason: str) -> ProcessOwner:
    """The owner of a process that /proc may hide: all fields are unknown for the same reason."""
    return ProcessOwner(reasons=dict.fromkeys(("user", "command", "started_at"), reason))
