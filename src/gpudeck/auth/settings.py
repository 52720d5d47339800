"""Settings of accounts: ways to log in, logins on the hosts, trusted proxies. Imports nothing that only a hub needs."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec import Meta, Struct, field
from msgspec.structs import replace

from gpudeck.model.errors import UsageError
from gpudeck.model.settings import Duration, Text, is_loopback
from gpudeck.model.times import load_zone
from gpudeck.model.usage import Frequency, NumberFormat

ACCOUNT_NAME = r"^[a-z0-9](?:[a-z0-9._@-]{0,62}[a-z0-9])?$(?!\n)"
NAME_WORDS = "at most 64 lower-case letters, digits, and . _ @ - between them"
"""Allowed account names. Mail addresses are allowed because proxies often send them."""

AccountRole = Literal["viewer", "user", "admin"]
ROLES: tuple[AccountRole, ...] = ("viewer", "user", "admin")

_Name = Annotated[str, Meta(pattern=ACCOUNT_NAME, extra={"config_words": f"an account's name: {NAME_WORDS}"})]
_Login = Annotated[str, Meta(pattern=r"^\S{1,128}$(?!\n)", extra={"config_words": "a login, such as ada"})]

_MAIL = r"^[^\s@<>,;:\"'\\/?&%]{1,64}@[^\s@<>,;:\"'\\/?&%]{1,190}$(?!\n)"
_Mail = Annotated[
    str,
    Meta(
        pattern=_MAIL,
        extra={"config_words": "a mail address, such as ada@example.org"},
    ),
]
_SlackId = Annotated[
    str, Meta(pattern=r"^[UW][A-Z0-9]{2,30}$(?!\n)", extra={"config_words": "a member ID of Slack, such as U012AB3CD"})
]
RuleName = Annotated[
    str,
    Meta(pattern=r"^[a-z][a-z0-9_]{0,63}$(?!\n)", extra={"config_words": "the name of a rule, such as gpu_idle"}),
]


class UserSettings(Struct, frozen=True):
    """A user with an account. A list in place of this section is short for `logins`."""

    logins: list[_Login] | None = None
    """Their login names on the hosts; if not given, the name of the account."""
    mail: _Mail | None = None
    """The mail address for messages to them."""
    slack: _SlackId | None = None
    """Their member ID in Slack. It is used for messages to them, and the bot recognizes them by it."""
    group: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Their group, for usage reports and notifications. In usage reports, `usage.groups` takes precedence."""
    mute: list[RuleName] = field(default_factory=list)
    """Rules whose alerts are not sent to them. They can mute more rules themselves."""
    digest: Frequency | None = None
    """How often they get a digest; if not given, as `digests.every`."""
    zone: str | None = None
    """Their time zone, such as Europe/Berlin, for digests."""
    numbers: NumberFormat | None = None
    """The locale of numbers in their digests, such as de."""

    def __post_init__(self) -> None:
        if self.zone is not None:
            load_zone(self.zone)


UserEntries = dict[_Name, list[_Login] | UserSettings]
"""By account, the user's logins on the hosts and contact details. An account that is not listed has the login of the
same name."""


class ProxySettings(Struct, frozen=True):
    """A reverse proxy in front of the hub that authenticates users and passes their name in a header."""

    header: (
        Annotated[
            str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}$(?!\n)", extra={"config_words": "a header, such as Remote-User"})
        ]
        | None
    ) = None
    """The header with the account's name, such as Remote-User. The proxy must remove it from clients' requests."""
    addresses: list[str] = field(default_factory=list)
    """The addresses from which that header is accepted: the proxy's own addresses, such as 10.0.0.7 or 10.0.0.0/28."""
    role: AccountRole = "user"
    """The role of an account created at its first login through the proxy."""

    def __post_init__(self) -> None:
        for text in self.addresses:
            _check_network(text)
        if self.header is not None and not self.addresses:
            raise ValueError("header is accepted only from the proxy: set addresses, such as 127.0.0.1")


_Dn = Annotated[str, Meta(min_length=1, max_length=1024)]
_DN = r"\s*[A-Za-z0-9][A-Za-z0-9.-]*\s*="
_ASSERTION = r"\s*[A-Za-z0-9][A-Za-z0-9.;:-]*\s*[~<>:]?="
"""The beginning of a DN, and of each condition of a filter."""
_Claim = Annotated[str, Meta(min_length=1, max_length=256)]
_Pattern = Annotated[str, Meta(min_length=1, max_length=256)]


