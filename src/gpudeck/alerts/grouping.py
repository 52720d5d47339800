"""From alerts to messages: what belongs together becomes one, and never more than people can read.

Alerts of one rule that fire within a short time of each other are one message: a switch that fails takes forty hosts
along. Where a rule, or all of them, have sent many messages within ten minutes, the next ones wait and are summed up.
"""

import hashlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from gpudeck.alerts.finding import Rule, place_of
from gpudeck.alerts.life import Life, shared_labels
from gpudeck.alerts.message import Message, Subject
from gpudeck.alerts.settings import AlertSettings
from gpudeck.model.event import SEVERITIES
from gpudeck.model.quantity import show_span

WINDOW: Final = 600.0
MOST_WAITS: Final = 6.0
"""A group to which somebody is added all the time is closed after so many times its waiting time."""
_NAMES: Final = 10
_LINES: Final = 20

_Key = tuple[str, str, tuple[str, ...], bool, bool]


class Outgoing(Struct, frozen=True):
    """A message that is to be sent as soon as it is written down that it is."""

    message: Message
    lives: tuple[Life, ...]
    is_end: bool


class GroupPace:
    """How many messages each rule, and all of them, have sent within the last ten minutes."""

    def __init__(self, per_rule: int, overall: int) -> None:
        self._per_rule = per_rule
        self._overall = overall
        self._rules: dict[object, deque[float]] = defaultdict(deque)
        self._all: deque[float] = deque()

    def change(self, per_rule: int, overall: int) -> None:
        """What was sent already counts on."""
        self._per_rule, self._overall = per_rule, overall

    def allows(self, rule: object, now: float) -> bool:
        return _count(self._rules[rule], now) < self._per_rule

    def room(self, now: float) -> int:
        """How many more all rules together may send now."""
        return self._overall - _count(self._all, now)

    def note(self, rule: object, now: float, *, is_personal: bool) -> None:
        self._rules[rule].append(now)
        if not is_personal:
            self._all.append(now)


