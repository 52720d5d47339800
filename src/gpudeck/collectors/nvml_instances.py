"""MIG instances of a board: finding them, and what is known of each.

Most of NVML answers only for the board as a whole. An instance has memory and processes of its own, its board's
temperature and clocks, and no utilization.
"""

from typing import Any, NamedTuple

from msgspec import Struct

from gpudeck.collectors.nvml_device import MEMORY, Measured, measure
from gpudeck.collectors.nvml_errors import FATAL, NO_SUCH_INSTANCE, explain
from gpudeck.collectors.nvml_names import read_name, read_uuid
from gpudeck.model.catalog import GPU_METRICS, Rollup

WHOLE_BOARD = "measured on the whole board, not by MIG instance"

# The chip's temperature and clocks are every instance's; a sum would count them once for each, and a load is the load
# of all instances together.
_LOADS = frozenset({"utilization_percent", "memory_utilization_percent", "encoder_percent", "decoder_percent"})
_SHARED_BY_INSTANCES = frozenset(
    name for name, metric in GPU_METRICS.items() if metric.rollup is not Rollup.SUM and name not in _LOADS
)


class Instance(Struct, frozen=True):
    """A MIG instance. Compute instances of one GPU instance share its memory: all but the first say with whom."""

    uuid: str
    name: str
    handle: Any
    number: int
    shares_memory_with: int | None = None


class Instances(NamedTuple):
    """The MIG instances of a board in MIG mode, which may be none, and a sentence for each that cannot be opened."""

    opened: list[Instance]
    refused: list[str]


def find_instances(nvml: Any, handle: Any) -> Instances | None:
    """None where the board is used as a whole."""
    try:
        current_mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        return None
    return _walk_instances(nvml, handle) if current_mode == nvml.NVML_DEVICE_MIG_ENABLE else None


def _walk_instances(nvml: Any, board: Any) -> Instances:
    """One that cannot be opened hides no other: a container may have been given some of a board's instances only."""
    found = Instances([], [])
    memory_owners: dict[int, int] = {}
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        try:
            found.opened.append(_open_instance(nvml, board, number, memory_owners))
        except nvml.NVMLError as error:
            if error.value in FATAL:
                raise
            # Slots need not be filled from the front, and an instance may be destroyed while they are walked.
            if error.value not in NO_SUCH_INSTANCE:
                found.refused.append(f"MIG instance {number} cannot be opened: {explain(error)}")
    return found


def _open_instance(nvml: Any, board: Any, number: int, memory_owners: dict[int, int]) -> Instance:
    handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, number)
    uuid, name = read_uuid(nvml, handle), read_name(nvml, handle)
    memory_owner = memory_owners.setdefault(nvml.nvmlDeviceGetGpuInstanceId(handle), number)
    return Instance(uuid, name, handle, number, None if memory_owner == number else memory_owner)


def measure_instance(nvml: Any, instance: Instance, board: Measured) -> Measured:
    """The readings of a MIG instance. Raises a code of NO_SUCH_INSTANCE when it was destroyed."""
    measured = measure(nvml, instance.handle, (MEMORY,), FATAL | NO_SUCH_INSTANCE)
    if instance.shares_memory_with is not None:
        measured.metrics.clear()
        measured.unknown.update(
            dict.fromkeys(MEMORY.names, f"shared with instance {instance.shares_memory_with}, counted there")
        )
    for name in GPU_METRICS.keys() - set(MEMORY.names):
        if name in _SHARED_BY_INSTANCES and name in board.metrics:
            measured.metrics[name] = board.metrics[name]
        else:
            measured.unknown[name] = board.unknown.get(name, WHOLE_BOARD)
    return measured
