"""Tests a rule against the past: evaluates its expression over the history of one host after another.

Where the history is coarser than the samples, the rule is evaluated on means. Unmonitored time is unknown.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from gpudeck.alerts.engine import AlertEngine
from gpudeck.alerts.expression import (
    COLUMNS,
    HOST_PREFIX,
    Expression,
    Truth,
    default_text,
    fill_text,
    parse_expression,
)
from gpudeck.alerts.settings import Limits, RuleChange, own_limits
from gpudeck.fleet.columns import NAN, Flags, Floats
from gpudeck.history.base import STATE_METRICS, SeriesQuery, Store
from gpudeck.history.sample import HOST_PREFIX as STORED_HOST_PREFIX
from gpudeck.model.alert import PastFiring
from gpudeck.model.errors import UsageError
from gpudeck.model.history import Answer, Series
from gpudeck.model.text import clean

POINTS: Final = 5_000
_MAX_SHARE: Final = 0.5
_STATES: Final = {name.removeprefix("gpus_"): name for name in STATE_METRICS if name != "gpus_unknown"}


class ChosenRule(NamedTuple):
    """`limits_of` returns the limits of a host, by its name and labels."""

    expression: Expression
    text: str | None
    limits_of: Callable[[str, dict[str, str]], Limits]


class HostPast(Struct, frozen=True):
    """The firings of a rule on one host. `step` is the length of each mean in seconds. `known` and `total` are seconds
    of all its GPUs, or of the host."""

    firings: list[PastFiring]
    step: float
    known: float
    total: float


class _Values:
    """The columns of one GPU, or of a host, over the steps."""

    def __init__(self, columns: Mapping[str, Floats], model: str, count: int) -> None:
        self.columns = columns
        self._model = model
        self._count = count

    def number(self, column: str) -> Floats:
        return self.columns.get(column, np.full(self._count, NAN))

    def match(self, column: str, is_wanted: Callable[[str], bool]) -> Truth:
        """The state of a GPU is the one that it was in for most of a step."""
        if column == "model":
            is_right = bool(self._model) and is_wanted(self._model)
            return np.full(self._count, is_right), np.full(self._count, bool(self._model) and not is_right)
        inside, outside = np.zeros(self._count), np.zeros(self._count)
        for word, name in _STATES.items():
            share = np.nan_to_num(self.number(name))
            if is_wanted(word):
                inside += share
            else:
                outside += share
        return inside > _MAX_SHARE, outside > _MAX_SHARE


def choose_rule(engine: AlertEngine, rule: str | None, expr: str | None) -> ChosenRule:
    """An own rule, or an expression. Raises UsageError."""
    if (rule is None) == (expr is None):
        raise UsageError("give a rule or an expression.", "One of the two is tested.")
    if expr is not None:
        try:
            change = RuleChange(expr=expr)
        except ValueError as error:
            raise UsageError(f"{error}.") from error
        limits = own_limits(change)
        chosen = ChosenRule(parse_expression(expr), None, lambda *_: limits)
    else:
        name, known = rule or "", engine.settings.own_rules
        if name in engine.rule_names and name not in known:
            said = f"{name} is a rule of the hub; only rules of your own can be tested."
            raise UsageError(said, f"`gpudeck alerts --state resolved --rule {name}` lists when it fired.")
        if name not in known:
            names = ", ".join(known) or "none"
            raise UsageError(f"there is no rule {clean(name)} of your own.", f"There are {names}.")
        own, thresholds = known[name], engine.thresholds
        chosen = ChosenRule(
            parse_expression(own.expr or ""), own.text, lambda host, labels: thresholds.of(host, labels)[name]
        )
    if "health" in chosen.expression.columns:
        raise UsageError("the history does not keep health.", "Leave it out for the test.")
    return chosen


def try_on_host(
    store: Store, host: tuple[str, str], rule: ChosenRule, limits: Limits, span: tuple[float, float]
) -> HostPast:
    """`host` is its id and its name. Blocks. Raises HistoryRefused if the history does not know it."""
    expression = rule.expression
    answers = _ask(store, host[0], expression.columns, span)
    step = max(answer.step for answer in answers.values())
    start = span[0] // step * step
    count = max(1, math.ceil((span[1] - start) / step))
    series = [one for answer in answers.values() for one in answer.series]
    gpus = {"": Series([])} if expression.is_of_host else {one.gpu: one for one in series if one.gpu is not None}
    firings, known = list[PastFiring](), 0.0
    text = rule.text or default_text(expression)
    for uuid, gpu in gpus.items():
        columns = {
            name: _align(one, start, step, count)
            for name, answer in answers.items()
            for one in answer.series
            if one.gpu is None or one.gpu == uuid
        }
        values = _Values(columns, gpu.model or "", count)
        with np.errstate(all="ignore"):
            is_true, is_false = expression.evaluate(values)
        known += step * float((is_true | is_false).sum())
        for since, fired, resolved, place in _run(is_true, is_false, start, step, limits):
            field = _field_of(columns, host[1], gpu, place)
            firings.append(
                PastFiring(
                    title=fill_text(text, field),
                    host=host[1],
                    host_id=host[0],
                    gpu=uuid or None,
                    label=gpu.label if uuid else None,
                    since=since,
                    fired_at=fired,
                    resolved_at=resolved,
                )
            )
    return HostPast(firings, step, known, step * count * len(gpus))


def _ask(store: Store, host: str, columns: Sequence[str], span: tuple[float, float]) -> dict[str, Answer]:
    """Series by name: columns, and the states of GPUs."""
    found: dict[str, Answer] = {}
    for column in columns:
        if column in COLUMNS:
            is_of_host = column.startswith(HOST_PREFIX)
            name = STORED_HOST_PREFIX + column.removeprefix(HOST_PREFIX) if is_of_host else column
            found[column] = store.series(SeriesQuery(name, *span, POINTS, host=host, by=None if is_of_host else "gpu"))
    # Every series of a GPU has its model.
    if (
        "availability" in columns
        or not found
        or ("model" in columns and all(name.startswith(HOST_PREFIX) for name in found))
    ):
        for name in _STATES.values():
            found[name] = store.series(SeriesQuery(name, *span, POINTS, host=host, by="gpu"))
    return found


def _align(series: Series, start: float, step: float, count: int) -> Floats:
    """The mean of the points of each step. Unknown if there is none."""
    points = np.array([(point[0], NAN if point[1] is None else point[1]) for point in series.points]).reshape(-1, 2)
    places = ((points[:, 0] - start) // step).astype(np.int64)
    is_inside = (places >= 0) & (places < count) & ~np.isnan(points[:, 1])
    sums = np.bincount(places[is_inside], points[is_inside, 1], count)
    counts = np.bincount(places[is_inside], minlength=count)
    means: Floats = np.divide(sums, counts, out=np.full(count, NAN), where=counts > 0)
    return means


def _run(
    is_true: Flags, is_false: Flags, start: float, step: float, limits: Limits
) -> list[tuple[float, float, float | None, int]]:
    """Each firing: since when, fired at, resolved at, and the step in which it fired."""
    found: list[tuple[float, float, float | None, int]] = []
    since: float | None = None
    calm: float | None = None
    fired: tuple[float, float, int] | None = None
    for place, (is_so, is_over) in enumerate(zip(is_true.tolist(), is_false.tolist(), strict=True)):
        begin, end = start + place * step, start + (place + 1) * step
        if fired is None:
            since = (begin if since is None else since) if is_so else None
            if since is not None and end - since >= limits.wait:
                fired, calm = (since, since + limits.wait, place), None
        elif is_over:
            calm = begin if calm is None else calm
            if end - calm >= limits.clear_after:
                found.append((fired[0], fired[1], calm, fired[2]))
                fired = since = None
        else:
            calm = None
    return found if fired is None else [*found, (fired[0], fired[1], None, fired[2])]


def _field_of(columns: Mapping[str, Floats], host: str, gpu: Series, place: int) -> Callable[[str], str | float | None]:
    own: dict[str, Any] = {"host": host, "gpu": gpu.label or "", "model": gpu.model or "", "users": "its users"}

    def find(name: str) -> str | float | None:
        if name in own:
            return str(own[name])
        if name == "availability":
            shares = {word: columns[state][place] for word, state in _STATES.items() if state in columns}
            return max(shares, key=lambda word: float(np.nan_to_num(shares[word])), default=None)
        if name not in columns:
            return None
        value = float(columns[name][place])
        return None if np.isnan(value) else value

    return find
