"""Verdicts on runs and jobs.

samples of its GPUs (`history.run_columns`) → `RunFacts` → each rule (`history.verdict_rules`) → `RunVerdict`
"""

import logging
from functools import cache, partial
from typing import Final

from msgspec.structs import replace

from gpudeck.history.run_columns import STRETCH_SECONDS, RunFacts, RunSamples
from gpudeck.history.verdict_rules import RULES, VerdictRule
from gpudeck.model.errors import PluginError
from gpudeck.model.job import MAX_SUGGESTIONS, Rating, RunVerdict, Suggestion
from gpudeck.model.plugins import Plugin, find_plugins
from gpudeck.model.text import show_count, show_span

log = logging.getLogger(__name__)

_MIN_SECONDS: Final = 55.0
"""Shorter runs are not judged: six samples, which are not exactly ten seconds apart."""
_MIN_COVERAGE: Final = 0.5
_GOOD_PERCENT, _POOR_PERCENT = 50.0, 15.0


def judge_run(columns: RunSamples | None) -> RunVerdict:
    """`columns` is None if no samples are kept."""
    if columns is None or not columns.times.size:
        return _unknown("its samples are not kept, or no longer")
    facts = RunFacts(columns)
    if found := find_suggestions(facts):
        suggestions = [
            Suggestion(rule.name, rule.text, evidence, rule.threshold, rule.fix)
            for rule, evidence in found[:MAX_SUGGESTIONS]
        ]
        rating: Rating = "poor" if any(rule.is_major for rule, _ in found) else "could_be_better"
        return RunVerdict(rating, f"{suggestions[0].text}: {suggestions[0].evidence}.", None, suggestions)
    if facts.wall < _MIN_SECONDS:
        return _unknown(f"only {show_span(facts.wall)} of it was sampled")
    if facts.wall < _MIN_COVERAGE * columns.wall_seconds:
        return _unknown(f"only {100 * facts.wall / columns.wall_seconds:.0f} % of its time was monitored")
    return _judge_by_mean(facts)


def _judge_by_mean(facts: RunFacts) -> RunVerdict:
    if not facts.is_known_everywhere(facts.utilization) or facts.mean_utilization is None:
        return _unknown("its utilization is not known: other programs were on its GPUs, or they do not report it")
    # As the sentence says it: a mean that reads 50 % is not below 50 %.
    level = round(facts.mean_utilization)
    if level < _GOOD_PERCENT and facts.wall < STRETCH_SECONDS:
        return _unknown(f"{show_span(facts.wall)} is too short to judge a mean utilization of {level:.0f} %")
    waits = facts.is_interactive or facts.is_serving
    is_poor = level < _POOR_PERCENT and not waits
    rating: Rating = "good" if level >= _GOOD_PERCENT else "poor" if is_poor else "could_be_better"
    bound = ", limited by memory bandwidth" if facts.mean("dram_activity_percent") >= 70 else ""
    why = "it waits for its user or for requests" if waits else "the samples do not show why"
    text = f"Mean utilization {level:.0f} % over {show_span(facts.wall)} on {show_count(facts.count, 'GPU')}{bound}"
    return RunVerdict(rating, f"{text}{'' if rating == 'good' else f'; {why}'}.", None)


def _unknown(reason: str) -> RunVerdict:
    return RunVerdict("unknown", f"No verdict: {reason}.", reason)


def find_suggestions(facts: RunFacts) -> list[tuple[VerdictRule, str]]:
    rules = (*RULES, *load_plugin_rules())
    found = [(rule, evidence) for rule in rules if (evidence := rule.find(facts)) is not None]
    hidden = {name for rule, _ in found for name in rule.hides}
    return [(rule, evidence) for rule, evidence in found if rule.name not in hidden]


@cache
def load_plugin_rules() -> tuple[VerdictRule, ...]:
    """After the built-in ones. A rule that cannot be loaded is logged and left out."""
    known, found = {rule.name for rule in RULES}, list[VerdictRule]()
    for plugin in find_plugins("verdict_rules").values():
        try:
            loaded = plugin.load()
        except PluginError as error:
            log.warning("%s", error, exc_info=error.__cause__)
            continue
        for rule in loaded if isinstance(loaded, list | tuple) else (loaded,):
            if not isinstance(rule, VerdictRule) or rule.name in known:
                log.warning("%s: %r is no rule with a name of its own", plugin.label, rule)
                continue
            known.add(rule.name)
            found.append(replace(rule, find=partial(_find_by_plugin, plugin, rule, set())))
    return tuple(found)


def _find_by_plugin(plugin: Plugin, rule: VerdictRule, failed: set[str], facts: RunFacts) -> str | None:
    """A failure is logged once, and the rule does not apply."""
    try:
        evidence = rule.find(facts)
    except Exception as error:
        if rule.name not in failed:
            log.warning("the rule %s: %s", rule.name, plugin.explain(error), exc_info=error)
        failed.add(rule.name)
        return None
    return None if evidence is None else str(evidence)
