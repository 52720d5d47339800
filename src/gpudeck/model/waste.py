"""Wasted GPU-hours and what they cost, as the API, the page and the command line show them."""

from msgspec import Struct, field

from gpudeck.model.view import UsageBy


class WastedHours(Struct, frozen=True):
    """GPU-hours; null is unknown. `cost` is that of the models with a price, null where none has one. `before` are the
    hours of the period before, null where that was not recorded from its beginning on."""

    hours: float | None
    cost: float | None
    before: float | None = None


class WasteRow(Struct):
    """`name` is null for unknown users (`unknown`), and for users or jobs without that name. `idle` are hours in the
    state idle, `unused` allocated hours in which the GPU was not in use, null where no scheduler is read. `oversized`
    are hours at work that would have fitted on a smaller model of this fleet; their cost is the difference of the
    prices. `released` is the part of `idle` after a GPU had been idle for an hour."""

    name: str | None
    unknown: bool
    gpu_hours: float
    idle: WastedHours
    unused: WastedHours
    oversized: WastedHours
    released: WastedHours


class SmallerModel(Struct, frozen=True):
    """Hours on `model` that would have fitted on `smaller`."""

    model: str
    smaller: str
    hours: float
    cost: float | None


class Waste(Struct):
    """The largest sum of wasted hours first. The period before is from `before_start` to `start`. `judged_hours` are
    the GPU-hours of which it is known how much memory they needed. `problem` says what is not known."""

    by: UsageBy
    start: float
    end: float
    before_start: float
    currency: str
    coverage: float | None
    coverage_before: float | None
    judged_hours: float
    released_after_seconds: float
    rows: list[WasteRow]
    total: WasteRow
    smaller: list[SmallerModel] = field(default_factory=list)
    known_since: float | None = None
    allocated_since: float | None = None
    problem: str | None = None
