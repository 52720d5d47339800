"""Which digests are done, in the database: a row for each period and recipient."""

from collections.abc import Collection, Iterable
from typing import Final, Literal

from sqlalchemy import delete, select

from gpudeck.database.engine import FleetStore
from gpudeck.database.schema import digests as table

KEPT_SECONDS: Final = 400 * 86_400.0
Outcome = Literal["sent", "muted", "no_data"]
DigestKey = tuple[str, str]
"""The name of the period; an account, or `#` and a channel."""


class DigestStore(FleetStore):
    """All of it raises Temporary where the database does not answer, or another hub has the duty."""

    async def find_done(self, periods: Collection[str]) -> set[DigestKey]:
        wanted = select(table.c.period, table.c.recipient).where(
            table.c.fleet == self._fleet, table.c.period.in_(sorted(periods))
        )
        return {(period, recipient) for period, recipient in await self._database.execute(wanted)}

    async def add(self, done: Iterable[tuple[DigestKey, Outcome]], now: float) -> None:
        """One that is there already stays as it is. Rows that are old are deleted."""
        rows = [
            {"fleet": self._fleet, "period": period, "recipient": recipient, "outcome": outcome, "done_at": now}
            for (period, recipient), outcome in done
        ]
        async with self._database.begin() as connection:
            await connection.execute(self._database.insert(table).on_conflict_do_nothing(), rows)
            await connection.execute(delete(table).where(table.c.done_at < now - KEPT_SECONDS))