class MappingSettings(Struct, frozen=True):
    """How users of a provider (OIDC, LDAP) are mapped to accounts. In patterns of groups, `*` matches any text."""

    name_claim: _Claim = "preferred_username"
    """The claim (LDAP: the attribute) with the name of the account. It is also the user's login on the hosts, unless
    `users` lists other logins."""
    name_pattern: _Pattern = r"(.+?)(?:@.*)?"
    """A regular expression that matches the whole claim. Its first group is the name; by default the part before @."""
    groups_claim: _Claim = "groups"
    """The claim with the list of groups. Write nested claims with a dot, as in realm_access.roles."""
    roles: dict[AccountRole, list[_Pattern]] = field(default_factory=dict)
    """By role, the groups whose members get it. The highest role counts; it is updated at each login. If this is empty,
    roles are assigned by admins."""
    default_role: AccountRole | None = "user"
    """The role of users in none of these groups, and of new accounts. If null, such users are refused."""
    admins: list[_Name] = field(default_factory=list)
    """Accounts that are admins regardless of their groups, such as the first admin."""
    groups: dict[_Pattern, Annotated[str, Meta(min_length=1, max_length=64)]] = field(default_factory=dict)
    """By pattern of the provider's groups, the group in gpudeck for usage reports and notifications. The first pattern
    that matches counts. A `*` in the group is replaced with the text that the first `*` of the pattern matched."""
    trust_email: bool = False
    """With `name_claim: email` (LDAP: mail): whether to accept addresses that the provider does not mark as verified
    (claim email_verified); Entra and LDAP never do. Set this only if users cannot enter addresses there."""
    link_accounts: bool = False
    """Whether a user takes over an existing account of the same name. Set this only if users of the provider cannot
    choose their names."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.name_pattern)
        except re.error as error:
            raise ValueError(f"name_pattern: {self.name_pattern!r} is no regular expression: {error}") from None


_OIDC_NAME = r"^[a-z0-9](?:[a-z0-9-]{0,30}[a-z0-9])?$(?!\n)"
_SCOPE = r"^[\x21\x23-\x5b\x5d-\x7e]{1,128}$(?!\n)"
_RESERVED = frozenset(
    ("client_id", "code_challenge", "code_challenge_method", "nonce", "redirect_uri", "request", "request_uri")
) | {"response_mode", "response_type", "scope", "state"}


class OidcSettings(Struct, frozen=True):
    """An OpenID Connect provider, such as Entra, Keycloak, Google, GitLab or Authentik. See docs/sign-in.md."""

    name: Annotated[str, Meta(pattern=_OIDC_NAME, extra={"config_words": "lower-case letters, digits and -"})]
    """The provider's name, as in the redirect URI: PUBLIC_URL/api/v1/login/oidc/NAME/callback."""
    issuer: Annotated[
        str, Meta(pattern=r"^https?://[^\s?#]+$(?!\n)", extra={"config_words": "a URL that begins with https://"})
    ]
    """The provider's issuer, exactly as the provider writes it. http:// is accepted only on this machine."""
    client_id: Text
    """The client ID of this hub at the provider."""
    client_secret_file: str
    """The file with the client's secret."""
    label: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """The text of the login button; if not given, the name."""
    scopes: list[Annotated[str, Meta(pattern=_SCOPE, extra={"config_words": "a scope, such as groups"})]] = field(
        default_factory=lambda: ["openid", "profile", "email"]
    )
    """The scopes to request. Many providers send groups only with an additional scope, and a refresh token only with
    offline_access."""
    parameters: dict[str, str] = field(default_factory=dict)
    """Additional parameters of the authorization request, such as access_type: offline for Google."""
    ca_file: str | None = None
    """The CA of the provider's certificate, if this machine does not trust it."""
    refresh: Annotated[Duration, Meta(ge=60.0, le=86_400.0)] = 900.0
    """How often sessions are refreshed at the provider. A user who is disabled there is logged out at the latest after
    this time."""
    expire: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 43_200.0
    """Sessions end after this time if the provider issues no refresh token, so that it cannot be asked."""
    mapping: MappingSettings = field(default_factory=MappingSettings)
    """How its users are mapped to accounts."""

    def __post_init__(self) -> None:
        parts = urlsplit(self.issuer)
        if not parts.hostname or (parts.scheme == "http" and not is_loopback(parts.hostname)):
            raise ValueError(f"issuer: {self.issuer} has to begin with https://; http:// is only for this machine")
        if self.name == "ldap":
            raise ValueError("name: ldap is the directory's; choose another one")
        if "openid" not in self.scopes:
            raise ValueError("scopes: openid is missing")
        if reserved := sorted(_RESERVED & self.parameters.keys()):
            raise ValueError(f"parameters: {', '.join(reserved)} is set by the hub itself")


