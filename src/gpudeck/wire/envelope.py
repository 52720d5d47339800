"""The envelope: who sends a report, when, and where it stands in the order of that sender's reports.

Version 1 is a whole report. It grows by optional fields only: a reader ignores fields it does not know, so an older hub
takes a newer agent's reports and the other way round. Version 2 is a short report: the numbers of a host of which
nothing else has changed since a whole one. Whatever an old reader would misunderstand, such as a further number in a
short report, needs version 3.
"""

import struct
from hashlib import blake2b
from math import nan
from typing import Annotated

import msgspec
from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gpudeck.model.report import JobCgroups, Report, Word

VERSION = 1
SHORT_VERSION = 2

# A bare $ would let a last line break through.
HOST_NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$(?!\n)"
HostName = Annotated[str, Meta(max_length=253, pattern=HOST_NAME)]
DescriptionId = Annotated[str, Meta(max_length=64)]


class Head(Struct, frozen=True, omit_defaults=True):
    """What reports of both versions have. See Envelope."""

    version: Annotated[int, Meta(ge=1)]
    host: HostName
    boot_id: Word
    sequence: Annotated[int, Meta(ge=0, lt=2**53)]
    collected_at: Annotated[float, Meta(ge=0, le=1e11)]
    interval_seconds: Annotated[float, Meta(gt=0, le=86_400)]
    run_id: Annotated[str, Meta(max_length=64)] = ""
    host_id: Annotated[str, Meta(max_length=128)] = ""
    agent_version: Annotated[str, Meta(max_length=64)] = ""
    simulated: bool = False


class Envelope(Head, frozen=True, kw_only=True):
    """Version 1: a whole report.

    Reports of one agent are ordered by `sequence` within (`boot_id`, `run_id`), never by clock: `run_id` is new each
    time the agent starts. `collected_at` is the agent's clock. `host_id` outlives renames (the machine id); without one
    the name is the identity. `simulated` reports are taken by a demo hub only.

    `description` is the sender's name for all of the report but its numbers: short reports of the same run may refer to
    it. Without one none can.
    """

    report: Report
    description: DescriptionId = ""


class ShortReport(Head, frozen=True, kw_only=True):
    """Version 2: new numbers for the last whole report of the same run, if that had this `description`.

    `numbers` are little-endian doubles in the order of that report: the metrics of the host; the metrics of each GPU,
    one GPU after another; `idle_seconds` of each GPU; `memory_used_bytes` and `utilization_percent` of each process,
    GPU by GPU; `used_bytes` of each disk. All metrics of the whole report are there, and no others. NaN as a number
    that may be left out (of a GPU or a process) is None.

    `job_cgroups` are there when they were just read, every half minute; in other reports they are as before.
    """

    description: Annotated[DescriptionId, Meta(min_length=1)]
    numbers: bytes
    job_cgroups: JobCgroups = field(default_factory=list)


_encoder = msgspec.msgpack.Encoder()


def describe(report: Report) -> str:
    """The id of all that a report says but its numbers and cgroups: the same for two reports that differ in nothing
    else."""
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
    words = replace(report, metrics=dict.fromkeys(report.metrics, 0), gpus=gpus, disks=disks, job_cgroups=[])
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
