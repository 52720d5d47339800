"""What `nvidia-smi -q -d PIDS,ROW_REMAPPER` says: the processes of every board, and its replaced memory rows.

The text is made for people, but its words have been the same from driver 450 to 580; what older drivers leave out
(instances, remapped rows) is simply not there.
"""

from collections.abc import Iterable

from msgspec import Struct, field

from gpudeck.collectors.smi_answer import explain, read_bus_id, read_number, read_whole

_PID_AT_MOST = 2**32 - 1
_ID_AT_MOST = 65535
_BYTES_AT_MOST = 2**53
REPLACED_LABELS = ("Correctable Error", "Uncorrectable Error")
PENDING_LABEL = "Pending"
NO_ROWS_LABEL = "Remapped Rows"
"""Has a value only where the GPU cannot replace rows."""
_ROW_LABELS = frozenset({*REPLACED_LABELS, PENDING_LABEL, NO_ROWS_LABEL})


class Use(Struct):
    """What one process has on one board. Unknown memory is None, with the reason. `place` is its MIG instance."""

    pid: int
    place: tuple[int, int] | None = None
    memory_bytes: int | None = None
    memory_reason: str | None = "the driver gives no value"
    graphics_only: bool = False


class Details(Struct):
    """One board. `uses` is None, with the reason, when its processes are unknown; `rows` has texts by their label."""

    uses: list[Use] | None = None
    uses_reason: str = "nvidia-smi did not list the processes of this GPU"
    rows: dict[str, str] = field(default_factory=dict)


def read_details(lines: Iterable[str]) -> dict[str, Details]:
    """The details by PCI address."""
    found: dict[str, Details] = {}
    reader: _BoardReader | None = None
    for line in lines:
        bus_id = read_bus_id(line) if line.startswith("GPU ") else None
        if bus_id is not None:
            reader = _BoardReader(found.setdefault(bus_id, Details()))
        elif reader is not None:
            label, _, value = line.partition(":")
            reader.take(label.strip(), value.strip())
    return found


class _BoardReader:
    """Takes the lines of one board, one by one: what a line means depends on those before it."""

    def __init__(self, details: Details) -> None:
        self._details = details
        self._place: list[int | None] = [None, None]

    def take(self, label: str, value: str) -> None:
        uses = self._details.uses
        if label == "Processes":
            self._begin(value)
        elif label in _ROW_LABELS:
            self._details.rows.setdefault(label, value)
        elif uses is None:
            return
        elif label in {"GPU instance ID", "Compute instance ID"}:
            self._place[label.startswith("C")] = read_whole(value, _ID_AT_MOST)
        elif label == "Process ID":
            self._add(uses, value)
        elif uses and label == "Type":
            uses[-1].graphics_only = value == "G"
        elif uses and label == "Used GPU Memory":
            _note_memory(uses[-1], value)

    def _begin(self, value: str) -> None:
        if value in {"", "None"}:
            self._details.uses = []
        else:
            self._details.uses_reason = explain(value)

    def _add(self, uses: list[Use], value: str) -> None:
        pid = read_whole(value, _PID_AT_MOST)
        gpu_instance, compute_instance = self._place
        place = None if gpu_instance is None or compute_instance is None else (gpu_instance, compute_instance)
        # A process whose number cannot be read is there all the same: its GPU is not free.
        uses.append(Use(pid or 0, place))
        self._place = [None, None]


def _note_memory(use: Use, text: str) -> None:
    value = read_number(text)
    if value is not None and 0 <= value < _BYTES_AT_MOST:
        use.memory_bytes, use.memory_reason = int(value), None
    else:
        use.memory_reason = explain(text)


def merge_uses(uses: Iterable[Use]) -> list[Use]:
    """One use a process, most memory first. A process that computes and draws may be listed twice, each time whole."""
    merged: dict[int, Use] = {}
    for use in uses:
        before = merged.setdefault(use.pid, use)
        before.graphics_only = before.graphics_only and use.graphics_only
        if (use.memory_bytes or -1) > (before.memory_bytes or -1):
            before.memory_bytes, before.memory_reason = use.memory_bytes, None
    return sorted(merged.values(), key=lambda use: -(use.memory_bytes or 0))
