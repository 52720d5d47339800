"""What an operator decides about alerts. Imports no database: a base install reads the configuration too."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpudeck.alerts.limits import DEFAULTS, RuleName
from gpudeck.model.event import Severity
from gpudeck.model.settings import Duration

_Glob = Annotated[str, Meta(min_length=1, max_length=256)]


class RuleChange(Struct, frozen=True):
    """What of one rule is to be otherwise; what is left out stays."""

    enabled: bool | None = None
    """Whether the rule is looked at at all."""
    severity: Severity | None = None
    """How bad it is: info, warning or critical."""
    wait: Annotated[Duration, Meta(ge=0)] | None = field(default=None, name="for")
    """How long it has to be so before anybody is told."""
    clear_after: Annotated[Duration, Meta(ge=0)] | None = None
    """How long it has to be over before it counts as over."""
    above: float | None = None
    """The value from which on it is so, in the unit of the rule."""
    clear: float | None = None
    """The lower value below which it is over; without it, as far below `above` as usual."""

    def __post_init__(self) -> None:
        if self.above is not None and self.clear is not None and self.clear > self.above:
            raise ValueError("clear has to be at most above")


Rules = dict[RuleName, RuleChange]


class Override(Struct, frozen=True):
    """Other limits for some hosts or GPU models. All that is given has to fit."""

    hosts: _Glob | None = None
    """The names of the hosts, with * for anything: gpu-1*."""
    models: _Glob | None = None
    """The GPU model as the driver calls it, with * for anything: *V100*. Rules about GPUs alone have one."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the host."""
    rules: Rules = field(default_factory=dict)
    """What is otherwise there, by the name of the rule."""

    def __post_init__(self) -> None:
        if self.hosts is None and self.models is None and not self.labels:
            raise ValueError("give hosts, models or labels: what is for everybody belongs into alerts.rules")
        _check(self.rules)


class AlertSettings(Struct, frozen=True):
    """What is told to people, and how often. Without a line here a healthy fleet is quiet."""

    rules: Rules = field(default_factory=dict)
    """What of the rules is to be otherwise, by their names."""
    overrides: list[Override] = field(default_factory=list)
    """The same for some hosts, GPU models or labels; of several that fit, the last one counts."""
    group_wait: Annotated[Duration, Meta(ge=0, le=600)] = 10.0
    """Alerts of one rule that come within this time of each other become one message."""
    repeat: Literal["off"] | Annotated[Duration, Meta(ge=60)] = 86_400.0
    """After this time a critical alert that nobody has acknowledged is told again; `off`: never."""
    messages_per_rule: Annotated[int, Meta(ge=1)] = 5
    """How many messages one rule may send in ten minutes; what comes beyond waits, and is summed up in one."""
    messages: Annotated[int, Meta(ge=1)] = 20
    """The same for all rules together."""

    def __post_init__(self) -> None:
        _check(self.rules)


def _check(rules: Mapping[RuleName, RuleChange]) -> None:
    if problems := list(_problems(rules)):
        raise ValueError(f"rules: {'; '.join(problems)}")


def _problems(rules: Mapping[RuleName, RuleChange]) -> Iterator[str]:
    for name, change in rules.items():
        if DEFAULTS[name].above is None and (change.above is not None or change.clear is not None):
            yield f"{name} knows yes and no alone, and has neither `above` nor `clear`"
        elif change.clear is not None and change.above is None and change.clear > (DEFAULTS[name].above or 0.0):
            yield f"`clear` of {name} is higher than its `above`, which is {DEFAULTS[name].above:g}"
