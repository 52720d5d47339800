"""All rules, in the order in which they are listed."""

from gpudeck.alerts.rule import Rule
from gpudeck.alerts.rules.gpus import EARLY_RULES, FAULT_RULES, GPU_RULES, USE_RULES
from gpudeck.alerts.rules.hosts import HOST_RULES
from gpudeck.alerts.rules.hub import HUB_RULES, RESERVATION_RULES

RULES: tuple[Rule, ...] = (
    *HOST_RULES,
    *GPU_RULES,
    *EARLY_RULES,
    *FAULT_RULES,
    *USE_RULES,
    *RESERVATION_RULES,
    *HUB_RULES,
)
RULES_BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}
