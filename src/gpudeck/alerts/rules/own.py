"""The operator's own rules: an expression selects GPUs or hosts by columns, and is evaluated again for each of them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpudeck.alerts.expression import COLUMNS, HOST_PREFIX, Expression, Truth, default_text, fill_text
from gpudeck.alerts.rule import FleetContext, HostSnapshot, Rule, RuleFinding, find_at
from gpudeck.alerts.settings import AlertSettings, Limits, RuleChange
from gpudeck.fleet.columns import AVAILABILITY_WORDS, HEALTH_WORDS, Flags, Floats
from gpudeck.fleet.table import FleetTable
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.view import Gpu, Host

_UNKNOWN = "unknown"


class TableValues:
    """All GPUs of the fleet, or with `of_hosts` all hosts, by row."""

    def __init__(self, fleet: FleetTable, *, of_hosts: bool) -> None:
        self._fleet = fleet
        self._of_hosts = of_hosts
        self._read: dict[str, Floats] = {}

    def number(self, column: str) -> Floats:
        """A contiguous copy, as several rules read it."""
        if column not in self._read:
            self._read[column] = np.ascontiguousarray(self._find(column))
        return self._read[column]

    def _find(self, column: str) -> Floats:
        gpus, hosts = self._fleet.gpus, self._fleet.hosts
        if not column.startswith(HOST_PREFIX):
            return gpus.metric(column)
        of_host = hosts.metric(column.removeprefix(HOST_PREFIX))
        return of_host if self._of_hosts else of_host[gpus.host[: gpus.end]]

    def match(self, column: str, is_wanted: Callable[[str], bool]) -> Truth:
        gpus = self._fleet.gpus
        columns: dict[str, tuple[NDArray[Any], Iterable[str | None]]] = {
            "model": (gpus.model, gpus.models),
            "health": (gpus.health, HEALTH_WORDS),
            "availability": (gpus.availability, AVAILABILITY_WORDS),
        }
        codes, words = columns[column]
        # Rows without a GPU have the model -1, which is the last place.
        known = [None if word in {None, _UNKNOWN} else word for word in (*words, None)]
        is_right = np.array([word is not None and is_wanted(word) for word in known])
        is_wrong = np.array([word is not None for word in known]) & ~is_right
        return is_right[codes[: gpus.end]], is_wrong[codes[: gpus.end]]


class ViewValues:
    """One GPU, or one host."""

    def __init__(self, host: Host, gpu: Gpu | None) -> None:
        self._host = host
        self._gpu = gpu

    def number(self, column: str) -> float:
        value = self._find(column)
        return float("nan") if value is None else float(value)

    def match(self, column: str, is_wanted: Callable[[str], bool]) -> Truth:
        word = str(self._find("name" if column == "model" else column) or "")
        is_known = word not in {"", _UNKNOWN}
        is_right = is_known and is_wanted(word)
        return is_right, is_known and not is_right

    def field(self, name: str) -> str | float | None:
        """The value of a field of a text."""
        if name == "host":
            return self._host.name
        if self._gpu is not None and name in {"gpu", "model", "users"}:
            users = " and ".join(self._gpu.users[:3]) or "nobody"
            return {"gpu": self._gpu.label, "model": self._gpu.name, "users": users}[name]
        found: str | float | None = self._find(name)
        return found

    def _find(self, column: str) -> str | float | None:
        if column.startswith(HOST_PREFIX):
            found: str | float | None = getattr(self._host, column.removeprefix(HOST_PREFIX))
            return found
        return None if self._gpu is None else getattr(self._gpu, column)


class _SharedValues:
    """The columns that rules have read, shared by all rules that are evaluated with one FleetContext."""

    def __init__(self) -> None:
        self._context: FleetContext | None = None
        self._values: dict[bool, TableValues] = {}

    def of(self, fleet: FleetTable, context: FleetContext, *, of_hosts: bool) -> TableValues:
        if context is not self._context:
            self._context, self._values = context, {}
        if of_hosts not in self._values:
            self._values[of_hosts] = TableValues(fleet, of_hosts=of_hosts)
        return self._values[of_hosts]


def make_own_rules(settings: AlertSettings) -> list[Rule]:
    shared, rules = _SharedValues(), settings.own_rules.items()
    return [_make(name, rule, one, shared) for name, rule in rules if (one := rule.expression) is not None]


def retired_rule(name: str) -> Rule:
    """Stands for a rule that is no longer in the settings, for the messages about its last alerts."""
    return Rule(name=name, scope="gpu", find=lambda *_: (), action="", many=f"{name}: {{count}} alerts")


def _make(name: str, rule: RuleChange, expression: Expression, shared: _SharedValues) -> Rule:
    is_of_host, columns = expression.is_of_host, expression.columns
    text = rule.text or default_text(expression)

    def find(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Iterator[RuleFinding]:
        for gpu in (None,) if is_of_host else gpus:
            values = ViewValues(host.view, gpu)
            if expression.evaluate(values)[0]:
                title = fill_text(text, values.field)
                yield RuleFinding(title=title) if gpu is None else find_at(gpu, title)

    def preselect(fleet: FleetTable, _: Limits, context: FleetContext) -> Flags:
        values = shared.of(fleet, context, of_hosts=is_of_host)
        with np.errstate(all="ignore"):
            is_true: Flags = expression.evaluate(values)[0]
        return is_true

    def why_unknown(host: HostSnapshot, gpu: str, _: str) -> str | None:
        board = host.boards.get(gpu)
        values = ViewValues(host.view, None if board is None else board.view())
        if any(expression.evaluate(values)):
            return None
        return f"{', '.join(one for one in columns if values.field(one) in {None, _UNKNOWN})} cannot be read"

    # Without `reads` the rule is evaluated each second: states of GPUs change without a report, and those of hosts are
    # not among the columns of GPUs.
    is_steady = is_of_host or all(column in GPU_METRICS or column == "model" for column in columns)
    reads = tuple(column.removeprefix(HOST_PREFIX) for column in columns if column in COLUMNS) if is_steady else ()
    return Rule(
        name=name,
        scope="host" if is_of_host else "gpu",
        find=find,
        preselect=preselect,
        action=rule.action,
        many=f"{name}: {{count}} {'hosts' if is_of_host else 'GPUs'}",
        reads=reads,
        why_unknown=why_unknown,
        labels=dict(rule.labels),
    )
