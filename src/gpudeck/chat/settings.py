"""Settings of the bot. The base install reads them too."""

from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field

from gpudeck.model.settings import is_loopback

_Channel = Annotated[
    str, Meta(pattern=r"^[CG][A-Z0-9]{2,30}$(?!\n)", extra={"config_words": "a channel's ID, such as C012AB3CD"})
]
_Keyword = Annotated[str, Meta(pattern=r"^[^\s\"]{1,64}$(?!\n)", extra={"config_words": "a word in lower case"})]
_KINDS = {
    "app_token": ("xapp-", "it is made under Basic Information, App-Level Tokens"),
    "bot_token": ("xoxb-", "find it under OAuth & Permissions, Bot User OAuth Token"),
}


class SlackSettings(Struct, frozen=True):
    """The bot in Slack. It connects to Slack (Socket Mode): the hub need not be reachable from the internet."""

    app_token_file: str | None = None
    """A file with the app-level token, which begins with xapp- and has the scope connections:write."""
    app_token: str | None = None
    """The token itself, instead of a file."""
    bot_token_file: str | None = None
    """A file with the bot's token, which begins with xoxb-."""
    bot_token: str | None = None
    """The token itself, instead of a file."""
    channel: _Channel | None = None
    """The ID of a channel in which the bot answers commands without being mentioned."""
    keywords: dict[_Keyword, Literal["hosts", "all", "all_cmd", "all_detail", "where", "help"]] = field(
        default_factory=dict
    )
    """Other words for commands of vesta's bot, such as `machines: hosts`. Those of the bot stay."""
    read: Literal["everyone", "users"] | None = None
    """Who may look: everyone in the workspace, or the users whose Slack ID is in `users`. If not given, everyone
    where the hub has `read: open`, else users."""
    api_url: str = "https://slack.com/api/"
    """Where Slack's Web API is; GovSlack has another."""

    def __post_init__(self) -> None:
        for name, (prefix, place) in _KINDS.items():
            token, file = getattr(self, name), getattr(self, f"{name}_file")
            if (token is None) == (file is None):
                raise ValueError(f"the bot needs either {name}_file or {name}: {place}")
            if token is not None and not is_token(name, token):
                raise ValueError(f"{name} has to begin with {prefix} and have no blanks: {place}")
        address = urlsplit(self.api_url)
        if address.scheme != "https" and not (address.scheme == "http" and is_loopback(address.hostname or "")):
            raise ValueError("api_url has to begin with https://: the bot's tokens go there")

    def __repr__(self) -> str:
        """Without its secrets: settings get into logs and traces."""
        return f"SlackSettings(channel={self.channel!r}, read={self.read!r}, api_url={self.api_url!r})"


class ChatSettings(Struct, frozen=True):
    """Bots that answer in chats what the page and curl answer."""

    slack: SlackSettings | None = None


def is_token(name: str, text: str) -> bool:
    """Whether that can be the token of that name: nothing else is ever sent to Slack."""
    return text.startswith(_KINDS[name][0]) and text.isascii() and text.isprintable() and " " not in text


def where_to_find(name: str) -> str:
    """Where in Slack's pages the token of that name is, and how it begins."""
    prefix, place = _KINDS[name]
    return f"it begins with {prefix}, and {place}"
