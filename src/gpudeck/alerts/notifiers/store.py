"""Queued notifications in the database, separate for each fleet: a row for each message and destination. Also the
personal mutes of users.

A row stays for a while after it was sent, so that a restarted hub does not send the same message again.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct
from sqlalchemy import delete, func, insert, or_, select, update

from gpudeck.alerts.notifiers.rendering import Message
from gpudeck.alerts.notifiers.routes import Destination
from gpudeck.database.engine import Database, FleetStore, delete_old, open_in_memory
from gpudeck.database.schema import outbox as table
from gpudeck.database.schema import personal_mutes

KEPT_SECONDS: Final = 30 * 86_400.0
_MAX_KEY: Final = 256
MAX_PERSONAL_MUTES: Final = 100


class QueuedMessage(Struct, frozen=True):
    """A message for one destination. `tries` is how often it failed."""

    id: int
    message: Message
    account: str | None
    created_at: float
    tries: int


class OutboxStore(FleetStore):
    """The messages of one fleet. All methods raise Temporary if the database does not answer."""

    async def add(self, parcels: Iterable[tuple[Message, Destination]], now: float) -> None:
        """Add messages, except those whose key their destination got already, or will get."""
        rows = [self._row(message, destination, now) for message, destination in parcels]
        if rows:
            await self._insert(rows)

    async def open_spare(self) -> "OutboxStore":
        """A store in memory, for messages that the database does not take now. `take_back` returns its rows."""
        return OutboxStore(await open_in_memory(table), self._fleet)

    async def take_back(self, spare: "OutboxStore") -> int:
        """Take over the rows of a spare store. Returns how many stay there, as they are being sent."""
        mine = update(table).where(table.c.claimed_until.is_(None)).values(claimed_until=float("inf"))
        async with spare._database.begin() as connection:
            found = (await connection.execute(mine.returning(table))).mappings().all()
        taken = table.c.claimed_until == float("inf")
        try:
            if found:
                unclaimed = [dict(row) | {"claimed_until": None} for row in found]
                await self._insert([{name: row[name] for name in row if name != "id"} for row in unclaimed])
        except BaseException:
            async with spare._database.begin() as connection:
                await connection.execute(update(table).where(taken).values(claimed_until=None))
            raise
        async with spare._database.begin() as connection:
            await connection.execute(delete(table).where(taken))
            return int((await connection.execute(select(func.count()).select_from(table))).scalar_one())

    async def close(self) -> None:
        await self._database.close()

    async def take(self, channel: str, now: float, until: float) -> QueuedMessage | None:
        """Claim the message that has been due for the longest time, until `until`; None if no message is due."""
        is_free = or_(table.c.claimed_until.is_(None), table.c.claimed_until < now)
        due = select(table.c.id).where(*self._waiting(channel), table.c.due_at <= now, is_free)
        first = due.order_by(table.c.due_at, table.c.id).limit(1).scalar_subquery()
        # Another hub may claim the same one at the same time.
        claim = update(table).where(table.c.id == first, is_free).values(claimed_until=until).returning(table)
        row = (await self._database.execute(claim)).mappings().first()
        if row is None:
            return None
        message = msgspec.json.decode(row["message"], type=Message)
        return QueuedMessage(row["id"], message, row["account"], row["created_at"], row["tries"])

    async def next_due(self, channel: str) -> float | None:
        """When the next message is due; None if none waits."""
        due = func.min(func.coalesce(table.c.claimed_until, table.c.due_at))
        return (await self._database.execute(select(due).where(*self._waiting(channel)))).scalar()

    async def finish(self, number: int, now: float, trouble: str = "") -> None:
        """It was sent, or is given up because of `trouble`."""
        values = {"message": "", "trouble": trouble[:256], "claimed_until": None}
        await self._change(number, state="failed" if trouble else "sent", done_at=now, **values)

    async def note_trouble(self, number: int, due_at: float, trouble: str) -> None:
        """It failed, and is tried again at `due_at`."""
        await self._change(number, due_at=due_at, claimed_until=None, tries=table.c.tries + 1, trouble=trouble[:256])

    async def make_due(self, channel: str, now: float) -> None:
        """All messages that wait for this channel are due now."""
        late = update(table).where(*self._waiting(channel), table.c.due_at > now)
        await self._database.execute(late.values(due_at=now))

    async def release(self) -> None:
        """Messages that an earlier process of this hub was sending when it ended are sent again."""
        mine = update(table).where(table.c.fleet == self._fleet, table.c.state == "waiting")
        await self._database.execute(mine.values(claimed_until=None))

    async def count_waiting(self, channel: str) -> int:
        wanted = select(func.count()).select_from(table).where(*self._waiting(channel))
        return int((await self._database.execute(wanted)).scalar_one())

    async def trim(self, now: float) -> None:
        old = (table.c.state != "waiting") & (table.c.done_at < now - KEPT_SECONDS)
        # Messages for channels that were removed from the settings.
        lost = (table.c.state == "waiting") & (table.c.created_at < now - KEPT_SECONDS)
        await delete_old(self._database, table, table.c.created_at, or_(old, lost))

    def _waiting(self, channel: str) -> tuple[Any, ...]:
        return table.c.fleet == self._fleet, table.c.channel == channel, table.c.state == "waiting"

    def _row(self, message: Message, destination: Destination, now: float) -> dict[str, Any]:
        return {
            "fleet": self._fleet,
            "key": message.key[:_MAX_KEY],
            "destination": destination.name,
            "channel": destination.channel,
            "account": destination.account,
            "message": msgspec.json.encode(message).decode(),
            "state": "waiting",
            "created_at": now,
            "due_at": now,
            "tries": 0,
            "trouble": "",
        }

    async def _insert(self, rows: list[dict[str, Any]]) -> None:
        await self._database.execute(self._database.insert(table).on_conflict_do_nothing(), rows)

    async def _change(self, number: int, **values: Any) -> None:
        await self._database.execute(update(table).where(table.c.id == number).values(values))


class PersonalMuteStore:
    """The rules that users have muted themselves. `load` it first, and from time to time if other hubs share the
    database. Raises Temporary."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._muted: dict[str, frozenset[str]] = {}

    async def load(self) -> None:
        found: dict[str, set[str]] = defaultdict(set)
        for account, rule in (
            await self._database.execute(select(personal_mutes.c.account, personal_mutes.c.rule))
        ).all():
            found[account].add(rule)
        self._muted = {account: frozenset(rules) for account, rules in found.items()}

    def of(self, account: str) -> frozenset[str]:
        return self._muted.get(account, frozenset())

    async def choose(self, account: str, rules: Iterable[str]) -> None:
        """Mute these rules, and no others."""
        chosen = sorted(set(rules))
        async with self._database.begin() as connection:
            await connection.execute(delete(personal_mutes).where(personal_mutes.c.account == account))
            if chosen:
                await connection.execute(
                    insert(personal_mutes), [{"account": account, "rule": rule} for rule in chosen]
                )
        self._muted[account] = frozenset(chosen)
