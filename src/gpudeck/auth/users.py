"""Which logins belong to which account, and how to reach a user by mail and Slack."""

from gpudeck.auth.settings import UserEntries as Entries
from gpudeck.auth.settings import UserSettings, read_name, read_user, users_problem
from gpudeck.model.errors import UsageError

_NOBODY = UserSettings()


class UserDirectory:
    """The accounts of the setting `users`.

    An account without an entry has the login of its own name, unless an entry gives that login to another account.
    """

    def __init__(self, entries: Entries | None = None) -> None:
        """Raises UsageError where a login or a Slack ID belongs to two accounts."""
        self.take(entries or {})

    def take(self, known: Entries) -> None:
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

    def user_of(self, account_name: str) -> UserSettings:
        """How they are reached and what they muted; an empty one for an account without an entry."""
        return self._users.get(account_name, _NOBODY)

    def account_of_slack(self, slack_id: str) -> str | None:
        """The account of a Slack member; None where no entry names one."""
        return self._slack.get(slack_id)
