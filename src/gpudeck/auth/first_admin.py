"""The first account of a hub that nobody can log in to yet: made with a link that the hub prints at its start."""

import hmac

from gpudeck.auth.accounts import Account, Accounts, Also
from gpudeck.auth.secret import hash_secret, make_secret
from gpudeck.model import clock
from gpudeck.model.errors import UsageError

VALID_SECONDS = 3600.0
_HINT = "Start the hub again for a new one, or run `gpudeck account add NAME --role admin` on its machine."


class LinkRefused(UsageError):
    """The secret is wrong, used or old, or there is an account by now."""


class FirstAdmin:
    """A secret that makes one admin, once. It is in memory as its hash, and gone when the hub ends."""

    def __init__(self, accounts: Accounts, now: clock.Clock = clock.wall) -> None:
        self._accounts = accounts
        self._now = now
        self._hash: str | None = None
        self._made_at = 0.0

    async def make(self) -> str | None:
        """The secret, which replaces an earlier one; None where there is any account already."""
        if await self._accounts.count():
            self._hash = None
            return None
        secret = make_secret()
        self._hash, self._made_at = hash_secret(secret), self._now()
        return secret

    async def redeem(self, secret: str, name: str, password: str, also: Also) -> Account:
        """The new admin; `also` starts their session. Raises UsageError for a secret that is wrong, used or old, and
        when there is an account by now; also for a bad name or password, and then the secret can be used again."""
        wanted = self._take(secret)
        try:
            return await self._add(name, password, also)
        except BaseException:
            self._hash = wanted
            raise

    async def _add(self, name: str, password: str, also: Also) -> Account:
        if await self._accounts.count():
            raise LinkRefused("this hub has accounts by now.", "Log in with one of them.")
        return await self._accounts.add(name, "admin", password, also, logs_in=True)

    def _take(self, secret: str) -> str:
        """Whoever takes it is the only one: of two who come at once the second is refused."""
        taken = self._hash
        is_old = not 0 <= self._now() - self._made_at <= VALID_SECONDS
        if taken is None or is_old or not hmac.compare_digest(taken, hash_secret(secret)):
            raise LinkRefused("this link does not work, or no longer.", _HINT)
        self._hash = None
        return taken
