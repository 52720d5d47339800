"""A whole machine through nvidia-smi: GPUs, processes, owners and the host's figures, in one round trip.

For machines where NVML cannot be used from here: read over SSH, or without a usable nvidia-ml-py. How to reach the
machine is the caller's: a function that runs one shell command there and returns what it printed. `smi_command.py` has
that command, `parse` makes a report of the answer.

Not read this way, because nvidia-smi takes too long for it or does not tell: NVLink, energy, PCIe throughput, and the
utilization by process.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, cast

import msgspec
from msgspec import Struct, field

from gpudeck.collectors.base import (
    NO_INSTANCES,
    WATCHED_SECONDS,
    WORK_PERCENT,
    CollectorSettings,
    Measured,
    display_matcher,
)
from gpudeck.collectors.owners import ProcessOwner
from gpudeck.collectors.serve import read_all
from gpudeck.collectors.smi_command import (
    COLUMNS,
    FATAL,
    LATE_CODES,
    NO_PROGRAM,
    SECONDS,
    SmiAnswer,
    explain,
    quote,
    read_bus_id,
    read_whole,
    shell_command,
    split_answer,
)
from gpudeck.collectors.smi_gpus import (
    BOARDS_AT_MOST,
    SmiBoard,
    SmiBoards,
    SmiDetails,
    SmiInstance,
    SmiProcess,
    list_boards,
    list_instances,
    measure_instance,
    merge_uses,
    note_rows,
    read_details,
)
from gpudeck.collectors.smi_host import SmiCounters, SmiHost, SmiIdentity, read_clock, read_host, read_owners
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import GpuReading, Process, Report

DEADLINE_SECONDS = 30.0
BYTES_AT_MOST = 16 * 1024 * 1024
_COMPLAINTS_AT_MOST = 8
_LOOK = "Look at the kernel log (dmesg)."
_PROCESSES_AT_MOST = 1024
_NO_PLACE = "nvidia-smi does not tell which MIG instance is which"
_NO_UTILIZATION = "not read through nvidia-smi"
_GONE = "the driver no longer lists this GPU"
_DEFAULTS = CollectorSettings()


def run_here(command: str, deadline_seconds: float = DEADLINE_SECONDS, bytes_at_most: int = BYTES_AT_MOST) -> str:
    """What the command prints. Blocks until it ends; its exit code does not matter.

    Raises Temporary when it takes too long or prints too much. The shell and what it started are then killed, but for
    what stands below `timeout`, which has a limit of its own; what hangs in the kernel is not waited for.
    """
    try:
        # Its own process group, so that what it started can be ended with it.
        shell = subprocess.Popen(  # noqa: S603 - the command is ours
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise Temporary(f"/bin/sh cannot be started: {error}.") from error
    with cast("IO[bytes]", shell.stdout) as output:
        printed = read_all(output.fileno(), time.monotonic() + deadline_seconds, bytes_at_most)
    if printed is None:
        failure = Temporary("nvidia-smi did not answer in time: the driver may hang.", _LOOK)
    elif len(printed) > bytes_at_most:
        failure = Temporary(f"The command printed more than {bytes_at_most} bytes.")
    else:
        try:
            shell.wait(1.0)
            return printed.decode(errors="replace")
        except subprocess.TimeoutExpired:
            failure = Temporary("The command does not end.")
    _kill(shell)
    raise failure


def _kill(shell: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(shell.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        shell.wait(1.0)
    except subprocess.TimeoutExpired:
        return  # stuck in the kernel; it is collected when this process ends


def explain_failure(answer: SmiAnswer, listed: SmiBoards, before: int) -> PluginError:
    """Why no GPU is in the answer. `before` is how many there were in the last one that had any."""
    code = read_whole(answer.first("gpus-code"), 255)
    said = " ".join(listed.complaints[:2])
    if code in LATE_CODES:
        limit = read_whole(answer.first("limit"), 3600) or SECONDS
        return Temporary(f"nvidia-smi did not answer within {limit} s: the driver hangs.", _LOOK)
    if code == NO_PROGRAM or "No devices were found" in said:
        message = "There is no nvidia-smi on this machine." if code == NO_PROGRAM else "nvidia-smi finds no GPU."
        return Temporary(f"{message} There were {before} before.", _LOOK) if before else Absent(message)
    if "Insufficient Permissions" in said:
        return Refused(f"nvidia-smi may not be used: {said}.", "Look at the permissions of /dev/nvidia*.")
    if "Driver/library version mismatch" in said:
        hint = "The driver was updated: reload the kernel module or restart the machine."
        return Temporary("The NVIDIA library and the loaded kernel module are of different versions.", hint)
    return Temporary(f"nvidia-smi lists no GPU (exit code {code}): {said or 'it said nothing'}")


def find_problems(answer: SmiAnswer, listed: SmiBoards) -> list[str]:
    """What nvidia-smi complained about while it listed other GPUs."""
    code = answer.first("gpus-code")
    heading = "nvidia-smi" if code == "0" else f"nvidia-smi (exit code {quote(code)})"
    return [f"{heading}: {complaint}" for complaint in listed.complaints[:_COMPLAINTS_AT_MOST]]


class SmiState(Struct, frozen=True):
    """What the next answer of the same machine is compared with. `columns` are those its driver understands."""

    at: float
    counters: SmiCounters
    columns: tuple[str, ...] = COLUMNS
    boards: tuple[SmiBoard, ...] = ()
    idle_seconds: dict[str, float | None] = field(default_factory=dict)


class SmiReading(Struct, frozen=True):
    """One answer, read. Hand `kept` to the next `parse` of this machine. `clock` is that machine's own, if told."""

    report: Report
    identity: SmiIdentity
    kept: SmiState
    clock: float | None = None


