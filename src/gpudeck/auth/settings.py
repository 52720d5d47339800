"""Settings of accounts: who may log in, which logins are whose, trusted proxies. A base install reads them too."""

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
"""What accounts are called: also as proxies tell it, which often know people by their mail address."""

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
    """A user with an account. A list in place of this section is their logins."""

    logins: list[_Login] | None = None
    """Their names on the hosts; the account's own name if not given."""
    mail: _Mail | None = None
    """Where messages for them go by mail."""
    slack: _SlackId | None = None
    """Their member ID in Slack: for messages to them, and so that the bot knows them."""
    group: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """Their group, for usage reports and notifications; for usage a line of `usage.groups` goes first."""
    mute: list[RuleName] = field(default_factory=list)
    """Rules whose alerts they do not get; they can mute more by themselves."""
    digest: Frequency | None = None
    """How often they get a digest, if not as `digests.every` says."""
    zone: str | None = None
    """Their time zone, such as Europe/Berlin, for digests."""
    numbers: NumberFormat | None = None
    """The language whose marks for thousands and decimals their digests use, such as de."""

    def __post_init__(self) -> None:
        if self.zone is not None:
            load_zone(self.zone)


UserEntries = dict[_Name, list[_Login] | UserSettings]
"""Accounts, with the logins on the hosts that belong to them and how to reach the user. An account that does not
stand here has the login of its own name."""


class ProxySettings(Struct, frozen=True):
    """A reverse proxy in front of the hub that authenticates users and passes their name in a header."""

    header: (
        Annotated[
            str, Meta(pattern=r"^[A-Za-z0-9-]{1,64}$(?!\n)", extra={"config_words": "a header, such as Remote-User"})
        ]
        | None
    ) = None
    """The header in which the proxy tells the account's name, such as Remote-User. It must not pass on one it gets."""
    addresses: list[str] = field(default_factory=list)
    """The addresses from which that header is accepted: the proxy's own addresses, such as 10.0.0.7 or 10.0.0.0/28."""
    role: AccountRole = "user"
    """What a name may do that the hub did not know before: an account is made for it."""

    def __post_init__(self) -> None:
        for text in self.addresses:
            _check_network(text)
        if self.header is not None and not self.addresses:
            raise ValueError("header is accepted only from the proxy: set addresses, such as 127.0.0.1")


_Dn = Annotated[str, Meta(min_length=1, max_length=1024)]
_DN = r"\s*[A-Za-z0-9][A-Za-z0-9.-]*\s*="
_ASSERTION = r"\s*[A-Za-z0-9][A-Za-z0-9.;:-]*\s*[~<>:]?="
"""How a DN and each condition of a filter begin."""
_Claim = Annotated[str, Meta(min_length=1, max_length=256)]
_Pattern = Annotated[str, Meta(min_length=1, max_length=256)]


