"""Events in the database, separate for each fleet: a simulated one is not mixed with the real one."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import asdict, replace
from sqlalchemy import ColumnElement, and_, case, delete, func, or_, select

from gpudeck.database.engine import FleetStore, delete_old
from gpudeck.database.schema import events as table
from gpudeck.model.event import Event, id_at
from gpudeck.model.text import clean

MAX_EVENTS = 1000
_COLUMNS = [column for column in table.c if column.name != "fleet"]
_LENGTHS = {column.name: getattr(column.type, "length", None) for column in _COLUMNS}
_FAULTS = ("xid", "gpu_lost", "health_raised", "host_down", "flapping", "host_rebooted")
_LOSSES = ("host_down", "host_up", "host_seen", "gpu_lost", "gpu_found")
_MAX_LOSS = 365 * 86_400.0
_STATUS = ("host_seen", "host_up", "host_down")
KnownFaults = dict[tuple[str | None, str], list[float]]
"""When driver errors happened, by GPU and title."""


class EventQuery(Struct, frozen=True, kw_only=True):
    """From `start` until before `end`, and older than the event with the id `before`. `host` is a name or an id. One of
    `kinds` and of `severities` has to match. `text` is in the title, the detail, the user or the host, in any case."""

    start: float | None = None
    end: float | None = None
    host: str | None = None
    gpu: str | None = None
    user: str | None = None
    kinds: tuple[str, ...] = ()
    severities: tuple[str, ...] = ()
    text: str | None = None
    limit: int = 100
    before: str | None = None


class FaultCount(NamedTuple):
    """How often something happened to a GPU, or if `gpu` is None to a host. `title` is set for driver errors."""

    host: str
    host_id: str
    gpu: str | None
    label: str | None
    kind: str
    severity: str
    title: str
    times: int
    last_at: float


class LostTime(NamedTuple):
    """How long a GPU was lost, or if `gpu` is None a host was down."""

    host: str
    host_id: str
    gpu: str | None
    label: str | None
    seconds: float
    last_at: float


class EventStore(FleetStore):
    """The events of one fleet. All methods raise Temporary if the database does not answer."""

    async def write(self, events: Sequence[Event]) -> None:
        if not events:
            return
        rows = [
            {"fleet": self._fleet} | {name: _fit(name, value) for name, value in asdict(event).items()}
            for event in events
        ]
        await self._database.execute(self._database.insert(table).on_conflict_do_nothing(), rows)

    async def remove(self, events: Sequence[Event]) -> None:
        ids = [event.id for event in events]
        await self._database.execute(delete(table).where(table.c.fleet == self._fleet, table.c.id.in_(ids)))

    async def find(self, query: EventQuery) -> list[Event]:
        query = _clean(query)
        wanted = select(*_COLUMNS).where(*self._conditions(query)).order_by(table.c.id.desc())
        found = await self._database.execute(wanted.limit(max(1, min(query.limit, MAX_EVENTS))))
        return [Event(**row) for row in found.mappings()]

    async def count_faults(self, start: float, end: float, gpu: str | None = None) -> list[FaultCount]:
        """Faults from `start` until before `end`, by host, GPU and kind; driver errors by title. With `gpu` of that GPU
        alone."""
        columns = table.c
        title = case((columns.kind == "xid", columns.title), else_="")
        whose = (columns.host_id, columns.gpu, columns.kind, columns.severity, title)
        counted = [func.max(columns.host), columns.host_id, columns.gpu, func.max(columns.label), columns.kind]
        counted += [columns.severity, title, func.count(), func.max(columns.at)]
        wanted = select(*counted).where(*self._conditions(EventQuery(start=start, end=end, gpu=gpu, kinds=_FAULTS)))
        rows = await self._database.execute(wanted.where(columns.host_id.is_not(None)).group_by(*whose))
        return [FaultCount(row[0] or row[1], *row[1:]) for row in rows.all()]

    async def lost_times(self, start: float, end: float, gpu: str | None = None) -> list[LostTime]:
        """From each loss until the next event about the same host or GPU, within that time. Losses that began up to a
        year before are included."""
        columns, lost = table.c, ("host_down", "gpu_lost")
        until = func.lead(columns.at).over(
            partition_by=func.coalesce(columns.gpu, columns.host_id), order_by=columns.id
        )
        query = EventQuery(start=start - _MAX_LOSS, end=end, gpu=gpu, kinds=_LOSSES)
        spans = select(
            columns.host, columns.host_id, columns.gpu, columns.label, columns.kind, columns.at, until.label("until")
        )
        of = spans.where(*self._conditions(query), columns.host_id.is_not(None)).subquery().c
        last = case((or_(of.until.is_(None), of.until > end), end), else_=of.until)
        first = case((of.at < start, start), else_=of.at)
        counted = [func.max(of.host), of.host_id, of.gpu, func.max(of.label), func.sum(last - first), func.max(of.at)]
        wanted = select(*counted).where(of.kind.in_(lost), last > start).group_by(of.host_id, of.gpu)
        rows = await self._database.execute(wanted)
        return [LostTime(row[0] or row[1], *row[1:]) for row in rows.all()]

    async def known_hosts(self) -> dict[str, float | None]:
        newest = (
            select(func.max(table.c.id))
            .where(table.c.fleet == self._fleet, table.c.kind.in_(_STATUS), table.c.host_id.is_not(None))
            .group_by(table.c.host_id)
        )
        wanted = select(table.c.host_id, table.c.kind, table.c.at).where(
            table.c.fleet == self._fleet, table.c.id.in_(newest), table.c.kind.in_(_STATUS)
        )
        rows = (await self._database.execute(wanted)).all()
        return {host_id: at if kind == "host_down" else None for host_id, kind, at in rows}

    async def known_faults(self, since: float) -> KnownFaults:
        wanted = select(table.c.gpu, table.c.title, table.c.at)
        query = EventQuery(start=since, kinds=("xid",))
        found: KnownFaults = {}
        for gpu, title, at in await self._database.execute(wanted.where(*self._conditions(query))):
            found.setdefault((gpu, title), []).append(at)
        return found

    async def last_of_hub(self) -> Event | None:
        return next(iter(await self.find(EventQuery(kinds=("hub_started", "hub_stopped"), limit=1))), None)

    async def count(self) -> int:
        wanted = select(func.count()).select_from(table).where(table.c.fleet == self._fleet)
        return int((await self._database.execute(wanted)).scalar_one())

    async def trim(self, before: float) -> int:
        """Delete events of every fleet from before that time, except the first sight of a host. Returns how many."""
        old = and_(table.c.at < before, table.c.kind != "host_seen")
        return await delete_old(self._database, table, table.c.at, old)

    def _conditions(self, query: EventQuery) -> list[ColumnElement[bool]]:
        columns = table.c
        texts = [func.lower(column) for column in (columns.title, columns.detail, columns.user, columns.host)]
        pairs: list[tuple[object, ColumnElement[bool]]] = [
            (query.start, columns.id >= id_at(query.start or 0.0)),
            (query.end, columns.id < id_at(query.end or 0.0)),
            (query.before, columns.id < (query.before or "")),
            (query.host, or_(columns.host == query.host, columns.host_id == query.host)),
            (query.gpu, columns.gpu == query.gpu),
            (query.user, columns.user == query.user),
            (query.kinds or None, columns.kind.in_(query.kinds)),
            (query.severities or None, columns.severity.in_(query.severities)),
            (query.text or None, or_(*(text.contains((query.text or "").lower(), autoescape=True) for text in texts))),
        ]
        return [columns.fleet == self._fleet, *(condition for asked, condition in pairs if asked is not None)]


def _clean(query: EventQuery) -> EventQuery:
    """PostgreSQL refuses the character 0 in queries, too."""
    texts = {name: clean(value) for name, value in asdict(query).items() if isinstance(value, str)}
    return replace(query, **texts, kinds=tuple(clean(word) for word in query.kinds))


def _fit(column: str, value: Any) -> Any:
    """PostgreSQL refuses texts that are too long, and the character 0; neither database takes surrogates."""
    if not isinstance(value, str):
        return value
    kept = clean(value)
    most = _LENGTHS[column]
    return kept if most is None or len(kept) <= most else f"{kept[: most - 1]}…"