class Grouping:
    """Takes what is to be told (`add`) and gives it back as messages when its time has come (`due`). `is_muted` says of
    whom nobody is to be told now: they wait."""

    def __init__(
        self,
        settings: AlertSettings,
        rules: Mapping[str, Rule],
        is_muted: Callable[[Life, float], bool],
        *,
        prefix: str = "",
    ) -> None:
        """`prefix` stands before every title: a demo's alerts are known as such."""
        self._wait = settings.group_wait
        self._pace = GroupPace(settings.messages_per_rule, settings.messages)
        self._rules = rules
        self._is_muted = is_muted
        self._prefix = prefix
        self._begun: dict[str, Life] = {}
        self._ended: dict[str, Life] = {}

    def change(self, settings: AlertSettings) -> None:
        """What waits to be told goes on waiting, for as long as is said now."""
        self._wait = settings.group_wait
        self._pace.change(settings.messages_per_rule, settings.messages)

    def add(self, life: Life) -> None:
        """It fires, or fires still."""
        self._begun[life.id] = life

    def forget(self, life: Life) -> None:
        self._begun.pop(life.id, None)

    def end(self, life: Life) -> None:
        """It is over. Of what nobody was told, nobody need be told that it is over."""
        self._begun.pop(life.id, None)
        if life.is_told and life.end_told_at is None and self._rules[life.rule].tells_end:
            self._ended[life.id] = life

    def due(self, now: float) -> list[Outgoing]:
        """The messages whose time has come, the worst first. What they tell is not given again."""
        if not self._begun and not self._ended:
            return []
        lives = {key: group for key, group in self._group(now).items() if self._is_closed(group, now)}
        groups = sorted(lives, key=lambda key: (-SEVERITIES.index(lives[key][0].severity), key))
        allowed = [key for key in groups if self._pace.allows(_limited(key), now)]
        personal = [key for key in allowed if key[3]]
        public = [key for key in allowed if not key[3]]
        room = max(0, self._pace.room(now))
        alone, rest = (public, []) if len(public) <= room else (public[: max(0, room - 1)], public[max(0, room - 1) :])
        sent = [self._send(key, lives[key], now) for key in (*personal, *alone)]
        if rest and room:
            sent += self._sum_up({key: lives[key] for key in rest}, now)
        return sent

    def rebuild(self, lives: Iterable[Life], now: float) -> list[Outgoing]:
        """The messages of which it was written down that they are sent, and not that they were: the hub died then.
        Under the key they had, so that whoever has them already does nothing."""
        groups: dict[tuple[str, bool], list[Life]] = defaultdict(list)
        for life in lives:
            if life.message is not None and life.told_at is None and life.is_firing:
                groups[life.message, False].append(life)
            elif life.end_message is not None and life.end_told_at is None:
                groups[life.end_message, True].append(life)
        return [
            Outgoing(self._compose(group, now, is_end=is_end, key=key), tuple(group), is_end)
            for (key, is_end), group in groups.items()
        ]

    def _group(self, now: float) -> dict[_Key, list[Life]]:
        groups: dict[_Key, list[Life]] = defaultdict(list)
        for waiting, is_end in ((self._begun, False), (self._ended, True)):
            for life in waiting.values():
                if not self._is_muted(life, now):
                    rule = self._rules[life.rule]
                    people = life.people if life.is_personal or rule.kind == "booking" else ()
                    groups[rule.name, life.severity, people, life.is_personal, is_end].append(life)
        return groups

    def _is_closed(self, group: Sequence[Life], now: float) -> bool:
        times = [life.ready_at for life in group]
        return now - max(times) >= self._wait or now - min(times) >= MOST_WAITS * self._wait or min(times) > now

    def _send(self, key: _Key, lives: list[Life], now: float) -> Outgoing:
        is_end = key[4]
        self._pace.note(_limited(key), now, is_personal=key[3])
        return self._take(self._compose(lives, now, is_end=is_end), lives, is_end=is_end)

    def _take(self, message: Message, lives: Sequence[Life], *, is_end: bool) -> Outgoing:
        for life in lives:
            if is_end:
                life.end_message = message.key
                del self._ended[life.id]
            else:
                life.message, life.is_told = message.key, True
                del self._begun[life.id]
        return Outgoing(message, tuple(lives), is_end)

    def _sum_up(self, groups: Mapping[_Key, list[Life]], now: float) -> list[Outgoing]:
        """All that has no room of its own in one message, and what is over in another."""
        sent = []
        for is_end in (False, True):
            lives = [life for key, group in groups.items() if key[4] is is_end for life in group]
            if lives:
                message = self._compose_sum(lives, now, is_end=is_end)
                self._pace.note("alerts", now, is_personal=False)
                sent.append(self._take(message, lives, is_end=is_end))
        return sent

    def _compose(self, lives: list[Life], now: float, *, is_end: bool, key: str | None = None) -> Message:
        if len({life.rule for life in lives}) > 1:
            return self._compose_sum(lives, now, is_end=is_end, key=key)
        first, rule = lives[0], self._rules[lives[0].rule]
        title = _title(lives, rule, is_end=is_end)
        actions = {life.action for life in lives}
        return Message(
            key=key or _make_key(lives, is_end=is_end),
            at=now,
            kind="resolved" if is_end else rule.kind,
            rule=rule.name,
            severity=first.severity,
            title=f"{self._prefix}{title}",
            lines=_lines(lives, is_end=is_end),
            action="" if is_end else first.action if len(actions) == 1 else rule.action,
            link=_link(lives),
            labels=shared_labels(lives),
            people=tuple(dict.fromkeys(person for life in lives for person in life.people)),
            subjects=_subjects(lives),
            is_personal=first.is_personal,
        )

    def _compose_sum(self, lives: list[Life], now: float, *, is_end: bool, key: str | None = None) -> Message:
        counts: dict[str, int] = defaultdict(int)
        for life in lives:
            counts[life.rule] += 1
        what = ", ".join(f"{number} {rule}" for rule, number in counts.items())
        return Message(
            key=key or _make_key(lives, is_end=is_end),
            at=now,
            kind="resolved" if is_end else "alert",
            rule="alerts",
            severity=max((life.severity for life in lives), key=SEVERITIES.index),
            title=f"{self._prefix}{len(lives)} alerts {'are over' if is_end else 'more'}: {what}",
            lines=_lines(lives, is_end=is_end),
            action="" if is_end else "Look at the hub's page: there are too many to tell each.",
            link="#/events",
            labels=shared_labels(lives),
            people=tuple(dict.fromkeys(person for life in lives for person in life.people)),
            subjects=_subjects(lives),
        )


