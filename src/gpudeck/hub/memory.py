"""Hosts are remembered across restarts: the fleet's hosts go into the database, and back into the fleet at a start.

Nothing waits for the database. Facts are compared every few seconds and written where they changed; the times of last
reports are written once a minute, and at the end. A hub that dies so knows each host, and its last report to a minute.
"""

import asyncio
import logging
from typing import Final

from gpudeck.database.engine import Database
from gpudeck.hub.gpu import GpuState
from gpudeck.hub.host import HostState
from gpudeck.hub.host_store import HostStore, LastReport, RememberedGpu, RememberedHost, read_facts
from gpudeck.hub.hub import Hub
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS
from gpudeck.model.cpu_budget import HOSTS_AT_ONCE
from gpudeck.model.errors import Temporary
from gpudeck.model.fleet_settings import RETURN_SECONDS
from gpudeck.model.report import GpuReading, Number, Report
from gpudeck.wire import Envelope

log = logging.getLogger(__name__)

FACTS_SECONDS: Final = 10.0
REPORTS_SECONDS: Final = 60.0
SILENT: Final = "the host has not reported since the hub was started"
_HOST_UNKNOWN: Final = dict.fromkeys(HOST_METRICS, SILENT)
_GPU_UNKNOWN: Final = dict.fromkeys(GPU_METRICS, SILENT)


class HostMemory:
    """`open` before the first report, `start` when the hub serves, `stop` at the end, in the loop that owns the hub.

    A database that does not answer is asked again until it does: the hosts come back then. Simulated hosts are not
    remembered. `problem` is what keeps hosts from being remembered, for everybody who may look at the hub.
    """

    def __init__(self, hub: Hub, database: Database) -> None:
        self._hub = hub
        self._store = HostStore(database)
        self._facts: dict[str, object] = {}
        self._reports: dict[str, LastReport] = {}
        self._is_loaded = False
        self._writes_reports_at = 0.0
        self._lock = asyncio.Lock()
        self._writing: asyncio.Task[None] | None = None
        self.problem: str | None = None

    async def open(self) -> None:
        """Put the hosts of before this start into the fleet. Raises Temporary, and is called again then."""
        try:
            async with self._lock:
                await self._load()
        except Temporary as error:
            self._note_failure(error)
            raise

    def start(self) -> None:
        self._writing = asyncio.get_running_loop().create_task(self._write_forever())

    async def stop(self) -> None:
        """Write all that changed. What the database does not take now is lost, and said in the log."""
        task, self._writing = self._writing, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        try:
            await self.flush(with_times=True)
        except Temporary as error:
            log.warning("which hosts there are could not be written at the end: %s", error)

    async def flush(self, *, with_times: bool = False) -> None:
        """Write what changed: hosts that are new, other or gone, and with `with_times` all new times of last reports.
        Raises Temporary."""
        async with self._lock:
            if self._hub.ingest.demo:
                return
            await self._load()
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

    async def _find_changes(
        self, *, with_times: bool
    ) -> tuple[list[tuple[object, RememberedHost]], dict[str, LastReport]]:
        facts: list[tuple[object, RememberedHost]] = []
        reports: dict[str, LastReport] = {}
        for number, host in enumerate(list(self._hub.fleet.hosts.values()), 1):
            if number % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            if host.status == "never" or host.id not in self._hub.fleet.hosts:
                continue
            mark = _mark(host)
            if self._facts.get(host.id) != mark:
                facts.append((mark, remember(host)))
            written, report = self._reports.get(host.id), LastReport(host.last_report_at or 0.0, host.status == "down")
            if written is None or written.is_down != report.is_down or (with_times and written != report):
                reports[host.id] = report
        return facts, reports

    async def _load(self) -> None:
        if self._is_loaded or self._hub.ingest.demo:
            return
        fleet, until = self._hub.fleet, self._hub.started_at + RETURN_SECONDS
        placed = {uuid for host in fleet.hosts.values() for uuid in host.gpus}
        # The one that reported last comes first: a GPU that several told of is in that one.
        for number, (body, report) in enumerate(await self._store.load(), 1):
            if number % HOSTS_AT_ONCE == 0:
                await asyncio.sleep(0)
            known = read_facts(body)
            if known is None:
                continue
            host = fleet.make_host(known.id, known.via)
            gpus = [_make_reading(gpu) for gpu in known.gpus if gpu.uuid not in placed]
            placed.update(gpu.uuid for gpu in known.gpus)
            host.recall(make_envelope(known), gpus, report.at, until=0.0 if report.is_down else until)
            host.token = known.token
            if fleet.recall(host, known.target):
                self._facts[host.id] = _mark(host)
            else:
                host.release()
            self._reports[host.id] = report
        self._is_loaded = True

    async def _write_forever(self) -> None:
        loop = asyncio.get_running_loop()
        self._writes_reports_at = loop.time() + REPORTS_SECONDS
        while True:
            await asyncio.sleep(FACTS_SECONDS)
            with_times = loop.time() >= self._writes_reports_at
            try:
                await self.flush(with_times=with_times)
            except Temporary as error:
                self._note_failure(error)
            except Exception:
                log.exception("hosts could not be remembered")
            else:
                self._note_success()
                if with_times:
                    self._writes_reports_at = loop.time() + REPORTS_SECONDS

    def _note_failure(self, error: Temporary) -> None:
        if self.problem is None:
            log.warning("hosts are not remembered: %s", error)
        # Without the place: it is shown to everybody who may look.
        self.problem = "hosts are not remembered across restarts: the hub's database does not answer now."

    def _note_success(self) -> None:
        if self.problem is not None:
            log.info("hosts are remembered again")
        self.problem = None


