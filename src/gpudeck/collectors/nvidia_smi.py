"""A whole machine through nvidia-smi: GPUs, processes, owners and the host's figures, in one round trip.

For machines where NVML cannot be used from here: read over SSH, or without a usable nvidia-ml-py. Not read this way:
NVLink, energy, PCIe throughput, and the utilization by process.
"""

from collections.abc import Callable, Iterator, Sequence

import msgspec
from msgspec import Struct, field

from gpudeck.child_process import MAX_BYTES, ChildFailed, run
from gpudeck.collectors import base, smi_command
from gpudeck.collectors.owners import GpuDraft, ProcessUse, merge_uses
from gpudeck.collectors.smi_gpus import (
    MAX_BOARDS,
    SmiBoard,
    SmiBoards,
    SmiDetails,
    SmiInstance,
    SmiProcess,
    list_boards,
    list_instances,
    measure_instance,
    note_rows,
    read_details,
)
from gpudeck.collectors.smi_host import SmiCounters, SmiHost, SmiIdentity, read_clock, read_host, read_owners
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.text import read_whole

DEADLINE_SECONDS = 30.0
_MAX_COMPLAINTS = 8
_LOOK = "Look at the kernel log (dmesg)."
_NO_PLACE = "nvidia-smi does not report which MIG instance is which"
_GONE = "the driver no longer lists this GPU"
_DEFAULTS = base.CollectorSettings()


def run_here(command: str, deadline_seconds: float = DEADLINE_SECONDS, bytes_at_most: int = MAX_BYTES) -> str:
    """What the command prints, whatever its exit code. Raises Temporary when it takes too long or prints too much."""
    try:
        found = run(["/bin/sh", "-c", command], seconds=deadline_seconds, bytes_at_most=bytes_at_most)
    except ChildFailed as error:
        if error.why == "time":
            raise Temporary("nvidia-smi did not answer in time: the driver may hang.", _LOOK) from error
        raise
    return found.output.decode(errors="replace")


def explain_failure(answer: smi_command.SmiAnswer, listed: SmiBoards, before: int) -> PluginError:
    """Why no GPU is in the answer. `before` is how many there were in the last one that had any."""
    code = read_whole(answer.first("gpus-code"), 255)
    said = " ".join(listed.complaints[:2])
    if code in smi_command.LATE_CODES:
        limit = read_whole(answer.first("limit"), 3600) or smi_command.SECONDS
        return Temporary(f"nvidia-smi did not answer within {limit} s: the driver hangs.", _LOOK)
    if code == smi_command.NO_PROGRAM or "No devices were found" in said:
        message = (
            "There is no nvidia-smi on this machine." if code == smi_command.NO_PROGRAM else "nvidia-smi finds no GPU."
        )
        return Temporary(f"{message} There were {before} before.", _LOOK) if before else Absent(message)
    if "Insufficient Permissions" in said:
        return Refused(f"nvidia-smi may not be used: {said}.", "Look at the permissions of /dev/nvidia*.")
    if "Driver/library version mismatch" in said:
        hint = "The driver was updated: reload the kernel module or restart the machine."
        return Temporary("The NVIDIA library and the loaded kernel module are of different versions.", hint)
    return Temporary(f"nvidia-smi lists no GPU (exit code {code}): {said or 'it said nothing'}")


def find_problems(answer: smi_command.SmiAnswer, listed: SmiBoards) -> list[str]:
    code = answer.first("gpus-code")
    heading = "nvidia-smi" if code == "0" else f"nvidia-smi (exit code {smi_command.quote(code)})"
    return [f"{heading}: {complaint}" for complaint in listed.complaints[:_MAX_COMPLAINTS]]


class SmiState(Struct, frozen=True):
    """What the next answer of the same machine is compared with. `columns` are those its driver understands."""

    at: float
    counters: SmiCounters
    columns: tuple[str, ...] = smi_command.COLUMNS
    boards: tuple[SmiBoard, ...] = ()
    idle_seconds: dict[str, float | None] = field(default_factory=dict)


class SmiReading(Struct, frozen=True):
    """One answer, read. Hand `kept` to the next `parse` of this machine. `clock` is that machine's own, if known."""

    report: Report
    identity: SmiIdentity
    kept: SmiState
    clock: float | None = None


class NvidiaSmiCollector(base.Collector):
    """This machine, or with another `run` any other, through nvidia-smi. `run` gets a shell command and returns its
    output; it bounds time and size. With `commands: name` and `none` command lines are not even asked for."""

    name = "nvidia_smi"

    def __init__(self, run: Callable[[str], str] = run_here, settings: base.CollectorSettings = _DEFAULTS) -> None:
        self._run = run
        self._settings = settings
        self._kept: SmiState | None = None
        self._columns = smi_command.COLUMNS
        self.identity: SmiIdentity | None = None

    def collect(self, now: float) -> Report:
        # After a failure the driver may be another one: everything is asked for again.
        columns, self._columns = self._columns, smi_command.COLUMNS
        command = smi_command.shell_command(columns, with_arguments=self._settings.commands in {"full", "redacted"})
        reading = parse(self._run(command), now, self._kept, self._settings)
        self._kept, self._columns, self.identity = reading.kept, reading.kept.columns, reading.identity
        return reading.report


def make(settings: base.CollectorSettings) -> NvidiaSmiCollector:
    return NvidiaSmiCollector(settings=settings)


