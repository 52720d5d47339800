"""Rules about GPUs that are kept from others: by somebody who does nothing, or by nobody at all."""

from collections.abc import Sequence

from gpudeck.alerts.finding import FleetColumns, Rule, RuleFinding, find_at
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.fleet.columns import HELD, NOBODY, Flags
from gpudeck.model.view import Gpu


def find_held(host: SeenHost, gpus: Sequence[Gpu], _: Limits, around: Around) -> Sequence[RuleFinding]:
    """For their owners. On a GPU that is theirs by booking they may idle."""
    held = [gpu for gpu in gpus if gpu.availability == "held" and gpu.users]
    if not held:
        return ()
    return [_hold(host, gpu, around) for gpu in held if not _is_booked_by(gpu)]


def preselect_held(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    gpus, end = fleet.gpus, fleet.gpus.end
    is_own = gpus.is_reserved[:end] & ~gpus.has_conflict[:end]
    is_held: Flags = (gpus.availability[:end] == HELD) & (gpus.user[:end] != NOBODY) & ~is_own
    return is_held


def _is_booked_by(gpu: Gpu) -> bool:
    return gpu.reservation is not None and gpu.reservation_conflict is None


def _hold(host: SeenHost, gpu: Gpu, around: Around) -> RuleFinding:
    users = tuple(gpu.users)
    title = f"{' and '.join(users[:3])} hold{'s' if len(users) == 1 else ''} GPU {gpu.label} of {host.name} idle"
    return find_at(gpu, title, since=min(around.now, gpu.since), users=users, is_personal=True)


def find_orphaned(host: SeenHost, gpus: Sequence[Gpu], _: Limits, around: Around) -> Sequence[RuleFinding]:
    """Memory in use without a process. A process list that could not be read proves nothing."""
    suspects = [gpu for gpu in gpus if gpu.availability == "held" and gpu.processes is not None]
    if not suspects:
        return ()
    return [_orphan(host, gpu, around) for gpu in suspects if all(one.display for one in gpu.processes or ())]


def preselect_orphaned(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    gpus, end = fleet.gpus, fleet.gpus.end
    is_orphaned: Flags = (gpus.availability[:end] == HELD) & (gpus.workers[:end] == 0)
    return is_orphaned


def _orphan(host: SeenHost, gpu: Gpu, around: Around) -> RuleFinding:
    amount = f"{(gpu.memory_used_bytes or 0) / 2**30:.1f} GiB of GPU {gpu.label} of {host.name}"
    return find_at(gpu, f"{amount} are held, but no process is on it", since=min(around.now, gpu.since))


def why_no_processes(host: SeenHost, gpu: str, _: str) -> str | None:
    board = host.boards.get(gpu)
    seen = None if board is None else board.view()
    is_known = seen is not None and seen.processes is not None and seen.availability != "unknown"
    return None if is_known else "who is on it is not known now"


HOLDER_RULES = (
    Rule(
        name="gpu_held_idle",
        scope="gpu",
        find=find_held,
        preselect=preselect_held,
        action="If you do not need it now, end your process, so that others can use it.",
        many="{count} GPUs are held idle",
        over="{place} is no longer held idle",
        over_many="{count} GPUs are no longer held idle",
        why_unknown=why_no_processes,
        tells_end=False,
    ),
    Rule(
        name="orphaned_memory",
        scope="gpu",
        find=find_orphaned,
        preselect=preselect_orphaned,
        action="Look for what is left of a process there (fuser -v /dev/nvidia*), or reset the GPU.",
        many="Memory of {count} GPUs is held by nobody",
        over="The memory of {place} is free again",
        over_many="The memory of {count} GPUs is free again",
        needs=("memory_used_bytes",),
        why_unknown=why_no_processes,
    ),
)
