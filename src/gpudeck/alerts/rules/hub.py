"""Rules about the hub and the fleet as a whole."""

from collections.abc import Sequence
from typing import Final

from gpudeck.alerts.rule import FleetContext, HostSnapshot, Rule, RuleFinding
from gpudeck.alerts.settings import Limits
from gpudeck.model.view import Gpu

_FEWEST: Final = 8
"""A fleet of fewer GPUs is full every other day."""


def find_failing_history(
    _: HostSnapshot, __: Sequence[Gpu], ___: Limits, context: FleetContext
) -> Sequence[RuleFinding]:
    # Its detail may name a place, and this goes to everybody who may look.
    trouble = context.history
    return () if trouble is None else (RuleFinding(title=trouble.title, severity=trouble.severity),)


def find_full_fleet(_: HostSnapshot, __: Sequence[Gpu], limits: Limits, context: FleetContext) -> Sequence[RuleFinding]:
    """By the GPUs of which it is known what they do."""
    if context.known < _FEWEST:
        return ()
    taken = 100.0 * (1.0 - context.free / context.known)
    if taken < limits.end:
        return ()
    title = f"{context.free} of {context.known} GPUs are free"
    return (RuleFinding(title=title, is_bad=taken >= limits.begin),)


HUB_RULES = (
    Rule(
        name="history_failing",
        scope="hub",
        find=find_failing_history,
        action="Look at the problems of the hub on its page, and at its log.",
        many="The history is late or not kept",
    ),
    Rule(
        name="fleet_nearly_full",
        scope="hub",
        find=find_full_fleet,
        action="Look for idle GPUs: gpudeck show idle.",
        many="Hardly a GPU is free",
        notifies_end=False,
    ),
)
