"""Rules about the hub and the fleet as a whole."""

from collections.abc import Sequence
from typing import Final

from gpudeck.alerts.finding import Rule, RuleFinding
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.model.view import Gpu

_FEWEST: Final = 8
"""A fleet of fewer GPUs is full every other day."""


def find_failing_history(_: SeenHost, __: Sequence[Gpu], ___: Limits, around: Around) -> Sequence[RuleFinding]:
    # Its detail may name a place, and this goes to everybody who may look.
    trouble = around.history
    return () if trouble is None else (RuleFinding(title=trouble.title, severity=trouble.severity),)


def find_full_fleet(_: SeenHost, __: Sequence[Gpu], limits: Limits, around: Around) -> Sequence[RuleFinding]:
    """By the GPUs of which it is known what they do."""
    if around.known < _FEWEST:
        return ()
    taken = 100.0 * (1.0 - around.free / around.known)
    if taken < limits.end:
        return ()
    title = f"{around.free} of {around.known} GPUs are free"
    return (RuleFinding(title=title, is_bad=taken >= limits.begin),)


HUB_RULES = (
    Rule(
        name="history_failing",
        scope="hub",
        find=find_failing_history,
        action="Look at the problems of the hub on its page, and at its log.",
        many="The history is late or not kept",
        over="The history is up to date again",
        over_many="The history is up to date again",
    ),
    Rule(
        name="fleet_nearly_full",
        scope="hub",
        find=find_full_fleet,
        action="Look for GPUs that are held idle: gpudeck show held.",
        many="Hardly a GPU is free",
        over="More GPUs are free again",
        over_many="More GPUs are free again",
        tells_end=False,
    ),
)