class MappingSettings(Struct, frozen=True):
    """How users of a provider (OIDC, LDAP) become accounts here. Patterns of groups are names in which `*` stands for
    any text."""

    name_claim: _Claim = "preferred_username"
    """The claim (LDAP: the attribute) that names the account, and thereby the user's login on the hosts; `users` can
    name other logins."""
    name_pattern: _Pattern = r"(.+?)(?:@.*)?"
    """A regular expression for all of that claim; its first group is the name. The default takes the part before @."""
    groups_claim: _Claim = "groups"
    """The claim with the list of groups; a dot leads into an object, as in realm_access.roles."""
    roles: dict[AccountRole, list[_Pattern]] = field(default_factory=dict)
    """By role, the groups whose members have it; the highest role counts, at each login. Without any, admins of the
    hub give roles."""
    default_role: AccountRole | None = "user"
    """The role of users in none of these groups, and of new accounts; null: such users are refused."""
    admins: list[_Name] = field(default_factory=list)
    """Accounts that are admins whatever their groups are, such as the first admin."""
    groups: dict[_Pattern, Annotated[str, Meta(min_length=1, max_length=64)]] = field(default_factory=dict)
    """By pattern of the provider's groups, the group of gpudeck for usage reports and notifications; the first line
    that fits counts. A `*` in the group is what the first `*` of the pattern stands for."""
    trust_email: bool = False
    """With `name_claim: email` (LDAP: mail): whether an address names the account although the provider does not say
    that it is verified (no claim email_verified), as Entra and LDAP do. Only if users cannot enter addresses there."""
    link_accounts: bool = False
    """Whether a user takes over an existing account of the same name. Only for providers whose users cannot choose
    their names."""

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
    """Its name here; it is part of the redirect URI: PUBLIC_URL/api/v1/login/oidc/NAME/callback."""
    issuer: Annotated[
        str, Meta(pattern=r"^https?://[^\s?#]+$(?!\n)", extra={"config_words": "a URL that begins with https://"})
    ]
    """The provider's issuer, exactly as it writes it. Without TLS only on this machine."""
    client_id: Text
    """The ID that the provider has given to this hub."""
    client_secret_file: str
    """The file with the client's secret."""
    label: Annotated[str, Meta(min_length=1, max_length=64)] | None = None
    """The text of its button; the name if not given."""
    scopes: list[Annotated[str, Meta(pattern=_SCOPE, extra={"config_words": "a scope, such as groups"})]] = field(
        default_factory=lambda: ["openid", "profile", "email"]
    )
    """What is asked for. Many providers send groups only with a scope of their own, and a refresh token only with
    offline_access."""
    parameters: dict[str, str] = field(default_factory=dict)
    """More parameters of the authorization request, such as access_type: offline for Google."""
    ca_file: str | None = None
    """The CA of the provider's certificate, if this machine does not trust it."""
    refresh: Annotated[Duration, Meta(ge=60.0, le=86_400.0)] = 900.0
    """How often the provider is asked whether a session may go on. A user who is disabled there is out by then."""
    expire: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 43_200.0
    """Sessions end after this time if the provider cannot be asked, because it gives no refresh token."""
    mapping: MappingSettings = field(default_factory=MappingSettings)
    """How its users become accounts."""

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
    """Its servers; if one does not answer, the next is asked."""
    base: _Dn
    """Where users are, such as ou=people,dc=example,dc=org."""
    label: Annotated[str, Meta(min_length=1, max_length=64)] = "LDAP"
    """What it is called in messages and logs."""
    start_tls: bool = True
    """Whether ldap:// is encrypted with StartTLS. It has to be, except on this machine."""
    ca_file: str | None = None
    """The CA of the servers' certificates, if this machine does not trust it."""
    bind_dn: _Dn | None = None
    """The account with which the hub searches; anonymously if not given."""
    bind_password_file: str | None = None
    """The file with the password of bind_dn, in its first line."""
    user_filter: Annotated[str, Meta(max_length=1024)] = "(uid={name})"
    """Finds a user by the name that was typed; Active Directory: (&(objectClass=user)(sAMAccountName={name})). Users
    who do not fit it cannot log in."""
    user_dn: _Dn | None = None
    """For direct bind, without a search before it: the DN of a user, such as uid={name},ou=people,dc=example,dc=org, or
    {name}@example.org for Active Directory."""
    name_attribute: _Claim = "uid"
    """The attribute with the login name; Active Directory: sAMAccountName."""
    id_attribute: _Claim = "entryUUID"
    """The attribute that identifies a user and never changes; Active Directory: objectGUID."""
    group_base: _Dn | None = None
    """Where groups are; the same as base if not given."""
    group_attribute: _Claim = "cn"
    """The attribute with a group's name."""
    nested: Literal["walk", "active_directory", "no"] = "walk"
    """How groups in groups are found: level by level, by Active Directory itself, or not at all."""
    timeout: Annotated[Duration, Meta(ge=0.5, le=60.0)] = 5.0
    """How long a server may take to answer."""
    refresh: Annotated[Duration, Meta(ge=60.0, le=86_400.0)] = 900.0
    """How often the directory is asked about users who are logged in or have tokens. A user who is disabled or removed
    there is out by then."""
    expire: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 43_200.0
    """With user_dn and without bind_dn the directory cannot be asked about users: their sessions and tokens end so long
    after their last login with a password."""
    mapping: MappingSettings = field(default_factory=MappingSettings)
    """How its users become accounts. The attributes are known under their own names, and as preferred_username, email
    and groups."""

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
    """How people log in, and for how long."""

    idle: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 7 * 86_400.0
    """A session without any request ends after this time."""
    expire: Annotated[Duration, Meta(ge=300.0, le=31_536_000.0)] = 30 * 86_400.0
    """Every session ends after this time."""
    proxy: ProxySettings = field(default_factory=ProxySettings)
    local: bool = True
    """Whether accounts log in with a password of the hub's own."""
    oidc: list[OidcSettings] = field(default_factory=list)
    """Providers through which users log in; each has its own button."""
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
    """The account's name as typed or as a proxy sent it, in lower case; None if no account can be called so."""
    # Some letters of other scripts become those of ours in lower case, such as the sign for kelvin.
    name = text.lower() if text.isascii() else ""
    return name if re.match(ACCOUNT_NAME, name) else None


def read_mail(text: str) -> str | None:
    """The mail address; None for text that is none."""
    return text if re.match(_MAIL, text) else None


def read_user(account: str, entry: list[str] | UserSettings) -> UserSettings:
    """An entry of the setting `users`, with the logins spelled out."""
    user = UserSettings(logins=entry) if isinstance(entry, list) else entry
    return replace(user, logins=[account]) if user.logins is None else user


def users_problem(users: UserEntries) -> str | None:
    """What is wrong with the setting `users` as a whole; None if nothing is. No login belongs to two accounts, and
    no Slack member is two users."""
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
    """The groups of usage, and those of users. A login that stands in one of `groups` stays there."""
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
