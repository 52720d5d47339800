"""What a scenario measured, each figure beside its target, and the one table of all of them."""

from collections.abc import Sequence

from msgspec import Struct, field


class Figure(Struct, frozen=True):
    """`is_time`: printed with its target, and never a reason to fail: machines differ."""

    name: str
    measured: str
    target: str = ""
    is_met: bool = True
    is_time: bool = False

    @property
    def verdict(self) -> str:
        return "" if not self.target else "ok" if self.is_met else "MISSED"


class Outcome(Struct):
    """`not_run` is why a scenario could not be tried here; `notes` are details of what was missed."""

    scenario: str
    figures: list[Figure] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    not_run: str = ""

    @property
    def missed(self) -> list[str]:
        """The targets of correctness that were not met."""
        return [
            f"{figure.name}: {figure.measured} (target {figure.target})"
            for figure in self.figures
            if not figure.is_met and not figure.is_time
        ]


def at_most(name: str, value: float, limit: float, unit: str = "", *, is_time: bool = False) -> Figure:
    end = f" {unit}" if unit else ""
    target = f"{limit:g}{end}" if limit == 0 else f"≤ {limit:g}{end}"
    return Figure(name, f"{_show(value)}{end}", target, value <= limit, is_time)


def holds(name: str, is_so: bool, measured: str = "") -> Figure:
    return Figure(name, measured or ("yes" if is_so else "no"), "yes", is_so)


def took(name: str, seconds: Sequence[float]) -> Figure:
    """A time without a target: the median of several, and the longest."""
    if not seconds:
        return Figure(name, "never", is_time=True)
    ordered = sorted(seconds)
    longest = f", longest {ordered[-1]:.1f} s" if len(ordered) > 1 else ""
    return Figure(name, f"{ordered[len(ordered) // 2]:.1f} s{longest}", is_time=True)


def render(outcomes: Sequence[Outcome]) -> str:
    """A Markdown table: readable as it is, and pasted into docs/reliability.md."""
    rows = [("scenario", "figure", "measured", "target", "")]
    for outcome in outcomes:
        if outcome.not_run:
            rows.append((outcome.scenario, f"not run: {outcome.not_run}", "", "", ""))
        for number, one in enumerate(outcome.figures):
            rows.append((outcome.scenario if number == 0 else "", one.name, one.measured, one.target, one.verdict))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    notes = [f"{outcome.scenario}: {note}" for outcome in outcomes for note in outcome.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _show(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{value:.2f}"
