"""Usage of the fleet in a period, wasted GPU-hours and digests, as the API, the page and the command line show them."""

from typing import Final, Literal

from msgspec import Struct, field

By = Literal["user", "group", "host", "model"]
UsageBy = Literal["user", "group", "host", "model", "account", "partition", "namespace", "label"]


class Day(Struct):
    """A day of a row: `day` is its date in the requested zone, `time` when it begins there."""

    day: str
    time: float
    gpu_hours: float
    active_hours: float | None


class UsageRow(Struct, omit_defaults=True):
    """Exactly one of user, group, host, model, account, partition, namespace, label is the row's name; `unknown` marks
    users who could not be identified.

    `share` is of all monitored GPU-hours of the fleet, without jobs that were imported; None where all of them were.
    `active_hours` are GPU-hours times utilization, `idle_hours` GPU-hours in the state idle. `measured_hours` are the
    GPU-hours with a known utilization: `active_hours` divided by them is the utilization. `active_hours` is None when
    no utilization was known at all, `idle_hours` where jobs were imported, `energy_kwh` when no power was known, `cost`
    when no price is set. `idle_cost` and `unused_cost` are those of `idle_hours` and `unused_hours`.

    Only where a scheduler gives GPUs to jobs there are `allocated_hours`, `unused_hours`, the part of them in which the
    GPU was not in use, and `never_used_hours`, those of GPUs that their jobs never used. `unmonitored_hours` are the
    allocated hours in which it is not known what the GPU did, `shared_hours` those of GPUs that others had too; they
    count for the job that started first.
    """

    gpu_hours: float
    measured_hours: float
    active_hours: float | None
    idle_hours: float | None
    share: float | None
    peak_memory_bytes: float | None
    energy_kwh: float | None
    cost: float | None = None
    idle_cost: float | None = None
    user: str | None = None
    group: str | None = None
    host: str | None = None
    model: str | None = None
    account: str | None = None
    partition: str | None = None
    namespace: str | None = None
    label: str | None = None
    allocated_hours: float | None = None
    unused_hours: float | None = None
    unused_cost: float | None = None
    never_used_hours: float | None = None
    unmonitored_hours: float | None = None
    shared_hours: float | None = None
    unknown: bool = False
    days: list[Day] = field(default_factory=list)

    def name_by(self, by: UsageBy) -> str | None:
        """Its name; None for unknown users, users without a group, and jobs without that name."""
        name: str | None = getattr(self, by)
        return name


class Usage(Struct):
    """`coverage` is the part of the period in which the GPUs were monitored (0–1); None when no GPU was known then.

    A GPU's time begins when it is first seen: `known_since` is when the first of them was, if after the period's start.
    `allocated_since` is when the records of jobs begin, if after it: of the time before, only
    imported jobs are counted. Costs do not include the `unpriced_models`, which were used and have no price.
    """

    by: UsageBy
    start: float
    end: float
    coverage: float | None
    monitored_gpu_hours: float
    currency: str
    rows: list[UsageRow]
    total: UsageRow
    known_since: float | None = None
    allocated_since: float | None = None
    unpriced_models: list[str] = field(default_factory=list)


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
    the GPU-hours of which it is known how much memory they needed. `problem` says what is not known.
    Costs do not include the `unpriced_models`."""

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
    unpriced_models: list[str] = field(default_factory=list)


Frequency = Literal["off", "week", "month"]
NumberFormat = Literal[
    "en", "da", "de", "de-CH", "es", "fi", "fr", "it", "ja", "ko", "nb", "nl", "pl", "pt", "sv", "zh"
]
_MARKS: Final = {
    **dict.fromkeys(("da", "de", "es", "it", "nl", "pt"), (".", ",")),
    **dict.fromkeys(("fi", "fr", "nb", "pl", "sv"), (" ", ",")),
    "de-CH": ("\u2019", "."),
}


def show_number(value: float, numbers: NumberFormat = "en", digits: int = 1) -> str:
    """A number with the language's separators for thousands and decimals."""
    thousands, decimal = _MARKS.get(numbers, (",", "."))
    return f"{value:,.{digits}f}".translate({ord(","): thousands, ord("."): decimal})


class DigestPreview(Struct, frozen=True):
    """A digest as it would be sent. Times are Unix seconds: the period, and when it was due. `to` are its channels;
    `not_sent` is why nothing is sent, else null."""

    account: str
    period: str
    start: float
    end: float
    due_at: float
    zone: str
    title: str
    text: str
    html: str
    to: list[str] = field(default_factory=list)
    not_sent: str | None = None
