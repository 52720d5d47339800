"""AMD and Intel GPUs, read from sysfs and /proc without any vendor's library.

A file of a sick driver may never answer: run it in a child (`child.py`). Intel's drivers have no file for utilization
and memory in use: both are added up over the processes, and are unknown where not all of them can be seen.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

from msgspec import Struct, field

from gpudeck.collectors.base import (
    DISPLAY_SERVERS,
    NEEDS_TWO,
    NO_VALUE,
    Collector,
    CollectorSettings,
    IdleWatch,
    Measured,
    display_matcher,
    is_due,
)
from gpudeck.collectors.drm_cards import (
    ASLEEP,
    Card,
    find_cards,
    measure,
    read_energy,
    read_table,
)
from gpudeck.collectors.drm_clients import (
    TOO_OLD,
    ClientSearch,
    DrmClient,
    DrmClients,
    EnergyWatch,
    EngineWatch,
    Shares,
    find_kfd_memory,
)
from gpudeck.collectors.host import HostFiles, machine_id
from gpudeck.collectors.owners import MAX_PLAUSIBLE_BYTES, GpuDraft, Owners, ProcessUse, merge_uses
from gpudeck.collectors.proc import Proc, read_word
from gpudeck.model.errors import Absent
from gpudeck.model.report import GpuReading, Report

_NO_ENGINES = "the driver does not report the engine time of every process"
OF_ROCM = "the kernel does not count the time of ROCm's work by process"
_CHECK_SECONDS = 15.0
# The management controller of the card fills the table: a little less than ten seconds, as of NVML's expensive values.
_TABLE_SECONDS = 9.5
# ROCm opens every GPU, which takes memory for page tables on each; KFD's own figure shows which of them are used.
_OPENED_BYTES = 16 * 2**20


class _DrmBoard(Struct):
    """A card with its index. `table` is what amdgpu's table had when it was last read."""

    card: Card
    index: int
    table: Measured = field(default_factory=lambda: Measured({}, {}))
    table_at: float | None = None

    def measure(self, now: float) -> Measured:
        measured = measure(self.card)
        if self.card.vendor != "amd" or _is_asleep(measured):
            return measured
        if is_due(self.table_at, _TABLE_SECONDS, now):
            self.table, self.table_at = read_table(self.card.device), now
        for name in self.table.metrics:
            measured.unknown.pop(name, None)
        measured.metrics.update(self.table.metrics)
        measured.unknown.update(self.table.unknown)
        return measured


class DrmCollector(Collector):
    """All AMD and Intel GPUs of this machine and the processes on them. Raises Absent where there is none. `machine`
    reports those that have disappeared."""

    name = "drm"

    def __init__(
        self, root: Path = Path("/"), owners: Owners | None = None, display_servers: Iterable[str] = DISPLAY_SERVERS
    ) -> None:
        self._root = root
        self._owners = owners or Owners(Proc(str(root / "proc")))
        self._is_display = display_matcher(display_servers)
        self._boards: list[_DrmBoard] = []
        self._indexes: dict[str, int] = {}
        self._looked_at: float | None = None
        self._search = ClientSearch(str(root / "proc"))
        self._engines = EngineWatch()
        self._energy = EnergyWatch()
        self._idle = IdleWatch()

    def collect(self, now: float) -> Report:
        self._take_inventory(now)
        if not self._boards:
            raise Absent("There is no AMD or Intel GPU with a driver on this machine.")
        drafts = list(self._read_boards(now))
        owners = self._owners.find([use.pid for draft in drafts for use in draft.uses or ()], now)
        gpus = [draft.finish(owners, self._is_display) for draft in drafts]
        return Report(gpus=gpus, driver_version=self._find_driver_version())

    def _take_inventory(self, now: float) -> None:
        """Looks for cards every few seconds, and at once when one is gone or was gone. A card keeps its index."""
        present = [board for board in self._boards if read_word(f"{board.card.device}/vendor")]
        if len(present) < len(self._indexes) or is_due(self._looked_at, _CHECK_SECONDS, now):
            cards = find_cards(self._root, machine_id(HostFiles(self._root)))
            found = [_DrmBoard(card, self._indexes.setdefault(card.uuid, len(self._indexes))) for card in cards]
            self._boards, self._looked_at = sorted(found, key=lambda board: board.index), now

    def _read_boards(self, now: float) -> Iterator[GpuDraft]:
        read = [(board, board.measure(now)) for board in self._boards]
        own = {node: board.card.address for board, _ in read for node in board.card.nodes}
        asleep = {node: own[node] for board, measured in read if _is_asleep(measured) for node in board.card.nodes}
        clients = self._search.find(now, asleep, own)
        shares = self._engines.compare(clients.found, set(own.values()), now)
        held = find_kfd_memory(str(self._root / "sys"))
        for board, measured in read:
            card, is_asleep = board.card, _is_asleep(measured)
            uses = _find_uses(card.address, clients, shares, held.get(card.address, {}), is_asleep)
            reason = TOO_OLD if card.address in clients.mute else clients.reason
            if card.vendor == "intel" and not is_asleep:
                self._add_power(card, measured, now)
                _add_up_clients(card, measured, clients, shares, reason)
            gpu = GpuReading(
                card.uuid,
                board.index,
                card.name,
                card.vendor,
                pci_address=card.address,
                metrics=measured.metrics,
                unknown=measured.unknown,
                processes_reason=reason,
                idle_seconds=self._idle.track(card.uuid, measured.metrics.get("utilization_percent"), now),
            )
            # An empty list means unused: not where some processes cannot be seen.
            yield GpuDraft(gpu, uses if uses or reason is None else None)

    def _add_power(self, card: Card, measured: Measured, now: float) -> None:
        try:
            watts = self._energy.compare(card.uuid, read_energy(card), now)
            measured.take("power_watts", watts, NEEDS_TWO)
        except (OSError, ValueError):
            measured.unknown["power_watts"] = measured.unknown.get("energy_joules", NO_VALUE)

    def _find_driver_version(self) -> str | None:
        """The version of the module where it was installed by itself (AMD's own packages), else that of the kernel."""
        driver = self._boards[0].card.driver
        version = read_word(f"{self._root}/sys/module/{driver}/version")
        if version:
            return f"{driver} {version}"[:200]
        release = read_word(f"{self._root}/proc/sys/kernel/osrelease")
        return f"{driver} of Linux {release}"[:200] if release else None


