"""Who used how many GPU-hours in a period, as it is summed up, sent out and shown. Pure."""

from typing import Literal

from msgspec import Struct, field

By = Literal["user", "group", "host", "model"]


class Day(Struct):
    """A day of a row: `day` is its date in the zone asked for, `time` when it begins there."""

    day: str
    time: float
    gpu_hours: float
    worked_hours: float | None


class UsageRow(Struct, omit_defaults=True):
    """Exactly one of user, group, host, model is the row's name; `unknown` marks those whom nobody could name.

    `share` is of all GPU-hours that the fleet had and were observed. `measured_hours` are those of `gpu_hours` with a
    known utilization: what `worked_hours` are a part of. `worked_hours` is None when no utilization was
    known at all, `energy_kwh` when no power was, `cost` when no price is set.
    """

    gpu_hours: float
    measured_hours: float
    worked_hours: float | None
    idle_held_hours: float
    share: float | None
    peak_memory_bytes: float | None
    energy_kwh: float | None
    cost: float | None = None
    user: str | None = None
    group: str | None = None
    host: str | None = None
    model: str | None = None
    unknown: bool = False
    days: list[Day] = field(default_factory=list)

    def name_by(self, by: By) -> str | None:
        """What it is called; None where nobody knows, and for those that are in no group."""
        return {"user": self.user, "group": self.group, "host": self.host, "model": self.model}[by]


class Usage(Struct):
    """`coverage` is how much of the GPUs' time in the period was observed (0–1); None when no GPU was known then.

    A GPU's time begins when it is first seen: `known_since` is when the first of them was, if after the period's start.
    """

    by: By
    start: float
    end: float
    coverage: float | None
    observed_gpu_hours: float
    currency: str
    rows: list[UsageRow]
    total: UsageRow
    known_since: float | None = None
