"""A whole machine through nvidia-smi: GPUs, processes, their owners and the host's metrics, in one round trip.

Used over SSH. NVLink, energy, PCIe throughput and per-process utilization are not read this way. A field without a
number is unknown, with its reason; nvidia-smi prints
errors between the rows, so a line that is not a GPU's is reported as a problem. The labels of `-q -d PIDS,ROW_REMAPPER`
have not changed from driver 450 to 580.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field
from msgspec.structs import replace

from gpudeck.collectors import base, smi_command
from gpudeck.collectors.base import NO_VALUE, Measured
from gpudeck.collectors.host import HostFigures, boot_id, find_container, machine_id, read_os_name
from gpudeck.collectors.owners import MAX_PLAUSIBLE_BYTES, GpuDraft, ProcessOwner, ProcessUse, merge_uses
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.smi_command import (
    FATAL,
    AnswerFiles,
    explain,
    quote,
    read_bits,
    read_bus_id,
    read_number,
    read_owners,
)
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.errors import Absent, PluginError, Refused, Temporary
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.text import read_whole

MAX_BOARDS = 512
_MAX_COMPLAINTS = 32
_MAX_PROBLEMS = 8
_MAX_PID = 2**32 - 1
_MAX_ID = 65535
_CHECK_LOG = "Look at the kernel log (dmesg)."
_NO_PLACE = "nvidia-smi does not report which MIG instance this is"
_GONE = "the driver no longer lists this GPU"
_NOT_READ = "not read through nvidia-smi"
_NO_COLUMN = "this driver's nvidia-smi has no such column"
_DEFAULTS = base.CollectorSettings()

MEMORY_NAMES = ("memory_used_bytes", "memory_total_bytes")
_REPLACED_LABELS = ("Correctable Error", "Uncorrectable Error")
_PENDING_LABEL = "Pending"
# Has a value only if the GPU cannot remap rows.
_NO_ROWS_LABEL = "Remapped Rows"
_ROW_LABELS = frozenset({*_REPLACED_LABELS, _PENDING_LABEL, _NO_ROWS_LABEL})
_PLACE_LABELS = ("GPU instance ID", "Compute instance ID")

_BOARD_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")
_BOARD_LINE = re.compile(r"GPU [0-9]+: .*\(UUID: (GPU-[0-9A-Za-z-]{1,64})\)")
# Driver 450 names an instance by its board, GPU instance and compute instance: MIG-GPU-<uuid>/1/0.
_INSTANCE_LINE = re.compile(
    r"\s+MIG (\S{1,64})\s+Device\s+([0-9]{1,4}): \(UUID: (MIG-[0-9A-Za-z-]{1,80}(?:/([0-9]{1,4})/([0-9]{1,4}))?)\)"
)
# Compute instances of one GPU instance share the memory cell: it is empty for all but the first.
_TABLE_LINE = re.compile(
    r"\|\s+([0-9]{1,4})\s+([0-9]{1,4})\s+([0-9]{1,4})\s+([0-9]{1,4})\s+\|"
    r"\s*(?:([0-9]{1,9}MiB)\s*/\s*([0-9]{1,9}MiB))?\s*\|.*"
)

_MIB = 1024.0 * 1024.0
Place = tuple[int, int]
"""GPU instance and compute instance."""


class SmiProcess(ProcessUse):
    """A process on one board; `place` is its MIG instance."""

    place: Place | None = None


class SmiDetails(Struct):
    """The details of one board. `uses` is None if its processes are unknown; `rows` are texts by label."""

    uses: list[SmiProcess] | None = None
    uses_reason: str = "nvidia-smi did not list the processes of this GPU"
    rows: dict[str, str] = field(default_factory=dict)


def read_details(lines: Iterable[str]) -> dict[str, SmiDetails]:
    """The boards by bus id. The meaning of a line depends on the lines before it."""
    found: dict[str, SmiDetails] = {}
    board = SmiDetails()
    place: list[int | None] = [None, None]
    for line in lines:
        if line.startswith("GPU ") and (bus_id := read_bus_id(line)) is not None:
            board, place = found.setdefault(bus_id, SmiDetails()), [None, None]
            continue
        label, _, value = (part.strip() for part in line.partition(":"))
        if label in _PLACE_LABELS:
            place[_PLACE_LABELS.index(label)] = read_whole(value, _MAX_ID)
        elif label == "Process ID" and board.uses is not None:
            board.uses.append(_read_process(value, *place))
            place = [None, None]
        elif label == "Processes" and value in {"", "None"}:
            board.uses = []
        elif label == "Processes":
            board.uses_reason = explain(value)
        elif label in _ROW_LABELS:
            board.rows.setdefault(label, value)
        elif label == "Type" and board.uses:
            board.uses[-1] = replace(board.uses[-1], graphics_only=value == "G")
        elif label == "Used GPU Memory" and board.uses:
            _take_memory(board.uses[-1], value)
    return found


def _read_process(pid: str, gpu_instance: int | None, compute_instance: int | None) -> SmiProcess:
    """A process whose pid cannot be read still counts: its GPU is not free."""
    place = None if gpu_instance is None or compute_instance is None else (gpu_instance, compute_instance)
    reasons = {"utilization_percent": _NOT_READ, "memory_used_bytes": NO_VALUE}
    return SmiProcess(read_whole(pid, _MAX_PID) or 0, None, reasons=reasons, place=place)


def _take_memory(use: SmiProcess, value: str) -> None:
    memory = read_number(value)
    if memory is not None and 0 <= memory <= MAX_PLAUSIBLE_BYTES:
        use.memory_bytes = int(memory)
        use.reasons.pop("memory_used_bytes", None)
    else:
        use.reasons["memory_used_bytes"] = explain(value)


class SmiBoard(Struct, frozen=True):
    """One row of `--query-gpu`."""

    gpu: GpuReading
    driver_version: str | None = None
    is_split: bool = False


class SmiInstance(Struct, frozen=True):
    """A MIG instance without its metrics. `place` is None if nvidia-smi does not report it; `memory` is bytes used and
    total."""

    gpu: GpuReading
    place: Place | None = None
    memory: tuple[float, float] | None = None


class SmiBoards(NamedTuple):
    boards: list[SmiBoard]
    complaints: list[str]


def _read_state(text: str) -> float | None:
    return read_number(text.strip().removeprefix("P"))


def _read_memory(text: str) -> float | None:
    """Without a unit it is MiB."""
    value = read_number(text)
    return value * _MIB if value is not None and text.strip()[-1:].isdecimal() else value


def _flag(bits: int) -> Callable[[str], float | None]:
    def read(text: str) -> float | None:
        active = read_bits(text)
        return None if active is None else float(bool(active & bits))

    return read


_THROTTLING = "clocks_event_reasons.active"
_READERS: tuple[tuple[str, str, Callable[[str], float | None]], ...] = (
    ("pstate", "performance_state", _read_state),
    ("utilization.gpu", "utilization_percent", read_number),
    ("utilization.memory", "memory_utilization_percent", read_number),
    ("utilization.encoder", "encoder_percent", read_number),
    ("utilization.decoder", "decoder_percent", read_number),
    ("memory.used", "memory_used_bytes", _read_memory),
    ("memory.total", "memory_total_bytes", _read_memory),
    ("temperature.gpu", "temperature_celsius", read_number),
    ("temperature.memory", "memory_temperature_celsius", read_number),
    ("fan.speed", "fan_percent", read_number),
    ("power.draw", "power_watts", read_number),
    ("enforced.power.limit", "power_limit_watts", read_number),
    ("clocks.sm", "clock_sm_mhz", read_number),
    ("clocks.mem", "clock_memory_mhz", read_number),
    # Bits of nvml.h, which never change their meaning.
    (_THROTTLING, "throttled_power", _flag(0x4)),
    (_THROTTLING, "throttled_thermal", _flag(0x20 | 0x40)),
    (_THROTTLING, "throttled_hardware", _flag(0x8 | 0x80)),
    ("ecc.errors.corrected.volatile.total", "ecc_corrected_count", read_number),
    ("ecc.errors.uncorrected.volatile.total", "ecc_uncorrected_count", read_number),
)
_OTHERS = GPU_METRICS.keys() - {name for _, name, _ in _READERS}


def list_boards(columns: Sequence[str], lines: Iterable[str]) -> SmiBoards:
    boards: dict[str, SmiBoard] = {}
    complaints: list[str] = []
    for line in lines:
        # A comma alone may be a decimal point. A row may have fewer or more fields than were requested.
        row = dict.fromkeys(columns, "") | dict(zip(columns, line.split(", "), strict=False))
        uuid, index = row.get("uuid", "").strip(), read_whole(row.get("index", ""), _MAX_ID)
        if _BOARD_UUID.fullmatch(uuid) and index is not None:
            if uuid not in boards and len(boards) < MAX_BOARDS:
                boards[uuid] = _read_board(uuid, index, row)
        elif line.strip() and len(complaints) < _MAX_COMPLAINTS:
            complaints.append(quote(line))
    return SmiBoards(list(boards.values()), list(dict.fromkeys(complaints)))


def _read_board(uuid: str, index: int, row: Mapping[str, str]) -> SmiBoard:
    reasons = (explain(text) for text in row.values() if text.startswith("["))
    missing = next((why for why in reasons if why in FATAL), None)
    metrics, unknown = ({}, {}) if missing else _measure(row)
    name = clean(row.get("name", "")).strip()[:256] or "NVIDIA GPU"
    bus_id, version = read_bus_id(row.get("pci.bus_id", "")), clean(row.get("driver_version", "")).strip()[:64]
    return SmiBoard(
        GpuReading(uuid, index, name, "nvidia", pci_address=bus_id, missing=missing, metrics=metrics, unknown=unknown),
        version if version[:1].isdigit() else None,
        row.get("mig.mode.current", "").strip() == "Enabled",
    )


def _measure(row: Mapping[str, str]) -> Measured:
    measured = Measured({}, dict.fromkeys(_OTHERS, _NOT_READ))
    renamed = {_THROTTLING: row.get("clocks_throttle_reasons.active")}
    for column, name, read in _READERS:
        text = row.get(column, renamed.get(column))
        if text is None:
            measured.unknown[name] = _NO_COLUMN
        else:
            _take(measured, name, read(text), text)
    used, total = (measured.metrics.get(name) for name in MEMORY_NAMES)
    # Chips that share the host's memory (GB10, Jetson) may report 0 for both.
    is_wrong = total is not None and used is not None and used > total
    for name in MEMORY_NAMES if total == 0 else MEMORY_NAMES[:1] if is_wrong else ():
        measured.take(name, None)
    return measured


def _take(measured: Measured, name: str, value: float | None, text: str = "") -> None:
    measured.take(name, value, NO_VALUE if value is not None else explain(text))


def list_instances(
    listing: Iterable[str], table: Iterable[str], boards: Iterable[SmiBoard]
) -> dict[str, list[SmiInstance]]:
    """MIG instances by the UUID of their board, from `nvidia-smi -L`; places and memory are in its table."""
    rows = (row for line in table if (row := _TABLE_LINE.fullmatch(line.rstrip())))
    by_device = {(int(row[1]), int(row[4])): row for row in rows}
    by_uuid = {board.gpu.uuid: board.gpu for board in boards}
    found: dict[str, list[SmiInstance]] = {}
    board: GpuReading | None = None
    for line in listing:
        if heading := _BOARD_LINE.match(line):
            board = by_uuid.get(heading[1])
        elif board is not None and (named := _INSTANCE_LINE.match(line)):
            number, uuid = int(named[2]), named[3]
            place, memory = (int(named[4]), int(named[5])) if named[4] else None, None
            if row := by_device.get((board.index, number)):
                place, used, total = (int(row[2]), int(row[3])), read_number(row[5] or ""), read_number(row[6] or "")
                memory = None if used is None or total is None else (used, total)
            name = clean(f"{board.name} MIG {named[1]}")[:256]
            gpu = GpuReading(uuid, board.index, name, "nvidia", board.uuid, number, board.pci_address)
            found.setdefault(board.uuid, []).append(SmiInstance(gpu, place, memory))
    return found


def measure_instance(instance: SmiInstance, board: GpuReading, shares_with: int | None) -> GpuReading:
    """The instance with its own memory, and temperature and clocks of its board. Compute instances of one GPU instance
    share its memory: all but the first refer to the first."""
    measured = Measured({}, dict.fromkeys(GPU_METRICS, base.WHOLE_BOARD))
    for name in base.SHARED_BY_INSTANCES & board.metrics.keys():
        _take(measured, name, board.metrics[name])
    for name, value in zip(MEMORY_NAMES, instance.memory or (None, None), strict=True):
        _take(measured, name, value)
        if shares_with is not None:
            measured.take(name, None, f"shared with instance {shares_with}, counted there")
    return replace(instance.gpu, metrics=measured.metrics, unknown=measured.unknown)


def _note_rows(gpu: GpuReading, rows: Mapping[str, str]) -> None:
    measured = Measured(gpu.metrics, gpu.unknown)
    none = rows.get(_NO_ROWS_LABEL, "") or ("" if rows else "Not Supported")
    replaced = [read_number(rows.get(label, "")) for label in _REPLACED_LABELS]
    known = [count for count in replaced if count is not None]
    _take(measured, "remapped_rows_count", sum(known) if len(known) == len(replaced) else None, none)
    pending = rows.get(_PENDING_LABEL, "")
    _take(measured, "remapped_rows_pending", {"Yes": 1.0, "No": 0.0}.get(pending), none or pending)


def explain_failure(answer: smi_command.SmiAnswer, listed: SmiBoards, before: int) -> PluginError:
    """Why no GPU was listed. `before` is the number of GPUs in the last answer that had any."""
    code = read_whole(answer.first("gpus-code"), 255)
    text = " ".join(listed.complaints[:2])
    if code in smi_command.LATE_CODES:
        limit = read_whole(answer.first("limit"), 3600) or smi_command.SECONDS
        return Temporary(f"nvidia-smi did not answer within {limit} s: the driver hangs.", _CHECK_LOG)
    if code == smi_command.NO_PROGRAM or "No devices were found" in text:
        message = (
            "There is no nvidia-smi on this machine." if code == smi_command.NO_PROGRAM else "nvidia-smi finds no GPU."
        )
        return Temporary(f"{message} There were {before} before.", _CHECK_LOG) if before else Absent(message)
    if "Insufficient Permissions" in text:
        return Refused(f"nvidia-smi may not be used: {text}.", "Look at the permissions of /dev/nvidia*.")
    if "Driver/library version mismatch" in text:
        hint = "The driver was updated: reload the kernel module or restart the machine."
        return Temporary("The NVIDIA library and the loaded kernel module are of different versions.", hint)
    return Temporary(f"nvidia-smi lists no GPU (exit code {code}): {text or 'it printed nothing'}")


class SmiReading(Struct, frozen=True):
    """One parsed answer. `machine_id` is derived as in `host`, and empty if there is none to trust. `clock` is the
    machine's own, if known."""

    report: Report
    boot_id: str
    machine_id: str = ""
    clock: float | None = None