def remember(host: HostState) -> RememberedHost:
    """A host that has reported, as it is kept."""
    facts = host.facts
    return RememberedHost(
        id=host.id,
        name=host.name,
        via=host.via,
        interval=host.interval,
        boot_id=host.boot_id,
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
    """A report, but for its GPUs, that says who the host is, and that nothing else is known of it."""
    report = Report(
        gpus=[],
        unknown=_HOST_UNKNOWN,
        driver_version=known.driver_version,
        os=known.os,
        labels=known.labels,
        addresses=known.addresses,
        interfaces=known.interfaces,
    )
    return Envelope(
        version=1,
        host=known.name,
        boot_id=known.boot_id,
        # Before the first report of any run, so that every report is news.
        sequence=-1,
        collected_at=0.0,
        interval_seconds=known.interval,
        report=report,
        agent_version=known.agent_version,
    )


def _remember_gpu(gpu: GpuState) -> RememberedGpu:
    memory = gpu.value("memory_total_bytes")
    instance = gpu.label.partition(".")[2]
    return RememberedGpu(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        vendor=gpu.vendor,
        parent=gpu.parent,
        instance=int(instance) if instance else None,
        pci_address=gpu.pci_address,
        memory_total_bytes=None if memory is None else int(memory),
    )


def _make_reading(gpu: RememberedGpu) -> GpuReading:
    known: dict[str, Number] = {} if gpu.memory_total_bytes is None else {"memory_total_bytes": gpu.memory_total_bytes}
    return GpuReading(
        uuid=gpu.uuid,
        index=gpu.index,
        name=gpu.name,
        vendor=gpu.vendor,
        parent=gpu.parent,
        instance=gpu.instance,
        pci_address=gpu.pci_address,
        metrics=known,
        unknown=_GPU_UNKNOWN,
        processes_reason=SILENT,
    )


def _mark(host: HostState) -> object:
    """Equal to the one before as long as nothing that is kept has changed. Cheap: it is made for every host again."""
    gpus = [(uuid, gpu.label, gpu.name, gpu.value("memory_total_bytes")) for uuid, gpu in host.gpus.items()]
    told = host.facts
    facts = (told.agent_version, told.driver_version, told.os, told.labels, told.addresses)
    return host.name, host.via, host.interval, host.boot_id, host.token, host.target, host.interfaces, facts, gpus
