"""What an operator decides about who may log in. Needs nothing that only a hub's install has."""

import ipaddress
import re
from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from gpudeck.model.settings import Duration

ACCOUNT_NAME = r"^[a-z0-9](?:[a-z0-9._@-]{0,62}[a-z0-9])?$(?!\n)"
NAME_WORDS = "at most 64 lower-case letters, digits, and . _ @ - between them"
"""What accounts are called: also as proxies tell it, which often know people by their mail address."""

AccountRole = Literal["viewer", "user", "admin"]
ROLES: tuple[AccountRole, ...] = ("viewer", "user", "admin")

_Name = Annotated[str, Meta(pattern=ACCOUNT_NAME, extra={"config_words": f"an account's name: {NAME_WORDS}"})]
_Login = Annotated[str, Meta(pattern=r"^\S{1,128}$(?!\n)", extra={"config_words": "a login, such as ada"})]

People = dict[_Name, list[_Login]]
"""The logins on the hosts that belong to an account. An account that does not stand here has the login of its own
name."""


class ProxySettings(Struct, frozen=True):
    """A reverse proxy in front of the hub that knows who people are, and says so in a header."""

    header: (
        Annotated[
            str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}$(?!\n)", extra={"config_words": "a header, such as Remote-User"})
        ]
        | None
    ) = None
    """The header in which the proxy tells the account's name, such as Remote-User. It must not pass on one it gets."""
    addresses: list[str] = field(default_factory=list)
    """From where that header is believed: the proxy's own addresses, such as 10.0.0.7 or 10.0.0.0/28."""
    role: AccountRole = "user"
    """What a name may do that the hub did not know before: an account is made for it."""

    def __post_init__(self) -> None:
        for text in self.addresses:
            _check_network(text)
        if self.header is not None and not self.addresses:
            raise ValueError("header is believed from the proxy alone: name it in addresses, such as 127.0.0.1")


class AuthSettings(Struct, frozen=True):
    """How people log in, and for how long."""

    idle: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 7 * 86_400.0
    """How long somebody stays logged in who does not come back."""
    expire: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 30 * 86_400.0
    """How long somebody stays logged in at all."""
    proxy: ProxySettings = field(default_factory=ProxySettings)

    def __post_init__(self) -> None:
        if self.idle > self.expire:
            raise ValueError("idle has to be at most as long as expire")


def read_name(text: str) -> str | None:
    """The account's name that somebody typed or a proxy told, in lower case; None if no account can be called so."""
    # Some letters of other scripts become those of ours in lower case, such as the sign for kelvin.
    name = text.lower() if text.isascii() else ""
    return name if re.match(ACCOUNT_NAME, name) else None


def people_problem(people: People) -> str | None:
    """What is wrong with the setting `people` as a whole; None if nothing is. Nobody's jobs belong to two accounts."""
    owners: dict[str, str] = {}
    for account, logins in people.items():
        for login in logins:
            other = owners.setdefault(login, account)
            if other != account:
                return f"people: the login {login} belongs to {other} and to {account}; take it from one of them"
    return None


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            f"addresses: {text!r} is no address such as 10.0.0.7 and no network such as 10.0.0.0/28"
        ) from None
