"""What people do not want to hear of, beside what the settings say: their own choice, in the database."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from sqlalchemy import delete, insert, select

from gpudeck.database.engine import Database
from gpudeck.database.schema import mutes as table

MOST_MUTES: Final = 100


class Mutes:
    """`load` before it is asked, and from time to time where other hubs share the database. Raises Temporary."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._muted: dict[str, frozenset[str]] = {}

    async def load(self) -> None:
        found: dict[str, set[str]] = defaultdict(set)
        async with self._database.begin() as connection:
            for account, rule in (await connection.execute(select(table.c.account, table.c.rule))).all():
                found[account].add(rule)
        self._muted = {account: frozenset(rules) for account, rules in found.items()}

    def of(self, account: str) -> frozenset[str]:
        return self._muted.get(account, frozenset())

    async def choose(self, account: str, rules: Iterable[str]) -> None:
        """From here on these, and no others."""
        chosen = sorted(set(rules))
        async with self._database.begin() as connection:
            await connection.execute(delete(table).where(table.c.account == account))
            if chosen:
                await connection.execute(insert(table), [{"account": account, "rule": rule} for rule in chosen])
        self._muted[account] = frozenset(chosen)
