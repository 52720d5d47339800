"""The rules: pure functions over a host and its fleet. All of them, in the order in which their modules define them."""

from gpudeck.alerts.rule import Rule
from gpudeck.alerts.rules import gpus, hosts, hub

RULES: tuple[Rule, ...] = tuple(
    value for module in (hosts, gpus, hub) for value in vars(module).values() if isinstance(value, Rule)
)
RULES_BY_NAME: dict[str, Rule] = {rule.name: rule for rule in RULES}
