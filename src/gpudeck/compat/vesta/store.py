"""The hub's database for vesta: the hosts whose senders have registered, and their posts and imported
samples, at their own times, which `fetch_num` returns. A post becomes a report: an invalid value is unknown.
"""

import asyncio
import json
import re
import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct, field
from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError

from gpudeck.compat import readings
from gpudeck.database.engine import Database
from gpudeck.database.schema import vesta_hosts, vesta_samples, vesta_spans
from gpudeck.model.clock import Clock, RetentionClock
from gpudeck.model.errors import ReportRefused
from gpudeck.model.report import GpuReading, Process, Report
from gpudeck.wire import HOST_NAME

MAX_GPUS: Final = 64
WHO: Final = "vesta"
_KEY: Final = re.compile(r"gpu:([0-9]{1,4})")
_FIELDS: Final = {
    "gpu_volatile": ("utilization_percent", 1.0),
    "used_memory": ("memory_used_bytes", float(readings.MIB)),
    "total_memory": ("memory_total_bytes", float(readings.MIB)),
    "temperature": ("temperature_celsius", 1.0),
}
_PROCESS_KEYS: Final = readings.ProcessKeys("pid", "user", "name", "used_memory")
_GPUS: Final = readings.GpuReader(WHO, _FIELDS)


class PostedFields(Struct, frozen=True):
    """Values that readers of vesta get as the sender posted them: when a GPU was read, and its free memory in MiB, from
    which the driver's reserve is subtracted. None if it was not posted."""

    timestamp: str = ""
    available_memory: int | None = None


class VestaPost(Struct, frozen=True):
    """`posted` is by the GPU's uuid."""

    report: Report
    posted: dict[str, PostedFields]


def read_post(body: bytes, host: str) -> VestaPost:
    """Raises ReportRefused."""
    try:
        return read_gpus(msgspec.json.decode(body), host)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        pass
    try:
        # Senders write Python's JSON: with NaN, and with half surrogate pairs in names of programs.
        return read_gpus(json.loads(body.decode()), host)
    except (RecursionError, ValueError) as error:
        raise ReportRefused(400, "malformed", "the body is no JSON") from error


def read_gpus(posted: object, host: str) -> VestaPost:
    """The same for a decoded body. `host` is for GPUs without a uuid."""
    if not isinstance(posted, dict) or len(posted) > MAX_GPUS:
        raise ReportRefused(422, "invalid_report", f"a post is an object of at most {MAX_GPUS} GPUs")
    gpus: dict[str, GpuReading] = {}
    fields: dict[str, PostedFields] = {}
    problems: list[str] = []
    for key, raw in posted.items():
        number = _KEY.fullmatch(key) if isinstance(key, str) else None
        if number is None or not isinstance(raw, dict):
            problems.append(f"the sender reports {str(key)[:40]!r}, which is no GPU")
            continue
        uuid = readings.read_word(raw.get("uuid"), 128) or f"{host}/gpu{number[1]}"
        if uuid in gpus:
            problems.append(f"the sender reports {uuid} twice")
            continue
        processes = read_processes(raw.get("processes"), len(posted))
        gpus[uuid] = _GPUS.read(uuid, int(number[1]), raw.get("gpu_name"), raw, processes, None)
        available = readings.read_number(raw.get("available_memory"))
        timestamp = readings.read_word(raw.get("timestamp"), 64) or ""
        fields[uuid] = PostedFields(timestamp, None if available is None else int(available))
    if posted and not gpus:
        raise ReportRefused(422, "invalid_report", "the post has no GPU")
    return VestaPost(Report(gpus=list(gpus.values()), problems=problems[:8]), fields)


def read_processes(listed: object, gpus: int) -> list[Process] | str:
    return readings.read_processes(listed, WHO, _PROCESS_KEYS, gpus)


LONGEST = 128
_FLEET_NAME = re.compile(HOST_NAME)
_NOT_IN_FLEET_NAME = re.compile(r"[^A-Za-z0-9._-]+")
MAX_HOSTS: Final = 10_000
SEEN_EVERY: Final = 3600.0
_TRIES: Final = 5
_LAST: Final = select(func.max(vesta_samples.c.at)).where(vesta_samples.c.id == vesta_hosts.c.id).scalar_subquery()
_HOSTS: Final = select(vesta_hosts, _LAST.label("last_at"))
MAX_SAMPLES: Final = 1000
"""Only the newest samples of a host are kept, at most this many. `fetch_num` returns no more."""
_FAST: Final = 1
_GATHER_SECONDS: Final = 0.005
"""Cron starts all senders in the same second, and a transaction costs more than a post."""

