"""Processes that have a GPU open, with their memory and engine time: /proc/<pid>/fdinfo and the files of ROCm (KFD).

A file that was passed on to other processes is one client, counted for the lowest pid. Searching the open files of
every process is expensive: it is done every few seconds, and in between only the files found are read. Utilization and
power are differences between two readings.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from gpudeck.collectors.base import is_due
from gpudeck.collectors.proc import FIRST_PID_NAMESPACE, list_names, read_if_there, read_link, read_number, read_word

_SEARCH_SECONDS = 5.0
_FOLDER = "/dev/dri/"
_MAX_BYTES = 2**53
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# Regions in the GPU's own memory: `vram` of amdgpu, `vram0` of xe, `local0` of i915.
_REGION = re.compile(r"drm-(resident|memory|total)-((?:vram|local)[0-9]*)")
# `resident` is what is there; `memory` is its old name; `total` has what is put elsewhere or not yet made, too.
_KINDS = ("resident", "memory", "total")

NOT_SEEN = "processes of other users cannot be seen: run the agent as root, or give it CAP_SYS_PTRACE"
OTHER_NAMESPACE = "processes outside of this container cannot be seen: run the agent with the host's PID namespace"
TOO_OLD = "the kernel is too old to report what a process has on the GPU"


class EngineTime(NamedTuple):
    """Nanoseconds that a client kept an engine busy, or cycles where `total`, the engine's own clock, is known.
    `capacity` is how many such engines there are."""

    busy: int
    total: int | None = None
    capacity: int = 1


class DrmClient(Struct, frozen=True):
    """An open file of a GPU. `memory_bytes` is None where the driver does not report it, or was not asked."""

    key: str
    pid: int
    address: str
    memory_bytes: int | None = None
    engines: dict[str, EngineTime] = {}

    def is_using(self, empty_bytes: int = 0) -> bool:
        """Whether it holds more than `empty_bytes` or ever did work: programs open every GPU, to choose one."""
        is_holding = self.memory_bytes is None or self.memory_bytes > empty_bytes
        return is_holding or any(engine.busy for engine in self.engines.values())


class DrmClients(NamedTuple):
    """The clients by key. `reason` says why there may be others; on cards in `mute` the driver reports nothing."""

    found: dict[str, DrmClient]
    reason: str | None = None
    mute: frozenset[str] = frozenset()


class _Handle(NamedTuple):
    pid: int
    number: str
    node: str


class ClientSearch:
    """Finds the clients of all GPUs. Reads /proc only, and skips what it may not read."""

    def __init__(self, proc: str) -> None:
        self._proc = proc
        self._handles: list[_Handle] = []
        self._reason: str | None = None
        self._searched_at: float | None = None

    def find(self, now: float, asleep: Mapping[str, str], own: Mapping[str, str]) -> DrmClients:
        """`own` has addresses by the name in /dev/dri; `asleep` those of them not to be asked. Others are asked:
        partitions of an MI300X have files of their own."""
        if is_due(self._searched_at, _SEARCH_SECONDS, now):
            self._search()
            self._searched_at = now
        found: dict[str, DrmClient] = {}
        mute: set[str] = set()
        for handle in self._handles:
            client = self._read_client(handle, asleep)
            if client is not None:
                found.setdefault(client.key, client)
            elif handle.node in own and self._is_open(handle):
                mute.add(own[handle.node])
        return DrmClients(found, self._reason, frozenset(mute))

    def _search(self) -> None:
        pids = sorted(int(name) for name in list_names(self._proc) if name.isdecimal())
        self._handles, hidden = [], 1 not in pids  # hidepid=2 leaves out the processes of others
        for pid in pids:
            try:
                self._handles += self._list_handles(pid)
            except PermissionError:
                hidden = True
            except OSError:
                continue  # the process is gone
        self._reason = NOT_SEEN if hidden else self._find_namespace_reason()

    def _list_handles(self, pid: int) -> Iterator[_Handle]:
        folder = f"{self._proc}/{pid}/fd"
        for number in os.listdir(folder):  # noqa: PTH208 - on every search, for every process
            try:
                target = os.readlink(f"{folder}/{number}")  # noqa: PTH115 - as above
            except FileNotFoundError:
                continue  # closed meanwhile
            if target.startswith(_FOLDER):
                yield _Handle(pid, number, target[len(_FOLDER) :])

    def _find_namespace_reason(self) -> str | None:
        namespace = read_link(f"{self._proc}/self/ns/pid")
        return None if namespace in {"", FIRST_PID_NAMESPACE} else OTHER_NAMESPACE

    def _read_client(self, handle: _Handle, asleep: Mapping[str, str]) -> DrmClient | None:
        key = f"{handle.pid}/{handle.number}"
        if handle.node in asleep:
            return DrmClient(key, handle.pid, asleep[handle.node])
        return parse_client(read_if_there(f"{self._proc}/{handle.pid}/fdinfo/{handle.number}"), handle.pid, key)

    def _is_open(self, handle: _Handle) -> bool:
        return read_link(f"{self._proc}/{handle.pid}/fd/{handle.number}") == _FOLDER + handle.node


def parse_client(text: str, pid: int, key: str) -> DrmClient | None:
    """The client of an fdinfo file; None if it is not that of a GPU on the PCI bus. `key` is for drivers without
    ids."""
    lines = (line.partition(":") for line in text.splitlines() if line.startswith("drm-"))
    fields = {name: value.strip() for name, _, value in lines}
    address = fields.get("drm-pdev")
    if "drm-driver" not in fields or not address:
        return None
    if "drm-client-id" in fields:
        key = f"{address}/{fields['drm-client-id']}"
    return DrmClient(key, pid, address, _parse_memory(fields), dict(_parse_engines(fields)))


def _parse_memory(fields: Mapping[str, str]) -> int | None:
    regions: dict[str, dict[str, int | None]] = {}
    for name, value in fields.items():
        if match := _REGION.fullmatch(name):
            regions.setdefault(match[2], {})[match[1]] = _parse_amount(value)
    amounts = [next((kinds[kind] for kind in _KINDS if kind in kinds), None) for kinds in regions.values()]
    known = [amount for amount in amounts if amount is not None]
    return sum(known) if known and len(known) == len(amounts) else None


def _parse_amount(text: str) -> int | None:
    number, _, unit = text.partition(" ")
    count = _parse_count(number)
    amount = count * _UNITS[unit] if count is not None and unit in _UNITS else None
    return amount if amount is not None and amount < _MAX_BYTES else None


def _parse_engines(fields: Mapping[str, str]) -> Iterator[tuple[str, EngineTime]]:
    """i915 and amdgpu count nanoseconds (`drm-engine-`), xe cycles of the engine's clock (`drm-cycles-`)."""
    for name, value in fields.items():
        kind, _, engine = name.removeprefix("drm-").partition("-")
        busy = _parse_count(value.removesuffix(" ns"))
        if busy is None or engine.startswith("capacity-") or kind not in {"engine", "cycles"}:
            continue
        total = _parse_count(fields.get(f"drm-total-cycles-{engine}", ""))
        if kind == "engine" or total is not None:
            capacity = _parse_count(fields.get(f"drm-engine-capacity-{engine}", "")) or 1
            yield engine, EngineTime(busy, total if kind == "cycles" else None, capacity)


