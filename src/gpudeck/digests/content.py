"""The content of a digest, whatever it is rendered to: sections of figures, tables and sentences. Pure."""

import math
from collections.abc import Collection
from datetime import datetime, tzinfo
from typing import Final

from msgspec import Struct, field

from gpudeck.digests.figures import MAX_RUNS, FleetFigures, PeriodFigures, UserRuns, UseSums, describe_use, sum_use
from gpudeck.model.job import RATING_WORDS, Run
from gpudeck.model.text import clean, show_count, show_length, show_span, without_maker
from gpudeck.model.usage import NumberFormat, Usage, WastedHours, show_number

UNKNOWN: Final = "unknown"
_MAX_MEMBERS: Final = 20
_MAX_WASTED: Final = 5
_MAX_COMMAND: Final = 80


class Figure(Struct, frozen=True):
    label: str
    value: str
    note: str = ""


class DigestSection(Struct, frozen=True):
    """`head` and `rows` are a table; its first column is text, the others are numbers."""

    title: str
    figures: list[Figure] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    head: tuple[str, ...] = ()
    rows: list[tuple[str, ...]] = field(default_factory=list)


class Digest(Struct, frozen=True):
    """`link` is a fragment of the page, `page` its address, if that is known."""

    title: str
    sections: list[DigestSection]
    footer: list[str]
    link: str
    page: str | None


class Style(Struct, frozen=True):
    """Formats figures for one recipient. Unknown is a word, never a number."""

    numbers: NumberFormat
    zone: tzinfo
    currency: str

    def number(self, value: float | None, digits: int = 1) -> str:
        return UNKNOWN if value is None else show_number(value, self.numbers, digits)

    def percent(self, share: float | None) -> str:
        """Rounded down, so that 100 % means all of it."""
        return UNKNOWN if share is None else f"{self.number(math.floor(1000 * share + 1e-9) / 10)} %"

    def cost(self, value: float | None) -> str:
        return "" if value is None else f"{self.number(value, 2)} {clean(self.currency)}".rstrip()

    @property
    def cost_head(self) -> str:
        return f"Cost ({clean(self.currency)})" if self.currency else "Cost"

    def moment(self, at: float) -> str:
        return f"{datetime.fromtimestamp(at, self.zone):%Y-%m-%d %H:%M}"


def describe_own(
    figures: PeriodFigures, use: UseSums, runs: UserRuns, style: Style, *, shows_commands: bool
) -> DigestSection:
    """A user's own figures, the best and the worst run, and one suggestion."""
    rows = _describe_use(use, style)
    rows.append(Figure("Runs", f"{MAX_RUNS} or more" if (count := runs.count) is None else str(count)))
    for name, run in (("Best run", runs.best), ("Worst run", runs.worst)):
        if run is not None:
            rows.append(_describe_run(name, run, style, shows_commands=shows_commands))
    return DigestSection("Your GPUs", rows, [*_suggest(runs), *_describe_coverage(figures.usage, style)])


def describe_group(figures: PeriodFigures, group: str, members: Collection[str], style: Style) -> DigestSection:
    """The members of a group, as its leads see them."""
    title, coverage = f"Group {clean(group)}", _describe_coverage(figures.usage, style)
    found = [(login, sum_use(figures, {login})) for login in sorted(members)]
    used = [(clean(login), use) for login, use in found if use is not None]
    total = sum_use(figures, members)
    if total is None:
        nothing = ["No use of a GPU was recorded in this period."] if figures.is_known else []
        return DigestSection(title, texts=[*nothing, *coverage])
    used.sort(key=lambda one: -one[1].gpu_hours)
    rows = [_row(name, use, style) for name, use in used[:_MAX_MEMBERS]]
    more = [f"… and {len(used) - _MAX_MEMBERS} more."] if len(used) > _MAX_MEMBERS else []
    head = ("User", "GPU-hours", "Utilization", "Idle hours", style.cost_head)
    return DigestSection(title, _describe_use(total, style), [*more, *coverage], head, rows)


def describe_fleet(figures: PeriodFigures, fleet: FleetFigures, style: Style, now: float) -> list[DigestSection]:
    """As admins and channels see it."""
    usage, waste = figures.usage, figures.waste
    demand, reliability = _describe_demand(fleet, now), _describe_reliability(fleet, style)
    if not figures.is_known:
        return [DigestSection("The fleet", texts=_describe_coverage(usage, style)), demand, reliability]
    before = None if figures.before is None else [figures.before.total]
    total = describe_use([usage.total], [waste.total], before)
    monitored = usage.monitored_gpu_hours
    share = total.gpu_hours / monitored if monitored > 0 else None
    rows = [Figure("In use", style.percent(share), f"of {style.number(monitored)} monitored GPU-hours")]
    rows += _describe_use(total, style)
    released, since = waste.total.released, show_length(waste.released_after_seconds)
    rows.append(_describe_wasted(f"If released after {since} idle", released, style))
    rows.append(Figure("Users", str(sum(row.user is not None and row.gpu_hours > 0 for row in usage.rows))))
    texts = [] if waste.problem is None else [waste.problem]
    return [
        DigestSection("The fleet", rows, [*texts, *_describe_coverage(usage, style)]),
        demand,
        _describe_wasters(figures, style),
        reliability,
    ]


