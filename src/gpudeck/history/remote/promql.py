"""Questions in PromQL, as VictoriaMetrics and Prometheus both read it.

Everything is asked over windows as long as a step, never as a value at a moment: a value at a moment may be five
minutes old, and a gap has to stay a gap. A device is what has one `gpu` or one `host_id`, whatever other labels it had
in the meantime: after a host was renamed its GPUs are not twice as many.
"""

import re
from collections.abc import Mapping
from typing import Final

from gpudeck.history.measures import Measure
from gpudeck.history.remote.names import STATE, STATE_WORDS, label_value
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Rollup
from gpudeck.model.exposition import name_of

OURS: Final = 'host_id!=""'
LATER: Final = 3600
"""Every question is asked for an hour earlier, about what comes an hour later. VictoriaMetrics hides what is newer than
half a minute (-search.latencyOffset) and shows what was before in its place; it looks at the moments only."""
_STRANGE = re.compile(r'[\\"\x00-\x1f\x7f]')
Stats = dict[str, str]
"""A question for each of `mean`, `low` and `high`."""


def quoted(text: str) -> str:
    """A string that means exactly `text`, whatever is in it."""
    return '"' + _STRANGE.sub(_escape, label_value(text)) + '"'


def select(series: str, labels: Mapping[str, str] | None = None, *more: str) -> str:
    """The samples of a series that the hub wrote. `more` are matchers as they stand."""
    matchers = [OURS, *(f"{name}={quoted(value)}" for name, value in (labels or {}).items()), *more]
    return f"{series}{{{','.join(matchers)}}}"


def over(selector: str, window: int) -> str:
    """The samples of a window that ends LATER seconds after the moment that is asked for."""
    return f"{selector}[{window}s] offset -{LATER}s"


def any_of(label: str, values: list[str]) -> str:
    """A matcher for one of several values."""
    return f"{label}=~{quoted('|'.join(map(_as_pattern, values)))}"


def of_each(measure: Measure, where: Mapping[str, str], window: int, *more: str) -> Stats:
    """Each device by itself: GPUs by `gpu`, hosts by `host_id`."""
    device = _device(measure)
    stats = _each(measure, where, window, device, more)
    if measure.rollup is Rollup.LAST:
        at = over(select(series_of(measure), where, *more), window)
        stats["mean"] = f"max by ({device}) (last_over_time({at}))"
    return stats


def of_all(measure: Measure, where: Mapping[str, str], window: int, *more: str, by: str = "") -> Stats:
    """All devices as one, or with `by` as one a host, put together as the metric's roll-up says."""
    if measure.rollup is Rollup.SUM:
        devices = ", ".join(dict.fromkeys(filter(None, (by, _device(measure)))))
        each = _each(measure, where, window, devices, more)
        return {stat: f"sum by ({by}) ({asked})" for stat, asked in each.items()}
    stats = _each(measure, where, window, by, more)
    return stats | {"mean": stats["high"]} if measure.rollup is Rollup.MAX else stats


def at_once(stats: Stats) -> str:
    """All of them as one question: the label `stat` tells the answers apart."""
    return " or ".join(f'label_replace({asked}, "stat", "{stat}", "", "")' for stat, asked in stats.items())


def series_of(measure: Measure) -> str:
    return name_of((HOST_METRICS if measure.is_of_host else GPU_METRICS)[measure.plain])


def _each(measure: Measure, where: Mapping[str, str], window: int, by: str, more: tuple[str, ...]) -> Stats:
    if measure.state is not None:
        share = _share(measure, where, window, by, more)
        return {"mean": share, "low": f"floor({share})", "high": f"ceil({share})"}
    at = over(select(series_of(measure), where, *more), window)
    return {
        "mean": _mean(at, by),
        "low": f"min by ({by}) (min_over_time({at}))",
        "high": f"max by ({by}) (max_over_time({at}))",
    }


def _share(measure: Measure, where: Mapping[str, str], window: int, by: str, more: tuple[str, ...]) -> str:
    """Which part of its samples each GPU was in the state; 0 where it was in others only."""
    inside = over(select(STATE, {**where, "state": STATE_WORDS[measure.name]}, *more), window)
    seen = f"sum by ({by}) (count_over_time({over(select(STATE, where, *more), window)}))"
    return f"(sum by ({by}) (count_over_time({inside})) / {seen} or 0 * {seen})"


def _mean(at: str, by: str) -> str:
    return f"(sum by ({by}) (sum_over_time({at})) / sum by ({by}) (count_over_time({at})))"


def _device(measure: Measure) -> str:
    return "host_id" if measure.is_of_host else "gpu"


def _as_pattern(value: str) -> str:
    return re.sub(r"([.^$*+?()\[\]{}|\\])", r"\\\1", label_value(value))


def _escape(found: re.Match[str]) -> str:
    letter = found[0]
    return f"\\{letter}" if letter in '\\"' else f"\\x{ord(letter):02x}"
