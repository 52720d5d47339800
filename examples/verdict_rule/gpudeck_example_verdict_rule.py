"""A verdict rule: GPUs that look busy, and draw little power."""

from gpudeck.history.run_columns import RunFacts
from gpudeck.history.verdict_rules import VerdictRule

BUSY_PERCENT, LOW_SHARE = 80.0, 0.4


def find(facts: RunFacts) -> str | None:
    """The evidence, or None. Means are NaN where something is unknown, and a comparison with NaN is false."""
    utilization = facts.mean("utilization_percent")
    share = facts.mean("power_watts") / facts.mean("power_limit_watts")
    if utilization >= BUSY_PERCENT and share < LOW_SHARE:
        return f"mean utilization {utilization:.0f} % at {100 * share:.0f} % of the power limit"
    return None


low_power = VerdictRule(
    name="low_power",
    text="The GPUs look busy, but draw little power",
    threshold="utilization of 80 % and more, below 40 % of the power limit",
    fix="Profile it: kernels probably wait for memory, or are very small.",
    needs="utilization, power and its limit",
    find=find,
)
