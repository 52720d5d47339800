"""A whole machine through nvidia-smi: GPUs, processes, owners and the host's figures, in one round trip.

For machines where NVML cannot be used from here: read over SSH, or without a usable nvidia-ml-py. How to reach the
machine is the caller's: a function that runs one shell command there and returns what it printed. `smi_command.py` has
that command, `parse` makes a report of the answer.

Not read this way, because nvidia-smi takes too long for it or does not tell: NVLink, energy, PCIe throughput, and the
utilization by process.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
from msgspec import Struct, field

from gpudeck.collectors.idle import WATCHED_SECONDS, WORK_PERCENT
from gpudeck.collectors.settings import CollectorSettings
from gpudeck.collectors.smi_answer import FATAL, Answer, explain, quote, read_bus_id, split_answer
from gpudeck.collectors.smi_command import COLUMNS, shell_command
from gpudeck.collectors.smi_details import Details, Use, merge_uses, read_details
from gpudeck.collectors.smi_failures import explain_failure, find_problems
from gpudeck.collectors.smi_gpus import (
    BOARDS_AT_MOST,
    Board,
    Instance,
    Listed,
    Measured,
    add_up_memory,
    list_boards,
    list_instances,
    measure_instance,
    note_rows,
)
from gpudeck.collectors.smi_host import Counters, Host, Identity, read_clock, read_host
from gpudeck.collectors.smi_owners import Owner, read_owners
from gpudeck.collectors.smi_run import run_here
from gpudeck.model.errors import Temporary
from gpudeck.model.report import GpuReading, Process, Report

_PROCESSES_AT_MOST = 1024
_NO_INSTANCES = "in MIG mode, but without instances: nothing can run on it"
_NO_PLACE = "nvidia-smi does not tell which MIG instance is which"
_NO_UTILIZATION = "not read through nvidia-smi"
_GONE = "the driver no longer lists this GPU"
_DEFAULTS = CollectorSettings()


class Kept(Struct, frozen=True):
    """What the next answer of the same machine is compared with. `columns` are those its driver understands."""

    at: float
    counters: Counters
    columns: tuple[str, ...] = COLUMNS
    boards: tuple[Board, ...] = ()
    idle_seconds: dict[str, float | None] = field(default_factory=dict)


class Reading(Struct, frozen=True):
    """One answer, read. Hand `kept` to the next `parse` of this machine. `clock` is that machine's own, if told."""

    report: Report
    identity: Identity
    kept: Kept
    clock: float | None = None


class _Draft(Struct):
    """A row of the report before its processes have owners. `uses` is None, with the reason, when they are unknown."""

    board: Board
    measured: Measured
    uses: list[Use] | None = None
    uses_reason: str | None = None
    instance: Instance | None = None


class NvidiaSmiCollector:
    """This machine, or with another `run` any other, through nvidia-smi. `run` gets a shell command and returns its
    output; it bounds time and size, and raises what a collector may raise. `collect` blocks as long as `run` does.

    `settings` say what is told of processes; with `commands: name` and `none` their command lines are not even asked
    for. `identity` is who answered last, None before the first answer.
    """

    name = "nvidia_smi"

    def __init__(self, run: Callable[[str], str] = run_here, settings: CollectorSettings = _DEFAULTS) -> None:
        self._run = run
        self._settings = settings
        self._kept: Kept | None = None
        self._columns = COLUMNS
        self.identity: Identity | None = None

    def collect(self, now: float) -> Report:
        # After a failure the driver may be another one: everything is asked for again.
        columns, self._columns = self._columns, COLUMNS
        command = shell_command(columns, with_arguments=self._settings.commands in {"full", "redacted"})
        reading = parse(self._run(command), now, self._kept, self._settings)
        self._kept, self._columns, self.identity = reading.kept, reading.kept.columns, reading.identity
        return reading.report

    def close(self) -> None:
        """Nothing is held open."""


def make(settings: CollectorSettings) -> NvidiaSmiCollector:
    """The collector of this machine as the registry makes it."""
    return NvidiaSmiCollector(settings=settings)


def parse(text: str, now: float, previous: Kept | None = None, settings: CollectorSettings = _DEFAULTS) -> Reading:
    """What a machine answered to `shell_command`, as a report.

    Raises Absent where there is no nvidia-smi or no GPU, Refused where it may not be used, Temporary for an answer that
    is not whole or makes no sense, and when the driver does not answer. The host's figures in such an answer are not
    lost: `parse_host` reads them.
    """
    answer = split_answer(text)
    if answer.cut_in is not None:
        raise Temporary(f"The answer of the machine breaks off in the part {quote(answer.cut_in)!r}.")
    columns = tuple(answer.first("columns").split(","))
    listed = list_boards(columns, answer.lines("gpus"))
    if not listed.boards:
        raise explain_failure(answer, listed, len(previous.boards) if previous else 0)
    host = read_host(answer, previous.counters if previous else None)
    gone = [_as_missing(board, listed) for board in _find_gone(listed.boards, previous)]
    drafts = [*_draft_rows(answer, listed.boards), *(_Draft(board, board.measured) for board in gone)][:BOARDS_AT_MOST]
    owners = read_owners(answer, host, [use.pid for draft in drafts for use in draft.uses or ()], settings)
    idle = {_uuid(draft): _watch(draft, now, previous) for draft in drafts}
    report = _host_report(
        host,
        gpus=[_finish(draft, owners, idle[_uuid(draft)]) for draft in drafts],
        driver_version=next((board.driver_version for board in listed.boards if board.driver_version), None),
        problems=find_problems(answer, listed),
    )
    boards = tuple(_remember(board) for board in (*listed.boards, *gone))[:BOARDS_AT_MOST]
    return Reading(report, host.identity, Kept(now, host.counters, columns, boards, idle), read_clock(answer))


