"""Settings of messages. The base install reads them too."""

import contextlib
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, ClassVar, Final

from msgspec import Meta, Struct, field

from gpudeck.alerts.settings import DEFAULTS
from gpudeck.model.errors import UsageError
from gpudeck.model.event import KINDS, Severity
from gpudeck.model.plugins import find_plugins
from gpudeck.model.settings import Duration
from gpudeck.model.text import propose

ChannelName = Annotated[
    str,
    Meta(
        pattern=r"^[a-z0-9](?:[a-z0-9_-]{0,30}[a-z0-9])?$(?!\n)",
        extra={"config_words": "a channel's name: at most 32 lower-case letters, digits, and _ - between them"},
    ),
]
_Pattern = Annotated[str, Meta(min_length=1, max_length=128)]
_Kind = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$(?!\n)", extra={"config_words": "a kind of event, such as host_down"})
]
_Url = Annotated[
    str,
    Meta(pattern=r"^https?://\S+$(?!\n)", extra={"config_words": "an address that begins with http:// or https://"}),
]
_LabelName = Annotated[
    str,
    Meta(
        pattern=r"^[a-zA-Z_][a-zA-Z0-9_]{0,63}$(?!\n)",
        extra={"config_words": "the name of a label: letters, digits and _"},
    ),
]
_Text = Annotated[str, Meta(min_length=1, max_length=500)]
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31})://\S")
_MAIL = re.compile(r"mailtos?://", re.IGNORECASE)
_BOT = re.compile(r"slack://(?:[^/@]*@)?(?:[^/?]*/?\?(?:.*&)?token=)?xox", re.IGNORECASE)
"""Slack's address with a token of a bot or a user; without one it is a webhook, which writes to one channel."""
TOPICS: Final = (*DEFAULTS, "watch", "ask", "digest")
"""The topics of messages: rules, watches, questions of other users about an idle GPU, digests."""


class ChannelSettings(Struct, frozen=True):
    """A destination of messages: a chat channel, a mailing list, a webhook. Its address contains secrets and is never
    shown."""

    config_shorthand: ClassVar[str] = "url"

    url: str | None = None
    """The address, as Apprise writes it: mailto://, slack://, discord://, ntfy://, json:// and about a hundred more.
    One that begins with https:// is a webhook that takes `{"text": …}`, as those of Slack and Mattermost do."""
    url_file: str | None = None
    """A file with the address, so that this one holds no secret. It is read for every message."""
    events: list[_Kind] = field(default_factory=list)
    """Events that are sent here as they happen, in addition to what the routes send: host_down, host_up, host_seen.
    Without routes the rule of the same name, host_down, is not sent here a second time."""
    texts: dict[_Kind, _Text] = field(default_factory=dict)
    """Texts of your own for these events, in place of the hub's: `host_down: "{host} is gone"`."""

    def __post_init__(self) -> None:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("a channel has either a url or a url_file")
        if self.url is not None and not _SCHEME.match(self.url.strip()):
            raise ValueError("url has to be an address such as mailto://… or slack://…")
        for place, kinds in (("events", self.events), ("texts", self.texts)):
            for kind in kinds:
                if kind not in KINDS:
                    raise ValueError(f"{place}: there is no kind {kind}; {propose(kind, KINDS)}")


class AlertmanagerSettings(Struct, frozen=True):
    """Alertmanagers that get the hub's alerts, in addition to the channels. Personal alerts are not sent there."""

    urls: Annotated[list[_Url], Meta(min_length=1, max_length=10)]
    """Their addresses: http://alertmanager.example:9093. Each gets all alerts."""
    severity: Severity = "info"
    """The lowest severity that is sent."""
    labels: dict[_LabelName, _Pattern] = field(default_factory=dict)
    """Labels of all alerts, in addition to those of host and rule: `{cluster: north}`."""
    ca_file: str | None = None
    """Certificates that theirs are checked against, in place of those of this machine."""
    resend: Annotated[Duration, Meta(ge=1, le=600)] = 60.0
    """How often alerts that still fire are sent again. After four times that without the hub they end there."""


class RouteSettings(Struct, frozen=True):
    """Which messages go to which channels. All conditions have to fit; one that is left out always does."""

    to: Annotated[list[ChannelName], Meta(min_length=1)]
    """The channels."""
    severity: Severity = "warning"
    """The lowest severity."""
    rules: list[_Pattern] = field(default_factory=list)
    """Names of rules, any of which fits: gpu_lost, host_*."""
    labels: dict[str, _Pattern] = field(default_factory=dict)
    """Labels of the host, and `host` and `model`, all of which fit: `rack: r1*`."""
    users: list[_Pattern] = field(default_factory=list)
    """Accounts that it concerns, any of which fits."""
    groups: list[_Pattern] = field(default_factory=list)
    """Groups of those users (`users.NAME.group`), any of which fits."""
    goes_on: bool = field(default=False, name="continue")
    """Whether the routes below are tried too for a message that fits."""