def _title(lives: Sequence[Life], rule: Rule, *, is_end: bool) -> str:
    first = lives[0]
    if len(lives) == 1:
        still = "Still: " if first.repeats else ""
        return _end_title(first, rule) if is_end else f"{still}{first.title}"
    words = _many_over(lives, rule) if is_end else rule.many.format(count=len(lives))
    return f"{words}: {_names(lives)}"


def _many_over(lives: Sequence[Life], rule: Rule) -> str:
    """Of a host that was removed nobody says that it reports again."""
    if not any(life.end for life in lives):
        return rule.over_many.format(count=len(lives))
    ends = {life.end for life in lives}
    why = f" ({ends.pop()})" if len(ends) == 1 else ""
    return f"No longer watched: {rule.many.format(count=len(lives))}{why}"


def _end_title(life: Life, rule: Rule) -> str:
    if life.end is not None:
        return f"No longer watched: {life.title} ({life.end})"
    return rule.over.format(place=place_of(life.host, life.label))


def _names(lives: Sequence[Life]) -> str:
    names = list(dict.fromkeys(_short(life) for life in lives))
    more = len(names) - _NAMES
    return ", ".join(names[:_NAMES]) + (f", … and {more} more" if more > 0 else "")


def _short(life: Life) -> str:
    if life.host is None:
        return life.part or life.title
    return f"{life.host}:{life.label}" if life.label is not None else life.host


def _subjects(lives: Sequence[Life]) -> tuple[Subject, ...]:
    """One alone is the message."""
    return tuple(Subject(life.rule, life.all_labels(), life.people) for life in lives) if len(lives) > 1 else ()


def _lines(lives: Sequence[Life], *, is_end: bool) -> tuple[str, ...]:
    """One line a subject; of one alone, what its title does not say."""
    if len(lives) == 1:
        return (_lasted(lives[0]),) if is_end else tuple(filter(None, (lives[0].note,)))
    told = [f"{life.title}. {_lasted(life)}" if is_end else life.title for life in lives[:_LINES]]
    return (*told, f"and {len(lives) - _LINES} more") if len(lives) > _LINES else tuple(told)


def _lasted(life: Life) -> str:
    return f"It was so for {show_span((life.resolved_at or life.since) - life.since)}."


def _link(lives: Sequence[Life]) -> str:
    """A UUID is whatever an agent says: in an address it must not become a mark that a chat acts upon."""
    first = lives[0]
    if len(lives) == 1 and first.gpu:
        return f"#/gpu/{quote(first.gpu, safe='')}"
    hosts = {life.host for life in lives}
    return f"#/host/{quote(first.host, safe='')}" if len(hosts) == 1 and first.host is not None else "#/events"


def _make_key(lives: Sequence[Life], *, is_end: bool) -> str:
    ids = sorted(f"{life.id}.{life.repeats}.{life.severity}.{','.join(life.people)}" for life in lives)
    digest = hashlib.blake2b("\0".join(ids).encode(), digest_size=10).hexdigest()
    return f"{'resolved' if is_end else 'alert'}-{digest}"


def _limited(key: _Key) -> object:
    """What has its own limit: a rule, and towards each person the rules about them."""
    rule, _, people, is_personal, _ = key
    return (rule, people) if is_personal else rule


def _count(times: deque[float], now: float) -> int:
    """A clock that was set back makes all that was before worth nothing."""
    while times and not 0 <= now - times[0] < WINDOW:
        times.popleft()
    return len(times)
