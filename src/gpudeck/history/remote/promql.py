"""Names of series, and questions in PromQL that both VictoriaMetrics and Prometheus understand.

Metrics have the names and units of the hub's /metrics page, but all have the label `host_id`. The state of a GPU is a
sample of value 1 in the series of that state: counting samples in a window gives the share of each state. All questions
are over windows as long as a step: an instant value may be five minutes old, and gaps must stay gaps. A device is
identified by `uuid` or `host_id` alone.
"""

import re
from collections.abc import Mapping
from typing import Final

from gpudeck.history.base import STATE_METRICS
from gpudeck.history.metrics import HistoryMetric
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Rollup
from gpudeck.model.exposition import USER_MEMORY as USER_MEMORY  # noqa: PLC0414 - one of these names too
from gpudeck.model.exposition import ExposedMetric, expose

GPU_SERIES: Final = tuple(expose(GPU_METRICS[name]) for name in GPU_NAMES)
HOST_SERIES: Final = tuple(expose(HOST_METRICS[name]) for name in HOST_NAMES)
STATE: Final = "gpudeck_gpu_state"
"""1, with the label `state`."""
OBSERVED: Final = "gpudeck_host_observed_seconds"
"""How many seconds the host's sample stands for."""
GPU_SECONDS: Final = "gpudeck_user_gpu_seconds_total"
ACTIVE_SECONDS: Final = "gpudeck_user_active_seconds_total"
IDLE_SECONDS: Final = "gpudeck_user_idle_seconds_total"
ENERGY: Final = "gpudeck_user_energy_joules_total"
COUNTERS: Final = (GPU_SECONDS, ACTIVE_SECONDS, IDLE_SECONDS, ENERGY)
"""In this order wherever they stand together."""
STATE_WORDS: Final = {name: name.removeprefix("gpus_") for name in STATE_METRICS}

_LONGEST = 512
OURS: Final = 'host_id!=""'
LATER: Final = 3600
"""Every question is asked for an hour earlier, about what comes an hour later. VictoriaMetrics hides what is newer than
half a minute (-search.latencyOffset) and shows what was before in its place; it looks at the moments only."""
_STRANGE = re.compile(r'[\\"\x00-\x1f\x7f]')
Stats = dict[str, str]
"""A question for each of `mean`, `low` and `high`."""


def label_value(text: str) -> str:
    """The label as it is sent and queried: invalid text is replaced, and very long text is cut."""
    return text[:_LONGEST].encode("utf-8", "replace").decode()


def quoted(text: str) -> str:
    return '"' + _STRANGE.sub(_escape, label_value(text)) + '"'


def select(series: str, labels: Mapping[str, str] | None = None, *more: str) -> str:
    matchers = [OURS, *(f"{name}={quoted(value)}" for name, value in (labels or {}).items()), *more]
    return f"{series}{{{','.join(matchers)}}}"


def over(selector: str, window: int) -> str:
    """The samples of a window that ends LATER seconds after the queried moment."""
    return f"{selector}[{window}s] offset -{LATER}s"


def any_of(label: str, values: list[str]) -> str:
    return f"{label}=~{quoted('|'.join(re.escape(label_value(value)) for value in values))}"


def of_each(metric: HistoryMetric, window: int, *matchers: str) -> Stats:
    by = _device(metric)
    if metric.state is not None:
        return _states(metric, window, matchers, by)
    series = series_of(metric)
    at = over(select(series.name, None, *matchers), window)
    stats = _each(at, by)
    if metric.rollup is Rollup.LAST:
        stats["mean"] = f"max by ({by}) (last_over_time({at}))"
    return _in_our_unit(stats, series)


def of_all(metric: HistoryMetric, window: int, *matchers: str) -> Stats:
    if metric.state is not None:
        return _states(metric, window, matchers, "")
    series = series_of(metric)
    at = over(select(series.name, None, *matchers), window)
    if metric.rollup is Rollup.SUM:
        return _in_our_unit({stat: f"sum({asked})" for stat, asked in _each(at, _device(metric)).items()}, series)
    stats = _each(at, "")
    weighted = f"sum(sum_over_time({at})) / sum(count_over_time({at}))"
    return _in_our_unit(stats | {"mean": stats["high"] if metric.rollup is Rollup.MAX else weighted}, series)


def at_once(stats: Stats) -> str:
    """Joins the queries to one. The label `stat` identifies the answers."""
    return " or ".join(f'label_replace({asked}, "stat", "{stat}", "", "")' for stat, asked in stats.items())


def series_of(metric: HistoryMetric) -> ExposedMetric:
    return expose((HOST_METRICS if metric.is_of_host else GPU_METRICS)[metric.plain])


def _in_our_unit(stats: Stats, series: ExposedMetric) -> Stats:
    """Converts ratios and hertz of the store to the catalog's units."""
    if not series.is_scaled:
        return stats
    return {stat: f"({asked}) * {series.per} / {series.times}" for stat, asked in stats.items()}


def _each(at: str, by: str) -> Stats:
    """One value for all series of a device, which has several in a step in which a label changed."""
    return {
        "mean": f"avg by ({by}) (avg_over_time({at}))",
        "low": f"min by ({by}) (min_over_time({at}))",
        "high": f"max by ({by}) (max_over_time({at}))",
    }


def _states(metric: HistoryMetric, window: int, matchers: tuple[str, ...], by: str) -> Stats:
    """The number of GPUs in the state: the sum of their shares of samples (mean), those in it for the whole step (low),
    and those in it at some time (high). `low` and `high` are left out if they are 0."""
    seen = f"sum by (uuid) (count_over_time({over(select(STATE, None, *matchers), window)}))"
    in_it = select(STATE, {"state": STATE_WORDS[metric.name]}, *matchers)
    inside = f"sum by (uuid) (count_over_time({over(in_it, window)}))"
    return {
        "mean": f"(sum by ({by}) ({inside} / {seen}) or 0 * sum by ({by}) ({seen}))",
        "low": f"count by ({by}) ({inside} == {seen})",
        "high": f"count by ({by}) ({inside})",
    }


def _device(metric: HistoryMetric) -> str:
    return "host_id" if metric.is_of_host else "uuid"


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    return f"\\{letter}" if letter in '\\"' else f"\\x{ord(letter):02x}"
