"""Settings of the idle policy. Imports no database: the base install reads the configuration too."""

import re
import shutil
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct, field

from gpudeck.model.settings import Duration, Text
from gpudeck.model.times import load_zone

HOUR: Final = 3600.0
Weekday = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: Final[tuple[Weekday, ...]] = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_HOURS: Final = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-4]):([0-5][0-9])")
_After = Annotated[Duration, Meta(ge=60, le=30 * 86_400)]


class TimeOfDay(Struct, frozen=True):
    """A part of the week, in the policy's time zone."""

    hours: str = "00:00-24:00"
    """From when until when, such as `09:00-18:00`. `20:00-08:00` ends on the next day."""
    days: list[Weekday] = field(default_factory=lambda: list(DAYS))
    """On which days it begins."""

    def __post_init__(self) -> None:
        found = _HOURS.fullmatch(self.hours)
        if found is None or self.minutes[1] > 24 * 60 or self.minutes[0] == self.minutes[1]:
            raise ValueError(f"hours is {self.hours[:40]!r}; write them as 09:00-18:00")

    @property
    def minutes(self) -> tuple[int, int]:
        """After midnight."""
        first, last = (part.split(":") for part in self.hours.split("-"))
        return 60 * int(first[0]) + int(first[1]), 60 * int(last[0]) + int(last[1])


class IdleRule(Struct, frozen=True, kw_only=True):
    """A ladder and the GPUs it is for. Of several rules for a GPU, the first that is in force counts."""

    name: Annotated[str, Meta(min_length=1, max_length=64)]
    """Its name in messages, the audit log and reports."""
    labels: dict[str, str] = field(default_factory=dict)
    """Labels that the host must have; `*` stands for anything."""
    models: list[Text] = field(default_factory=list)
    """Parts of names of models; one must match."""
    groups: list[Text] = field(default_factory=list)
    """Groups; a user of the GPU must be in one of them."""
    during: TimeOfDay | None = None
    """When it is in force. Idle time outside of this does not count."""
    notify_after: _After | None = None
    """The owner is notified after this idle time."""
    warn_after: _After | None = None
    """The owner is warned after this idle time that the hook will act."""
    act_after: _After | None = None
    """The hook runs after this idle time."""
    grace: _After = HOUR
    """The least time between the warning and the hook."""
    hook: list[Text] = field(default_factory=list)
    """The command that acts, with its arguments. It runs without a shell, with facts in the environment."""
    hook_timeout: Annotated[Duration, Meta(ge=1, le=600)] = 30.0
    """After this time the hook is killed."""

    def __post_init__(self) -> None:
        steps = [one for one in (self.notify_after, self.warn_after, self.act_after) if one is not None]
        if not steps:
            raise ValueError(f"the rule {self.name} has no step; set notify_after, warn_after or act_after")
        if steps != sorted(steps):
            raise ValueError(f"the rule {self.name}: notify_after, warn_after and act_after must follow each other")
        if self.act_after is not None and self.warn_after is None:
            raise ValueError(f"the rule {self.name} acts without a warning; set warn_after")
        if (self.act_after is None) != (not self.hook):
            raise ValueError(f"the rule {self.name}: act_after and hook belong together")


class Exemptions(Struct, frozen=True):
    """Exemptions from all rules."""

    users: list[Text] = field(default_factory=list)
    """Logins; a GPU that one of them uses is exempt. `*` stands for anything."""
    jobs: list[Text] = field(default_factory=list)
    """Ids or names of jobs; `*` stands for anything, as in `interactive*`."""
    reserved: bool = True
    """Whether a GPU is exempt while one of its users has reserved it."""
    interactive: list[TimeOfDay] = field(default_factory=list)
    """Hours in which GPUs may be idle: that time does not count, and nothing happens."""


class IdlePolicySettings(Struct, frozen=True):
    """What happens to idle GPUs. gpudeck itself stops no process: `hook` does, if anything."""

    mode: Literal["dry-run", "notify", "act"] = "dry-run"
    """`dry-run`: nothing is sent, and `gpudeck policy --dry-run` reports what would have happened. `notify`: owners are
    notified and warned. `act`: the hooks run too."""
    rules: list[IdleRule] = field(default_factory=list)
    """The ladders. Without any there is no policy."""
    exempt: Exemptions = field(default_factory=Exemptions)
    with_allocated: bool = True
    """Whether an allocated GPU that nobody uses counts as idle."""
    zone: str = "UTC"
    """The time zone of `during` and `interactive`, such as Europe/Berlin."""
    longest_keep: Annotated[Duration, Meta(ge=60, le=30 * 86_400)] = 24 * HOUR
    """The longest time for which an owner can keep an idle GPU at once. It does not apply to admins."""
    most_keeps: Annotated[int, Meta(ge=0, le=1000)] = 8
    """How many GPUs one user can keep at the same time."""

    def __post_init__(self) -> None:
        load_zone(self.zone)
        names = [rule.name for rule in self.rules]
        if len(set(names)) < len(names):
            raise ValueError("two rules have the same name")


def find_mistakes(settings: IdlePolicySettings) -> list[str]:
    """Mistakes that depend on this machine, or leave the policy without an effect."""
    found = [
        f"idle_policy.rules: the hook {rule.hook[0]} of {rule.name} is not a command that can be run here"
        for rule in settings.rules
        if rule.hook and shutil.which(rule.hook[0]) is None
    ]
    return found if settings.rules or settings.mode == "dry-run" else ["idle_policy: there is a mode, and no rules"]
