"""The idle policy in the database: the progress of each ladder, and the keeps of owners."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec
from msgspec import Struct, field
from msgspec.structs import asdict, replace
from sqlalchemy import Executable, delete, func, insert, select, update

from gpudeck.database.engine import Database, FleetStore
from gpudeck.database.schema import REAL
from gpudeck.database.schema import idle_keeps as keeps
from gpudeck.database.schema import idle_ladders as ladders
from gpudeck.idle_policy.ladder import LadderStep
from gpudeck.model.errors import RequestRefused
from gpudeck.model.idle_policy import Keep
from gpudeck.model.text import clean, show_length

KEPT_SECONDS: Final = 90 * 86_400.0
"""Keeps are stored for this long after their end, for dry runs."""
MAX_KEEPS: Final = 10_000
_NAMES: Final = [column.name for column in keeps.c if column.name != "fleet"]


class LadderRecord(Struct):
    """An idle GPU: when it was seen idle with these users and jobs, and the steps that were taken. `stopped` is the
    reason if no more will be."""

    gpu: str
    users: list[str]
    jobs: list[str]
    spans: list[tuple[float, float]]
    done: list[LadderStep] = field(default_factory=list)
    stopped: str | None = None

    @property
    def id(self) -> str:
        """The same after a restart of the hub."""
        return f"{self.gpu} {self.spans[0][0]:.0f}"


class LadderStore(FleetStore):
    """All methods raise Temporary if the database does not answer, or another hub has the duty."""

    async def load(self) -> dict[str, LadderRecord]:
        rows = await self._database.execute(select(ladders.c.body).where(ladders.c.fleet == self._fleet))
        found = [msgspec.json.decode(body, type=LadderRecord) for (body,) in rows]
        return {one.gpu: one for one in found}

    async def replace_all(self, records: Iterable[LadderRecord]) -> None:
        """Ladders of other GPUs are deleted."""
        rows = [self._row(one) for one in records]
        async with self._database.begin() as connection:
            await connection.execute(delete(ladders).where(ladders.c.fleet == self._fleet))
            if rows:
                await connection.execute(insert(ladders), rows)

    async def write(self, records: Sequence[LadderRecord], audit: Iterable[Executable]) -> None:
        """Some ladders, and their entries in the audit log."""
        async with self._database.begin() as connection:
            for record in records:
                own = (ladders.c.fleet == self._fleet) & (ladders.c.gpu == record.gpu)
                await connection.execute(delete(ladders).where(own))
            await connection.execute(insert(ladders), [self._row(record) for record in records])
            for entry in audit:
                await connection.execute(entry)

    def _row(self, record: LadderRecord) -> dict[str, str]:
        return {"fleet": self._fleet, "gpu": record.gpu, "body": msgspec.json.encode(record).decode()}


class Keeps(FleetStore):
    """Keeps of idle GPUs. `all` are those in force or ended recently. Methods that use the database raise Temporary."""

    def __init__(self, database: Database, fleet: str = REAL) -> None:
        super().__init__(database, fleet)
        self.all: list[Keep] = []

    async def load(self, now: float) -> None:
        self.all = await self.list_since(now - 86_400.0)

    async def list_since(self, since: float) -> list[Keep]:
        """Keeps that had not ended by then."""
        columns = [keeps.c[name] for name in _NAMES]
        wanted = select(*columns).where(keeps.c.fleet == self._fleet, keeps.c.end > since).order_by(keeps.c.start)
        rows = (await self._database.execute(wanted)).mappings()
        return [Keep(**dict(row)) for row in rows]

    def open_at(self, now: float) -> list[Keep]:
        return [one for one in self.all if one.start <= now < one.end]

    def find(self, gpu: str, now: float) -> Keep | None:
        return next((one for one in self.open_at(now) if one.gpu == gpu), None)

    async def add(self, new: Keep, now: float, most: int | None, audit: Executable) -> Keep:
        """Store a keep and return it with its id. A keep of the same GPU that is in force ends. `most` limits the
        keeps of its user. Raises RequestRefused."""
        async with self._database.begin() as connection:
            is_open = (keeps.c.fleet == self._fleet) & (keeps.c.end > now)
            own = is_open & (keeps.c.user == new.user) & (keeps.c.gpu != new.gpu)
            for wanted, bound in ((own, most), (is_open, MAX_KEEPS)):
                count = (await connection.execute(select(func.count()).select_from(keeps).where(wanted))).scalar_one()
                if bound is not None and count >= bound:
                    hint = "`gpudeck keep` lists them; end one with `gpudeck keep HOST:GPU --end`."
                    raise RequestRefused(409, "too_many", f"{clean(new.user)} keeps {count} GPUs already.", hint)
            await connection.execute(update(keeps).where(is_open, keeps.c.gpu == new.gpu).values(end=now))
            await connection.execute(delete(keeps).where(keeps.c.end < now - KEPT_SECONDS))
            row = asdict(new) | {"fleet": self._fleet}
            del row["id"]
            number = (await connection.execute(insert(keeps).values(row).returning(keeps.c.id))).scalar_one()
            await connection.execute(audit)
        await self.load(now)
        return replace(new, id=number)

    async def end(self, keep: Keep, now: float, audit: Executable) -> None:
        async with self._database.begin() as connection:
            await connection.execute(update(keeps).where(keeps.c.id == keep.id).values(end=now))
            await connection.execute(audit)
        await self.load(now)


def check_length(seconds: float, longest: float, *, is_admin: bool) -> None:
    """Raises RequestRefused."""
    most = 30 * 86_400.0 if is_admin else longest
    if not 60 <= seconds <= most:
        told = f"a GPU can be kept for 1m to {show_length(most)}, not for {show_length(max(0.0, seconds))}."
        raise RequestRefused(400, "bad_length", told, "See idle_policy.longest_keep.")
