"""All rules, in the order in which they are listed."""

from gpudeck.alerts.finding import Rule
from gpudeck.alerts.rules.bookings import BOOKING_RULES
from gpudeck.alerts.rules.faults import FAULT_RULES
from gpudeck.alerts.rules.gpus import GPU_RULES
from gpudeck.alerts.rules.holders import HOLDER_RULES
from gpudeck.alerts.rules.hosts import HOST_RULES
from gpudeck.alerts.rules.hub import HUB_RULES

RULES: tuple[Rule, ...] = (*HOST_RULES, *GPU_RULES, *FAULT_RULES, *HOLDER_RULES, *BOOKING_RULES, *HUB_RULES)
RULES_BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}
