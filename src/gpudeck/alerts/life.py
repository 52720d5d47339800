"""The life of one alert, as the engine keeps it in mind and the database keeps it: pending, firing, resolved."""

import hashlib
from collections.abc import Mapping

from msgspec import Struct, field

from gpudeck.model.alert import Alert, AlertState
from gpudeck.model.event import Severity


class Life(Struct, kw_only=True):
    """`host_id` is empty for what concerns no single host, `gpu` and `part` where there is none.

    `users` are logins, `people` accounts. `end` is why it is over, where it did not just end. `falls` is when it fired
    within the last hour. `is_told`: people were told that it is so. `message` is the key of the message that tells of
    it, from before it is sent, and `told_at` when it was: a hub that dies in between sends it again under the same key.
    The same for its end.

    `ready_at`, `calm_since` and `unknown_since` are of this run of the hub.
    """

    id: str
    rule: str
    severity: Severity
    state: AlertState
    title: str
    action: str
    host: str | None
    host_id: str
    gpu: str
    part: str
    label: str | None
    model: str | None
    labels: dict[str, str] = field(default_factory=dict)
    users: tuple[str, ...] = ()
    people: tuple[str, ...] = ()
    is_personal: bool = False
    since: float
    note: str | None = None
    fired_at: float | None = None
    acknowledged_at: float | None = None
    acknowledged_by: str | None = None
    resolved_at: float | None = None
    end: str | None = None
    falls: list[float] = field(default_factory=list)
    silenced_by: str | None = None
    is_told: bool = False
    message: str | None = None
    told_at: float | None = None
    repeats: int = 0
    end_message: str | None = None
    end_told_at: float | None = None
    ready_at: float = 0.0
    calm_since: float | None = None
    unknown_since: float | None = None

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.rule, self.host_id, self.gpu, self.part

    @property
    def is_firing(self) -> bool:
        """Also where somebody has acknowledged it."""
        return self.state in {"firing", "acknowledged"}

    def show(self) -> Alert:
        return Alert(
            id=self.id,
            rule=self.rule,
            severity=self.severity,
            state=self.state,
            title=self.title,
            action=self.action,
            note=self.note,
            host=self.host,
            host_id=self.host_id or None,
            gpu=self.gpu or None,
            label=self.label,
            people=list(self.people),
            since=self.since,
            fired_at=self.fired_at,
            acknowledged_at=self.acknowledged_at,
            acknowledged_by=self.acknowledged_by,
            resolved_at=self.resolved_at,
            silenced_by=self.silenced_by,
        )

    def all_labels(self) -> dict[str, str]:
        """Those of the host, with the host's name and the GPU's model."""
        own = {"host": self.host, "model": self.model}
        return {**self.labels, **{name: value for name, value in own.items() if value is not None}}


def make_id(key: tuple[str, str, str, str], at: float) -> str:
    """Short enough to be typed."""
    text = "\0".join((*key, f"{at:.3f}"))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=5).hexdigest()


def shared_labels(lives: "list[Life]") -> dict[str, str]:
    """What all of them have."""
    first, *others = (life.all_labels() for life in lives)
    return {name: value for name, value in first.items() if all(_has(other, name, value) for other in others)}


def _has(labels: Mapping[str, str], name: str, value: str) -> bool:
    return labels.get(name) == value