class _SmiRow(Struct):
    """A row of the report before its processes have owners. `uses` is None, with the reason, when they are unknown."""

    board: SmiBoard
    measured: Measured
    uses: list[SmiProcess] | None = None
    uses_reason: str | None = None
    instance: SmiInstance | None = None


class NvidiaSmiCollector:
    """This machine, or with another `run` any other, through nvidia-smi. `run` gets a shell command and returns its
    output; it bounds time and size, and raises what a collector may raise. `collect` blocks as long as `run` does.

    `settings` say what is sent about processes; with `commands: name` and `none` their command lines are not even asked
    for. `identity` is who answered last, None before the first answer.
    """

    name = "nvidia_smi"

    def __init__(self, run: Callable[[str], str] = run_here, settings: CollectorSettings = _DEFAULTS) -> None:
        self._run = run
        self._settings = settings
        self._kept: SmiState | None = None
        self._columns = COLUMNS
        self.identity: SmiIdentity | None = None

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


def parse(
    text: str, now: float, previous: SmiState | None = None, settings: CollectorSettings = _DEFAULTS
) -> SmiReading:
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
    drafts = [*_draft_rows(answer, listed.boards), *(_SmiRow(board, board.measured) for board in gone)][:BOARDS_AT_MOST]
    owners = read_owners(answer, host, [use.pid for draft in drafts for use in draft.uses or ()], settings)
    is_display = display_matcher(settings.display_servers)

    def name_owners(uses: list[SmiProcess] | None) -> list[Process] | None:
        listed = None if uses is None else uses[:_PROCESSES_AT_MOST]
        return None if listed is None else [_name_owner(use, owners[use.pid], is_display) for use in listed]

    idle = {_uuid(draft): _watch(draft, now, previous) for draft in drafts}
    report = _host_report(
        host,
        gpus=[_finish(draft, name_owners(draft.uses), idle[_uuid(draft)]) for draft in drafts],
        driver_version=next((board.driver_version for board in listed.boards if board.driver_version), None),
        problems=find_problems(answer, listed),
    )
    boards = tuple(_remember(board) for board in (*listed.boards, *gone))[:BOARDS_AT_MOST]
    return SmiReading(report, host.identity, SmiState(now, host.counters, columns, boards, idle), read_clock(answer))


def parse_host(text: str, now: float, reason: str, previous: SmiState | None = None) -> SmiReading:
    """The host's figures alone, for an answer that `parse` refused: its GPUs are unknown, for that `reason`.

    Takes an answer that breaks off too. Raises Temporary where it is none at all.
    """
    answer = split_answer(text)
    host = read_host(answer, previous.counters if previous else None)
    kept = SmiState(now, host.counters, boards=previous.boards if previous else ())
    rows = [_finish(_SmiRow(_missing(board, reason), Measured({}, {})), None, None) for board in kept.boards]
    report = _host_report(host, gpus=rows or None, gpus_reason=reason[:1000], problems=[reason[:1000]])
    return SmiReading(report, host.identity, kept, read_clock(answer))


