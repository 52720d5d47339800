"""The idle policy as the API, the page and the command line show it."""

from typing import Final, Literal

from msgspec import Struct, field

PolicyMode = Literal["dry-run", "notify", "act"]
MAX_REASON: Final = 500


class Keep(Struct, frozen=True, kw_only=True):
    """A GPU that its owner, or an admin, keeps although it is idle: the policy does nothing to it until `end`."""

    id: int
    gpu: str
    host: str
    label: str
    user: str
    start: float
    end: float
    reason: str


class KeepList(Struct, frozen=True):
    """The current keeps."""

    keeps: list[Keep]


class PolicyStep(Struct, kw_only=True):
    """A step of a GPU's ladder. `saved_hours` are the GPU-hours that an act would have saved, `saved_cost` their cost,
    null without a price."""

    kind: Literal["notify", "warn", "act"]
    rule: str
    at: float
    idle_seconds: float
    gpu: str
    host: str
    label: str
    model: str
    users: list[str]
    jobs: list[str] = field(default_factory=list)
    saved_hours: float | None = None
    saved_cost: float | None = None


class PolicyUser(Struct):
    """What would have happened to one user; null: the owner is unknown. The users of a GPU share the savings."""

    user: str | None
    notified: int = 0
    warned: int = 0
    acted: int = 0
    saved_hours: float = 0.0
    saved_cost: float | None = None


class PolicyReport(Struct, kw_only=True):
    """What the policy would have done in a period. `steps` are the newest, `step_count` is their number. `idle_hours`
    are all idle GPU-hours, `exempt_hours` those of GPUs without a rule or with an unknown owner."""

    start: float
    end: float
    currency: str
    coverage: float | None
    idle_hours: float
    exempt_hours: float
    users: list[PolicyUser]
    total: PolicyUser
    step_count: int
    steps: list[PolicyStep] = field(default_factory=list)


class IdleLadder(Struct, kw_only=True):
    """A GPU that is idle now. `done` are the steps taken, `next` is the next one if it stays idle. `kept_until` is when
    its keep ends; `reason` is why nothing happens to it."""

    gpu: str
    host: str
    label: str
    users: list[str]
    idle_since: float
    done: list[PolicyStep] = field(default_factory=list)
    next: PolicyStep | None = None
    kept_until: float | None = None
    reason: str | None = None


class IdlePolicyState(Struct, kw_only=True):
    """The policy now. `ladders` are the idle GPUs with a rule, `keeps` the current keeps."""

    mode: PolicyMode
    rules: list[str]
    longest_keep_seconds: float
    ladders: list[IdleLadder] = field(default_factory=list)
    keeps: list[Keep] = field(default_factory=list)
