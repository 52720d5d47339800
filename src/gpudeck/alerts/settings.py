"""The limits of each rule: the defaults, the operator's changes, and overrides for some hosts or models.

With the defaults, a healthy fleet has no alerts. Imports no database: a base install reads the configuration too.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, Literal

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gpudeck.alerts.expression import Expression, ExpressionError, check_text, parse_expression
from gpudeck.model.event import Severity
from gpudeck.model.settings import Duration
from gpudeck.model.text import propose

_MINUTE = 60.0
_HOUR = 3600.0
_DAY = 86_400.0
_Glob = Annotated[str, Meta(min_length=1, max_length=256)]


class Limits(Struct, frozen=True, kw_only=True):
    """An alert fires when its condition has held for `wait` seconds, and is resolved when it has not for `clear_after`.

    The condition begins at the value `above` and ends below `clear`, both in `unit`; None for rules without a value.
    """

    severity: Severity
    wait: float = 0.0
    clear_after: float = 0.0
    above: float | None = None
    clear: float | None = None
    unit: str = ""
    is_on: bool = True

    @property
    def begin(self) -> float:
        """`above` of a rule that has it."""
        return self.above or 0.0

    @property
    def end(self) -> float:
        """`clear` of a rule that has it."""
        return self.clear or 0.0


DEFAULTS: dict[str, Limits] = {
    "host_down": Limits(severity="critical"),
    # Setting up a new host takes a while.
    "host_unreadable": Limits(severity="critical", wait=10 * _MINUTE),
    "host_late": Limits(severity="warning", above=6.0, clear=2.0, unit="times an hour"),
    "gpu_lost": Limits(severity="critical", wait=_MINUTE, clear_after=_MINUTE),
    "driver_not_answering": Limits(severity="critical", wait=_MINUTE, clear_after=_MINUTE),
    "gpu_hot": Limits(severity="warning", wait=5 * _MINUTE, clear_after=_MINUTE, above=87.0, clear=82.0, unit="°C"),
    "gpu_throttled": Limits(severity="warning", wait=5 * _MINUTE, clear_after=5 * _MINUTE),
    "xid": Limits(severity="critical", clear_after=_HOUR),
    "ecc": Limits(severity="warning", wait=_MINUTE, above=1.0, clear=1.0, unit="errors"),
    "pcie_degraded": Limits(severity="warning", wait=10 * _MINUTE, clear_after=5 * _MINUTE),
    "nvlink_errors": Limits(severity="warning", clear_after=_MINUTE, above=10.0, clear=1.0, unit="errors an hour"),
    "row_remaps": Limits(severity="warning", clear_after=_MINUTE, above=1.0, clear=1.0, unit="rows a day"),
    "ecc_rate": Limits(severity="warning", clear_after=_MINUTE, above=100.0, clear=10.0, unit="errors an hour"),
    "gpu_slow": Limits(
        severity="warning", wait=10 * _MINUTE, clear_after=10 * _MINUTE, above=15.0, clear=8.0, unit="percent"
    ),
    "thermal_headroom": Limits(
        severity="warning", wait=10 * _MINUTE, clear_after=5 * _MINUTE, above=-5.0, clear=-10.0, unit="°C"
    ),
    "gpu_idle": Limits(severity="info", wait=2 * _HOUR, clear_after=_MINUTE),
    "orphaned_memory": Limits(severity="warning", wait=10 * _MINUTE, clear_after=_MINUTE),
    "power_capped": Limits(
        severity="info", wait=10 * _MINUTE, clear_after=_MINUTE, above=10.0, clear=5.0, unit="percent"
    ),
    "disk_full": Limits(severity="warning", wait=_MINUTE, clear_after=_MINUTE, above=95.0, clear=93.0, unit="percent"),
    "ram_full": Limits(
        severity="warning", wait=10 * _MINUTE, clear_after=_MINUTE, above=95.0, clear=90.0, unit="percent"
    ),
    "clock_skew": Limits(severity="warning", wait=5 * _MINUTE, above=10.0, clear=5.0, unit="seconds"),
    "agent_outdated": Limits(severity="info", wait=_DAY),
    # Sent within half a minute, including `group_wait`. `wait` is for a process that is just ending.
    "reservation_conflict": Limits(severity="warning", wait=5.0, clear_after=_MINUTE),
    "reservation_no_show": Limits(severity="warning"),
    "reservation_overrun": Limits(severity="warning", wait=10 * _MINUTE, clear_after=_MINUTE),
    "history_failing": Limits(severity="critical", wait=2 * _MINUTE, clear_after=_MINUTE),
    "fleet_nearly_full": Limits(
        severity="info", wait=_HOUR, clear_after=10 * _MINUTE, above=95.0, clear=90.0, unit="percent"
    ),
}

RuleName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9_]{0,62}$(?!\n)",
        extra={"config_words": "the name of a rule: lower-case letters, digits and _"},
    ),
]


class RuleChange(Struct, frozen=True):
    """A change of one of the hub's rules, in which fields that are left out keep their defaults; with `expr` a rule of
    your own."""

    enabled: bool | None = None
    """Whether the rule is evaluated."""
    severity: Severity | None = None
    """The severity: info, warning or critical."""
    wait: Annotated[Duration, Meta(ge=0)] | None = field(default=None, name="for")
    """How long the condition has to hold before the alert fires."""
    clear_after: Annotated[Duration, Meta(ge=0)] | None = None
    """How long the condition has to be gone before the alert is resolved."""
    above: float | None = None
    """The threshold at which the alert starts, in the unit of the rule."""
    clear: float | None = None
    """The lower threshold below which the alert is resolved. The default keeps the usual distance from `above`."""
    expr: Annotated[str, Meta(min_length=1)] | None = None
    """The condition of a rule of your own: `utilization_percent < 5 and memory_used_bytes > 10GiB for 2h`."""
    text: Annotated[str, Meta(min_length=1, max_length=300)] | None = None
    """The title of its alerts, with fields: `GPU {gpu} of {host} holds {memory_used_bytes}`."""
    action: Annotated[str, Meta(max_length=300)] = ""
    """The next step, shown in alerts of it."""
    labels: dict[Annotated[str, Meta(min_length=1, max_length=64)], Annotated[str, Meta(max_length=256)]] = field(
        default_factory=dict
    )
    """Labels of its alerts, in addition to those of the host: for routes, mutes and an Alertmanager."""

    def __post_init__(self) -> None:
        if self.above is not None and self.clear is not None and self.clear > self.above:
            raise ValueError("clear has to be at most above")
        if self.expr is None:
            if self.text is not None or self.action or self.labels:
                raise ValueError("text, action and labels belong to a rule of your own, with expr")
            return
        try:
            expression = parse_expression(self.expr)
        except ExpressionError as error:
            said = f"expr, character {error.start + 1}: {error}"
            raise ExpressionError(said, self.expr, error.start, error.end) from None
        if self.above is not None or self.clear is not None:
            raise ValueError("above and clear are those of the hub's rules; write the limits into expr")
        if self.wait is not None and expression.seconds is not None:
            raise ValueError("for is given twice, here and at the end of expr")
        if self.text is not None:
            check_text(self.text, expression)

    @property
    def expression(self) -> Expression | None:
        return None if self.expr is None else parse_expression(self.expr)


def find_rule_problems(rules: Mapping[str, RuleChange]) -> Iterator[tuple[str, str]]:
    """The names of rules with a mistake, and the mistakes."""
    for name, rule in rules.items():
        if name in DEFAULTS:
            if rule.expr is not None:
                yield name, f"{name} is a rule of the hub; give yours another name"
        elif rule.expr is None:
            yield name, f"there is no rule {name}; {propose_rule(name)} A rule of your own needs `expr`."


def propose_rule(name: str) -> str:
    near = propose(name, DEFAULTS)
    return near if near.endswith("?") else "docs/alerts.md lists them."


Rules = dict[RuleName, RuleChange]
OwnRules = Annotated[Rules, Meta(extra={"config_check": find_rule_problems})]


class Override(Struct, frozen=True):
    """Other thresholds for some hosts or GPU models. All given conditions must match."""

    hosts: _Glob | None = None
    """The names of the hosts, with * for anything: gpu-1*."""
    models: _Glob | None = None
    """The GPU model as the driver calls it, with * for anything: *V100*. Rules about GPUs alone have one."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels of the host."""
    rules: Rules = field(default_factory=dict)
    """The changed rules, by name."""

    def __post_init__(self) -> None:
        if self.hosts is None and self.models is None and not self.labels:
            raise ValueError("give hosts, models or labels; limits for all hosts belong into alerts.rules")
        _check(self.rules)