def _host_report(
    host: SmiHost,
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


def _draft_rows(answer: SmiAnswer, boards: Sequence[SmiBoard]) -> Iterator[_SmiRow]:
    """The rows of every board: itself, or its MIG instances."""
    details = read_details(answer.lines("details"))
    instances = list_instances(answer.lines("instances"), answer.lines("table"), boards)
    for board in boards:
        of_board = details.get(board.bus_id or "", SmiDetails())
        if board.missing:
            yield _SmiRow(board, board.measured)
        elif board.is_split:
            note_rows(board.measured, of_board.rows)
            yield from _draft_instances(board, instances.get(board.uuid, []), of_board)
        else:
            note_rows(board.measured, of_board.rows)
            uses = None if of_board.uses is None else merge_uses(of_board.uses)
            yield _SmiRow(board, board.measured, uses, of_board.uses_reason if uses is None else None)


def _draft_instances(board: SmiBoard, instances: list[SmiInstance], details: SmiDetails) -> Iterator[_SmiRow]:
    if not instances:
        yield _SmiRow(board, board.measured, None, NO_INSTANCES)
    by_place: dict[tuple[int, int] | None, list[SmiProcess]] = {}
    for use in details.uses or ():
        by_place.setdefault(use.place, []).append(use)
    memory_owners: dict[int, int] = {}
    for instance in instances:
        place = instance.place
        owner = memory_owners.setdefault(place[0], instance.number) if place else instance.number
        measured = measure_instance(instance, board, None if owner == instance.number else owner)
        if details.uses is None or place is None:
            yield _SmiRow(board, measured, None, _NO_PLACE if place is None else details.uses_reason, instance)
        else:
            yield _SmiRow(board, measured, merge_uses(by_place.get(place, ())), None, instance)


def _uuid(draft: _SmiRow) -> str:
    return draft.instance.uuid if draft.instance else draft.board.uuid


def _watch(draft: _SmiRow, now: float, previous: SmiState | None) -> float | None:
    """Seconds without work, as far as they were watched; an answer without utilization starts them anew."""
    utilization = draft.measured.metrics.get("utilization_percent")
    if utilization is None:
        return None
    before = previous.idle_seconds.get(_uuid(draft)) if previous else None
    if previous is None or before is None or utilization >= WORK_PERCENT:
        return 0.0
    return round(before + min(max(0.0, now - previous.at), WATCHED_SECONDS), 1)


def _finish(draft: _SmiRow, processes: list[Process] | None, idle_seconds: float | None) -> GpuReading:
    board, instance, uses = draft.board, draft.instance, draft.uses
    if uses:
        draft.measured.add_up_memory([use.memory_bytes for use in uses])
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
        processes=processes,
        processes_reason=draft.uses_reason,
        idle_seconds=idle_seconds,
    )


def _name_owner(use: SmiProcess, owner: ProcessOwner, is_display: Callable[[str], bool]) -> Process:
    reasons = {"utilization_percent": _NO_UTILIZATION}
    if use.memory_reason is not None:
        reasons["memory_used_bytes"] = use.memory_reason
    display = use.graphics_only and is_display(owner.name)
    return owner.process(use.pid, use.memory_bytes, None, reasons, display=display)


def _find_gone(boards: Iterable[SmiBoard], previous: SmiState | None) -> list[SmiBoard]:
    listed = {board.uuid for board in boards}
    return [board for board in (previous.boards if previous else ()) if board.uuid not in listed]


def _as_missing(board: SmiBoard, listed: SmiBoards) -> SmiBoard:
    """`board`, which was here before; what nvidia-smi says about its PCI address is the reason."""
    said = (complaint for complaint in listed.complaints if board.bus_id and read_bus_id(complaint) == board.bus_id)
    complaint = next(said, _GONE)
    return _missing(board, why if (why := explain(complaint)) in FATAL else complaint)


def _missing(board: SmiBoard, reason: str) -> SmiBoard:
    return msgspec.structs.replace(_remember(board), missing=reason[:1000])


def _remember(board: SmiBoard) -> SmiBoard:
    """What stays the same of a board."""
    return SmiBoard(board.uuid, board.index, board.name, board.bus_id)
