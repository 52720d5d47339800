"""What nvidia-smi prints about boards, MIG instances and their processes, as metrics of the catalog.

A field without a number is an unknown with its reason. A line that is no GPU's is kept as a complaint: nvidia-smi
prints its errors between the rows. The words of `-q -d PIDS,ROW_REMAPPER` have been the same from driver 450 to 580.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from msgspec import Struct, field

from gpudeck.collectors.base import NO_VALUE, SHARED_BY_INSTANCES, WHOLE_BOARD, Measured
from gpudeck.collectors.owners import BYTES_BELOW, ProcessUse
from gpudeck.collectors.redaction import clean
from gpudeck.collectors.smi_command import FATAL, explain, quote, read_bits, read_bus_id, read_number
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.text import read_whole

_MAX_PID = 2**32 - 1
_MAX_ID = 65535
REPLACED_LABELS = ("Correctable Error", "Uncorrectable Error")
PENDING_LABEL = "Pending"
NO_ROWS_LABEL = "Remapped Rows"
"""Has a value only where the GPU cannot replace rows."""
_ROW_LABELS = frozenset({*REPLACED_LABELS, PENDING_LABEL, NO_ROWS_LABEL})
MEMORY_NAMES = ("memory_used_bytes", "memory_total_bytes")
_NOT_READ = "not read through nvidia-smi"
_NO_COLUMN = "this driver's nvidia-smi has no such column"

_MIB = 1024.0 * 1024.0
_BOARD_UUID = re.compile(r"GPU-[0-9A-Za-z-]{1,64}")
_BOARD_LINE = re.compile(r"GPU [0-9]+: .*\(UUID: (GPU-[0-9A-Za-z-]{1,64})\)")
# Driver 450 names an instance by its board, GPU instance and compute instance: MIG-GPU-<uuid>/1/0.
_INSTANCE_LINE = re.compile(
    r"\s+MIG (\S{1,64})\s+Device\s+([0-9]{1,4}): \(UUID: (MIG-[0-9A-Za-z-]{1,80}(?:/([0-9]{1,4})/([0-9]{1,4}))?)\)"
)
# Compute instances of one GPU instance share the cell with its memory: it is empty for all but the first.
_TABLE_LINE = re.compile(
    r"\|\s+([0-9]{1,4})\s+([0-9]{1,4})\s+([0-9]{1,4})\s+([0-9]{1,4})\s+\|"
    r"\s*(?:([0-9]{1,9}MiB)\s*/\s*([0-9]{1,9}MiB))?\s*\|.*"
)
# Bits of nvml.h, which never change their meaning.
_POWER_CAP, _THERMAL, _HARDWARE = 0x4, 0x20 | 0x40, 0x8 | 0x80
_MAX_INDEX = 65535
MAX_BOARDS = 512
_MAX_COMPLAINTS = 32


class SmiProcess(ProcessUse):
    """What one process has on one board. `place` is its MIG instance."""

    place: tuple[int, int] | None = None


class SmiDetails(Struct):
    """One board. `uses` is None, with the reason, when its processes are unknown; `rows` has texts by their label."""

    uses: list[SmiProcess] | None = None
    uses_reason: str = "nvidia-smi did not list the processes of this GPU"
    rows: dict[str, str] = field(default_factory=dict)


def read_details(lines: Iterable[str]) -> dict[str, SmiDetails]:
    """The boards by their bus ids. What a line means depends on those before it."""
    found: dict[str, SmiDetails] = {}
    board: SmiDetails | None = None
    place: list[int | None] = [None, None]
    for line in lines:
        if line.startswith("GPU ") and (bus_id := read_bus_id(line)) is not None:
            board, place = found.setdefault(bus_id, SmiDetails()), [None, None]
        elif board is not None:
            label, _, value = (part.strip() for part in line.partition(":"))
            if label in {"GPU instance ID", "Compute instance ID"}:
                place[label.startswith("C")] = read_whole(value, _MAX_ID)
            elif label == "Process ID" and board.uses is not None:
                board.uses.append(_read_process(value, place))
                place = [None, None]
            else:
                _take_detail(board, label, value)
    return found


def _read_process(pid: str, place: list[int | None]) -> SmiProcess:
    """A process whose number cannot be read is there all the same: its GPU is not free."""
    gpu_instance, compute_instance = place
    instance = None if gpu_instance is None or compute_instance is None else (gpu_instance, compute_instance)
    reasons = {"utilization_percent": _NOT_READ, "memory_used_bytes": NO_VALUE}
    return SmiProcess(read_whole(pid, _MAX_PID) or 0, None, reasons=reasons, place=instance)


def _take_detail(board: SmiDetails, label: str, value: str) -> None:
    if label == "Processes" and value in {"", "None"}:
        board.uses = []
    elif label == "Processes":
        board.uses_reason = explain(value)
    elif label in _ROW_LABELS:
        board.rows.setdefault(label, value)
    elif board.uses:
        _take_use(board.uses[-1], label, value)


def _take_use(use: SmiProcess, label: str, value: str) -> None:
    if label == "Type":
        use.graphics_only = value == "G"
    elif label == "Used GPU Memory":
        memory = read_number(value)
        if memory is not None and 0 <= memory < BYTES_BELOW:
            use.memory_bytes = int(memory)
            use.reasons.pop("memory_used_bytes", None)
        else:
            use.reasons["memory_used_bytes"] = explain(value)


class SmiBoard(Struct, frozen=True):
    """One row of `--query-gpu`. `missing` is the reason why the board cannot be read at all."""

    uuid: str
    index: int
    name: str
    bus_id: str | None = None
    driver_version: str | None = None
    is_split: bool = False
    missing: str | None = None
    measured: Measured = field(default_factory=lambda: Measured({}, {}))


class SmiInstance(Struct, frozen=True):
    """A MIG instance. `place` are its GPU and compute instance, None where nvidia-smi does not say."""

    uuid: str
    name: str
    number: int
    place: tuple[int, int] | None = None
    memory: tuple[float, float] | None = None
    """Bytes used and altogether."""


class SmiBoards(NamedTuple):
    boards: list[SmiBoard]
    complaints: list[str]


def _flag(bits: int) -> Callable[[str], float | None]:
    def read(text: str) -> float | None:
        active = read_bits(text)
        return None if active is None else float(bool(active & bits))

    return read


def _read_memory(text: str) -> float | None:
    """Without its unit it is MiB."""
    value = read_number(text)
    return value * _MIB if value is not None and text.strip()[-1:].isdecimal() else value


def _read_state(text: str) -> float | None:
    return read_number(text.strip().removeprefix("P"))


_READERS: dict[str, tuple[tuple[str, Callable[[str], float | None]], ...]] = {
    "pstate": (("performance_state", _read_state),),
    "utilization.gpu": (("utilization_percent", read_number),),
    "utilization.memory": (("memory_utilization_percent", read_number),),
    "utilization.encoder": (("encoder_percent", read_number),),
    "utilization.decoder": (("decoder_percent", read_number),),
    "memory.used": (("memory_used_bytes", _read_memory),),
    "memory.total": (("memory_total_bytes", _read_memory),),
    "temperature.gpu": (("temperature_celsius", read_number),),
    "temperature.memory": (("memory_temperature_celsius", read_number),),
    "fan.speed": (("fan_percent", read_number),),
    "power.draw": (("power_watts", read_number),),
    "enforced.power.limit": (("power_limit_watts", read_number),),
    "clocks.sm": (("clock_sm_mhz", read_number),),
    "clocks.mem": (("clock_memory_mhz", read_number),),
    "clocks_event_reasons.active": (
        ("throttled_power", _flag(_POWER_CAP)),
        ("throttled_thermal", _flag(_THERMAL)),
        ("throttled_hardware", _flag(_HARDWARE)),
    ),
    "ecc.errors.corrected.volatile.total": (("ecc_corrected_count", read_number),),
    "ecc.errors.uncorrected.volatile.total": (("ecc_uncorrected_count", read_number),),
}
_ASKED = {name for readers in _READERS.values() for name, _ in readers}


def list_boards(columns: Sequence[str], lines: Iterable[str]) -> SmiBoards:
    boards: dict[str, SmiBoard] = {}
    complaints: list[str] = []
    for line in lines:
        # A comma alone may be the decimal point of some locale. A row may be short, and hold more than was asked for.
        row = dict.fromkeys(columns, "") | dict(zip(columns, line.split(", "), strict=False))
        uuid, index = row.get("uuid", "").strip(), read_whole(row.get("index", ""), _MAX_INDEX)
        if _BOARD_UUID.fullmatch(uuid) and index is not None:
            if uuid not in boards and len(boards) < MAX_BOARDS:
                boards[uuid] = _read_board(uuid, index, row)
        elif line.strip() and len(complaints) < _MAX_COMPLAINTS:
            complaints.append(quote(line))
    return SmiBoards(list(boards.values()), list(dict.fromkeys(complaints)))


def _read_board(uuid: str, index: int, row: Mapping[str, str]) -> SmiBoard:
    missing = next((why for text in row.values() if (why := explain_fatal(text))), None)
    return SmiBoard(
        uuid,
        index,
        clean(row.get("name", "")).strip()[:256] or "NVIDIA GPU",
        read_bus_id(row.get("pci.bus_id", "")),
        _read_version(row.get("driver_version", "")),
        row.get("mig.mode.current", "").strip() == "Enabled",
        missing,
        Measured({}, {}) if missing else _measure(row),
    )


def explain_fatal(text: str) -> str | None:
    why = explain(text) if text[:1] == "[" else None
    return why if why in FATAL else None


def _read_version(text: str) -> str | None:
    version = clean(text).strip()[:64]
    return version if version[:1].isdigit() else None


def _measure(row: Mapping[str, str]) -> Measured:
    measured = Measured({}, dict.fromkeys(GPU_METRICS.keys() - _ASKED, _NOT_READ))
    older = {"clocks_event_reasons.active": row.get("clocks_throttle_reasons.active")}
    for column, readers in _READERS.items():
        text = row.get(column, older.get(column))
        for name, read in readers:
            if text is None:
                measured.unknown[name] = _NO_COLUMN
            else:
                _take(measured, name, read(text), text)
    used, total = (measured.metrics.get(name) for name in MEMORY_NAMES)
    if total == 0:
        # Chips that share the host's memory (GB10, Jetson) may answer 0 for both.
        _disbelieve(measured, MEMORY_NAMES)
    elif used is not None and total is not None and used > total:
        _disbelieve(measured, MEMORY_NAMES[:1])
    return measured


def _disbelieve(measured: Measured, names: Iterable[str]) -> None:
    for name in names:
        measured.metrics.pop(name, None)
        measured.unknown[name] = NO_VALUE


def _take(measured: Measured, name: str, value: float | None, text: str = "") -> None:
    measured.take(name, value, NO_VALUE if value is not None else explain(text))


def list_instances(
    listing: Iterable[str], table: Iterable[str], boards: Iterable[SmiBoard]
) -> dict[str, list[SmiInstance]]:
    """The MIG instances by the UUID of their board, from `nvidia-smi -L` and, for memory, from its table."""
    places = _read_table(table)
    by_uuid = {board.uuid: board for board in boards}
    found: dict[str, list[SmiInstance]] = {}
    board: SmiBoard | None = None
    for line in listing:
        if heading := _BOARD_LINE.match(line):
            board = by_uuid.get(heading[1])
        elif board is not None and (row := _INSTANCE_LINE.match(line)):
            named = (int(row[4]), int(row[5])) if row[4] else None
            place, memory = places.get((board.index, int(row[2])), (named, None))
            found.setdefault(board.uuid, []).append(
                SmiInstance(row[3], clean(f"{board.name} MIG {row[1]}")[:256], int(row[2]), place, memory)
            )
    return found


_Places = dict[tuple[int, int], tuple[tuple[int, int] | None, tuple[float, float] | None]]


def _read_table(table: Iterable[str]) -> _Places:
    places: _Places = {}
    for line in table:
        if row := _TABLE_LINE.fullmatch(line.rstrip()):
            used, total = read_number(row[5] or ""), read_number(row[6] or "")
            memory = None if used is None or total is None else (used, total)
            places[int(row[1]), int(row[4])] = ((int(row[2]), int(row[3])), memory)
    return places


def measure_instance(instance: SmiInstance, board: SmiBoard, shares_with: int | None) -> Measured:
    """Memory of its own, temperature and clocks of its board. Compute instances of one GPU instance share its memory:
    all but the first name the first."""
    measured = Measured({}, dict.fromkeys(GPU_METRICS, WHOLE_BOARD))
    for name in SHARED_BY_INSTANCES & board.measured.metrics.keys():
        _take(measured, name, board.measured.metrics[name])
    for name, value in zip(MEMORY_NAMES, instance.memory or (None, None), strict=True):
        _take(measured, name, value)
        if shares_with is not None:
            measured.metrics.pop(name, None)
            measured.unknown[name] = f"shared with instance {shares_with}, counted there"
    return measured


def note_rows(measured: Measured, rows: Mapping[str, str]) -> None:
    none = rows.get(NO_ROWS_LABEL, "") or ("" if rows else "Not Supported")
    replaced = [read_number(rows.get(label, "")) for label in REPLACED_LABELS]
    known = [count for count in replaced if count is not None]
    _take(measured, "remapped_rows_count", sum(known) if len(known) == len(replaced) else None, none)
    pending = rows.get(PENDING_LABEL, "")
    _take(measured, "remapped_rows_pending", {"Yes": 1.0, "No": 0.0}.get(pending), none or pending)
