"""What one host says about itself at one moment: the noun that travels through every room.

A metric is in `metrics` when it is known and in `unknown`, with the reason, when it is not. It is never both, and never
a zero that stands for "could not read". A metric in neither was not reported by this agent.
"""

from typing import Literal

from msgspec import Struct, field

Number = int | float


class Process(Struct, frozen=True, omit_defaults=True):
    """One program on one GPU. A process on four GPUs appears four times, with its memory on each.

    None means unknown; `reasons` says why, by field name. `display` marks Xorg and the like, which do not make a GPU
    busy. `evidence` says how the owner was found.
    """

    pid: int
    user: str | None = None
    command: str | None = None
    memory_used_bytes: int | None = None
    started_at: float | None = None
    utilization_percent: float | None = None
    container: str | None = None
    job: str | None = None
    evidence: str | None = None
    display: bool = False
    reasons: dict[str, str] = field(default_factory=dict)


class GpuReading(Struct, frozen=True, omit_defaults=True):
    """One GPU, or one MIG instance (`parent` is then the board's UUID and `instance` its number on that board).

    `missing` is the reason why a GPU that belongs here cannot be read at all. `processes` is None when the list could
    not be read. `idle_seconds` is how long the agent has seen no work on it; None when the agent does not track that.
    """

    uuid: str
    index: int
    name: str
    vendor: Literal["nvidia", "amd", "intel", "other"] = "other"
    parent: str | None = None
    instance: int | None = None
    missing: str | None = None
    metrics: dict[str, Number] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    processes: list[Process] | None = None
    processes_reason: str | None = None
    idle_seconds: float | None = None


class Report(Struct, frozen=True, omit_defaults=True):
    """A host at one moment. `gpus` is None when no GPU could be read at all: `gpus_reason` says why.

    `problems` are sentences for the admin ("driver not answering for 12 s").
    """

    gpus: list[GpuReading] | None = None
    gpus_reason: str | None = None
    metrics: dict[str, Number] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    driver_version: str | None = None
    os: str | None = None
    labels: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