Json = dict[str, Any]
Moment = tuple[float, Json]
_INSERT: Final = {
    "sqlite": sqlite.insert(vesta_samples).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(vesta_samples).on_conflict_do_nothing(),
}
_DELETE_EVERY: Final = 50
_TIMES: Final = (
    select(vesta_samples.c.at).where(vesta_samples.c.id == bindparam("b_id")).order_by(vesta_samples.c.at.desc())
)
_OLDEST_KEPT: Final = _TIMES.limit(1).offset(MAX_SAMPLES - 1).scalar_subquery()
_DELETE_OLD: Final = delete(vesta_samples).where(
    vesta_samples.c.id == bindparam("b_id"), vesta_samples.c.at < _OLDEST_KEPT
)


def make_name(wanted: str, is_taken: Callable[[str], bool]) -> str | None:
    """The name under which a sender is registered; None for an invalid one. Letters of any script stay; all other
    characters become `_`."""
    if not 0 < len(wanted) <= LONGEST:
        return None
    name = "".join(sign if _may_stay(sign) else "_" for sign in wanted)
    if not name.strip("_"):
        return None
    given = name
    while is_taken(given):
        given = f"{name}_{secrets.token_hex(4)}"
    return given


def _may_stay(sign: str) -> bool:
    if sign.isascii():
        return sign.isalnum() or sign == "_"
    return sign.isprintable() and not sign.isspace()


def fleet_name(name: str, registered_id: str) -> str:
    """The name in the fleet: ASCII letters, digits, dots, dashes and underscores; with a part of the id if other
    characters were left out."""
    if _FLEET_NAME.match(name):
        return name
    rest = _NOT_IN_FLEET_NAME.sub("_", name).strip("._-")
    return f"{rest or 'host'}_{registered_id[:8]}"


class RegisteredSender(Struct):
    """A host as its sender knows it.

    `host` is its name in the fleet. `posted_at` is when it last posted to this hub, and `last_interval_seconds` is the
    time between its last two posts. `last_at` is when it last posted or was imported, also before this hub started.
    """

    id: str
    name: str
    host: str
    address: str
    seen_at: float
    last_at: float | None = None
    posted_at: float | None = None
    last_interval_seconds: float | None = None
    sequence: int = 0
    posted: dict[str, PostedFields] = field(default_factory=dict)

    def note_post(self, now: float, posted: dict[str, PostedFields]) -> None:
        self.last_interval_seconds = None if self.posted_at is None else max(0.0, now - self.posted_at)
        self.posted_at = self.last_at = now
        self.sequence += 1
        self.posted = posted

    def silence_limit(self, down_after: float) -> float:
        """The seconds without a post after which it is down. A sender that posts about as rarely as `down_after` has
        two thirds more, or it would be down between any two posts."""
        is_rare = self.last_interval_seconds is None or self.last_interval_seconds > 0.7 * down_after
        return down_after * 5 / 3 if is_rare else down_after


class VestaRegister:
    """Call `load` first. Coroutines raise Temporary if the database does not answer."""

    def __init__(
        self,
        database: Database,
        now: Clock,
        *,
        most: int = MAX_HOSTS,
        forget_after: float,
        retention: RetentionClock | None = None,
    ) -> None:
        """A sender that has not posted for `forget_after` seconds is forgotten when another one registers."""
        self._database = database
        self._now = now
        self._retention = retention or RetentionClock(now=now)
        self.most = most
        self._forget_after = forget_after
        self._by_id: dict[str, RegisteredSender] = {}
        self._by_name: dict[str, RegisteredSender] = {}

    def __iter__(self) -> Iterator[RegisteredSender]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    async def load(self, host_id: str | None = None) -> None:
        """All hosts, or the one with that id."""
        wanted = _HOSTS if host_id is None else _HOSTS.where(vesta_hosts.c.id == host_id)
        async with self._database.begin() as connection:
            for row in (await connection.execute(wanted)).mappings():
                if row["id"] not in self._by_id:
                    self._keep(row["id"], row["name"], row["address"], row["seen_at"]).last_at = row["last_at"]

    def get(self, host_id: str) -> RegisteredSender | None:
        return self._by_id.get(host_id)

    def named(self, name: str) -> RegisteredSender | None:
        return self._by_name.get(name)

    async def find(self, host_id: str) -> RegisteredSender | None:
        """A host that is known here, or that another hub registered in the same database; None for an unknown id."""
        if host_id not in self._by_id:
            await self.load(host_id)
        return self._by_id.get(host_id)

    async def add(self, wanted: str, address: str) -> RegisteredSender | None:
        for _ in range(_TRIES):
            name = make_name(wanted, self._by_name.__contains__)
            if name is None:
                return None
            await self._make_room()
            if len(self._by_id) >= self.most:
                return None
            # 128 random bits in hex, without zeros in front, as the original made them.
            made = await self.put(f"{secrets.randbits(128):x}", name, address)
            if made is not None:
                return made
            # Another hub on the same database has just taken that name.
            await self.load()
        return None

    async def put(self, host_id: str, name: str, address: str) -> RegisteredSender | None:
        """Register a host with a given id and name; None if either is taken."""
        if host_id in self._by_id or name in self._by_name:
            return None
        # Before anything is awaited, so that no other sender gets the name.
        now = self._now()
        made = self._keep(host_id, name, address, now)
        row = {"id": host_id, "name": name, "address": address, "created_at": now, "seen_at": now}
        try:
            async with self._database.begin() as connection:
                await connection.execute(insert(vesta_hosts).values(row))
        except BaseException as error:
            self._drop(made)
            if isinstance(error, IntegrityError):
                return None
            raise
        return made

    async def note_seen(self, host: RegisteredSender, address: str) -> None:
        """Note a post; at most once an hour in the database."""
        now = self._now()
        host.address = address
        if now - host.seen_at < SEEN_EVERY:
            return
        host.seen_at = now
        async with self._database.begin() as connection:
            changed = update(vesta_hosts).where(vesta_hosts.c.id == host.id).values(seen_at=now, address=address)
            await connection.execute(changed)

    async def _make_room(self) -> None:
        time = self._retention.deletion_time()
        if time is None:
            return
        old = time - self._forget_after
        silent = [host for host in self if max(host.seen_at, host.posted_at or 0.0) < old][:500]
        for host in silent:
            self._drop(host)
        if silent:
            ids = [host.id for host in silent]
            async with self._database.begin() as connection:
                await connection.execute(delete(vesta_hosts).where(vesta_hosts.c.id.in_(ids)))
                await connection.execute(delete(vesta_samples).where(vesta_samples.c.id.in_(ids)))

    def _keep(self, host_id: str, name: str, address: str, seen_at: float) -> RegisteredSender:
        made = RegisteredSender(host_id, name, fleet_name(name, host_id), address, seen_at)
        self._by_id[host_id] = self._by_name[name] = made
        return made

    def _drop(self, host: RegisteredSender) -> None:
        self._by_id.pop(host.id, None)
        self._by_name.pop(host.name, None)


