"""Accounts, sessions, tokens and users of a hub in one object, for the API and the services."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace
from sqlalchemy import Executable

from gpudeck.auth.accounts import Account, Accounts, Passwords
from gpudeck.auth.audit import Audit
from gpudeck.auth.caller import Caller, Kind, read_proxied_name
from gpudeck.auth.device_login import DeviceLogins
from gpudeck.auth.identities import Identities
from gpudeck.auth.login import FirstAdmin, Login, LoginThrottle
from gpudeck.auth.sessions import Sessions
from gpudeck.auth.settings import AuthSettings, UserEntries, UserSettings, read_name, read_user, users_problem
from gpudeck.auth.tokens import Token, Tokens
from gpudeck.auth.trials import Trials
from gpudeck.database.engine import Database
from gpudeck.model import clock
from gpudeck.model.errors import UsageError

if TYPE_CHECKING:
    from gpudeck.auth.ldap_logins import LdapLogins
    from gpudeck.auth.oidc_logins import OidcLogins


class Auth:
    """Who people and programs are. `load` once before the first request; then `refresh` every few seconds.

    `has_accounts` is read for every request, so it is cached here. `database` holds everything; `local` is one on this
    machine, often the same. `proxy_header` is where a trusted proxy names the caller. `oidc` and `ldap` are None unless
    configured. `takes_passwords`: users may log in with a password; `has_own_passwords`: also one of the hub itself.
    """

    def __init__(
        self,
        database: Database,
        settings: AuthSettings,
        logins: UserEntries | None = None,
        *,
        local: Database | None = None,
        public_url: str | None = None,
        passwords: Passwords | None = None,
        now: clock.Clock = clock.wall,
    ) -> None:
        passwords = passwords or Passwords()
        self.database = database
        self.local = local or database
        self.has_accounts = False
        self.proxy_header = settings.proxy.header
        self.accounts = Accounts(database, passwords, now)
        self.audit = Audit(database, now)
        self.sessions = Sessions(database, settings, now)
        self.tokens = Tokens(database, now)
        self.devices = DeviceLogins(self.tokens, self.audit)
        self.users = UserDirectory(logins)
        self.trials = Trials(database, now)
        self.identities = Identities(
            database, self.accounts, self.sessions, self.tokens, self.audit, learn=self.users.learn, now=now
        )
        self.ldap = self._make_ldap(settings)
        self.login = Login(
            self.accounts,
            self.sessions,
            passwords,
            LoginThrottle(),
            self.audit,
            takes_passwords=settings.local,
            directory=self.ldap,
        )
        self.first_admin = FirstAdmin(self.accounts, now)
        self.accounts.watch(self.tokens.forget_account)
        self.public_url = public_url
        self.has_own_passwords = settings.local
        self.takes_passwords = settings.local or self.ldap is not None
        self.oidc = self._make_oidc(settings, public_url)
        self._proxy = settings.proxy

    def _make_oidc(self, settings: AuthSettings, public_url: str | None) -> "OidcLogins | None":
        """None without providers. Its libraries take long to load, and most hubs do without."""
        if not settings.oidc or public_url is None:
            return None
        from gpudeck.auth.oidc_logins import OidcLogins  # noqa: PLC0415 - as above

        return OidcLogins(settings.oidc, public_url, self.identities, self.trials)

    def _make_ldap(self, settings: AuthSettings) -> "LdapLogins | None":
        """The same for a directory."""
        if settings.ldap is None:
            return None
        from gpudeck.auth.ldap_logins import LdapLogins  # noqa: PLC0415 - as above

        return LdapLogins(settings.ldap, self.identities)

    @property
    def can_log_in(self) -> bool:
        """Whether there is anything to log in with."""
        return self.has_accounts or self.oidc is not None or self.ldap is not None

    @property
    def problem(self) -> str | None:
        away = self.database.away
        return None if away is None else f"the hub's database {away.trouble.reason}."

    @property
    def login_problems(self) -> list[str]:
        """Why users cannot log in through providers or the directory now, or cannot be checked there; for admins."""
        named = {} if self.oidc is None else {one.label: one.problem for one in self.oidc.providers.values()}
        told = [f"Logins through {label} do not work: {problem}" for label, problem in named.items() if problem]
        directory = None if self.ldap is None else self.ldap.directory.problem
        return told if directory is None else [*told, f"Logins with the directory do not work: {directory}"]

    async def load(self) -> None:
        """Raises Temporary."""
        await self.tokens.load()
        await self.identities.refresh()
        self.has_accounts = await self.accounts.count() > 0

    def note_account(self) -> None:
        self.has_accounts = True

    def adopt(self, tokens: dict[bytes, Token], *, has_accounts: bool) -> None:
        """What was known last, until it can be read."""
        self.tokens.adopt(tokens)
        self.has_accounts = has_accounts

    async def refresh(self) -> None:
        """See what other processes changed, and write down which tokens were used. Raises Temporary."""
        await self.tokens.flush()
        await self.tokens.refresh()
        await self.identities.refresh()
        self.has_accounts = await self.accounts.count() > 0

    async def find_session(self, secret: str) -> Caller | None:
        account = await self.sessions.find(secret)
        return None if account is None else self.caller_of(account)

    def find_token(self, secret: str) -> Caller | None:
        """The caller with that token. One of an account has that account's logins."""
        token = self.tokens.find(secret)
        if token is None:
            return None
        self.tokens.note_use(token)
        return Caller(
            kind="token",
            role=token.role,
            name=token.account or f"token {token.name}",
            account_id=token.account_id,
            token_id=token.id,
            logins=self.users.logins_of(token.account) if token.account else frozenset(),
        )

    async def find_proxied(self, told: Sequence[str], proxy: str, address: str = "") -> Caller | None:
        """The caller that a trusted proxy names; a new one gets an account. None where it is not trusted, or names
        no account or a disabled one. `proxy` and `address` are the proxy's own address and the caller's."""
        name = read_proxied_name(told, proxy, self._proxy)
        if name is None:
            return None
        account = await self.accounts.find(name) or await self._welcome(name, address)
        return None if account.is_disabled else self.caller_of(account, kind="proxy")

    def caller_of(self, account: Account, address: str = "", kind: Kind = "account") -> Caller:
        return Caller(
            kind=kind,
            role=account.role,
            name=account.name,
            account_id=account.id,
            logins=self.users.logins_of(account.name),
            address=address,
            has_password=account.has_password,
        )

    async def _welcome(self, name: str, address: str) -> Account:
        def also(made: Account) -> list[Executable]:
            caller = self.caller_of(made, address, kind="proxy")
            return [self.audit.entry(caller, "add account", made.name, details="by the proxy")]

        try:
            account = await self.accounts.add(name, self._proxy.role, None, also)
        except UsageError:
            # Two first requests at once: the other one made it.
            known = await self.accounts.find(name)
            if known is None:
                raise
            return known
        self.has_accounts = True
        return account