def _parse_count(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 20 else None


def find_kfd_memory(sys: str) -> dict[str, dict[int, int | None]]:
    """The memory that ROCm's processes hold, by PCI address and pid; None if it is unknown. KFD lists a process for
    every GPU that it could use: one that holds 0 there is not on that GPU."""
    kfd = f"{sys}/class/kfd/kfd"
    pids = [int(name) for name in list_names(f"{kfd}/proc") if name.isdecimal()]
    held: dict[str, dict[int, int | None]] = {}
    for gpu_id, address in _find_kfd_addresses(kfd).items() if pids else ():
        for pid in pids:
            try:
                amount = read_number(f"{kfd}/proc/{pid}/vram_{gpu_id}")
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                held.setdefault(address, {})[pid] = None
                continue
            before = held.setdefault(address, {}).get(pid, 0)
            held[address][pid] = None if before is None else before + amount
    return held


def _find_kfd_addresses(kfd: str) -> dict[str, str]:
    """PCI addresses by KFD's own number of the GPU. All partitions of a board have the board's address."""
    addresses: dict[str, str] = {}
    for name in list_names(f"{kfd}/topology/nodes"):
        gpu_id = read_word(f"{kfd}/topology/nodes/{name}/gpu_id")
        words = read_word(f"{kfd}/topology/nodes/{name}/properties").split()
        properties = dict(zip(words[::2], words[1::2], strict=False))
        location = properties.get("location_id", "")
        if gpu_id not in {"", "0"} and location.isdecimal():  # CPUs are nodes as well, with the number 0
            place, domain = int(location), int(properties.get("domain", "0"))
            addresses[gpu_id] = f"{domain:04x}:{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
    return addresses


class Shares(NamedTuple):
    """Percent of the time between two readings that the busiest engine worked, by client's key and by card's address.
    One that is not in it is unknown."""

    clients: dict[str, float]
    cards: dict[str, float]


class EngineWatch:
    """Remembers the engine times of clients. Work of a client that came or went is not counted for its card. Drivers
    may step back for a moment; the higher value stays until they have caught up, as drm-usage-stats.rst asks."""

    def __init__(self) -> None:
        self._before: dict[str, dict[str, EngineTime]] = {}
        self._read_at: float | None = None

    def compare(self, clients: Mapping[str, DrmClient], addresses: Iterable[str], now: float) -> Shares:
        """The shares since the last call. `addresses` are the cards: one without clients was not busy."""
        elapsed = 0.0 if self._read_at is None else now - self._read_at
        shares = Shares({}, {})
        if elapsed > 0:
            busy = {key: self._compare_client(client, elapsed) for key, client in clients.items()}
            shares.clients.update((key, _busiest(engines)) for key, engines in busy.items() if engines is not None)
            shares.cards.update((address, _add_up(address, clients, busy)) for address in addresses)
        before = {key: self._before.get(key, {}) for key in clients}
        self._before = {
            key: {name: max(engine, before[key].get(name, engine)) for name, engine in client.engines.items()}
            for key, client in clients.items()
        }
        self._read_at = now
        return shares

    def _compare_client(self, client: DrmClient, elapsed: float) -> dict[str, float] | None:
        before = self._before.get(client.key)
        if before is None:
            return None
        return {name: _share(before.get(name), engine, elapsed) for name, engine in client.engines.items()}


def _share(before: EngineTime | None, after: EngineTime, elapsed: float) -> float:
    """amdgpu leaves out an engine until it was used: it began at 0 then. A clock that stands or restarts gives 0."""
    busy = after.busy - (before.busy if before else 0)
    if after.total is None:
        span = elapsed * 1e9
    else:
        span = after.total - before.total if before and before.total is not None else 0
    return max(0.0, busy / (span * after.capacity)) if span > 0 else 0.0


def _busiest(engines: Mapping[str, float]) -> float:
    return min(100.0, 100.0 * max(engines.values(), default=0.0))


def _add_up(address: str, clients: Mapping[str, DrmClient], busy: Mapping[str, dict[str, float] | None]) -> float:
    engines: dict[str, float] = {}
    for key, client in clients.items():
        if client.address == address:
            for name, share in (busy[key] or {}).items():
                engines[name] = engines.get(name, 0.0) + share
    return _busiest(engines)


class EnergyWatch:
    """Watts between two readings of a counter of joules."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, float]] = {}

    def compare(self, uuid: str, joules: float, now: float) -> float | None:
        """The mean power since the last call; None at first, and where clock or counter stepped back."""
        before = self._before.get(uuid)
        self._before[uuid] = joules, now
        if before is None or now <= before[1] or joules < before[0]:
            return None
        return (joules - before[0]) / (now - before[1])
