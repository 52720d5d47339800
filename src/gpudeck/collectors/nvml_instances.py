"""MIG instances of a board: finding them, and what is known of each.

Most of NVML answers only for the board as a whole. An instance has memory and processes of its own, its board's
temperature and clocks, and no utilization.
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct

from gpudeck.collectors.nvml_device import MEMORY, Measured, measure
from gpudeck.collectors.nvml_errors import FATAL, NO_SUCH_INSTANCE
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


def find_instances(nvml: Any, handle: Any) -> list[Instance] | None:
    """The MIG instances of a board in MIG mode, which may be none; None where the board is used as a whole."""
    try:
        current_mode, _ = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if error.value in FATAL:
            raise
        return None
    return list(_walk_instances(nvml, handle)) if current_mode == nvml.NVML_DEVICE_MIG_ENABLE else None


def _walk_instances(nvml: Any, board: Any) -> Iterator[Instance]:
    memory_owners: dict[int, int] = {}
    for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(board)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(board, number)
            uuid, name = nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle)
            memory_owner = memory_owners.setdefault(nvml.nvmlDeviceGetGpuInstanceId(handle), number)
        except nvml.NVMLError as error:
            # Slots need not be filled from the front, and an instance may be destroyed while they are walked.
            if error.value not in NO_SUCH_INSTANCE:
                raise
            continue
        yield Instance(uuid, name, handle, number, None if memory_owner == number else memory_owner)


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