_NOBODY = UserSettings()


class UserDirectory:
    """The accounts of the setting `users`.

    An account without an entry has the login of its own name, unless an entry gives that login to another account.
    """

    def __init__(self, entries: UserEntries | None = None) -> None:
        """Raises UsageError where a login or a Slack ID belongs to two accounts."""
        self._learned: dict[str, UserSettings] = {}
        self.take(entries or {})

    def take(self, known: UserEntries) -> None:
        """These entries count from here on, wherever this object is used. Raises UsageError, as above."""
        if problem := users_problem(known):
            raise UsageError(f"{problem}.")
        self._users = {account: read_user(account, entry) for account, entry in known.items()}
        self._logins = {account: frozenset(user.logins or ()) for account, user in self._users.items()}
        self._accounts = {login: account for account, logins in self._logins.items() for login in logins}
        self._slack = {user.slack: account for account, user in self._users.items() if user.slack}

    def logins_of(self, account_name: str) -> frozenset[str]:
        """Their names on the hosts. May be none: an account that only reads."""
        if (logins := self._logins.get(account_name)) is not None:
            return logins
        return frozenset() if account_name in self._accounts else frozenset((account_name,))

    def account_of(self, login: str) -> str | None:
        """The name of the account, which need not exist; None for a login that can be no account's."""
        if (account := self._accounts.get(login)) is not None:
            return account
        # Logins differ by case on the hosts: Ada is not ada.
        is_own_name = read_name(login) == login and login not in self._logins
        return login if is_own_name else None

    def learn(self, known: dict[str, UserSettings]) -> None:
        """What providers say about accounts; it fills in what the entries leave out."""
        self._learned = known

    def user_of(self, account_name: str) -> UserSettings:
        """How they are reached and what they muted; an empty one for an account of which nothing is known."""
        user, learned = self._users.get(account_name), self._learned.get(account_name)
        if user is None or learned is None:
            return user or learned or _NOBODY
        return replace(user, mail=user.mail or learned.mail, group=user.group or learned.group)

    def group_of(self, login: str) -> str | None:
        """The group of the account with that login on the hosts; None where none is known."""
        account = self.account_of(login)
        return None if account is None else self.user_of(account).group

    @property
    def accounts(self) -> list[str]:
        """Those that have an entry."""
        return list(self._users)

    def account_of_slack(self, slack_id: str) -> str | None:
        """The account of a Slack member; None where no entry names one."""
        return self._slack.get(slack_id)
