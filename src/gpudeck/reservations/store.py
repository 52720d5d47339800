"""Reservations in the database, separate for each fleet: a simulated one is not mixed with the real one.

Code whose writes depend on what it reads does both in one `write_transaction`. On SQLite a transaction is exclusive;
on PostgreSQL one lock serialises the writers of all hubs, because writes are rare and short.
"""

import contextlib
import math
import unicodedata
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct
from sqlalchemy import ColumnElement, delete, insert, or_, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from gpudeck.database.engine import FleetStore
from gpudeck.database.schema import reservation_gpus as gpu_table
from gpudeck.database.schema import reservations as table
from gpudeck.model.reservation import Reservation, ReservedGpu
from gpudeck.model.text import clean
from gpudeck.reservations.requests import ReservationSpan

MAX_LISTED: Final = 10_000
_LOCK: Final = int.from_bytes(b"gpudeck", "big") + 1
"""The number of a PostgreSQL lock; the number before is the lock of the migrations."""
_COLUMNS = [column for column in table.c if column.name != "fleet"]
_NAMES = [column.name for column in _COLUMNS]
_COUNTED = or_(table.c.released_at.is_(None), table.c.released_at > table.c.start)
_FEW: Final = 64
NOTE_LENGTH = 1000
USER_LENGTH = 160


class ReservationQuery(Struct, frozen=True, kw_only=True):
    """Reservations that count at any time from `start` until before `end`; None is no bound."""

    start: float | None = None
    end: float | None = None
    host: str | None = None
    gpu: str | None = None
    user: str | None = None
    limit: int = MAX_LISTED

    def matches(self, one: Reservation) -> bool:
        """For a reservation that is not in the database."""
        is_then = (self.start is None or one.end > self.start) and (self.end is None or one.start < self.end)
        is_there = self.host is None or any(gpu.host == self.host for gpu in one.gpus)
        has_gpu = self.gpu is None or any(gpu.uuid == self.gpu for gpu in one.gpus)
        return is_then and is_there and has_gpu and (self.user is None or self.user in one.user.split(", "))


class ReservationTransaction:
    """One transaction that reads and writes."""

    def __init__(self, connection: AsyncConnection, fleet: str) -> None:
        self._connection = connection
        self._fleet = fleet

    async def overlapping(
        self, uuids: Iterable[str] | None, start: float, end: float | None, *, but: int | None = None
    ) -> list[Reservation]:
        """Reservations of these GPUs, or of any, that count at some time within that range, except the one with the id
        `but`; by their start."""
        conditions = [*_within(self._fleet, start, end), table.c.id != (but or 0)]
        if uuids is not None:
            ids = select(gpu_table.c.reservation_id).where(gpu_table.c.uuid.in_(set(uuids)))
            conditions.append(table.c.id.in_(ids))
        return await _read(self._connection, conditions)

    async def of_user(self, user: str, start: float, end: float, *, but: int | None = None) -> list[Reservation]:
        """The user's reservations within that range."""
        conditions = [*_within(self._fleet, start, end), table.c.user == user, table.c.kind == "reservation"]
        return await _read(self._connection, [*conditions, table.c.id != (but or 0)])

    async def find(self, number: int) -> Reservation | None:
        return next(iter(await _read(self._connection, [table.c.fleet == self._fleet, table.c.id == number])), None)

    async def add(self, values: dict[str, Any], gpus: Sequence[ReservedGpu]) -> Reservation:
        """`values` are all columns except `id`, `fleet` and `version`."""
        row = values | {"fleet": self._fleet, "version": 1}
        number = (await self._connection.execute(insert(table).values(row).returning(table.c.id))).scalar_one()
        await self._set_gpus(number, gpus)
        return await self._get(number)

    async def change(
        self, before: Reservation, values: dict[str, Any], gpus: Sequence[ReservedGpu] | None = None
    ) -> Reservation:
        """Columns without a value stay; the version grows."""
        row = values | {"version": before.version + 1}
        await self._connection.execute(update(table).where(table.c.id == before.id).values(row))
        if gpus is not None:
            await self._connection.execute(delete(gpu_table).where(gpu_table.c.reservation_id == before.id))
            await self._set_gpus(before.id, gpus)
        return await self._get(before.id)

    async def _set_gpus(self, number: int, gpus: Sequence[ReservedGpu]) -> None:
        rows = [{"reservation_id": number, "uuid": gpu.uuid, "host": gpu.host, "label": gpu.label} for gpu in gpus]
        await self._connection.execute(insert(gpu_table), rows)

    async def _get(self, number: int) -> Reservation:
        (found,) = await _read(self._connection, [table.c.id == number])
        return found