class SmiReader:
    """Reads the answers of one machine, each compared with the one before. `columns` are those that its driver
    understands; after a failure it may be another driver, so all of them are asked for again."""

    def __init__(self, settings: base.CollectorSettings = _DEFAULTS) -> None:
        self.columns: tuple[str, ...] = smi_command.COLUMNS
        self._settings = settings
        self._is_display = base.display_matcher(settings.display_servers)
        self._begin("")

    def _begin(self, boot: str) -> None:
        self._boot_id = boot
        self._boards: tuple[GpuReading, ...] = ()
        self._idle = base.IdleWatch()
        self._figures: HostFigures | None = None

    def shell_command(self, *, with_gpus: bool = True, seconds: int = smi_command.SECONDS) -> str:
        """The next question. With `commands: name` and `none`, command lines are not requested."""
        columns, self.columns = self.columns, smi_command.COLUMNS
        with_arguments = self._settings.commands in {"full", "redacted"}
        return smi_command.shell_command(columns, with_arguments=with_arguments, with_gpus=with_gpus, seconds=seconds)

    def parse(self, text: str, now: float) -> SmiReading:
        """The output of the command as a report. Raises Absent without nvidia-smi or a GPU, Refused if it may not be
        used, Temporary for an incomplete answer. `parse_host` then reads the host's metrics."""
        answer = smi_command.split_answer(text)
        if answer.cut_in is not None:
            raise Temporary(f"The machine's answer breaks off in the part {quote(answer.cut_in)!r}.")
        self._note_boot(answer)
        columns = tuple(answer.first("columns").split(","))
        listed = list_boards(columns, answer.lines("gpus"))
        if not listed.boards:
            raise explain_failure(answer, listed, len(self._boards))
        self.columns = columns
        there = {board.gpu.uuid for board in listed.boards}
        gone = [_as_gone(gpu, listed.complaints) for gpu in self._boards if gpu.uuid not in there]
        drafts = [*_draft_rows(answer, listed.boards), *map(GpuDraft, gone)][:MAX_BOARDS]
        boards = (*(board.gpu for board in listed.boards), *gone)
        self._boards = tuple(_as_missing(gpu, "") for gpu in boards)[:MAX_BOARDS]
        owners = read_owners(answer, [use.pid for draft in drafts for use in draft.uses or ()], self._settings)
        reading = self._read_host(AnswerFiles(answer))
        report = replace(
            reading.report,
            gpus=[self._finish(draft, owners, now) for draft in drafts],
            driver_version=next((board.driver_version for board in listed.boards if board.driver_version), None),
            problems=[f"nvidia-smi: {complaint}" for complaint in listed.complaints[:_MAX_PROBLEMS]],
        )
        return replace(reading, report=report)

    def parse_host(self, text: str, reason: str) -> SmiReading:
        """Only the host's metrics, of an answer that `parse` refused or that is cut off. Raises Temporary if the text
        is no answer at all."""
        answer = smi_command.split_answer(text)
        self._note_boot(answer)
        reading = self._read_host(AnswerFiles(answer))
        reason = reason[:1000]
        gpus = [_as_missing(gpu, reason) for gpu in self._boards] or None
        report = replace(reading.report, gpus=gpus, gpus_reason=None if gpus else reason, problems=[reason])
        return replace(reading, report=report)

    def _note_boot(self, answer: smi_command.SmiAnswer) -> None:
        boot = boot_id(AnswerFiles(answer))
        if boot != self._boot_id:
            # It was restarted, or another machine answers to that name: what was known of it is no longer so.
            self._begin(boot)

    def _read_host(self, files: AnswerFiles) -> SmiReading:
        container = find_container(files)
        self._figures = self._figures or HostFigures(container)
        metrics, unknown = self._figures.read(files, files.uptime_seconds())
        labels = {"container": container} if container else {}
        report = Report(metrics=metrics, unknown=unknown, os=read_os_name(files), labels=labels)
        return SmiReading(report, self._boot_id, machine_id(files), files.clock())

    def _finish(self, draft: GpuDraft, owners: dict[int, ProcessOwner], now: float) -> GpuReading:
        gpu = draft.gpu
        idle_seconds = self._idle.track(gpu.uuid, gpu.metrics.get("utilization_percent"), now)
        return draft.finish(owners, self._is_display, idle_seconds=idle_seconds)


