"""The destinations of a message, from the routes and the settings of users. Pure."""

from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec import Struct

from gpudeck.alerts.notifiers.rendering import Message, Subject
from gpudeck.alerts.notifiers.settings import NotifySettings, RouteSettings
from gpudeck.auth.settings import UserSettings
from gpudeck.model.event import SEVERITIES

BOT: Final = "chat.slack"
"""The bot as a channel: it writes to single users, and no route names it. No configured channel can have this name."""
INBOX: Final = "inbox"
"""The channel that takes the personal messages of a demo. No setting names it."""


class Destination(Struct, frozen=True):
    """A channel, or with `account` one user whom that channel reaches directly."""

    channel: str
    account: str | None = None

    @property
    def name(self) -> str:
        return self.channel if self.account is None else f"{self.channel} {self.account}"


FindUser = Callable[[str], UserSettings]
IsMuted = Callable[[str, str], bool]
"""Whether an account has muted a rule."""


def find_destinations(
    message: Message, settings: NotifySettings, user_of: FindUser, is_muted: IsMuted, *, has_bot: bool = False
) -> list[Destination]:
    """Each once. A user with mail and Slack gets both; a user who muted the rule gets none. A message with several
    subjects goes to the destinations of each.

    If there is a bot (`has_bot`), it writes to users in Slack, unless `notify.slack` names a channel for that.
    """
    subjects = message.subjects or (Subject(message.rule, message.labels, message.accounts),)
    found: list[Destination] = []
    for subject in subjects if not message.is_personal else ():
        found += [Destination(name) for name in _find_channels(message, subject, settings, user_of)]
    for account in message.accounts:
        if any(account in subject.accounts and not is_muted(account, subject.rule) for subject in subjects):
            found += _ways_to(account, settings, user_of(account), has_bot=has_bot)
    return list(dict.fromkeys(found))


def has_destination(settings: NotifySettings, user: UserSettings, *, has_bot: bool = False) -> bool:
    """Whether a user can be notified directly."""
    return any(True for _ in _ways_to("", settings, user, has_bot=has_bot))


def _ways_to(account: str, settings: NotifySettings, user: UserSettings, *, has_bot: bool) -> Iterator[Destination]:
    if settings.mail is not None and user.mail is not None:
        yield Destination(settings.mail, account)
    slack = BOT if settings.slack is None and has_bot else settings.slack
    if slack is not None and user.slack is not None:
        yield Destination(slack, account)


def _find_channels(message: Message, subject: Subject, settings: NotifySettings, user_of: FindUser) -> Sequence[str]:
    # A channel with the event of that name gets that event instead.
    all_channels = [name for name, channel in settings.channels.items() if subject.rule not in channel.events]
    routes = settings.routes or [RouteSettings(to=all_channels)]
    groups = [group for account in subject.accounts if (group := user_of(account).group) is not None]
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
        and _any(route.users, subject.accounts)
        and _any(route.groups, groups)
        and all(name in labels and fnmatchcase(labels[name], wanted) for name, wanted in route.labels.items())
    )


def _any(patterns: Sequence[str], names: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns for name in names)
