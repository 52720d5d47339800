"""What a rule is, and what it says of one subject at one moment. Pure."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from gpudeck.alerts.limits import Limits
from gpudeck.alerts.message import MessageKind
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.fleet.columns import Flags, GpuColumns, HostColumns
from gpudeck.model.event import Severity
from gpudeck.model.view import Gpu


class RuleFinding(Struct, frozen=True, kw_only=True):
    """Something is so. `title` is a sentence without its full stop.

    `gpu` is a UUID; `part` tells several of one subject apart. With `is_bad` false it has eased, but is not over: an
    alert that fires goes on, a new one does not begin. `since` is when it began, where the rule itself knows.
    `severity` and `action` count before those of the rule. `users` are logins on the host, `accounts` people of the
    hub. `is_personal`: for them alone.
    """

    title: str
    gpu: str | None = None
    label: str | None = None
    model: str | None = None
    part: str = ""
    is_bad: bool = True
    severity: Severity | None = None
    action: str | None = None
    since: float | None = None
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    is_personal: bool = False


Find = Callable[[SeenHost, Sequence[Gpu], Limits, Around], Sequence[RuleFinding]]
"""All that is so on a host, of these of its GPUs. Called once a second for each host that was preselected: what is fine
is not mentioned."""


class FleetColumns(Protocol):
    """The numbers of the whole fleet."""

    gpus: GpuColumns
    hosts: HostColumns


Preselect = Callable[[FleetColumns, Limits, Around], Flags]
"""The rows, of GPUs or of hosts by the rule's scope, of which `find` may report something: all of these, and few
others. `limits` are the loosest that count anywhere. Called once a second for the whole fleet.

A comparison with NaN is false, which is right for what is unknown; the negation of one would be true."""

WhyUnknown = Callable[[SeenHost, str, str], str | None]
"""Why it cannot be told of the GPU and the part whether it is still so; None where it can."""


class Rule(Struct, frozen=True, kw_only=True):
    """`find` tells what is so. Where an alert's subject is not among it, it is over, unless it is not known: a metric
    in `needs` could not be read, the host is silent, or `why_unknown` says so. Hosts on which `preselect` selects
    nothing are not asked, unless they have an alert; without one, all are.

    `reads` are the fields of the host, or the metrics of the GPU, on which alone the findings depend: while an alert
    fires, its subject is not looked at before one of them may be another. Without any it is, each time.

    `sees_silent`: the rule is about hosts that do not report; `reads_missing`: about GPUs that cannot be read too.
    `many` is the title of several in one message, and `over` that of the end, with {place}; `tells_end` false: nobody
    waits for the end.
    """

    name: str
    scope: Literal["host", "gpu", "hub"]
    find: Find
    preselect: Preselect | None = None
    action: str
    many: str
    over: str = ""
    over_many: str = ""
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    why_unknown: WhyUnknown | None = None
    sees_silent: bool = False
    reads_missing: bool = False
    tells_end: bool = True
    kind: MessageKind = "alert"


def find_at(gpu: Gpu, title: str, **others: Any) -> RuleFinding:
    """Something is so of that GPU; `others` are the rest of a finding."""
    return RuleFinding(title=title, gpu=gpu.uuid, label=gpu.label, model=gpu.name, **others)


def place_of(host: str | None, label: str | None) -> str:
    """GPU 3 of gpu-01, gpu-01, or the fleet."""
    if host is None:
        return "the fleet"
    return host if label is None else f"GPU {label} of {host}"
