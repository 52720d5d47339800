"""Stores the hosts of the fleet in the database, and restores them when the hub starts.

Nothing waits for the database. Facts are compared every few seconds and written if they changed. The times of last
reports are written once a minute and at the end, so a hub that is killed knows them to the minute.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from sqlalchemy import Table, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from gpudeck.database.background import BackgroundWriter
from gpudeck.database.engine import Database
from gpudeck.database.schema import host_facts, hosts
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.hub import Hub
from gpudeck.fleet.observers import Service
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE
from gpudeck.model.errors import Temporary
from gpudeck.model.gpu_state import RETURN_SECONDS
from gpudeck.model.report import GpuReading, Report
from gpudeck.model.text import clean
from gpudeck.wire import Envelope

_AT_ONCE: Final = 200
_columns = hosts.c


class RememberedGpu(Struct, frozen=True, omit_defaults=True):
    uuid: str
    index: int
    name: str
    vendor: Literal["nvidia", "amd", "intel", "other"] = "other"
    parent: str | None = None
    instance: int | None = None
    pci_address: str | None = None
    memory_total_bytes: int | None = None


class RememberedHost(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The facts of a host that seldom change. `token` is the id of the agent token of its last report; `target` is its
    configured name if that differs."""

    id: str
    name: str
    via: str
    interval: float
    boot_id: str = ""
    agent_version: str = ""
    driver_version: str | None = None
    os: str | None = None
    labels: dict[str, str] = {}
    addresses: list[str] = []
    interfaces: dict[str, str] = {}
    token: int | None = None
    target: str = ""
    gpus: list[RememberedGpu] = []


class LastReport(Struct, frozen=True):
    """When a host last reported, by the hub's clock, and whether it was down at the time of writing."""

    at: float
    is_down: bool


_read_facts = msgspec.json.Decoder(RememberedHost).decode


class HostStore:
    """All methods raise Temporary if the database does not answer."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load(self) -> list[tuple[str, LastReport]]:
        wanted = select(host_facts.c.body, _columns.last_report_at, _columns.is_down).join_from(
            host_facts, hosts, host_facts.c.id == _columns.id
        )
        wanted = wanted.order_by(_columns.last_report_at.desc())
        async with self._database.begin() as connection:
            rows = (await connection.execute(wanted)).all()
        return [(body, LastReport(at, bool(is_down))) for body, at, is_down in rows]

    async def write_facts(self, known: Sequence[RememberedHost]) -> None:
        rows = ({"id": _key(host.id), "body": msgspec.json.encode(host).decode()} for host in known)
        await self._upsert(host_facts, rows, "body")

    async def write_reports(self, reports: Mapping[str, LastReport]) -> None:
        rows = (
            {"id": _key(host_id), "last_report_at": report.at, "is_down": int(report.is_down)}
            for host_id, report in reports.items()
        )
        await self._upsert(hosts, rows, "last_report_at", "is_down")

    async def delete(self, host_ids: Iterable[str]) -> None:
        keys = [_key(host_id) for host_id in host_ids]
        for start in range(0, len(keys), _AT_ONCE):
            some = keys[start : start + _AT_ONCE]
            async with self._database.begin() as connection:
                await connection.execute(delete(hosts).where(_columns.id.in_(some)))
                await connection.execute(delete(host_facts).where(host_facts.c.id.in_(some)))

    async def _upsert(self, table: Table, rows: Iterator[dict[str, Any]], *names: str) -> None:
        """In several transactions, so that other writers can run in between."""
        insert = sqlite.insert if self._database.kind == "sqlite" else postgresql.insert
        made = insert(table)
        upsert = made.on_conflict_do_update(index_elements=["id"], set_={name: made.excluded[name] for name in names})
        while some := list(islice(rows, _AT_ONCE)):
            async with self._database.begin() as connection:
                await connection.execute(upsert, some)


def _key(host_id: str) -> str:
    """PostgreSQL rejects the character 0, which an id from outside may contain. The facts have the full id."""
    return clean(host_id)[:384]


log = logging.getLogger(__name__)
_encoder = msgspec.msgpack.Encoder()

FACTS_SECONDS: Final = 10.0
REPORTS_SECONDS: Final = 60.0
SILENT: Final = "the host has not reported since the hub was started"
_PROBLEM: Final = "hosts are not remembered across restarts: the hub's database does not answer now."
_HOST_UNKNOWN: Final = dict.fromkeys(HOST_METRICS, SILENT)
_GPU_UNKNOWN: Final = dict.fromkeys(GPU_METRICS, SILENT)
_REPORTED: Final = ("driver_version", "os", "labels", "addresses", "interfaces")


class HostMemory(Service):
    """A database that does not answer is retried; the hosts are restored then. `problem` is why hosts cannot be stored.
    Simulated hosts are not stored."""

    name = "hosts"

    def __init__(self, hub: Hub, database: Database) -> None:
        self._hub = hub
        self._store = HostStore(database)
        self._facts: dict[str, int] = {}
        self._reports: dict[str, LastReport] = {}
        self._is_loaded = False
        self._times_at: float | None = None
        """When the times of last reports are due, on the loop's clock; None: with the next write."""
        self._writer = BackgroundWriter(
            self._write,
            failing="hosts are not remembered: %s",
            recovered="hosts are remembered again",
            every=FACTS_SECONDS,
            retry=FACTS_SECONDS,
        )

    @property
    def problem(self) -> str | None:
        # Without the path: every reader can see it.
        return _PROBLEM if self._writer.failure else None

    async def open(self) -> None:
        """Restore the hosts known before the restart. Raises Temporary, and is then called again."""
        try:
            async with self._writer.lock:
                await self._load()
        except Temporary as error:
            self._writer.note_failure(error)
            raise

    def start(self) -> None:
        self._times_at = asyncio.get_running_loop().time() + REPORTS_SECONDS
        self._writer.start()

    def on_second(self) -> None:
        self._hub.fleet.set_problems("memory", [] if self.problem is None else [self.problem])

    async def close(self) -> None:
        """Write all changes. Changes that the database does not accept are lost, and logged."""
        self._times_at = None
        if (error := await self._writer.stop()) is not None:
            log.warning("which hosts there are could not be written at the end: %s", error)

    async def flush(self, *, with_times: bool = False) -> None:
        """Write new, changed and removed hosts; `with_times` adds all new times of last reports. Raises Temporary."""
        if with_times:
            self._times_at = None
        await self._writer.flush()

    async def _write(self) -> None:
        if self._hub.fleet.is_simulated:
            return
        await self._load()
        now = asyncio.get_running_loop().time()
        with_times = self._times_at is None or now >= self._times_at
        facts, reports = await self._find_changes(with_times=with_times)
        gone = (self._facts.keys() | self._reports.keys()) - self._hub.fleet.hosts.keys()
        if facts:
            await self._store.write_facts([known for _, known in facts])
            self._facts |= {known.id: mark for mark, known in facts}
        if reports:
            await self._store.write_reports(reports)
            self._reports |= reports
        if gone:
            await self._store.delete(gone)
            for host_id in gone:
                self._facts.pop(host_id, None)
                self._reports.pop(host_id, None)
        if with_times:
            self._times_at = now + REPORTS_SECONDS

    async def _find_changes(
        self, *, with_times: bool
    ) -> tuple[list[tuple[int, RememberedHost]], dict[str, LastReport]]:
        facts: list[tuple[int, RememberedHost]] = []
        reports: dict[str, LastReport] = {}
        for number, host in enumerate(list(self._hub.fleet.hosts.values()), 1):
            if number % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if host.status == "never_seen" or host.id not in self._hub.fleet.hosts:
                continue
            mark = _mark(known := remember(host))
            if self._facts.get(host.id) != mark:
                facts.append((mark, known))
            written, report = self._reports.get(host.id), LastReport(host.last_report_at or 0.0, host.status == "down")
            if written is None or written.is_down != report.is_down or (with_times and written != report):
                reports[host.id] = report
        return facts, reports

    async def _load(self) -> None:
        if self._is_loaded or self._hub.fleet.is_simulated:
            return
        fleet, until = self._hub.fleet, self._hub.started_at + RETURN_SECONDS
        placed = {uuid for host in fleet.hosts.values() for uuid in host.gpus}
        # The latest report first: a GPU that several hosts reported belongs to that one.
        for number, (body, report) in enumerate(await self._store.load(), 1):
            if number % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            try:
                known = _read_facts(body)
            except msgspec.DecodeError:
                continue  # such as a row of a newer gpudeck
            host = fleet.make_host(known.id, known.via)
            gpus = [_make_reading(gpu) for gpu in known.gpus if gpu.uuid not in placed]
            placed.update(gpu.uuid for gpu in known.gpus)
            host.restore(make_envelope(known), gpus, report.at, until=0.0 if report.is_down else until)
            host.token = known.token
            if fleet.restore(host, known.target):
                self._facts[host.id] = _mark(remember(host))
            else:
                host.release()
            self._reports[host.id] = report
        self._is_loaded = True


