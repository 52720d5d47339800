"""The types of rules: a rule, its findings, and its input, which is a host, the fleet and their recent past. Pure."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from msgspec import Struct, field

from gpudeck.alerts.notifiers.rendering import MessageKind
from gpudeck.alerts.settings import Limits
from gpudeck.fleet.columns import Flags
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.table import FleetTable
from gpudeck.model.event import Severity
from gpudeck.model.history import HistoryTrouble
from gpudeck.model.reservation import Reservation
from gpudeck.model.view import Gpu, Host, HostStatus

LOADED_PERCENT: Final = 90.0
"""From this utilization on a GPU is under load."""


class GoneGpu(Struct, frozen=True):
    """A GPU that a host had and no longer reports."""

    uuid: str
    label: str
    model: str


class HostSnapshot(Struct, frozen=True, kw_only=True):
    """`view` is its metrics and facts, without GPUs. `boards` are all of its GPUs by UUID, `gpus` those to evaluate,
    whose values are current, `chosen` their UUIDs, None for all. `has_gpus`: some GPU has current values.
    `silent_since` is the time of its last report, `late_times` how often it was late within the last hour.

    `failure` is why the hub cannot read it. `is_expected`: it is configured. `is_restored`: it is known from before
    this start of the hub, and has not reported since."""

    id: str
    name: str
    status: HostStatus
    view: Host
    gpus: Sequence[Gpu] = ()
    has_gpus: bool = False
    boards: Mapping[str, GpuState] = field(default_factory=dict)
    silent_since: float = 0.0
    late_times: int = 0
    failure: str | None = None
    is_expected: bool = False
    is_restored: bool = False
    gone: tuple[GoneGpu, ...] = ()
    chosen: Collection[str] | None = None

    def is_gone(self, gpu: str) -> bool:
        return any(gpu == one.uuid for one in self.gone)

    def is_chosen(self, gpu: str) -> bool:
        """Whether to evaluate alerts of that GPU, or with "" of the host."""
        if not gpu or gpu not in self.boards:
            return True
        return self.has_gpus and (self.chosen is None or gpu in self.chosen)

    @property
    def labels(self) -> dict[str, str]:
        return self.view.labels


class Selection(NamedTuple):
    """The rows of hosts and GPUs to evaluate: each time, or (`steady_`) after a report or when a metric in `reads` has
    changed. `is_anew`: rules have changed, so evaluate all. Valid until the next `await`: rows are reused."""

    hosts: Flags
    gpus: Flags
    steady_hosts: Flags
    steady_gpus: Flags
    reads: tuple[str, ...]
    is_anew: bool


class CounterGrowth(Struct, frozen=True):
    gpu: GpuState
    amount: float


WhyUncounted = Callable[[float, str], str | None]
"""Why it is unknown how much the counters of a GPU, by UUID, grew within a window in seconds; None if it is known."""
Growths = Mapping[str, Mapping[str, CounterGrowth]]
"""By rule name and UUID: the GPUs whose counter grew within the window of the rule. A counter that was reset has not
grown."""


class FleetContext(Struct, frozen=True, kw_only=True):
    """The state of the fleet as a whole. `power_limits` is the usual limit of each GPU model in watts,
    `usual_clocks` the usual clock under load in MHz; `growth` are the counters that grew (see `GpuTrends`).

    `late_reservations` have begun and are not used, with the time of their release. `free` and `known` count GPUs that
    are free, and whose state is known. `drained` are the ids of hosts and the UUIDs of GPUs in maintenance: no alert
    begins there, and none is sent.
    """

    now: float
    version: str = ""
    critical_celsius: float = 95.0
    power_limits: Mapping[str, float] = field(default_factory=dict)
    usual_clocks: Mapping[str, float] = field(default_factory=dict)
    growth: Growths = field(default_factory=dict)
    why_uncounted: WhyUncounted = lambda *_: None
    late_reservations: Sequence[tuple[Reservation, float]] = ()
    history: HistoryTrouble | None = None
    free: int = 0
    known: int = 0
    drained: frozenset[str] = frozenset()


HUB = HostSnapshot(id="", name="", status="up", view=Host(id="", name="", display_name="", status="up", via=""))
"""The subject of rules with the scope `hub`."""


class RuleFinding(Struct, frozen=True, kw_only=True):
    """The condition of a rule holds. `title` is a sentence without its full stop.

    `gpu` is a UUID; `part` distinguishes several findings of one subject. If `is_bad` is false, the value is between
    the two limits: an alert continues, but none begins. `since` is when it began, if the rule knows. `severity` and
    `action` replace those of the rule. `users` are logins on the host, `accounts` those of the hub. `is_personal`: only
    they are notified.
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


Find = Callable[[HostSnapshot, Sequence[Gpu], Limits, FleetContext], Iterable[RuleFinding]]
"""The findings on a host and on these of its GPUs. Called once a second for each host that was preselected."""


Preselect = Callable[[FleetTable, Limits, FleetContext], Flags]
"""The rows, of GPUs or of hosts by the rule's scope, that may have findings: all of these, and few others. `limits` are
the loosest of all hosts. Called once a second for the whole fleet.

A comparison with NaN is false, as unknown values require; the negation of one would be true."""

WhyUnknown = Callable[[HostSnapshot, str, str], str | None]
"""Why it is unknown whether the finding about that GPU and part still applies; None if it is known."""


class Rule(Struct, frozen=True, kw_only=True):
    """`find` returns findings. An alert without one is resolved, unless that is unknown: a metric in `needs` could
    not be read, the host is silent, the hub has not watched the growth of `counter` for `window` seconds, or
    `why_unknown` gives a reason. Hosts that `preselect` does not select are not evaluated, unless they have an alert;
    without `preselect` all are. A `counter` needs a `window`, otherwise ValueError is raised.

    `reads` are the fields of the host, or the metrics of the GPU, on which the findings depend: while an alert fires,
    it is evaluated when one of them changes. If empty, each time.

    `sees_silent`: also about hosts that do not report; `reads_missing`: also about GPUs that cannot be read.
    `inhibits_host`: while it fires, no other alert of its host is sent. `clears_itself`: its findings last for
    `clear_after`. `labels` are added to those of the host. `many` is the title of several alerts in one message. If
    `notifies_end` is false, no message is sent at the end.
    """

    name: str
    scope: Literal["host", "gpu", "hub"]
    find: Find
    preselect: Preselect | None = None
    action: str
    many: str
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    why_unknown: WhyUnknown | None = None
    counter: str = ""
    window: float = 0.0
    sees_silent: bool = False
    reads_missing: bool = False
    inhibits_host: bool = False
    clears_itself: bool = False
    notifies_end: bool = True
    kind: MessageKind = "alert"
    labels: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.counter and self.window <= 0:
            raise ValueError(f"the rule {self.name} needs the window in which {self.counter} grows, in seconds")


def rule(scope: Literal["host", "gpu", "hub"], **fields: Any) -> Callable[[Find], Rule]:
    """Decorates the `find` of a rule, which gives the rule its name; `fields` are the other fields of a Rule."""
    return lambda find: Rule(name=find.__name__, scope=scope, find=find, **fields)


def find_at(gpu: Gpu, title: str, **others: Any) -> RuleFinding:
    """A finding about one GPU; `others` are further fields of a RuleFinding."""
    return RuleFinding(title=title, gpu=gpu.uuid, label=gpu.label, model=gpu.name, **others)