class LdapSettings(Struct, frozen=True):
    """An LDAP directory, such as OpenLDAP or Active Directory, whose users log in with their name and password. See
    docs/sign-in.md."""

    urls: Annotated[
        list[
            Annotated[
                str,
                Meta(
                    pattern=r"^ldaps?://[^\s/?#@]+/?$(?!\n)", extra={"config_words": "a URL such as ldaps://ldap1:636"}
                ),
            ]
        ],
        Meta(min_length=1, max_length=8),
    ]
    """The servers. If one does not answer, the next is tried."""
    base: _Dn
    """The search base of users, such as ou=people,dc=example,dc=org."""
    label: Annotated[str, Meta(min_length=1, max_length=64)] = "LDAP"
    """The directory's name in messages and logs."""
    start_tls: bool = True
    """Whether to encrypt ldap:// with StartTLS. Required, except on this machine."""
    ca_file: str | None = None
    """The CA of the servers' certificates, if this machine does not trust it."""
    bind_dn: _Dn | None = None
    """The account that the hub searches with; if not given, it searches anonymously."""
    bind_password_file: str | None = None
    """The file with the password of bind_dn, in its first line."""
    user_filter: Annotated[str, Meta(max_length=1024)] = "(uid={name})"
    """The filter that finds a user by the typed name; Active Directory: (&(objectClass=user)(sAMAccountName={name})).
    Users who do not match it cannot log in."""
    user_dn: _Dn | None = None
    """For a direct bind without a search: the DN of a user, such as uid={name},ou=people,dc=example,dc=org, or
    {name}@example.org for Active Directory."""
    name_attribute: _Claim = "uid"
    """The attribute with the login name; Active Directory: sAMAccountName."""
    id_attribute: _Claim = "entryUUID"
    """The attribute that identifies a user and never changes; Active Directory: objectGUID."""
    group_base: _Dn | None = None
    """The search base of groups; if not given, the same as base."""
    group_attribute: _Claim = "cn"
    """The attribute with a group's name."""
    nested: Literal["walk", "active_directory", "no"] = "walk"
    """How nested groups are resolved: level by level (walk), by Active Directory itself, or not at all."""
    timeout: Annotated[Duration, Meta(ge=0.5, le=60.0)] = 5.0
    """How long a server may take to answer."""
    refresh: Annotated[Duration, Meta(ge=60.0, le=86_400.0)] = 900.0
    """How often users who are logged in or have tokens are checked in the directory. A user who is disabled or
    removed there is logged out at the latest after this time."""
    expire: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 43_200.0
    """With user_dn and without bind_dn the directory cannot be asked about users: their sessions and tokens end this
    long after their last login with a password."""
    mapping: MappingSettings = field(default_factory=MappingSettings)
    """How its users are mapped to accounts. Claims are the attributes under their own names, and preferred_username,
    email and groups."""

    def __post_init__(self) -> None:
        for url in self.urls:
            parts = urlsplit(url)
            if parts.scheme == "ldap" and not self.start_tls and not is_loopback(parts.hostname or ""):
                raise ValueError(f"urls: passwords would go to {url} in plain text: use ldaps:// or start_tls")
        if "{name}" not in self.user_filter:
            raise ValueError("user_filter: {name} is missing, which stands for the name that was typed")
        pieces = re.findall(r"\(([^()]*)", self.user_filter)
        is_filter = all(piece.strip() in {"&", "|", "!"} or re.match(_ASSERTION, piece) for piece in pieces)
        is_even = self.user_filter.count("(") == self.user_filter.count(")")
        if not is_filter or not is_even or not self.user_filter.startswith("("):
            raise ValueError("user_filter: this is no LDAP filter, such as (uid={name})")
        for setting in ("base", "group_base"):
            dn = getattr(self, setting)
            if dn is not None and not re.match(_DN, dn):
                raise ValueError(f"{setting}: {dn!r} is no DN, such as ou=people,dc=example,dc=org")
        if self.user_dn is not None and "{name}" not in self.user_dn:
            raise ValueError("user_dn: {name} is missing, which stands for the name that was typed")
        if (self.bind_dn is None) != (self.bind_password_file is None):
            raise ValueError("bind_dn and bind_password_file belong together")


