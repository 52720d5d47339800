"""A simulated week: the table and the old fleet give equal documents, events, alerts and history, and these are the
recorded ones. The first day of it is part of every run."""

import contextlib
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from gpudeck.history.base import UsageQuery
from week.answers import DAY_HOURS, WEEK_HOURS, collect, read
from week.hosts import HOUR, START, Card, Job, machines
from week.hub import WeekHub, both_fleets

_QUIET = ("a01", "intel01", "desk01", "mig01")
"""Hosts of which all is observed, but for the minutes in which the hub is away."""


def in_thread(work: Callable[[], None]) -> None:
    """Beside tests with a browser, whose event loop is that of the main thread."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def check_hours(tmp_path: Path, hours: float) -> None:
    with both_fleets():
        hub = WeekHub(tmp_path)
        try:
            hub.run(hours)
            hub.check()
            answers, recorded = collect(hub, hours), read(hours)
            check_hours_of_people(hub, hours)
        finally:
            hub.close()
    assert answers.keys() == recorded.keys()
    for name in recorded:
        told, expected = lines(answers[name]), lines(recorded[name])
        same = [one if is_same(one, other) else other for one, other in zip(told, expected, strict=False)]
        assert told == same + expected[len(told) :], f"{name}: see week/__main__.py for a change that is meant"


def is_same(line: str, recorded: str) -> bool:
    """But for the last digit of a mean: roll-ups round with each write, and the writer decides how many there are."""
    if line == recorded:
        return True
    pairs = zip_longest(line.split(" "), recorded.split(" "), fillvalue="")
    return all(one == other or is_near(one, other) for one, other in pairs)


def is_near(one: str, other: str) -> bool:
    with contextlib.suppress(ValueError):
        return math.isclose(float(one), float(other), rel_tol=2e-4, abs_tol=5e-3)
    return False


def lines(answer: Any) -> list[str]:
    """Without levels, so that a difference is shown by its line."""
    if isinstance(answer, dict):
        return [f"{key}: {line}" for key, value in answer.items() for line in lines(value)]
    return [line for value in answer for line in lines(value)] if isinstance(answer, list) else [str(answer)]


def check_hours_of_people(hub: WeekHub, hours: float) -> None:
    """What the history says that people used is what they did: their jobs, to the interval."""
    for machine in machines():
        if machine.name in _QUIET:
            usage = hub.store.usage(UsageQuery(by="user", start=START, end=START + hours * HOUR, host=machine.name))
            found = {row.user: row.gpu_hours for row in usage.rows}
            truth, jobs = true_hours(machine.cards, hours)
            # A job is seen with the first report after its start, and until the one after its end.
            slack = jobs * machine.interval / HOUR + 0.2
            assert found.keys() == truth.keys(), machine.name
            assert all(abs(found[user] - truth[user]) <= slack for user in truth), (machine.name, found, truth)


def true_hours(cards: Any, hours: float) -> tuple[dict[str | None, float], int]:
    """By user, minute by minute: how long some job of theirs was on each GPU that the host had then."""
    truth: dict[str | None, float] = {}
    seen: set[tuple[str, Job]] = set()
    for minute in range(1, int(hours * 60)):
        for card in cards(minute / 60):
            there = jobs_at(card, minute / 60)
            seen.update((card.uuid, job) for job in there)
            for user in {job.user for job in there}:
                truth[user] = truth.get(user, 0.0) + 1 / 60
    return truth, len(seen)


def jobs_at(card: Card, hour: float) -> list[Job]:
    return [job for job in card.jobs if job.start <= hour < job.end]


@pytest.mark.timeout(300)
def test_a_day_is_as_recorded_and_the_same_by_the_old_fleet(tmp_path: Path) -> None:
    in_thread(lambda: check_hours(tmp_path, DAY_HOURS))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_week_is_as_recorded_and_the_same_by_the_old_fleet(tmp_path: Path) -> None:
    in_thread(lambda: check_hours(tmp_path, WEEK_HOURS))
