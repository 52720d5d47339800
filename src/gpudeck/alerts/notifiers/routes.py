"""Where a message goes. Pure: the message, the routes and what is known of people in, destinations out."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final, Protocol

from msgspec import Struct

from gpudeck.alerts.message import Message, Subject
from gpudeck.alerts.notifiers.settings import NotifySettings, RouteSettings
from gpudeck.model.event import SEVERITIES

BOT: Final = "chat.slack"
"""The bot as a channel: it writes to people by themselves, and no route names it. No channel of the settings can be
called so."""


class Destination(Struct, frozen=True):
    """A channel; with `account` somebody by themselves, whom that channel reaches."""

    channel: str
    account: str | None = None

    @property
    def name(self) -> str:
        """What it is kept under."""
        return self.channel if self.account is None else f"{self.channel} {self.account}"


class Reached(Protocol):
    """What is known of a person."""

    @property
    def mail(self) -> str | None: ...
    @property
    def slack(self) -> str | None: ...
    @property
    def group(self) -> str | None: ...


FindPerson = Callable[[str], Reached]
IsMuted = Callable[[str, str], bool]
"""Whether an account wants to hear nothing of a rule."""


def find_destinations(
    message: Message, settings: NotifySettings, person_of: FindPerson, is_muted: IsMuted, *, has_bot: bool = False
) -> list[Destination]:
    """Each once. Somebody who has mail and Slack gets both; who muted the rule gets none, and neither does a channel
    instead of them. What several are behind goes wherever one of them would go alone.

    Where there is a bot (`has_bot`) it writes to people in Slack, unless `notify.slack` names a channel for that.
    """
    subjects = message.subjects or (Subject(message.rule, message.labels, message.people),)
    found: list[Destination] = []
    for subject in subjects if not message.is_personal else ():
        found += [Destination(name) for name in _find_channels(message, subject, settings, person_of)]
    for account in message.people:
        if any(account in subject.people and not is_muted(account, subject.rule) for subject in subjects):
            found += _ways_to(account, settings, person_of(account), has_bot=has_bot)
    return list(dict.fromkeys(found))


def has_way(settings: NotifySettings, person: Reached, *, has_bot: bool = False) -> bool:
    """Whether somebody can be told by themselves."""
    return any(True for _ in _ways_to("", settings, person, has_bot=has_bot))


def _ways_to(account: str, settings: NotifySettings, person: Reached, *, has_bot: bool) -> Iterator[Destination]:
    if settings.mail is not None and person.mail is not None:
        yield Destination(settings.mail, account)
    slack = BOT if settings.slack is None and has_bot else settings.slack
    if slack is not None and person.slack is not None:
        yield Destination(slack, account)


def _find_channels(
    message: Message, subject: Subject, settings: NotifySettings, person_of: FindPerson
) -> Sequence[str]:
    # A channel that is told of the event of that name as it happens has the news already.
    all_channels = [name for name, channel in settings.channels.items() if subject.rule not in channel.events]
    routes = settings.routes or [RouteSettings(to=all_channels)]
    groups = [group for account in subject.people if (group := person_of(account).group) is not None]
    found: list[str] = []
    for route in routes:
        if _fits(route, message, subject, groups):
            found += route.to
            if not route.goes_on:
                break
    return found


def _fits(route: RouteSettings, message: Message, subject: Subject, groups: Sequence[str]) -> bool:
    if SEVERITIES.index(message.severity) < SEVERITIES.index(route.severity):
        return False
    labels = subject.labels
    return (
        _any(route.rules, [subject.rule])
        and _any(route.people, subject.people)
        and _any(route.groups, groups)
        and all(name in labels and fnmatchcase(labels[name], wanted) for name, wanted in route.labels.items())
    )


def _any(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
