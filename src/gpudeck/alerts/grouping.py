"""Groups alerts into messages, and limits their number.

Alerts of one rule that fire within a short time of each other are one message: a switch that fails takes forty hosts
along. Where a rule, or all of them, have sent many messages within ten minutes, the next ones wait and are summed up.
"""

import hashlib
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from gpudeck.alerts.notifiers.rendering import Message, Subject
from gpudeck.alerts.record import AlertRecord, shared_labels
from gpudeck.alerts.rule import Rule
from gpudeck.alerts.settings import AlertSettings
from gpudeck.model.event import SEVERITIES
from gpudeck.model.text import show_span

WINDOW: Final = 600.0
MAX_WAITS: Final = 6.0
"""A group that keeps growing is closed after so many times its waiting time."""
_NAMES: Final = 10
_LINES: Final = 20

_Key = tuple[str, str, tuple[str, ...], bool, bool]


class OutgoingMessage(Struct, frozen=True):
    """A message that is to be sent as soon as it is written down that it is."""

    message: Message
    records: tuple[AlertRecord, ...]
    is_end: bool


class MessageLimiter:
    """How many messages each rule, and all of them, have sent within the last ten minutes."""

    def __init__(self, per_rule: int, overall: int) -> None:
        self._per_rule = per_rule
        self._overall = overall
        self._rules: dict[object, deque[float]] = defaultdict(deque)
        self._all: deque[float] = deque()

    def change(self, per_rule: int, overall: int) -> None:
        """Messages that were sent already still count."""
        self._per_rule, self._overall = per_rule, overall

    def allows(self, rule: object, now: float) -> bool:
        return count_recent(self._rules[rule], now, WINDOW) < self._per_rule

    def room(self, now: float) -> int:
        """How many more all rules together may send now."""
        return self._overall - count_recent(self._all, now, WINDOW)

    def note(self, rule: object, now: float, *, is_personal: bool) -> None:
        self._rules[rule].append(now)
        if not is_personal:
            self._all.append(now)


