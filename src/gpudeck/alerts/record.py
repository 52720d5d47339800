"""An alert as the engine and the database store it, and the mutes that suppress its notifications."""

import hashlib
from bisect import bisect_left
from fnmatch import fnmatchcase

from msgspec import Struct, field

from gpudeck.model.alert import Alert, AlertState, Mute, name_hosts
from gpudeck.model.event import Severity


class AlertRecord(Struct, kw_only=True):
    """`host_id` is empty if it concerns no single host, and `gpu` and `part` if there is none.

    `users` are logins, `accounts` accounts. `end` is why it was resolved, unless the condition just ended. `falls` is
    when it fired within the last hour. `is_told`: a message about it was sent. `message` is the key of that message,
    written before it is sent, and `told_at` the time after: a hub that dies in between sends it again with that key.
    `end_message` and `end_told_at` are the same for its end.

    `ready_at`, `calm_since` and `unknown_since` are times of this run of the hub.
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
    accounts: tuple[str, ...] = ()
    is_personal: bool = False
    since: float
    note: str | None = None
    fired_at: float | None = None
    acknowledged_at: float | None = None
    acknowledged_by: str | None = None
    resolved_at: float | None = None
    end: str | None = None
    falls: list[float] = field(default_factory=list)
    muted_by: str | None = None
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
        """Also if it was acknowledged."""
        return self.state in {"firing", "acknowledged"}

    @property
    def needs_attention(self) -> bool:
        return self.state == "firing" and self.severity != "info" and self.muted_by is None

    def show(self) -> Alert:
        shown = {name: getattr(self, name) for name in Alert.__struct_fields__}
        place = {"host_id": self.host_id or None, "gpu": self.gpu or None}
        return Alert(**shown | place | {"accounts": list(self.accounts)})

    def all_labels(self) -> dict[str, str]:
        """The labels of the host and the rule, with the host's name and the GPU's model."""
        own = {"host": self.host, "model": self.model}
        return {**self.labels, **{name: value for name, value in own.items() if value is not None}}


def make_id(key: tuple[str, str, str, str], at: float) -> str:
    """Short enough to be typed."""
    text = "\0".join((*key, f"{at:.3f}"))
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=5).hexdigest()


def shared_labels(records: "list[AlertRecord]") -> dict[str, str]:
    """The labels that all of them share."""
    first, *others = (record.all_labels() for record in records)
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


class Mutes(dict[str, Mute]):
    """Mutes that count now or later, by id. One event loop owns it."""

    def take_ended(self, now: float) -> list[Mute]:
        """Remove and return the mutes that have ended."""
        return [self.pop(mute.id) for mute in list(self.values()) if mute.end <= now]

    def find(self, record: AlertRecord, now: float) -> Mute | None:
        """The mute that matches the alert now; of several, the one that ends last."""
        fitting = (one for one in self.values() if one.start <= now < one.end and fits(one, record))
        return max(fitting, key=lambda mute: mute.end, default=None)


def fits(mute: Mute, record: AlertRecord) -> bool:
    return (
        (mute.rule is None or fnmatchcase(record.rule, mute.rule))
        and (mute.host is None or (record.host is not None and fnmatchcase(record.host, mute.host)))
        and (not mute.hosts or (record.host is not None and _is_among(record.host, mute.hosts)))
        and mute.labels.items() <= record.all_labels().items()
    )


def _is_among(host: str, hosts: list[str]) -> bool:
    """By bisection: thousands of alerts are compared with up to a thousand sorted names."""
    place = bisect_left(hosts, host)
    return place < len(hosts) and hosts[place] == host


def describe(mute: Mute) -> str:
    """The mute in words: its rule, hosts and labels."""
    labels = [f"{name}={value}" for name, value in sorted(mute.labels.items())]
    noun = "host" if len(mute.hosts) == 1 else "hosts"
    hosts = mute.hosts and f"{noun} {name_hosts(mute.hosts)}"
    parts = [mute.rule, mute.host and f"host {mute.host}", hosts, *labels]
    return ", ".join(part for part in parts if part)