class Samples:
    """Samples by the id of a sender. All methods raise Temporary if the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: list[Json] = []
        self._since: dict[str, int] = {}
        self._writing = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    async def keep(self, host_id: str, at: float, gpus: Json) -> None:
        """Store a post; returns when it is written. Senders that post at the same time share a transaction."""
        self._waiting.append({"id": host_id, "at": at, "body": _pack(gpus)})
        if self._next is None or self._next.done():
            self._next = asyncio.create_task(self._write_waiting())
        await asyncio.shield(self._next)

    async def add(self, host_id: str, moments: Iterable[Moment]) -> None:
        rows = [{"id": host_id, "at": at, "body": _pack(gpus)} for at, gpus in moments]
        async with self._writing:
            await self.write(rows)

    async def imported_until(self, host_id: str) -> float | None:
        """The newest imported time of the sender, also if the sender was forgotten since."""
        wanted = select(func.max(vesta_spans.c.end)).where(vesta_spans.c.id == host_id)
        async with self._database.begin() as connection:
            until: float | None = (await connection.execute(wanted)).scalar_one()
        return until

    async def note_imported(self, host_id: str, until: float) -> None:
        async with self._database.begin() as connection:
            await connection.execute(delete(vesta_spans).where(vesta_spans.c.id == host_id))
            await connection.execute(insert(vesta_spans), {"id": host_id, "start": until, "end": until})

    async def newest(self, host_id: str, before: float, count: int) -> list[Moment]:
        wanted = select(vesta_samples.c.at, vesta_samples.c.body).where(
            vesta_samples.c.id == host_id, vesta_samples.c.at < before
        )
        async with self._database.begin() as connection:
            rows = (
                await connection.execute(wanted.order_by(vesta_samples.c.at.desc()).limit(min(count, MAX_SAMPLES)))
            ).all()
        decode = msgspec.json.decode
        return await asyncio.to_thread(lambda: [(at, decode(zlib.decompress(body))) for at, body in reversed(rows)])

    async def _write_waiting(self) -> None:
        """Write the posts of a moment, and those since the last transaction, in one transaction."""
        await asyncio.sleep(_GATHER_SECONDS)
        async with self._writing:
            rows, self._waiting, self._next = self._waiting, [], None
            await self.write(rows)

    async def write(self, rows: list[Json]) -> None:
        counts = Counter(row["id"] for row in rows)
        full = []
        for host_id, count in counts.items():
            self._since[host_id] = self._since.get(host_id, 0) + count
            # Old samples are not deleted with every post, which would double its cost.
            if self._since[host_id] >= _DELETE_EVERY:
                del self._since[host_id]
                full.append({"b_id": host_id})
        async with self._database.begin() as connection:
            await connection.execute(_INSERT[self._database.kind], rows)
            if full:
                await connection.execute(_DELETE_OLD, full)


def _pack(gpus: Json) -> bytes:
    return zlib.compress(msgspec.json.encode(gpus), _FAST)
