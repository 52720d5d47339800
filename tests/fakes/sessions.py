"""Somebody who is logged in, without a password."""

from gpudeck.auth.accounts import Account
from gpudeck.auth.sessions import Sessions


async def start_session(sessions: Sessions, account: Account, address: str = "", user_agent: str = "") -> str:
    """The secret of a new session."""
    secret, start = sessions.begin(address, user_agent)
    async with sessions.database.begin() as connection:
        for statement in start(account):
            await connection.execute(statement)
    sessions.forget(account.id)
    return secret
