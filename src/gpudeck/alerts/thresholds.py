"""Which limits count where: the defaults, what the operator changed of them, and what is otherwise on some hosts."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Final

from msgspec.structs import replace

from gpudeck.alerts.limits import DEFAULTS, Limits
from gpudeck.alerts.settings import AlertSettings, Override, RuleChange

LimitsByRule = Mapping[str, Limits]
_MOST_KEPT: Final = 50_000
_MOST_REACHED: Final = 2_000


class Thresholds:
    """`of` answers once a second for every host: what was worked out is kept."""

    def __init__(self, settings: AlertSettings, defaults: LimitsByRule | None = None) -> None:
        """`defaults` are those of this fleet, where they are not the usual ones."""
        self._base = dict(DEFAULTS if defaults is None else defaults)
        for name, change in settings.rules.items():
            self._base[name] = change_limits(self._base[name], change)
        self._overrides = settings.overrides
        self._kept: dict[tuple[str, str], tuple[dict[str, str], LimitsByRule]] = {}

    @property
    def by_model(self) -> bool:
        """Whether GPUs of one host may have different limits."""
        return any(override.models is not None for override in self._overrides)

    def of(self, host: str, labels: dict[str, str], model: str = "") -> LimitsByRule:
        """Those of a host, or of its GPUs of that model."""
        if not self._overrides:
            return self._base
        kept = self._kept.get((host, model))
        if kept is not None and kept[0] == labels:
            return kept[1]
        if len(self._kept) >= _MOST_KEPT:
            self._kept.clear()
        made = self._make(host, labels, model)
        self._kept[host, model] = (dict(labels), made)
        return made

    def loosest(self, rule: str) -> Limits:
        """The lowest `above` and `clear` and the longest `clear_after` that any host or model may have, on where the
        rule is on anywhere: whatever the rule finds anywhere it finds with these."""
        base = self._base[rule]
        changes = [override.rules[rule] for override in self._overrides if rule in override.rules]
        reached = {base}
        for change in changes:
            # An override counts together with any of those before it, or without them.
            values = RuleChange(above=change.above, clear=change.clear)
            reached |= {change_limits(limits, values) for limits in reached}
            if len(reached) > _MOST_REACHED:
                return replace(base, is_on=True, above=float("-inf"), clear=float("-inf"), clear_after=float("inf"))
        return replace(
            base,
            is_on=base.is_on or any(change.enabled for change in changes),
            above=min((one.above for one in reached if one.above is not None), default=None),
            clear=min((one.clear for one in reached if one.clear is not None), default=None),
            clear_after=max([base.clear_after, *(change.clear_after or 0.0 for change in changes)]),
        )

    def _make(self, host: str, labels: Mapping[str, str], model: str) -> LimitsByRule:
        made = dict(self._base)
        for override in self._overrides:
            if _fits(override, host, labels, model):
                for name, change in override.rules.items():
                    made[name] = change_limits(made[name], change)
        return made


def change_limits(limits: Limits, change: RuleChange) -> Limits:
    """The limits with what was decided. A new `above` alone takes its `clear` along."""
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


def _fits(override: Override, host: str, labels: Mapping[str, str], model: str) -> bool:
    return (
        (override.hosts is None or fnmatchcase(host, override.hosts))
        and (override.models is None or fnmatchcase(model.lower(), override.models.lower()))
        and override.labels.items() <= labels.items()
    )
