"""What a question means, and which make no sense: the same for every store."""

from gpudeck.history.base import MOST_POINTS, Ask, HeatAsk, HistoryRefused
from gpudeck.history.measures import SUBJECTS, Measure, Subject, find_measure
from gpudeck.history.steps import HOUR, Grid, check_points, check_range, cut


def check_ask(ask: Ask) -> tuple[Subject, Measure]:
    """Whose past is asked for, and what of it. Raises HistoryRefused for what makes no sense, and says what would."""
    check_range(ask.start, ask.end)
    check_points(ask.points)
    subject = _subject_of(ask)
    measure = find_measure(ask.metric, subject)
    _check_split(ask, subject)
    return subject, measure


def check_heat(ask: HeatAsk) -> tuple[Grid, Measure]:
    """The columns of a map, and what is in it. Raises HistoryRefused."""
    check_range(ask.start, ask.end)
    measure = find_measure(ask.metric, "host")
    if ask.step < HOUR or ask.step % HOUR or ask.step > 366 * 24 * HOUR:
        hint = "Give a whole number of hours in seconds: 3600, 7200 … up to a year."
        raise HistoryRefused("bad_step", f"a map cannot have columns of {ask.step} s", hint)
    grid = cut(ask.start, ask.end, ask.step)
    if grid.count > MOST_POINTS:
        hint = f"At most {MOST_POINTS:,} are possible: ask for a shorter range or a larger step."
        raise HistoryRefused("too_many_points", f"{grid.count:,} columns are too many", hint)
    return grid, measure


def _subject_of(ask: Ask) -> Subject:
    given = [subject for subject in SUBJECTS if getattr(ask, subject) not in {None, False}]
    if len(given) != 1:
        whose = f"{' and '.join(given)} were asked for at once" if given else "nobody's past was asked for"
        raise HistoryRefused("not_one_subject", whose, "Give exactly one of gpu, host, user, run, or fleet=1.")
    return given[0]


def _check_split(ask: Ask, subject: Subject) -> None:
    if ask.by == "gpu" and (subject not in {"host", "run"} or ask.metric.startswith("host_")):
        raise HistoryRefused("bad_split", f"a {subject} cannot be split by GPU here", "by=gpu splits a host or a run.")
    if ask.by == "user" and (subject != "gpu" or ask.metric != "memory_used_bytes"):
        raise HistoryRefused(
            "bad_split",
            f"{ask.metric} of a {subject} cannot be split by user",
            "by=user splits memory_used_bytes of one GPU.",
        )