def parse(
    text: str, now: float, previous: SmiState | None = None, settings: base.CollectorSettings = _DEFAULTS
) -> SmiReading:
    """What a machine answered to `shell_command`, as a report. Raises Absent where there is no nvidia-smi or no GPU,
    Refused where it may not be used, Temporary for an answer that is not whole. `parse_host` reads the host's figures
    then."""
    answer = smi_command.split_answer(text)
    if answer.cut_in is not None:
        raise Temporary(f"The answer of the machine breaks off in the part {smi_command.quote(answer.cut_in)!r}.")
    columns = tuple(answer.first("columns").split(","))
    listed = list_boards(columns, answer.lines("gpus"))
    if not listed.boards:
        raise explain_failure(answer, listed, len(previous.boards) if previous else 0)
    host = read_host(answer, previous.counters if previous else None)
    there = {board.uuid for board in listed.boards}
    gone = [_as_missing(board, listed) for board in (previous.boards if previous else ()) if board.uuid not in there]
    drafts = [*_draft_rows(answer, listed.boards), *(_draft(board, board.measured) for board in gone)][:MAX_BOARDS]
    owners = read_owners(answer, host, [use.pid for draft in drafts for use in draft.uses or ()], settings)
    is_display = base.display_matcher(settings.display_servers)
    idle = {draft.gpu.uuid: _watch(draft.gpu, now, previous) for draft in drafts}
    report = _host_report(
        host,
        gpus=[draft.finish(owners, is_display, idle_seconds=idle[draft.gpu.uuid]) for draft in drafts],
        driver_version=next((board.driver_version for board in listed.boards if board.driver_version), None),
        problems=find_problems(answer, listed),
    )
    boards = tuple(_remember(board) for board in (*listed.boards, *gone))[:MAX_BOARDS]
    return SmiReading(report, host.identity, SmiState(now, host.counters, columns, boards, idle), read_clock(answer))


def parse_host(text: str, now: float, reason: str, previous: SmiState | None = None) -> SmiReading:
    """The host's figures alone, for an answer that `parse` refused or that breaks off. Raises Temporary where it is
    none at all."""
    answer = smi_command.split_answer(text)
    host = read_host(answer, previous.counters if previous else None)
    kept = SmiState(now, host.counters, boards=previous.boards if previous else ())
    rows = [_draft(_missing(board, reason), base.Measured({}, {})).gpu for board in kept.boards]
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


def _draft_rows(answer: smi_command.SmiAnswer, boards: Sequence[SmiBoard]) -> Iterator[GpuDraft]:
    details = read_details(answer.lines("details"))
    instances = list_instances(answer.lines("instances"), answer.lines("table"), boards)
    for board in boards:
        of_board = details.get(board.bus_id or "", SmiDetails())
        if board.missing:
            yield _draft(board, board.measured)
        elif board.is_split:
            note_rows(board.measured, of_board.rows)
            yield from _draft_instances(board, instances.get(board.uuid, []), of_board)
        else:
            note_rows(board.measured, of_board.rows)
            uses = None if of_board.uses is None else merge_uses(of_board.uses)
            yield _draft(board, board.measured, uses, of_board.uses_reason if uses is None else None)


def _draft_instances(board: SmiBoard, instances: list[SmiInstance], details: SmiDetails) -> Iterator[GpuDraft]:
    if not instances:
        yield _draft(board, board.measured, None, base.NO_INSTANCES)
    by_place: dict[tuple[int, int] | None, list[SmiProcess]] = {}
    for use in details.uses or ():
        by_place.setdefault(use.place, []).append(use)
    memory_owners: dict[int, int] = {}
    for instance in instances:
        place = instance.place
        owner = memory_owners.setdefault(place[0], instance.number) if place else instance.number
        measured = measure_instance(instance, board, None if owner == instance.number else owner)
        if details.uses is None or place is None:
            yield _draft(board, measured, None, _NO_PLACE if place is None else details.uses_reason, instance)
        else:
            yield _draft(board, measured, merge_uses(by_place.get(place, ())), None, instance)


def _draft(
    board: SmiBoard,
    measured: base.Measured,
    uses: list[ProcessUse] | None = None,
    reason: str | None = None,
    instance: SmiInstance | None = None,
) -> GpuDraft:
    if uses:
        measured.add_up_memory([use.memory_bytes for use in uses])
    gpu = GpuReading(
        uuid=instance.uuid if instance else board.uuid,
        index=board.index,
        name=instance.name if instance else board.name,
        vendor="nvidia",
        parent=board.uuid if instance else None,
        instance=instance.number if instance else None,
        pci_address=board.bus_id,
        missing=board.missing,
        metrics=measured.metrics,
        unknown=measured.unknown,
        processes_reason=reason,
    )
    return GpuDraft(gpu, uses)


def _watch(gpu: GpuReading, now: float, previous: SmiState | None) -> float | None:
    """Seconds without work, as far as they were watched; an answer without utilization starts them anew."""
    utilization = gpu.metrics.get("utilization_percent")
    if utilization is None:
        return None
    before = previous.idle_seconds.get(gpu.uuid) if previous else None
    if previous is None or before is None or utilization >= base.WORK_PERCENT:
        return 0.0
    return round(before + min(max(0.0, now - previous.at), base.WATCHED_SECONDS), 1)


def _as_missing(board: SmiBoard, listed: SmiBoards) -> SmiBoard:
    """`board`, which was here before; what nvidia-smi says about its PCI address is the reason."""
    said = (
        complaint
        for complaint in listed.complaints
        if board.bus_id and smi_command.read_bus_id(complaint) == board.bus_id
    )
    complaint = next(said, _GONE)
    return _missing(board, why if (why := smi_command.explain(complaint)) in smi_command.FATAL else complaint)


def _missing(board: SmiBoard, reason: str) -> SmiBoard:
    return msgspec.structs.replace(_remember(board), missing=reason[:1000])


def _remember(board: SmiBoard) -> SmiBoard:
    return SmiBoard(board.uuid, board.index, board.name, board.bus_id)