class NotifySettings(Struct, frozen=True):
    """Which messages are sent where. Without routes every channel gets warnings and worse."""

    channels: dict[ChannelName, ChannelSettings] = field(default_factory=dict)
    """The channels, by names of your choice."""
    routes: list[RouteSettings] = field(default_factory=list)
    """From top to bottom; a message goes along the first that fits."""
    mail: ChannelName | None = None
    """The channel whose mail server sends to single users, at `users.NAME.mail`."""
    slack: ChannelName | None = None
    """The channel with a bot's token that writes to single users, at `users.NAME.slack`. Not needed where
    `chat.slack` has a bot: then that one does."""
    alertmanager: AlertmanagerSettings | None = None
    """Alertmanagers that get the hub's alerts: see docs/alerts.md."""
    page: (
        Annotated[str, Meta(pattern=r"^https?://\S+$(?!\n)", extra={"config_words": "the page's address, https://…"})]
        | None
    ) = None
    """The hub's address for users and other machines: messages link to it, and `gpudeck hosts add` prints it. The
    default is `public_url`; without that, other machines get the host name of this one."""
    demo: bool = False
    """Whether messages about a simulated fleet are sent too, to try the channels: their titles begin with `Demo:`."""

    def __post_init__(self) -> None:
        for index, route in enumerate(self.routes):
            _check(f"routes: number {index + 1} names", route.to, self.channels)
        _check("mail names", [self.mail] if self.mail else [], self.channels)
        _check("slack names", [self.slack] if self.slack else [], self.channels)
        # As far as the address is here: one in a file is read when it is used.
        for name, channel, pattern, hint in (
            ("mail", self.mail, _MAIL, "mailto:// or mailtos://"),
            ("slack", self.slack, _BOT, "slack:// with a bot's token (xoxb-…)"),
        ):
            url = None if channel is None else self.channels[channel].url
            if url is not None and not pattern.match(url.strip()):
                raise ValueError(f"{name} names the channel {channel}, which needs an address {hint} for that")


def route_problem(routes: Iterable[RouteSettings], own_rules: Iterable[str]) -> str | None:
    """The first mistake in the rules that routes name, of the hub and of the operator."""
    topics = (*TOPICS, *own_rules)
    for index, route in enumerate(routes):
        for pattern in route.rules:
            if not any(fnmatchcase(name, pattern) for name in topics):
                return f"notify.routes[{index}].rules: there is none that {pattern} fits"
    return None


def mute_problem(muted: Mapping[str, Iterable[str]]) -> str | None:
    """The first mistake in the rules that users mute in the settings, by account; None if there is none."""
    for account, names in muted.items():
        for name in names:
            if name not in TOPICS:
                return f"users.{account}.mute: there is no rule {name}"
    return None


def read_url(name: str, channel: ChannelSettings) -> str:
    """The channel's address, which is a secret. Blocks. Raises UsageError where its file cannot be read or holds
    none."""
    if channel.url is not None:
        return channel.url.strip()
    place = f"the file with the address of the channel {name}, {channel.url_file},"
    try:
        text = Path(channel.url_file or "").expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        words = getattr(error, "strerror", None) or "it is no text"
        raise UsageError(f"{place} cannot be read: {words.lower()}.") from error
    if "\n" in text or not _SCHEME.match(text):
        raise UsageError(f"{place} does not hold one address such as mailto://… alone.")
    return text


def needs_apprise(url: str) -> bool:
    """Whether only Apprise knows this kind of address. Some that begin with https:// are better known to it, too."""
    scheme = scheme_of(url)
    return scheme not in {"http", "https"} and scheme not in find_plugins("notifiers")


def list_apprise_channels(notify: NotifySettings) -> list[str]:
    """The channels that need gpudeck[apprise]. Blocks. One whose file cannot be read is left out: sending says so."""
    found = []
    for name, channel in notify.channels.items():
        with contextlib.suppress(UsageError):
            if needs_apprise(read_url(name, channel)):
                found.append(name)
    return found


def scheme_of(url: str) -> str:
    """`mailto` of an address, in lower case: all that may be shown of it."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def _check(what: str, names: list[ChannelName], known: dict[ChannelName, ChannelSettings]) -> None:
    for name in names:
        if name not in known:
            there = f"channels has {', '.join(known)}" if known else "channels is empty"
            raise ValueError(f"{what} the channel {name}, which is not there; {there}")
