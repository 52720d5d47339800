"""Resolves names of metrics: of a GPU, of the host itself, a state, or a share of a user. All stores use it."""

import difflib
import math
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct

from gpudeck.history.base import STATE_METRICS, USER_METRICS, HistoryRefused
from gpudeck.history.sample import ALL_NAMES, HOST_PREFIX, STATE_NUMBERS
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric, Rollup

Subject = Literal["gpu", "host", "user", "run", "fleet"]
SUBJECTS: Final[tuple[Subject, ...]] = ("gpu", "host", "user", "run", "fleet")
_DIGITS_OF_A_SHARE: Final = 4


class HistoryMetric(Struct, frozen=True):
    """`name` is the name in the store, with the prefix `host_` for metrics of the host itself. `state` is the number of
    the state to count (history.sample.STATES), or None. `digits` is the number of decimals in answers."""

    name: str
    unit: str
    rollup: Rollup
    digits: int = _DIGITS_OF_A_SHARE
    is_of_host: bool = False
    state: int | None = None

    @property
    def plain(self) -> str:
        return self.name.removeprefix(HOST_PREFIX) if self.is_of_host else self.name

    @property
    def wanted(self) -> tuple[str, ...]:
        return () if self.state is not None else (self.name,)


def names_for(subject: Subject) -> tuple[str, ...]:
    if subject == "user":
        return USER_METRICS
    if subject in {"gpu", "run"}:
        return (*GPU_METRICS, *STATE_METRICS)
    return (*GPU_METRICS, *(HOST_PREFIX + name for name in HOST_METRICS), *STATE_METRICS)


def find_metric(name: str, subject: Subject) -> HistoryMetric:
    """Raises HistoryRefused for an unknown name, with the valid ones as a hint."""
    known = names_for(subject)
    if subject in {"host", "fleet"} and name in HOST_METRICS and name not in GPU_METRICS:
        name = HOST_PREFIX + name
    if name not in known:
        raise HistoryRefused("unknown_metric", _unknown(name, subject), suggest(name, known, "It is one of"))
    if subject == "user":
        return HistoryMetric(name, "watts" if name == "power_watts" else "gpus", Rollup.SUM)
    if name in STATE_METRICS:
        state = STATE_NUMBERS[name.removeprefix("gpus_")]
        return HistoryMetric(name, "share" if subject == "gpu" else "gpus", Rollup.SUM, state=state)
    if name in GPU_METRICS:
        return _from_catalog(name, GPU_METRICS[name])
    return _from_catalog(name, HOST_METRICS[name.removeprefix(HOST_PREFIX)], is_of_host=True)


def check_names(names: Iterable[str]) -> None:
    """Checks names of sample values: GPU metrics, and host metrics with the prefix `host_`. Raises HistoryRefused."""
    for name in names:
        if name not in ALL_NAMES:
            hint = suggest(name, ALL_NAMES, "It is one of")
            raise HistoryRefused("unknown_metric", f"there is no metric {name[:80]!r}", hint)


def suggest(wrong: str, known: Iterable[str], otherwise: str) -> str:
    """A sentence with similar names, or with all names if none is similar and there are not too many."""
    names = sorted(set(known))
    near = difflib.get_close_matches(wrong[:256], names, 3, 0.6)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    shown = ", ".join(names[:60])
    return f"{otherwise}: {shown}{' …' if len(names) > 60 else ''}." if names else ""


def _unknown(name: str, subject: Subject) -> str:
    if subject in {"gpu", "run"} and name.removeprefix(HOST_PREFIX) in HOST_METRICS:
        return f"{name[:60]!r} is a metric of hosts, not of GPUs"
    if name in USER_METRICS:
        return f"{name!r} can be asked of a user only"
    return f"there is no metric {name[:60]!r} of a {subject}"


def _from_catalog(name: str, metric: Metric, *, is_of_host: bool = False) -> HistoryMetric:
    # A mean says a little more than a single reading does.
    digits = max(0, 2 - math.floor(math.log10(metric.precision)))
    return HistoryMetric(name, metric.unit, metric.rollup, min(digits, 6), is_of_host)
