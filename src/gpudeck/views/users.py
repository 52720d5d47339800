"""The users of GPUs now, and as a table: memory, processes, and places. The same for curl and for `gpudeck show`. All
unknown users count as one. The last values of a host that stopped reporting are listed, but never counted."""

from collections.abc import Sequence

from msgspec import Struct

from gpudeck.model.text import natural, show_gib
from gpudeck.model.view import Fleet, Gpu, Host, ShownProcess
from gpudeck.views.table import CellColumn, end_lines, tabulate
from gpudeck.views.text import join_places

NOT_KNOWN = "not known"
NOBODY = "Nobody is on a GPU."


class GpuUse(Struct, frozen=True):
    """A GPU in use by a user, and their processes on it. `memory` is None if part of it is unknown."""

    host: Host
    gpu: Gpu
    processes: list[ShownProcess]
    memory: float | None


class UserActivity(Struct, frozen=True):
    """`uses` are on hosts that report, `past` on hosts that have stopped. Sums and means cover known values."""

    user: str | None
    uses: list[GpuUse]
    past: list[GpuUse]

    @property
    def memory(self) -> float | None:
        known = [use.memory for use in self.uses if use.memory is not None]
        return sum(known) if known else None

    @property
    def is_memory_part(self) -> bool:
        return any(use.memory is None for use in self.uses)

    @property
    def utilization(self) -> float | None:
        values = [use.gpu.utilization_percent for use in self.uses]
        known = [value for value in values if value is not None]
        return sum(known) / len(known) if known else None

    @property
    def processes(self) -> int | None:
        """A process on several GPUs counts once; None if no list could be read."""
        if all(use.gpu.processes is None for use in self.uses):
            return None
        return len({(use.host.id, own.pid) for use in self.uses for own in use.processes})

    @property
    def idle(self) -> list[GpuUse]:
        return [use for use in self.uses if use.gpu.availability == "idle"]

    @property
    def since(self) -> float | None:
        started = [own.started_at for use in self.uses for own in use.processes]
        return min((at for at in started if at is not None), default=None)


def find_users(hosts: Sequence[Host]) -> list[UserActivity]:
    """By name; the unknown user last."""
    found: dict[str | None, tuple[list[GpuUse], list[GpuUse]]] = {}
    for host in hosts:
        is_past = host.status != "up"
        for gpu in host.gpus:
            for user, processes in _owners(host, gpu).items():
                use = GpuUse(host, gpu, processes, _memory(gpu, processes))
                found.setdefault(user, ([], []))[is_past].append(use)
    users = [UserActivity(user, *uses) for user, uses in found.items()]
    return sorted(users, key=lambda activity: (activity.user is None, natural(activity.user or "")))


def _owners(host: Host, gpu: Gpu) -> dict[str | None, list[ShownProcess]]:
    """The users of the GPU with their processes, without display servers."""
    owners: dict[str | None, list[ShownProcess]] = {}
    for process in gpu.processes or ():
        if not process.display:
            owners.setdefault(process.user, []).append(process)
    state = gpu.availability if host.status == "up" else gpu.last_seen
    if not owners and state in {"busy", "idle"}:
        # Some sources list users without processes.
        return {user: [] for user in gpu.users or (None,)}
    return owners


def _memory(gpu: Gpu, processes: list[ShownProcess]) -> float | None:
    """The memory of their processes; the GPU's memory if they are its only user and it is not known by process."""
    amounts = [process.memory_used_bytes for process in processes]
    known = [amount for amount in amounts if amount is not None]
    if processes and len(known) == len(amounts):
        return float(sum(known))
    is_alone = len(gpu.users) <= 1 and (gpu.processes is None or len(gpu.processes) == len(processes))
    return gpu.memory_used_bytes if is_alone else None


class UserRow(Struct, frozen=True):
    """A user of GPUs on hosts that report. `user` is null for unknown users. `memory_used_bytes` is the known part, and
    a lower bound if `is_memory_part`; `gpus` are by host, as in `gpu01-0,1`. A null has its reason in `reasons`.
    `utilization_percent` is the mean of their GPUs, including the work of others on them; `since` is the start of their
    oldest process, in Unix seconds."""

    user: str | None
    memory_used_bytes: int | None
    is_memory_part: bool
    processes: int | None
    utilization_percent: float | None
    since: float | None
    gpu_count: int
    gpus: list[str]
    reasons: dict[str, str]


class Users(Struct, frozen=True):
    """By memory, then by processes, the most first."""

    time: float
    users: list[UserRow]


def rank_users(fleet: Fleet) -> list[UserActivity]:
    """The users of GPUs on hosts that report, by memory, then by processes, the most first; then by name. Unknown
    values come last."""
    users = [activity for activity in find_users(fleet.hosts) if activity.uses]
    return sorted(users, key=lambda one: (_fall(one.memory), _fall(one.processes)))


def render_users(fleet: Fleet, *, width: int | None = None, colour: bool = False) -> str:
    """One line per user, ending in a newline."""
    columns: list[CellColumn[UserActivity]] = [
        CellColumn("USER", 100, widest=32, cell=lambda one: (NOT_KNOWN, "grey") if one.user is None else one.user),
        CellColumn("GiB", 99, "right", 12, cell=show_memory),
        CellColumn("PROCESSES", 80, "right", 9, cell=lambda one: None if one.processes is None else str(one.processes)),
        CellColumn("GPUs", 90, widest=400, least=20, cell=lambda one: " ".join(list_places(one))),
    ]
    users = rank_users(fleet)
    return end_lines(tabulate(columns, users, width, colour) if users else [NOBODY])


def show_memory(activity: UserActivity) -> str:
    memory = show_gib(activity.memory)
    return f"≥ {memory}" if activity.memory is not None and activity.is_memory_part else memory


def describe_users(fleet: Fleet) -> Users:
    """The users as JSON structs."""
    return Users(
        fleet.time,
        [
            UserRow(
                user=activity.user,
                memory_used_bytes=None if activity.memory is None else int(activity.memory),
                is_memory_part=activity.is_memory_part,
                processes=activity.processes,
                utilization_percent=activity.utilization,
                since=activity.since,
                gpu_count=len(activity.uses),
                gpus=list_places(activity),
                reasons=_reasons(activity),
            )
            for activity in rank_users(fleet)
        ],
    )


def list_places(activity: UserActivity) -> list[str]:
    """By host, as in `gpu01-0,1`."""
    return join_places(((use.host.name, use.gpu.label) for use in activity.uses), "-")


def _reasons(activity: UserActivity) -> dict[str, str]:
    told = {
        "user": "processes without an owner, or lists that could not be read" if activity.user is None else "",
        "memory_used_bytes": "the memory of none of their processes is known" if activity.memory is None else "",
        "processes": "the lists of processes could not be read" if activity.processes is None else "",
        "utilization_percent": "none of their GPUs reports it" if activity.utilization is None else "",
        "since": "no process has a start time" if activity.since is None else "",
    }
    return {name: reason for name, reason in told.items() if reason}


def _fall(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)
