"""Questions about the past, answered from what the embedded store keeps (`Past`). Pure: the store only reads.

    steps, measures     the range cut into round steps; which metric is meant
    blocks, totals      what the store has: samples and quarter hours of devices; sums over a host or the fleet
    folds               many moments and devices become one point a step
    subjects, people    whose past it is: a GPU, a host, the fleet, a run; a person
    heat                hosts × time

Fine steps are made from samples, steps of a quarter hour and more from quarter hours. Where samples are no longer kept,
or are too many to read at once, the steps are a quarter hour at least.
"""

from gpudeck.history import people, subjects
from gpudeck.history.base import Answer, Ask, HistoryRefused
from gpudeck.history.heat import heat
from gpudeck.history.measures import SUBJECTS, Measure, Subject, find_measure
from gpudeck.history.past import Past
from gpudeck.history.steps import check_points, check_range

__all__ = ["check_ask", "heat", "series"]


def series(past: Past, ask: Ask, now: float) -> Answer:
    """Raises HistoryRefused for what makes no sense, and says what would."""
    check_range(ask.start, ask.end)
    check_points(ask.points)
    subject, measure = check_ask(ask)
    if subject == "user":
        return people.user_series(past, ask, measure, now)
    if ask.by == "user":
        return people.memory_by_user(past, ask, measure, now)
    if subject == "gpu":
        return subjects.gpu_series(past, ask, measure)
    if subject == "host":
        return subjects.host_series(past, ask, measure)
    if subject == "run":
        return subjects.run_series(past, ask, measure, now)
    return subjects.fleet_series(past, ask, measure, now)


def check_ask(ask: Ask) -> tuple[Subject, Measure]:
    """Whose past is asked for, and what of it. Raises HistoryRefused."""
    subject = _subject_of(ask)
    measure = find_measure(ask.metric, subject)
    _check_split(ask, subject, measure)
    return subject, measure


def _subject_of(ask: Ask) -> Subject:
    given = [subject for subject in SUBJECTS if getattr(ask, subject) not in {None, False}]
    if len(given) != 1:
        whose = f"{' and '.join(given)} were asked for at once" if given else "nobody's past was asked for"
        raise HistoryRefused("not_one_subject", whose, "Give exactly one of gpu, host, user, run, or fleet=1.")
    return given[0]


def _check_split(ask: Ask, subject: Subject, measure: Measure) -> None:
    hint = "by=gpu splits a metric of GPUs, of a host or a run; by=user splits memory_used_bytes of one GPU."
    if ask.by == "gpu" and (subject not in {"host", "run"} or measure.is_of_host):
        raise HistoryRefused("bad_split", f"{ask.metric} of a {subject} cannot be split by GPU", hint)
    if ask.by == "user" and (subject != "gpu" or ask.metric != "memory_used_bytes"):
        raise HistoryRefused("bad_split", f"{ask.metric} of a {subject} cannot be split by user", hint)
