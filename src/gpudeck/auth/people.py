"""Whose jobs are whose: accounts of the hub and logins on the hosts."""

from collections.abc import Mapping, Sequence

from gpudeck.auth.settings import People as Entries
from gpudeck.auth.settings import people_problem, read_name
from gpudeck.model.errors import UsageError


class People:
    """Accounts and their logins, as the setting `people` has them.

    An account without an entry has the login of its own name, unless an entry gives that login to another account.
    """

    def __init__(self, entries: Mapping[str, Sequence[str]] | None = None) -> None:
        """Raises UsageError where a login belongs to two accounts."""
        known: Entries = {account: list(logins) for account, logins in (entries or {}).items()}
        if problem := people_problem(known):
            raise UsageError(f"{problem}.")
        self._logins = {account: frozenset(logins) for account, logins in known.items()}
        self._accounts = {login: account for account, logins in known.items() for login in logins}

    def logins_of(self, account_name: str) -> frozenset[str]:
        """Their names on the hosts. May be none: somebody who only looks."""
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
