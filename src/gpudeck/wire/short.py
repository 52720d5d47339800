"""Short reports: all of a report but its numbers gets an id, and the numbers become one block. See ShortReport."""

import struct
from hashlib import blake2b
from math import nan

import msgspec
from msgspec.structs import replace

from gpudeck.model.report import Report

_encoder = msgspec.msgpack.Encoder()


def describe(report: Report) -> str:
    """The id of all that a report says but its numbers: the same for two reports that differ in nothing else."""
    gpus = report.gpus and [
        replace(
            gpu,
            metrics=dict.fromkeys(gpu.metrics, 0),
            idle_seconds=None,
            processes=gpu.processes
            and [replace(one, memory_used_bytes=None, utilization_percent=None) for one in gpu.processes],
        )
        for gpu in report.gpus
    ]
    disks = [replace(disk, used_bytes=0) for disk in report.disks]
    words = replace(report, metrics=dict.fromkeys(report.metrics, 0), gpus=gpus, disks=disks)
    return blake2b(_encoder.encode(words), digest_size=8).hexdigest()


def pack_numbers(report: Report) -> bytes | None:
    """The numbers of a report as a short one has them. None where a double does not hold one of them exactly, or where
    a metric is NaN: such a report is sent whole."""
    gpus = report.gpus or ()
    metrics = [*report.metrics.values()]
    for gpu in gpus:
        metrics += gpu.metrics.values()
    optional = [gpu.idle_seconds for gpu in gpus]
    for gpu in gpus:
        for process in gpu.processes or ():
            optional += (process.memory_used_bytes, process.utilization_percent)
    disks = [disk.used_bytes for disk in report.disks]
    numbers = (*metrics, *(nan if number is None else number for number in optional), *disks)
    form = f"<{len(numbers)}d"
    try:
        packed = struct.pack(form, *numbers)
    except (struct.error, OverflowError):
        return None
    doubles, disks_at = struct.unpack(form, packed), len(metrics) + len(optional)
    is_exact = doubles[: len(metrics)] == numbers[: len(metrics)] and doubles[disks_at:] == numbers[disks_at:]
    return packed if is_exact else None