def remember(host: HostState) -> RememberedHost:
    facts = host.facts
    return RememberedHost(
        id=host.id,
        name=host.name,
        via=host.via,
        interval=host.interval,
        boot_id=host.order.boot_id,
        agent_version=facts.agent_version,
        driver_version=facts.driver_version,
        os=facts.os,
        labels=facts.labels,
        addresses=facts.addresses,
        interfaces=host.interfaces,
        token=host.token,
        target=host.target if host.target and host.target != host.name else "",
        gpus=[_remember_gpu(gpu) for gpu in host.gpus.values()],
    )


def make_envelope(known: RememberedHost) -> Envelope:
    report = Report(gpus=[], unknown=_HOST_UNKNOWN, **{name: getattr(known, name) for name in _REPORTED})
    return Envelope(
        version=1,
        host=known.name,
        boot_id=known.boot_id,
        # Before the first report of any run, so that every report is newer.
        sequence=-1,
        collected_at=0.0,
        interval_seconds=known.interval,
        report=report,
        agent_version=known.agent_version,
    )


def _remember_gpu(gpu: GpuState) -> RememberedGpu:
    memory, instance = gpu.value("memory_total_bytes"), gpu.label.partition(".")[2]
    return RememberedGpu(
        gpu.uuid,
        gpu.index,
        gpu.name,
        gpu.vendor,
        gpu.parent,
        int(instance) if instance else None,
        gpu.pci_address,
        None if memory is None else int(memory),
    )


def _make_reading(gpu: RememberedGpu) -> GpuReading:
    known = asdict(gpu)
    memory = known.pop("memory_total_bytes")
    metrics = {} if memory is None else {"memory_total_bytes": memory}
    return GpuReading(**known, metrics=metrics, unknown=_GPU_UNKNOWN, processes_reason=SILENT)


def _mark(known: RememberedHost) -> int:
    """A hash of the facts. Small, because thousands are kept."""
    return hash(_encoder.encode(known))