class AuthSettings(Struct, frozen=True):
    """How users log in, and for how long."""

    idle: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 7 * 86_400.0
    """A session without any request ends after this time."""
    expire: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 30 * 86_400.0
    """Every session ends after this time."""
    proxy: ProxySettings = field(default_factory=ProxySettings)
    local: bool = True
    """Whether users can log in with a password that is stored in the hub."""
    oidc: list[OidcSettings] = field(default_factory=list)
    """Providers through which users log in. Each has its own button."""
    ldap: LdapSettings | None = None
    """A directory whose users log in with their name and password."""

    def __post_init__(self) -> None:
        names = [provider.name for provider in self.oidc]
        issuers = [provider.issuer.rstrip("/") for provider in self.oidc]
        if len(set(names)) < len(names) or len(set(issuers)) < len(issuers):
            raise ValueError("oidc: two providers have the same name or issuer")
        if not self.local and not self.oidc and self.ldap is None and self.proxy.header is None:
            raise ValueError("local: without passwords nobody could log in: set oidc, ldap or proxy")
        if self.idle > self.expire:
            raise ValueError("idle has to be at most as long as expire")


def read_secret(setting: str, file: str) -> str:
    """The first line of a file. Raises UsageError, which names the setting."""
    hint = "Write the secret into its first line, and let the hub's user read it."
    try:
        lines = Path(file).expanduser().read_text().splitlines()
    except (OSError, UnicodeError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{setting}: {file} cannot be read: {reason}.", hint) from error
    if not lines or not lines[0].strip() or not lines[0].isprintable():
        raise UsageError(f"{setting}: {file} has no secret in its first line.", hint)
    return lines[0]


def read_name(text: str) -> str | None:
    """The account's name as typed or as a proxy sent it, in lower case; None if it is not a valid account name."""
    # Some non-ASCII letters become ASCII letters in lower case, such as the kelvin sign.
    name = text.lower() if text.isascii() else ""
    return name if re.match(ACCOUNT_NAME, name) else None


def read_mail(text: str) -> str | None:
    """The mail address; None if the text is not one."""
    return text if re.match(_MAIL, text) else None


def read_user(account: str, entry: list[str] | UserSettings) -> UserSettings:
    """An entry of the setting `users`, with the default of `logins` filled in."""
    user = UserSettings(logins=entry) if isinstance(entry, list) else entry
    return replace(user, logins=[account]) if user.logins is None else user


def users_problem(users: UserEntries) -> str | None:
    """The problem of the setting `users` as a whole, or None. A login must not belong to two accounts, nor a Slack
    member to two users."""
    owners: dict[tuple[str, str], str] = {}
    for account, entry in users.items():
        user = read_user(account, entry)
        marks = [("login", login) for login in user.logins or ()]
        marks += [("Slack ID", user.slack)] if user.slack else []
        for mark in marks:
            other = owners.setdefault(mark, account)
            if other != account:
                return f"users: the {' '.join(mark)} belongs to {other} and to {account}; take it from one of them"
    return None


def groups_with(groups: dict[str, list[str]], users: UserEntries) -> dict[str, list[str]]:
    """The groups of usage merged with those of users. A login that is listed in `groups` keeps that group."""
    named = {login for logins in groups.values() for login in logins}
    found = {group: list(logins) for group, logins in groups.items()}
    for account, entry in users.items():
        user = read_user(account, entry)
        if user.group is not None:
            known = found.setdefault(user.group, [])
            known += [login for login in user.logins or () if login not in named]
    return found


def _check_network(text: str) -> None:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError(
            f"addresses: {text!r} is no address such as 10.0.0.7 and no network such as 10.0.0.0/28"
        ) from None