class AlertSettings(Struct, frozen=True):
    """Which alerts are sent, and how often."""

    rules: OwnRules = field(default_factory=dict)
    """Changes of rules, and rules of your own, by name."""
    overrides: list[Override] = field(default_factory=list)
    """Changes for some hosts, GPU models or labels. If several match, the last one applies."""
    group_wait: Annotated[Duration, Meta(ge=0, le=600)] = 10.0
    """Alerts of one rule that come within this time of each other become one message."""
    repeat: Literal["off"] | Annotated[Duration, Meta(ge=60)] = 86_400.0
    """After this time a critical alert that is not acknowledged is sent again; `off`: never."""
    messages_per_rule: Annotated[int, Meta(ge=1)] = 5
    """The most messages of one rule in ten minutes. Further alerts wait and become one message."""

    def __post_init__(self) -> None:
        _check(self.rules)
        for place, override in enumerate(self.overrides):
            for name, change in override.rules.items():
                if name not in DEFAULTS and name not in self.rules:
                    raise ValueError(f"overrides: number {place + 1}: there is no rule {name}; {propose_rule(name)}")
                if name not in DEFAULTS and (change.above is not None or change.clear is not None):
                    raise ValueError(f"overrides: number {place + 1}: {name} has neither `above` nor `clear`")
                if change.expr is not None:
                    raise ValueError(f"overrides: number {place + 1}: expr of {name} belongs into alerts.rules")

    @property
    def own_rules(self) -> dict[str, RuleChange]:
        """The operator's own rules, by name."""
        return {name: rule for name, rule in self.rules.items() if rule.expr is not None}


