"""Groups alerts into messages, and limits their number.

Alerts of one rule that fire within a short time of each other are one message, such as the hosts behind a switch that
fails. After many messages of one rule within ten minutes, its next alerts wait and become one message.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple
from urllib.parse import quote

from msgspec import Struct

from gpudeck.alerts.notifiers.rendering import Message, Subject
from gpudeck.alerts.record import AlertRecord, shared_labels
from gpudeck.alerts.rule import Rule
from gpudeck.alerts.settings import AlertSettings
from gpudeck.model.event import SEVERITIES, Severity
from gpudeck.model.text import show_span

WINDOW: Final = 600.0
MAX_WAITS: Final = 6.0
"""A group that keeps growing is sent after so many times its waiting time."""
_NAMES: Final = 10
_LINES: Final = 20


class _GroupKey(NamedTuple):
    """Alerts with one key are one message."""

    rule: str
    severity: Severity
    accounts: tuple[str, ...]
    is_personal: bool
    is_end: bool

    @property
    def limited(self) -> object:
        """The subject of `messages_per_rule`: the rule; for personal messages the rule and the accounts."""
        return (self.rule, self.accounts) if self.is_personal else self.rule


class OutgoingMessage(Struct, frozen=True):
    """A message to send once the database has its key."""

    message: Message
    records: tuple[AlertRecord, ...]
    is_end: bool


class MessageGrouping:
    """Takes alerts to send (`add`) and returns them as messages when it is time (`due`). Muted alerts wait."""

    def __init__(
        self,
        settings: AlertSettings,
        rules: Mapping[str, Rule],
        is_muted: Callable[[AlertRecord, float], bool],
        *,
        prefix: str = "",
    ) -> None:
        """`prefix` stands before every title, such as that of a demo."""
        self._settings = settings
        self._sent: dict[object, deque[float]] = defaultdict(deque)
        """When messages were sent within the last ten minutes, by what limits them."""
        self._rules = rules
        self._is_muted = is_muted
        self._prefix = prefix
        self._begun: dict[str, AlertRecord] = {}
        self._ended: dict[str, AlertRecord] = {}

    def change(self, settings: AlertSettings) -> None:
        """The new settings also apply to alerts that wait."""
        self._settings = settings

    def add(self, record: AlertRecord) -> None:
        """It fires, or still fires."""
        self._begun[record.id] = record

    def forget(self, record: AlertRecord) -> None:
        self._begun.pop(record.id, None)

    def end(self, record: AlertRecord) -> None:
        """It is resolved. If its beginning was never sent, its end is not sent either."""
        self._begun.pop(record.id, None)
        if record.is_told and record.end_told_at is None and self._rules[record.rule].notifies_end:
            self._ended[record.id] = record

    def due(self, now: float) -> list[OutgoingMessage]:
        """The messages whose time has come, the worst first. Their alerts are not returned again."""
        times = [record.ready_at for waiting in (self._begun, self._ended) for record in waiting.values()]
        # No group is due before the oldest alert has waited: this saves grouping thousands every second.
        if not times or (max(times) <= now < min(times) + self._settings.group_wait):
            return []
        records = {key: group for key, group in self._group(now).items() if self._is_due(group, now)}
        groups = sorted(records, key=lambda key: (-SEVERITIES.index(key.severity), key))
        sent = []
        for key in groups:
            times_sent = self._sent[key.limited]
            if count_recent(times_sent, now, WINDOW) < self._settings.messages_per_rule:
                times_sent.append(now)
                message = self._compose(records[key], now, is_end=key.is_end)
                sent.append(self._take(message, records[key], is_end=key.is_end))
        return sent

    def rebuild(self, records: Iterable[AlertRecord], now: float) -> list[OutgoingMessage]:
        """The messages that a hub had decided to send when it died, and may have sent. They have the same keys as
        before, so that no receiver gets one twice."""
        groups: dict[tuple[str, bool], list[AlertRecord]] = defaultdict(list)
        for record in records:
            if record.message is not None and record.told_at is None and record.is_firing:
                groups[record.message, False].append(record)
            elif record.end_message is not None and record.end_told_at is None:
                groups[record.end_message, True].append(record)
        return [
            OutgoingMessage(self._compose(group, now, is_end=is_end, key=key), tuple(group), is_end)
            for (key, is_end), group in groups.items()
        ]

    def _group(self, now: float) -> dict[_GroupKey, list[AlertRecord]]:
        groups: dict[_GroupKey, list[AlertRecord]] = defaultdict(list)
        for waiting, is_end in ((self._begun, False), (self._ended, True)):
            for record in waiting.values():
                if not self._is_muted(record, now):
                    rule = self._rules[record.rule]
                    accounts = record.accounts if record.is_personal or rule.kind == "reservation" else ()
                    key = _GroupKey(rule.name, record.severity, accounts, record.is_personal, is_end)
                    groups[key].append(record)
        return groups

    def _is_due(self, group: Sequence[AlertRecord], now: float) -> bool:
        times, wait = [record.ready_at for record in group], self._settings.group_wait
        return now - max(times) >= wait or now - min(times) >= MAX_WAITS * wait or min(times) > now

    def _take(self, message: Message, records: Sequence[AlertRecord], *, is_end: bool) -> OutgoingMessage:
        for record in records:
            if is_end:
                record.end_message = message.key
                del self._ended[record.id]
            else:
                record.message, record.is_told = message.key, True
                del self._begun[record.id]
        return OutgoingMessage(message, tuple(records), is_end)

    def _compose(self, records: list[AlertRecord], now: float, *, is_end: bool, key: str | None = None) -> Message:
        first, rule = records[0], self._rules[records[0].rule]
        action = first.action if len({record.action for record in records}) == 1 else rule.action
        return Message(
            key=key or _make_key(records, is_end=is_end),
            at=now,
            kind="resolved" if is_end else rule.kind,
            rule=rule.name,
            severity=first.severity,
            title=f"{self._prefix}{_title(records, rule, is_end=is_end)}",
            lines=_lines(records, is_end=is_end),
            action="" if is_end else action,
            link=link_of(records),
            labels=shared_labels(records),
            accounts=tuple(dict.fromkeys(account for record in records for account in record.accounts)),
            subjects=_subjects(records),
            is_personal=first.is_personal,
        )


def _title(records: Sequence[AlertRecord], rule: Rule, *, is_end: bool) -> str:
    first = records[0]
    ends = {record.end for record in records}
    why = f" ({ends.pop()})" if is_end and len(ends) == 1 and first.end is not None else ""
    words = f"Still: {first.title}" if first.repeats and not is_end else f"{first.title}{why}"
    if len(records) > 1:
        names = list(dict.fromkeys(_short(record) for record in records))
        more = f", … and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        words = f"{rule.many.format(count=len(records))}{why}: {', '.join(names[:_NAMES])}{more}"
    return f"Resolved: {words}" if is_end else words


def _short(record: AlertRecord) -> str:
    if record.host is None:
        return record.part or record.title
    return f"{record.host}:{record.label}" if record.label is not None else record.host


def _subjects(records: Sequence[AlertRecord]) -> tuple[Subject, ...]:
    """Empty for one alert, which is the message itself."""
    return (
        tuple(Subject(record.rule, record.all_labels(), record.accounts) for record in records)
        if len(records) > 1
        else ()
    )


def _lines(records: Sequence[AlertRecord], *, is_end: bool) -> tuple[str, ...]:
    """One line for each alert; for a single one, what its title does not say."""
    if len(records) == 1:
        return (_lasted(records[0]),) if is_end else tuple(filter(None, (records[0].note,)))
    lines = [f"{record.title}. {_lasted(record)}" if is_end else record.title for record in records[:_LINES]]
    return (*lines, f"and {len(records) - _LINES} more") if len(records) > _LINES else tuple(lines)


def _lasted(record: AlertRecord) -> str:
    return f"It lasted {show_span((record.resolved_at or record.since) - record.since)}."


def link_of(records: Sequence[AlertRecord]) -> str:
    """Quoted: a UUID comes from an agent, and must not contain marks that a chat interprets."""
    first = records[0]
    if len(records) == 1 and first.gpu:
        return f"#/gpu/{quote(first.gpu, safe='')}"
    hosts = {record.host for record in records}
    return f"#/host/{quote(first.host, safe='')}" if len(hosts) == 1 and first.host is not None else "#/events"


def _make_key(records: Sequence[AlertRecord], *, is_end: bool) -> str:
    ids = sorted(f"{record.id}.{record.repeats}.{record.severity}.{','.join(record.accounts)}" for record in records)
    digest = hashlib.blake2b("\0".join(ids).encode(), digest_size=10).hexdigest()
    return f"{'resolved' if is_end else 'alert'}-{digest}"


def count_recent(times: deque[float], now: float, seconds: float) -> int:
    """How many are of the last so many seconds; others are removed. After the clock was set back none counts."""
    while times and not 0 <= now - times[0] < seconds:
        times.popleft()
    return len(times)