class MessageGrouping:
    """Takes alerts that are to be sent (`add`) and gives them back as messages when their time has come (`due`).
    Alerts that are muted now (`is_muted`) wait."""

    def __init__(
        self,
        settings: AlertSettings,
        rules: Mapping[str, Rule],
        is_muted: Callable[[AlertRecord, float], bool],
        *,
        prefix: str = "",
    ) -> None:
        """`prefix` stands before every title: a demo's alerts are known as such."""
        self._wait = settings.group_wait
        self._pace = MessageLimiter(settings.messages_per_rule, settings.messages)
        self._rules = rules
        self._is_muted = is_muted
        self._prefix = prefix
        self._begun: dict[str, AlertRecord] = {}
        self._ended: dict[str, AlertRecord] = {}

    def change(self, settings: AlertSettings) -> None:
        """Alerts that wait go on waiting, for as long as the new settings say."""
        self._wait = settings.group_wait
        self._pace.change(settings.messages_per_rule, settings.messages)

    def add(self, record: AlertRecord) -> None:
        """It fires, or fires still."""
        self._begun[record.id] = record

    def forget(self, record: AlertRecord) -> None:
        self._begun.pop(record.id, None)

    def end(self, record: AlertRecord) -> None:
        """It is resolved. If its beginning was never sent, its end is not sent either."""
        self._begun.pop(record.id, None)
        if record.is_told and record.end_told_at is None and self._rules[record.rule].notifies_end:
            self._ended[record.id] = record

    def due(self, now: float) -> list[OutgoingMessage]:
        """The messages whose time has come, the worst first. What they tell is not given again."""
        times = [record.ready_at for waiting in (self._begun, self._ended) for record in waiting.values()]
        # No group is closed before the oldest of all has waited: thousands are not put into groups every second.
        if not times or (max(times) <= now < min(times) + self._wait):
            return []
        records = {key: group for key, group in self._group(now).items() if self._is_closed(group, now)}
        groups = sorted(records, key=lambda key: (-SEVERITIES.index(records[key][0].severity), key))
        allowed = [key for key in groups if self._pace.allows(_limited(key), now)]
        personal = [key for key in allowed if key[3]]
        public = [key for key in allowed if not key[3]]
        room = max(0, self._pace.room(now))
        alone, rest = (public, []) if len(public) <= room else (public[: max(0, room - 1)], public[max(0, room - 1) :])
        sent = []
        for key in (*personal, *alone):
            self._pace.note(_limited(key), now, is_personal=key[3])
            sent.append(self._take(self._compose(records[key], now, is_end=key[4]), records[key], is_end=key[4]))
        if rest and room:
            sent += self._sum_up({key: records[key] for key in rest}, now)
        return sent

    def rebuild(self, records: Iterable[AlertRecord], now: float) -> list[OutgoingMessage]:
        """The messages of which it was written down that they are sent, and not that they were: the hub died then.
        Under the key they had, so that a receiver that has them already ignores them."""
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

    def _group(self, now: float) -> dict[_Key, list[AlertRecord]]:
        groups: dict[_Key, list[AlertRecord]] = defaultdict(list)
        for waiting, is_end in ((self._begun, False), (self._ended, True)):
            for record in waiting.values():
                if not self._is_muted(record, now):
                    rule = self._rules[record.rule]
                    accounts = record.accounts if record.is_personal or rule.kind == "reservation" else ()
                    groups[rule.name, record.severity, accounts, record.is_personal, is_end].append(record)
        return groups

    def _is_closed(self, group: Sequence[AlertRecord], now: float) -> bool:
        times = [record.ready_at for record in group]
        return now - max(times) >= self._wait or now - min(times) >= MAX_WAITS * self._wait or min(times) > now

    def _take(self, message: Message, records: Sequence[AlertRecord], *, is_end: bool) -> OutgoingMessage:
        for record in records:
            if is_end:
                record.end_message = message.key
                del self._ended[record.id]
            else:
                record.message, record.is_told = message.key, True
                del self._begun[record.id]
        return OutgoingMessage(message, tuple(records), is_end)

    def _sum_up(self, groups: Mapping[_Key, list[AlertRecord]], now: float) -> list[OutgoingMessage]:
        """All that has no room of its own in one message, and resolved alerts in another."""
        sent = []
        for is_end in (False, True):
            records = [record for key, group in groups.items() if key[4] is is_end for record in group]
            if records:
                message = self._compose(records, now, is_end=is_end, is_sum=True)
                self._pace.note("alerts", now, is_personal=False)
                sent.append(self._take(message, records, is_end=is_end))
        return sent

    def _compose(
        self, records: list[AlertRecord], now: float, *, is_end: bool, is_sum: bool = False, key: str | None = None
    ) -> Message:
        """`is_sum`: they are of several rules, or too many for a message each."""
        first, rule = records[0], self._rules[records[0].rule]
        counts = Counter(record.rule for record in records)
        is_sum = is_sum or len(counts) > 1
        if is_sum:
            what = ", ".join(f"{number} {name}" for name, number in counts.items())
            title = f"{len(records)} alerts {'are resolved' if is_end else 'more'}: {what}"
            action = "Look at the hub's page: there are too many for a message each."
        else:
            title = _title(records, rule, is_end=is_end)
            action = first.action if len({record.action for record in records}) == 1 else rule.action
        return Message(
            key=key or _make_key(records, is_end=is_end),
            at=now,
            kind="resolved" if is_end else "alert" if is_sum else rule.kind,
            rule="alerts" if is_sum else rule.name,
            severity=max((record.severity for record in records), key=SEVERITIES.index) if is_sum else first.severity,
            title=f"{self._prefix}{title}",
            lines=_lines(records, is_end=is_end),
            action="" if is_end else action,
            link="#/events" if is_sum else link_of(records),
            labels=shared_labels(records),
            accounts=tuple(dict.fromkeys(account for record in records for account in record.accounts)),
            subjects=_subjects(records),
            is_personal=first.is_personal and not is_sum,
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
    """One alone is the message."""
    return (
        tuple(Subject(record.rule, record.all_labels(), record.accounts) for record in records)
        if len(records) > 1
        else ()
    )


def _lines(records: Sequence[AlertRecord], *, is_end: bool) -> tuple[str, ...]:
    """One line a subject; of one alone, what its title does not say."""
    if len(records) == 1:
        return (_lasted(records[0]),) if is_end else tuple(filter(None, (records[0].note,)))
    told = [f"{record.title}. {_lasted(record)}" if is_end else record.title for record in records[:_LINES]]
    return (*told, f"and {len(records) - _LINES} more") if len(records) > _LINES else tuple(told)


def _lasted(record: AlertRecord) -> str:
    return f"It lasted {show_span((record.resolved_at or record.since) - record.since)}."


def link_of(records: Sequence[AlertRecord]) -> str:
    """A UUID is whatever an agent says: in an address it must not become a mark that a chat acts upon."""
    first = records[0]
    if len(records) == 1 and first.gpu:
        return f"#/gpu/{quote(first.gpu, safe='')}"
    hosts = {record.host for record in records}
    return f"#/host/{quote(first.host, safe='')}" if len(hosts) == 1 and first.host is not None else "#/events"


def _make_key(records: Sequence[AlertRecord], *, is_end: bool) -> str:
    ids = sorted(f"{record.id}.{record.repeats}.{record.severity}.{','.join(record.accounts)}" for record in records)
    digest = hashlib.blake2b("\0".join(ids).encode(), digest_size=10).hexdigest()
    return f"{'resolved' if is_end else 'alert'}-{digest}"


def _limited(key: _Key) -> object:
    """The key of the limit: the rule; for personal messages the rule and the accounts."""
    rule, _, accounts, is_personal, _ = key
    return (rule, accounts) if is_personal else rule


def count_recent(times: deque[float], now: float, seconds: float) -> int:
    """How many are of the last so many seconds; others are removed. After the clock was set back none counts."""
    while times and not 0 <= now - times[0] < seconds:
        times.popleft()
    return len(times)