class ReservationStore(FleetStore):
    """The reservations of one fleet. All methods raise Temporary if the database does not answer."""

    @contextlib.asynccontextmanager
    async def read_transaction(self) -> AsyncIterator[ReservationTransaction]:
        """For reading only: does not block writers."""
        async with self._database.begin() as connection:
            yield ReservationTransaction(connection, self._fleet)

    @contextlib.asynccontextmanager
    async def write_transaction(self) -> AsyncIterator[ReservationTransaction]:
        """Commits at the end, rolls back on an exception. Keep it short: it blocks other writers."""
        async with self._database.begin() as connection:
            if self._database.kind == "postgresql":
                await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
            yield ReservationTransaction(connection, self._fleet)

    async def search(self, query: ReservationQuery) -> list[Reservation]:
        """By start, then by id; without those that were released before they began."""
        conditions = _within(self._fleet, query.start, query.end)
        if query.user is not None:
            conditions.append(table.c.user == clean(query.user))
        for column, wanted in ((gpu_table.c.host, query.host), (gpu_table.c.uuid, query.gpu)):
            if wanted is not None:
                conditions.append(table.c.id.in_(select(gpu_table.c.reservation_id).where(column == clean(wanted))))
        async with self._database.begin() as connection:
            return await _read(connection, conditions, query.limit)

    async def find(self, number: int) -> Reservation | None:
        """Also one that was released before it began."""
        async with self.read_transaction() as transaction:
            return await transaction.find(number)

    async def note_use(self, number: int, at: float) -> None:
        """Its owner uses one of its GPUs. The version stays."""
        is_first = (table.c.id == number) & table.c.used_at.is_(None)
        await self._database.execute(update(table).where(is_first).values(used_at=at))


def _within(fleet: str, start: float | None, end: float | None) -> list[ColumnElement[bool]]:
    conditions: list[ColumnElement[bool]] = [table.c.fleet == fleet, _COUNTED]
    if start is not None:
        conditions.append(table.c.end > start)
    if end is not None:
        conditions.append(table.c.start < end)
    return conditions


async def _read(
    connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]], limit: int = MAX_LISTED
) -> list[Reservation]:
    wanted = select(*_COLUMNS).where(*conditions).order_by(table.c.start, table.c.id).limit(limit)
    rows = (await connection.execute(wanted)).all()
    # Few are named by id; for many the conditions are repeated, as a list of ids would be long.
    which = conditions if len(rows) > _FEW else [table.c.id.in_([row[0] for row in rows])]
    gpus = await _read_gpus(connection, which) if rows else {}
    return [Reservation(gpus=gpus[row[0]], **dict(zip(_NAMES, row, strict=True))) for row in rows]


async def _read_gpus(
    connection: AsyncConnection, conditions: Sequence[ColumnElement[bool]]
) -> dict[int, list[ReservedGpu]]:
    """The GPUs of the reservations with these conditions, by id of the reservation; by host and number."""
    wanted = select(gpu_table).join(table, table.c.id == gpu_table.c.reservation_id).where(*conditions)
    found: dict[int, list[ReservedGpu]] = defaultdict(list)
    for number, uuid, host, label in (await connection.execute(wanted)).all():
        found[number].append(ReservedGpu(uuid, host, label))
    for gpus in found.values():
        if len(gpus) > 1:
            # GPU 10 comes after GPU 9. The label of a MIG instance is `index.instance`.
            gpus.sort(key=lambda gpu: (gpu.host, [int(n) for n in gpu.label.split(".") if n.isdecimal()], gpu.uuid))
    return found


def normalize(text: str, most: int) -> str:
    """One line of text in any script, without control characters and surrogates, which no database takes. Characters
    that join letters stay, as some scripts need them."""
    kept = "".join(char for char in " ".join(text.split()) if unicodedata.category(char) not in {"Cc", "Cs"})
    return kept[:most]


def new_row(user: str, by: str, span: ReservationSpan, note: str, now: float) -> dict[str, Any]:
    return {
        "kind": "reservation",
        "user": normalize(user, USER_LENGTH),
        "start": span.start,
        "end": span.end,
        "note": normalize(note, NOTE_LENGTH),
        "created_at": now,
        "created_by": normalize(by, USER_LENGTH),
        "changed_at": now,
    }


async def write_change(
    transaction: ReservationTransaction,
    before: Reservation,
    values: dict[str, Any],
    gpus: Sequence[ReservedGpu],
    now: float,
) -> Reservation:
    """If a running reservation moves to other GPUs, its past stays as a reservation of its own."""
    is_moved = {gpu.uuid for gpu in gpus} != {gpu.uuid for gpu in before.gpus}
    if is_moved and before.start < now:
        moment = float(math.floor(now))
        past = new_row(
            before.user, before.created_by, ReservationSpan(before.start, moment), before.note, before.created_at
        )
        past |= {"kind": before.kind, "used_at": before.used_at, "changed_at": now, "released_at": now}
        await transaction.add(past | {"release_reason": f"moved: see {before.id}"}, before.gpus)
        values = values | {"start": moment, "used_at": None}
    return await transaction.change(before, values | {"changed_at": now}, gpus if is_moved else None)


async def write_release(
    transaction: ReservationTransaction, before: Reservation, reason: str, now: float
) -> Reservation:
    """A running reservation ends now; a planned one never counts."""
    values: dict[str, Any] = {"released_at": now, "release_reason": normalize(reason, 256), "changed_at": now}
    if now > before.start:
        values["end"] = min(before.end, max(before.start, float(math.floor(now))))
    return await transaction.change(before, values)


async def end_claims(
    transaction: ReservationTransaction, gpus: Sequence[ReservedGpu], span: ReservationSpan, user: str, now: float
) -> list[Reservation]:
    """End the user's own claims of these GPUs: a reservation takes their place."""
    found = await transaction.overlapping([gpu.uuid for gpu in gpus], span.start, span.end)
    return [
        await write_release(transaction, one, f"reserved by {user}", now)
        for one in found
        if one.kind == "claim" and one.user == user
    ]