def parse_host(text: str, now: float, reason: str, previous: Kept | None = None) -> Reading:
    """The host's figures alone, for an answer that `parse` refused: its GPUs are unknown, for that `reason`.

    Takes an answer that breaks off too. Raises Temporary where it is none at all.
    """
    answer = split_answer(text)
    host = read_host(answer, previous.counters if previous else None)
    kept = Kept(now, host.counters, boards=previous.boards if previous else ())
    rows = [_finish(_Draft(_missing(board, reason), Measured({}, {})), {}, None) for board in kept.boards]
    report = _host_report(host, gpus=rows or None, gpus_reason=reason[:1000], problems=[reason[:1000]])
    return Reading(report, host.identity, kept, read_clock(answer))


def _host_report(
    host: Host,
    *,
    gpus: list[GpuReading] | None,
    problems: list[str],
    driver_version: str | None = None,
    gpus_reason: str | None = None,
) -> Report:
    return Report(
        gpus=gpus,
        gpus_reason=None if gpus else gpus_reason,
        metrics=host.metrics,
        unknown=host.unknown,
        driver_version=driver_version,
        os=host.os,
        labels={"container": host.container} if host.container else {},
        problems=problems,
    )


def _draft_rows(answer: Answer, boards: Sequence[Board]) -> Iterator[_Draft]:
    """The rows of every board: itself, or its MIG instances."""
    details = read_details(answer.lines("details"))
    instances = list_instances(answer.lines("instances"), answer.lines("table"), boards)
    for board in boards:
        of_board = details.get(board.bus_id or "", Details())
        if board.missing:
            yield _Draft(board, board.measured)
        elif board.is_split:
            note_rows(board.measured, of_board.rows)
            yield from _draft_instances(board, instances.get(board.uuid, []), of_board)
        else:
            note_rows(board.measured, of_board.rows)
            uses = None if of_board.uses is None else merge_uses(of_board.uses)
            yield _Draft(board, board.measured, uses, of_board.uses_reason if uses is None else None)


def _draft_instances(board: Board, instances: list[Instance], details: Details) -> Iterator[_Draft]:
    if not instances:
        yield _Draft(board, board.measured, None, _NO_INSTANCES)
    by_place: dict[tuple[int, int] | None, list[Use]] = {}
    for use in details.uses or ():
        by_place.setdefault(use.place, []).append(use)
    memory_owners: dict[int, int] = {}
    for instance in instances:
        place = instance.place
        owner = memory_owners.setdefault(place[0], instance.number) if place else instance.number
        measured = measure_instance(instance, board, None if owner == instance.number else owner)
        if details.uses is None or place is None:
            yield _Draft(board, measured, None, _NO_PLACE if place is None else details.uses_reason, instance)
        else:
            yield _Draft(board, measured, merge_uses(by_place.get(place, ())), None, instance)


def _uuid(draft: _Draft) -> str:
    return draft.instance.uuid if draft.instance else draft.board.uuid


def _watch(draft: _Draft, now: float, previous: Kept | None) -> float | None:
    """Seconds without work, as far as they were watched; an answer without utilization starts them anew."""
    utilization = draft.measured.metrics.get("utilization_percent")
    if utilization is None:
        return None
    before = previous.idle_seconds.get(_uuid(draft)) if previous else None
    if previous is None or before is None or utilization >= WORK_PERCENT:
        return 0.0
    return round(before + min(max(0.0, now - previous.at), WATCHED_SECONDS), 1)


def _finish(draft: _Draft, owners: dict[int, Owner], idle_seconds: float | None) -> GpuReading:
    board, instance, uses = draft.board, draft.instance, draft.uses
    if uses:
        add_up_memory(draft.measured, [use.memory_bytes for use in uses])
    return GpuReading(
        uuid=_uuid(draft),
        index=board.index,
        name=instance.name if instance else board.name,
        vendor="nvidia",
        parent=board.uuid if instance else None,
        instance=instance.number if instance else None,
        pci_address=board.bus_id,
        missing=board.missing,
        metrics=draft.measured.metrics,
        unknown=draft.measured.unknown,
        processes=None if uses is None else [_name_owner(use, owners[use.pid]) for use in uses[:_PROCESSES_AT_MOST]],
        processes_reason=draft.uses_reason,
        idle_seconds=idle_seconds,
    )


def _name_owner(use: Use, owner: Owner) -> Process:
    reasons = owner.reasons | {"utilization_percent": _NO_UTILIZATION}
    if use.memory_reason is not None:
        reasons["memory_used_bytes"] = use.memory_reason
    return Process(
        pid=use.pid,
        user=owner.user,
        command=owner.command,
        memory_used_bytes=use.memory_bytes,
        started_at=owner.started_at,
        container=owner.container,
        job=owner.job,
        evidence=owner.evidence,
        display=use.graphics_only and owner.is_display_server,
        reasons=reasons,
    )


def _find_gone(boards: Iterable[Board], previous: Kept | None) -> list[Board]:
    listed = {board.uuid for board in boards}
    return [board for board in (previous.boards if previous else ()) if board.uuid not in listed]


def _as_missing(board: Board, listed: Listed) -> Board:
    """`board`, which was here before; what nvidia-smi says about its PCI address is the reason."""
    said = (complaint for complaint in listed.complaints if board.bus_id and read_bus_id(complaint) == board.bus_id)
    complaint = next(said, _GONE)
    return _missing(board, why if (why := explain(complaint)) in FATAL else complaint)


def _missing(board: Board, reason: str) -> Board:
    return msgspec.structs.replace(_remember(board), missing=reason[:1000])


def _remember(board: Board) -> Board:
    """What stays the same of a board."""
    return Board(board.uuid, board.index, board.name, board.bus_id)
