"""The ladder of an idle GPU: which step is due when. Pure; the running policy and the dry run use the same functions.

    idle spans − exempt times − keeps, in the hours of each rule → counted time → notify, warn, act

Only monitored time counts. A gap of up to ten minutes, within which a GPU cannot have worked and become idle again,
adds nothing and restarts nothing; a longer one counts as work. Work, a keep and other users restart the ladder.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta, tzinfo
from fnmatch import fnmatchcase
from typing import Final, Literal

from msgspec import Struct

from gpudeck.idle_policy.settings import DAYS, IdlePolicySettings, IdleRule, TimeOfDay
from gpudeck.model.times import load_zone

Spans = Sequence[tuple[float, float]]
StepKind = Literal["notify", "warn", "act"]
GAP_SECONDS: Final = 600.0
_KINDS: Final[tuple[StepKind, ...]] = ("notify", "warn", "act")


class LadderStep(Struct, frozen=True):
    """`at` is when the step is due, or was done; `idle_seconds` is the counted time until then."""

    kind: StepKind
    rule: str
    at: float
    idle_seconds: float


class IdleFacts(Struct, frozen=True):
    """The facts about an idle GPU that rules and exemptions match. `jobs` are ids and names."""

    labels: dict[str, str]
    model: str
    users: Sequence[str]
    jobs: Sequence[str] = ()


def find_rules(settings: IdlePolicySettings, facts: IdleFacts, group_of: Callable[[str], str | None]) -> list[IdleRule]:
    """The rules that may apply to a GPU, in order; none if it is exempt."""
    exempt = settings.exempt
    if any(fnmatchcase(user, wanted) for user in facts.users for wanted in exempt.users) or any(
        fnmatchcase(job, wanted) for job in facts.jobs for wanted in exempt.jobs
    ):
        return []
    groups = {group_of(user) for user in facts.users} if any(rule.groups for rule in settings.rules) else set()
    return [
        rule
        for rule in settings.rules
        if all(fnmatchcase(facts.labels.get(name, ""), wanted) for name, wanted in rule.labels.items())
        and (not rule.models or any(part.lower() in facts.model.lower() for part in rule.models))
        and (not rule.groups or not groups.isdisjoint(rule.groups))
    ]


def climb(
    spans: Spans,
    rules: Sequence[IdleRule],
    settings: IdlePolicySettings,
    *,
    keeps: Spans = (),
    exempt: Spans = (),
    done: Sequence[LadderStep] = (),
) -> list[LadderStep]:
    """The steps that are due by the end of these spans and not `done` yet; steps that were done keep their times.
    `exempt` times do not count; `keeps` restart the ladder."""
    ladders = list(_split(spans, keeps))
    if not ladders:
        return []
    # Steps from before its begin were of another ladder.
    own = [step for step in done if ladders[-1][0][0] <= step.at]
    return _climb_one(ladders[-1], rules, settings, exempt, own)


def climb_all(
    spans: Spans, rules: Sequence[IdleRule], settings: IdlePolicySettings, *, keeps: Spans = (), exempt: Spans = ()
) -> Iterator[tuple[list[LadderStep], Spans]]:
    """The steps of each ladder in the past, with its spans."""
    for ladder in _split(spans, keeps):
        yield _climb_one(ladder, rules, settings, exempt, ()), ladder


def find_longest(settings: IdlePolicySettings) -> float:
    """After so much idle time all steps of all rules are due, if all of it counts."""
    found = [0.0]
    for rule in settings.rules:
        found += [one for one in (rule.notify_after, rule.warn_after, rule.act_after) if one is not None]
        found += [rule.warn_after + rule.grace] if rule.hook and rule.warn_after else []
    return max(found)


def _split(spans: Spans, keeps: Spans) -> Iterator[list[tuple[float, float]]]:
    """The spans of each ladder: split at long gaps and by keeps, which are left out."""
    ladder = list[tuple[float, float]]()
    for begin, end in spans:
        start = begin
        if ladder and start - ladder[-1][1] > GAP_SECONDS:
            yield ladder
            ladder = []
        for kept_from, kept_until in sorted(keeps):
            if kept_until <= start or kept_from >= end:
                # A keep in a gap begins it anew too.
                if ladder and ladder[-1][1] <= kept_from and kept_until <= start:
                    yield ladder
                    ladder = []
                continue
            if kept_from > start:
                ladder.append((start, kept_from))
            if ladder:
                yield ladder
            ladder, start = [], max(start, kept_until)
        if start < end:
            ladder.append((start, end))
    if ladder:
        yield ladder


def _climb_one(
    ladder: Spans,
    rules: Sequence[IdleRule],
    settings: IdlePolicySettings,
    exempt: Spans,
    done: Sequence[LadderStep],
) -> list[LadderStep]:
    zone = load_zone(settings.zone)
    first, last = ladder[0][0], ladder[-1][1]
    interactive = [span for part in settings.exempt.interactive for span in find_windows(part, first, last, zone)]
    free = subtract(ladder, [*interactive, *exempt])
    stretches = list[tuple[float, float, IdleRule]]()
    for rule in rules:
        rest = [] if rule.during is None else subtract(free, list(find_windows(rule.during, first, last, zone)))
        stretches += [(start, end, rule) for start, end in subtract(free, rest)]
        free = rest
    steps, counted = list(done), 0.0
    for start, end, rule in sorted(stretches, key=lambda one: one[0]):
        while (step := _next(rule, steps, start, counted)) is not None and step.at < end:
            steps.append(step)
        counted += end - start
    return steps[len(done) :]


def _next(rule: IdleRule, steps: Sequence[LadderStep], start: float, counted: float) -> LadderStep | None:
    """The next step, if the rule stays in force from `start` on, when `counted` seconds have counted. At least the
    time between two steps in the rule lies between them, also if the first was late."""
    last = steps[-1] if steps else None
    first = 0 if last is None else _KINDS.index(last.kind) + 1
    after = dict(zip(_KINDS, (rule.notify_after, rule.warn_after, rule.act_after), strict=True))
    kind = next((kind for kind in _KINDS[first:] if after[kind] is not None), None)
    if kind is None or (wanted := after[kind]) is None or (kind == "act" and (last is None or last.kind != "warn")):
        return None
    at = start + max(0.0, wanted - counted)
    if last is not None:
        between = max(0.0, wanted - (after[last.kind] or wanted))
        at = max(at, last.at + (max(between, rule.grace) if kind == "act" else between))
    return LadderStep(kind, rule.name, at, counted + at - start)


def find_windows(part: TimeOfDay, start: float, end: float, zone: tzinfo) -> Iterator[tuple[float, float]]:
    """The times between two moments at which it is that time of day. When clocks change, windows follow the clock."""
    first, last = part.minutes
    over_night = 1 if last < first else 0
    day = datetime.fromtimestamp(start, zone).date() - timedelta(days=1)
    until = datetime.fromtimestamp(end, zone).date()
    while day <= until:
        if DAYS[day.weekday()] in part.days:
            midnight = datetime(day.year, day.month, day.day, tzinfo=zone)
            # Arithmetic with a zone keeps what the clock on the wall says.
            begin, stop = midnight + timedelta(minutes=first), midnight + timedelta(days=over_night, minutes=last)
            window = max(start, begin.timestamp()), min(end, stop.timestamp())
            if window[0] < window[1]:
                yield window
        day += timedelta(days=1)


def subtract(spans: Spans, others: Spans) -> list[tuple[float, float]]:
    """The parts of the spans that are in none of the others."""
    left = list(spans)
    for begin, stop in others:
        left = [
            piece
            for start, end in left
            for piece in ((start, min(end, begin)), (max(start, stop), end))
            if piece[0] < piece[1]
        ]
    return left
