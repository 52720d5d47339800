"""The dry run: the steps that the policy would have taken in the past, their owners, and what they would have saved."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace

from gpudeck.history.base import IdleEpisode
from gpudeck.idle_policy.ladder import IdleFacts, LadderStep, Spans, climb_all, find_rules
from gpudeck.idle_policy.settings import HOUR, IdlePolicySettings
from gpudeck.model.idle_policy import Keep, PolicyReport, PolicyStep, PolicyUser
from gpudeck.model.reservation import Reservation

MAX_STEPS: Final = 500


class JobSpan(Struct, frozen=True):
    """A job on a GPU, with the names that exemptions can match. `id` is the same on all of its GPUs."""

    id: int
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


class _Ladder(NamedTuple):
    """The ladder of a GPU in the past: an act is due from the last step on, until its end, if that is an act."""

    episode: IdleEpisode
    users: list[str]
    jobs: list[JobSpan]
    steps: list[LadderStep]
    spans: Spans

    @property
    def act(self) -> LadderStep | None:
        return self.steps[-1] if self.steps and self.steps[-1].kind == "act" else None


def simulate(
    settings: IdlePolicySettings, episodes: Iterable[IdleEpisode], facts: PastFacts, since: float = 0.0
) -> tuple[list[PolicyStep], float, float]:
    """All steps in order of time, all idle hours, and the idle hours without a rule or a known owner. Ladders may begin
    before `since`: only steps and hours after it count. An act before it counts if the GPU idled until then: it has
    saved the hours after it."""
    ladders, idle, exempt = list[_Ladder](), 0.0, 0.0
    for one in episodes:
        begin, end = one.spans[0][0], one.spans[-1][1]
        jobs = [job for job in facts.jobs.get(one.gpu, ()) if job.start < end and job.end > begin]
        users = list(one.users) or sorted({job.user for job in jobs if job.user is not None})
        names = [*one.jobs, *(name for job in jobs for name in job.names)]
        known = IdleFacts(facts.labels.get(one.host_id, {}), one.model, users, names)
        # Without an owner nobody can be warned, so nothing happens to it.
        rules = find_rules(settings, known, facts.group_of) if users else []
        hours = _count_hours(one.spans, since)
        idle += hours
        exempt += 0.0 if rules else hours
        reserved = reserved_spans(settings, facts.reservations.get(one.gpu, ()), users)
        keeps = [(keep.start, keep.end) for keep in facts.keeps.get(one.gpu, ())]
        ladders += (
            _Ladder(one, users, jobs, steps, spans)
            for steps, spans in climb_all(one.spans, rules, settings, keeps=keeps, exempt=reserved)
        )
    steps = list(_find_steps(ladders, facts, since))
    steps.sort(key=lambda step: step.at)
    return steps, idle, exempt


def _find_steps(ladders: Sequence[_Ladder], facts: PastFacts, since: float) -> Iterator[PolicyStep]:
    """A GPU is released when the acts of all GPUs are due that have a job or a process in common with it."""
    due: dict[str, list[tuple[float, float]]] = {}
    for ladder in ladders:
        if ladder.act is not None:
            due.setdefault(ladder.episode.gpu, []).append((ladder.act.at, ladder.spans[-1][1]))
    of_job: dict[int, set[str]] = {}
    for gpu, jobs in facts.jobs.items():
        for job in jobs:
            of_job.setdefault(job.id, set()).add(gpu)
    released: IdleEpisode | None = None
    for ladder in ladders:
        one, act = ladder.episode, ladder.act
        if one is released:
            # What follows a keep would not have been.
            continue
        for step in ladder.steps:
            if step is not act and step.at >= since:
                yield _describe(ladder, step, None, None)
        if act is None:
            continue
        others = {gpu for gpu, until in one.sharing.items() if until > act.at}
        others |= {gpu for job in ladder.jobs if job.end > act.at for gpu in of_job[job.id]}
        if (at := _when_all(act.at, ladder.spans[-1][1], [due.get(gpu, []) for gpu in others - {one.gpu}])) is None:
            continue
        released = one
        if hours := _count_hours(one.spans, max(since, at)):
            step = replace(act, at=at, idle_seconds=act.idle_seconds + at - act.at)
            yield _describe(ladder, step, hours, facts.price_of(one.model))


def _when_all(at: float, until: float, others: Iterable[Spans]) -> float | None:
    """The first time in a span at which all others have a span too."""
    late = at
    for spans in others:
        late = max(late, next((begin for begin, end in spans if end > at), until))
    return None if late >= until else late if late == at else _when_all(late, until, others)


def _count_hours(spans: Spans, since: float) -> float:
    return sum(end - max(start, since) for start, end in spans if end > since) / HOUR


def _describe(ladder: _Ladder, step: LadderStep, hours: float | None, price: float | None) -> PolicyStep:
    one = ladder.episode
    return PolicyStep(
        **asdict(step),
        gpu=one.gpu,
        host=one.host,
        label=one.label,
        model=one.model,
        users=ladder.users,
        jobs=list(dict.fromkeys([*one.jobs, *(name for job in ladder.jobs for name in job.names)])),
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
