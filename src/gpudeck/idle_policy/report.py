"""The dry run: the steps that the policy would have taken in the past, their owners, and what they would have saved."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from gpudeck.history.base import IdleEpisode
from gpudeck.idle_policy.ladder import IdleFacts, LadderStep, Spans, climb_all, find_rules, subtract
from gpudeck.idle_policy.settings import HOUR, IdlePolicySettings
from gpudeck.model.idle_policy import Keep, PolicyReport, PolicyStep, PolicyUser
from gpudeck.model.reservation import Reservation

MAX_STEPS: Final = 500


class JobSpan(Struct, frozen=True):
    """A job on a GPU, with the names that exemptions can match."""

    start: float
    end: float
    user: str | None
    names: tuple[str, ...]


class PastFacts(Struct):
    """Other facts of the past: labels of hosts by id, as of today; jobs, keeps and reservations by GPU."""

    labels: Mapping[str, dict[str, str]]
    jobs: Mapping[str, Sequence[JobSpan]]
    keeps: Mapping[str, Sequence[Keep]]
    reservations: Mapping[str, Sequence[Reservation]]
    group_of: Callable[[str], str | None]
    price_of: Callable[[str], float | None]


def simulate(
    settings: IdlePolicySettings, episodes: Iterable[IdleEpisode], facts: PastFacts
) -> tuple[list[PolicyStep], float, float]:
    """All steps in order of time, all idle hours, and the idle hours without a rule or a known owner."""
    steps, idle, exempt = list[PolicyStep](), 0.0, 0.0
    for one in episodes:
        begin, end = one.spans[0][0], one.spans[-1][1]
        jobs = [job for job in facts.jobs.get(one.gpu, ()) if job.start < end and job.end > begin]
        users = list(one.users) or sorted({job.user for job in jobs if job.user is not None})
        names = [*one.jobs, *(name for job in jobs for name in job.names)]
        known = IdleFacts(facts.labels.get(one.host_id, {}), one.model, users, names)
        # Without an owner nobody can be warned, so nothing happens to it.
        rules = find_rules(settings, known, facts.group_of) if users else []
        idle += one.seconds / HOUR
        exempt += 0.0 if rules else one.seconds / HOUR
        reserved = reserved_spans(settings, facts.reservations.get(one.gpu, ()), users)
        keeps = [(keep.start, keep.end) for keep in facts.keeps.get(one.gpu, ())]
        for step, ladder in climb_all(one.spans, rules, settings, keeps=keeps, exempt=reserved):
            steps.append(_describe(one, users, names, step, ladder, facts.price_of(one.model)))
    steps.sort(key=lambda step: step.at)
    return steps, idle, exempt


def _describe(  # noqa: PLR0917 - what a step says
    one: IdleEpisode, users: list[str], jobs: list[str], step: LadderStep, ladder: Spans, price: float | None
) -> PolicyStep:
    hours = None
    if step.kind == "act":
        # What follows a keep would not have been: the GPU was released before.
        rest = subtract(one.spans, [(0.0, max(step.at, ladder[0][0]))])
        hours = sum(end - start for start, end in rest) / HOUR
    return PolicyStep(
        **asdict(step),
        gpu=one.gpu,
        host=one.host,
        label=one.label,
        model=one.model,
        users=users,
        jobs=list(dict.fromkeys(jobs)),
        saved_hours=hours,
        saved_cost=None if hours is None or price is None else hours * price,
    )


def reserved_spans(settings: IdlePolicySettings, found: Sequence[Reservation], users: Sequence[str]) -> Spans:
    """Times in which a GPU is exempt because one of its users reserved it. Accounts may differ from logins, so of a
    GPU without known users every reservation counts."""
    wanted = [one for one in found if settings.exempt.reserved and one.kind == "reservation" and not one.is_cancelled]
    return [
        (one.start, one.released_at or one.end)
        for one in wanted
        if not users or not {*one.user.split(", ")}.isdisjoint(users)
    ]


def sum_up(
    steps: Sequence[PolicyStep],
    idle: tuple[float, float],
    period: tuple[float, float],
    currency: str,
    coverage: float | None,
) -> PolicyReport:
    """Sums by user. `idle` are all idle hours, and those in which nothing happens."""
    rows: dict[str | None, PolicyUser] = {}
    total = PolicyUser(None)
    for step in steps:
        _add(total, step, 1.0)
        for user in step.users or (None,):
            _add(rows.setdefault(user, PolicyUser(user)), step, 1 / max(1, len(step.users)))
    users = sorted(rows.values(), key=lambda row: (-row.saved_hours, -row.acted, -row.warned, row.user or ""))
    return PolicyReport(
        start=period[0],
        end=period[1],
        currency=currency,
        coverage=coverage,
        idle_hours=idle[0],
        exempt_hours=idle[1],
        users=users,
        total=total,
        step_count=len(steps),
        steps=list(steps[-MAX_STEPS:])[::-1],
    )


def _add(row: PolicyUser, step: PolicyStep, share: float) -> None:
    name = {"notify": "notified", "warn": "warned", "act": "acted"}[step.kind]
    setattr(row, name, getattr(row, name) + 1)
    row.saved_hours += share * (step.saved_hours or 0.0)
    if step.saved_cost is not None:
        row.saved_cost = (row.saved_cost or 0.0) + share * step.saved_cost
