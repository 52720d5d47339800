"""The ranking of GPUs or hosts by faults, as the API, the page and the command line show it."""

from typing import Literal

from msgspec import Struct, field

RankedBy = Literal["gpu", "host"]


class FaultEvidence(Struct):
    """What stands behind a row: `kind` is that of an event, or the name of an alert rule. `is_incident` says whether it
    counts among the incidents. `seconds` is how long it lasted, None where that is not known or makes no sense.
    `last_at` is when it last began."""

    kind: str
    title: str
    count: int
    is_incident: bool
    last_at: float
    seconds: float | None = None


class ReliabilityRow(Struct):
    """A GPU, or a host where `gpu` is None. `host`, `label` and `model` are today's where it is still in the fleet, and
    those of its last event elsewhere; `model` is None then.

    `incidents` are driver errors that no program caused, times that a GPU was lost or a host down, bad health,
    flapping, and drivers that did not answer; those of a host include its GPUs'. `lost_seconds` is for how long it was
    lost or down, `throttled_seconds` for how long alerts about throttling fired.
    """

    host: str
    host_id: str
    incidents: int
    lost_seconds: float
    throttled_seconds: float
    gpu: str | None = None
    label: str | None = None
    model: str | None = None
    evidence: list[FaultEvidence] = field(default_factory=list)


class Reliability(Struct):
    """The worst first: by incidents, then by lost time, then by throttled time. `total` is how many had any of these,
    also where fewer were asked for. `problems` says what is not included."""

    by: RankedBy
    start: float
    end: float
    total: int
    rows: list[ReliabilityRow]
    problems: list[str] = field(default_factory=list)