def _is_asleep(measured: Measured) -> bool:
    return measured.unknown.get("temperature_celsius") == ASLEEP


def _find_uses(
    address: str, clients: DrmClients, shares: Shares, held: dict[int, int | None], is_asleep: bool
) -> list[ProcessUse]:
    by_pid: dict[int, list[DrmClient]] = {pid: [] for pid, amount in held.items() if amount != 0}
    for client in clients.found.values():
        empty_bytes = _OPENED_BYTES if held.get(client.pid) == 0 else 0
        if client.address == address and client.is_using(empty_bytes):
            by_pid.setdefault(client.pid, []).append(client)
    return merge_uses(_find_use(pid, its, shares, held, is_asleep) for pid, its in by_pid.items())


def _find_use(
    pid: int, clients: list[DrmClient], shares: Shares, held: dict[int, int | None], is_asleep: bool
) -> ProcessUse:
    is_compute = pid in held
    reasons: dict[str, str] = {}
    amounts = [client.memory_bytes for client in clients]
    open_files = sum(amount or 0 for amount in amounts) if amounts and None not in amounts else None
    # Both count what ROCm allocated, so a process in both is not the sum.
    amounts = [open_files, held.get(pid)]
    memory = max(
        (amount for amount in amounts if amount is not None and 0 <= amount <= MAX_PLAUSIBLE_BYTES), default=None
    )
    if memory is None:
        reasons["memory_used_bytes"] = ASLEEP if is_asleep else NO_VALUE
    percents = [shares.clients[client.key] for client in clients if client.key in shares.clients]
    percent = round(min(100.0, sum(percents)), 1) if percents and not is_compute and not is_asleep else None
    if percent is None:
        reasons["utilization_percent"] = OF_ROCM if is_compute else ASLEEP if is_asleep else NEEDS_TWO
    return ProcessUse(pid, memory, percent, graphics_only=not is_compute, reasons=reasons)


def _add_up_clients(card: Card, measured: Measured, clients: DrmClients, shares: Shares, reason: str | None) -> None:
    """The memory and the utilization of an Intel card: those of all its clients. `reason` is why some are not seen."""
    of_card = [client for client in clients.found.values() if client.address == card.address]
    amounts = [client.memory_bytes for client in of_card]
    used = sum(amount or 0 for amount in amounts)
    # Memory that programs share is in the sum more than once: it is never more than there is.
    used_at_most = min(used, measured.metrics.get("memory_total_bytes", used))
    no_memory = "the driver does not report the memory of every process" if None in amounts else None
    no_engines = None if all(client.engines for client in of_card) else _NO_ENGINES
    percent = shares.cards.get(card.address)
    _take(measured, "memory_used_bytes", used_at_most, reason or no_memory)
    _take(measured, "utilization_percent", percent, reason or no_engines or (NEEDS_TWO if percent is None else None))


def _take(measured: Measured, name: str, value: float | None, why_not: str | None) -> None:
    measured.take(name, value if why_not is None else None, why_not or NO_VALUE)


def make(settings: CollectorSettings) -> DrmCollector:
    return DrmCollector(owners=Owners(commands=settings.commands), display_servers=settings.display_servers)