def _describe_use(use: UseSums, style: Style) -> list[Figure]:
    is_part = use.utilization is not None and use.measured_hours < 0.995 * use.gpu_hours
    part = f"of {style.number(use.measured_hours)} measured" if is_part else ""
    rows = [
        Figure("GPU-hours", style.number(use.gpu_hours), _before(use.before, style)),
        Figure("Utilization", style.percent(use.utilization), part),
        _describe_wasted("Idle GPU-hours", use.idle, style),
    ]
    if use.unused.hours is not None:
        rows.append(_describe_wasted("Allocated and not used", use.unused, style))
    rows.append(_describe_wasted("On a larger GPU than needed", use.oversized, style))
    if use.cost is not None:
        rows.append(Figure("Cost", style.cost(use.cost)))
    if use.energy_kwh is not None:
        rows.append(Figure("Energy", f"{style.number(use.energy_kwh)} kWh"))
    return rows


def _describe_wasted(label: str, one: WastedHours, style: Style) -> Figure:
    notes = [style.cost(one.cost) if one.hours else "", _before(one.before, style)]
    return Figure(label, style.number(one.hours), ", ".join(note for note in notes if note))


def _before(value: float | None, style: Style) -> str:
    return "" if value is None else f"{style.number(value)} in the period before"


def _describe_run(label: str, run: Run, style: Style, *, shows_commands: bool) -> Figure:
    begin = run.started_at or run.seen_at
    end = run.seen_at if run.ended_at is None else run.ended_at
    is_judged = run.verdict is not None and run.verdict.rating != "unknown"
    rating = RATING_WORDS[run.verdict.rating] if run.verdict is not None and is_judged else "verdict unknown"
    level = run.mean_utilization_percent
    span = "still running" if run.ended_at is None else show_span(end - begin)
    value = f"{UNKNOWN if level is None else style.percent(level / 100)} utilization, {rating}"
    place = f"{clean(run.host_name)}:{','.join(map(clean, run.labels))}"
    note = f"{place}, {style.moment(begin)}, {span}"
    if run.verdict is not None and run.verdict.reason is not None:
        note += f" (no verdict: {clean(run.verdict.reason)})"
    if run.command and shows_commands:
        note += f": {_shorten(clean(run.command))}"
    return Figure(label, value, note)


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_COMMAND else f"{text[: _MAX_COMMAND - 1]}…"


def _suggest(runs: UserRuns) -> list[str]:
    for label, run in (("worst", runs.worst), ("best", runs.best)):
        for one in [] if run is None or run.verdict is None else run.verdict.suggestions[:1]:
            return [f"Suggestion for your {label} run: {clean(f'{one.text}: {one.evidence}. {one.fix}')}"]
    return []


def _describe_coverage(usage: Usage, style: Style) -> list[str]:
    since = "" if usage.known_since is None else f"; the records begin {style.moment(usage.known_since)}"
    if not usage.coverage:
        return [f"No GPU was monitored in this period: nothing is known about it{since}."]
    models = clean(", ".join(map(without_maker, usage.unpriced_models)))
    prices = [f"Costs do not include models without a price: {models}."] if models and usage.total.cost else []
    return [*prices, f"Coverage: the GPUs were monitored in {style.percent(usage.coverage)} of the period{since}."]


def _row(name: str, use: UseSums, style: Style) -> tuple[str, ...]:
    cost = "–" if use.cost is None else style.number(use.cost, 2)
    return name, style.number(use.gpu_hours), style.percent(use.utilization), style.number(use.idle.hours), cost


def _describe_demand(fleet: FleetFigures, now: float) -> DigestSection:
    hours = f"{fleet.none_free} of {fleet.free_known} recorded hours" if fleet.free_known else UNKNOWN
    waiting = UNKNOWN if fleet.waiting is None else show_count(len(fleet.waiting), "request")
    longest = max((now - one.created_at for one in fleet.waiting or ()), default=0.0)
    note = f"the longest for {show_span(longest)}" if fleet.waiting else ""
    return DigestSection("Demand", [Figure("Less than one GPU was free", hours), Figure("Waiting now", waiting, note)])


def _describe_wasters(figures: PeriodFigures, style: Style) -> DigestSection:
    waste = figures.waste
    kinds = {"Idle hours": "idle", "Not used": "unused", "Larger than needed": "oversized"}
    # Without a scheduler nobody has what is not used.
    shown = {title: kind for title, kind in kinds.items() if getattr(waste.total, kind).hours is not None}
    rows = []
    for one in waste.rows[:_MAX_WASTED]:
        name = "(unknown users)" if one.unknown or one.name is None else clean(one.name)
        costs = [part.cost for part in (one.idle, one.unused) if part.cost is not None]
        hours = (style.number(getattr(one, kind).hours) for kind in shown.values())
        rows.append((name, *hours, style.number(sum(costs), 2) if costs else "–"))
    texts = [] if rows else ["None are recorded."]
    return DigestSection("Most wasted GPU-hours", texts=texts, head=("User", *shown, style.cost_head), rows=rows)


def _describe_reliability(fleet: FleetFigures, style: Style) -> DigestSection:
    found, rows = fleet.reliability, list[tuple[str, ...]]()
    for one in found.rows:
        evidence = "; ".join(f"{clean(each.title)} ({each.count})" for each in one.evidence[:2])
        model = "" if one.model is None else f" ({clean(without_maker(one.model))})"
        gpu = f"{clean(one.host)}:{clean(one.label or '?')}{model}: {evidence}"
        rows.append((gpu, style.number(one.score, 0)))
    texts = list(found.problems) if rows else ["No faults are recorded.", *found.problems]
    return DigestSection("Least reliable GPUs", texts=texts, head=("GPU and faults", "Score of 100"), rows=rows)