def _draft_rows(answer: smi_command.SmiAnswer, boards: Sequence[SmiBoard]) -> Iterator[GpuDraft]:
    details = read_details(answer.lines("details"))
    instances = list_instances(answer.lines("instances"), answer.lines("table"), boards)
    for board in boards:
        gpu = board.gpu
        of_board = details.get(gpu.pci_address or "", SmiDetails())
        if gpu.missing:
            yield GpuDraft(gpu)
            continue
        _note_rows(gpu, of_board.rows)
        if board.is_split:
            yield from _draft_instances(gpu, instances.get(gpu.uuid, []), of_board)
        else:
            yield _draft(gpu, of_board.uses, of_board.uses_reason)


def _draft_instances(board: GpuReading, instances: list[SmiInstance], details: SmiDetails) -> Iterator[GpuDraft]:
    if not instances:
        yield _draft(board, None, base.NO_INSTANCES)
    by_place: dict[Place | None, list[SmiProcess]] = {}
    for use in details.uses or ():
        by_place.setdefault(use.place, []).append(use)
    memory_owners: dict[int, int] = {}
    for instance in instances:
        place, number = instance.place, instance.gpu.instance or 0
        owner = memory_owners.setdefault(place[0], number) if place else number
        gpu = measure_instance(instance, board, None if owner == number else owner)
        if place is None or details.uses is None:
            yield _draft(gpu, None, _NO_PLACE if place is None else details.uses_reason)
        else:
            yield _draft(gpu, by_place.get(place, ()))


def _draft(gpu: GpuReading, uses: Iterable[ProcessUse] | None, reason: str | None = None) -> GpuDraft:
    if uses is None:
        return GpuDraft(replace(gpu, processes_reason=reason))
    merged = merge_uses(uses)
    Measured(gpu.metrics, gpu.unknown).add_up_memory([use.memory_bytes for use in merged])
    return GpuDraft(gpu, merged)


def _as_gone(gpu: GpuReading, complaints: Iterable[str]) -> GpuReading:
    """A GPU that is no longer listed; the reason is nvidia-smi's complaint about its PCI address, if any."""
    about_it = (text for text in complaints if gpu.pci_address and read_bus_id(text) == gpu.pci_address)
    complaint = next(about_it, _GONE)
    return _as_missing(gpu, why if (why := explain(complaint)) in FATAL else complaint)


def _as_missing(gpu: GpuReading, reason: str) -> GpuReading:
    return GpuReading(
        gpu.uuid, gpu.index, gpu.name, "nvidia", pci_address=gpu.pci_address, missing=reason[:1000] or None
    )