def _check(rules: Mapping[str, RuleChange]) -> None:
    problems = []
    for name, change in rules.items():
        if name not in DEFAULTS:
            continue
        usual = DEFAULTS[name].above
        if usual is None and (change.above is not None or change.clear is not None):
            problems.append(f"{name} compares no value, and has neither `above` nor `clear`")
        elif change.clear is not None and change.above is None and change.clear > (usual or 0.0):
            problems.append(f"`clear` of {name} is higher than its `above`, which is {usual:g}")
    if problems:
        raise ValueError(f"rules: {'; '.join(problems)}")


LimitsByRule = Mapping[str, Limits]


class Thresholds:
    """The limits of all rules, for each host and model."""

    def __init__(self, settings: AlertSettings, defaults: LimitsByRule | None = None) -> None:
        """`defaults` replace DEFAULTS for this fleet."""
        self._base = dict(DEFAULTS if defaults is None else defaults)
        self._base |= {name: own_limits(rule) for name, rule in settings.own_rules.items()}
        for name, change in settings.rules.items():
            self._base[name] = change_limits(self._base[name], change)
        self._overrides = settings.overrides

    @property
    def by_model(self) -> bool:
        """Whether GPUs of one host may have different limits."""
        return any(override.models is not None for override in self._overrides)

    def of(self, host: str, labels: dict[str, str], model: str = "") -> LimitsByRule:
        """The limits of a host, or of its GPUs of that model."""
        if not self._overrides:
            return self._base
        made = dict(self._base)
        for override in self._overrides:
            if (
                (override.hosts is None or fnmatchcase(host, override.hosts))
                and (override.models is None or fnmatchcase(model.lower(), override.models.lower()))
                and override.labels.items() <= labels.items()
            ):
                for name, change in override.rules.items():
                    made[name] = change_limits(made[name], change)
        return made

    def loosest(self, rule: str) -> Limits:
        """The lowest `above` and `clear`, the shortest `wait` and the longest `clear_after` of any host or model; on if
        the rule is on anywhere: the rule finds with these what it finds with any others."""
        base = self._base[rule]
        changes = [override.rules[rule] for override in self._overrides if rule in override.rules]
        reached = [base, *(change_limits(base, change) for change in changes)]
        above = [one.above for one in reached if one.above is not None]
        clear = [one.clear for one in reached if one.clear is not None]
        return replace(
            base,
            is_on=any(one.is_on for one in reached),
            wait=min(one.wait for one in reached),
            above=min(above, default=None),
            # Several overrides may apply together, and a lower `above` moves `clear`.
            clear=min(above) - (max(above) - min(clear)) if above and clear else None,
            clear_after=max(one.clear_after for one in reached),
        )


def own_limits(rule: RuleChange) -> Limits:
    """The defaults of an own rule."""
    expression = rule.expression
    wait = None if expression is None else expression.seconds
    return Limits(severity="warning", wait=wait or 0.0, clear_after=_MINUTE)


def change_limits(limits: Limits, change: RuleChange) -> Limits:
    """The limits with a change. If only `above` is changed, `clear` keeps its distance."""
    above = limits.above if change.above is None else change.above
    clear = change.clear
    if clear is None and above is not None and limits.above is not None and limits.clear is not None:
        clear = above - (limits.above - limits.clear)
    return replace(
        limits,
        is_on=limits.is_on if change.enabled is None else change.enabled,
        severity=change.severity or limits.severity,
        wait=limits.wait if change.wait is None else change.wait,
        clear_after=limits.clear_after if change.clear_after is None else change.clear_after,
        above=above,
        clear=clear if clear is None or above is None else min(clear, above),
    )
