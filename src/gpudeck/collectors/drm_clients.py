"""Which processes have a GPU open, with their memory and engine time: /proc/<pid>/fdinfo and the files of ROCm (KFD).

The kernel tells both for each open file of /dev/dri (Documentation/gpu/drm-usage-stats.rst). A file that was handed on
to other processes is one client: it is counted once, for the lowest pid. Looking through the open files of every
process is the costly part, so that is done every few seconds; in between only the files found are read.
"""

import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import Struct

from gpudeck.collectors.drm_sysfs import list_names, read_number, read_text, read_word

_SEARCH_SECONDS = 5.0
_FOLDER = "/dev/dri/"
_BYTES_AT_MOST = 2**53
_UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# What lies in the GPU's own memory: `vram` of amdgpu, `vram0` of xe, `local0` of i915.
_REGION = re.compile(r"drm-(resident|memory|total)-((?:vram|local)[0-9]*)")
# `resident` is what is there; `memory` is its old name; `total` has what is put elsewhere or not yet made, too.
_KINDS = ("resident", "memory", "total")
# The number that the kernel gives its first namespace of processes (PROC_PID_INIT_INO).
_FIRST_PID_NAMESPACE = "pid:[4026531836]"

NOT_SEEN = "processes of other users cannot be seen: run the agent as root, or give it CAP_SYS_PTRACE"
OTHER_NAMESPACE = "processes outside of this container cannot be seen: run the agent with the host's PID namespace"
TOO_OLD = "the kernel is too old to tell what a process has on the GPU"


class Engine(NamedTuple):
    """Time that a client kept an engine busy: nanoseconds, or cycles where `total`, the engine's own clock, is known.

    `capacity` is how many such engines there are.
    """

    busy: int
    total: int | None = None
    capacity: int = 1


class Client(Struct, frozen=True):
    """An open file of a GPU. `memory_bytes` is None where the driver does not tell it, or was not asked."""

    key: str
    pid: int
    address: str
    memory_bytes: int | None = None
    engines: dict[str, Engine] = {}

    def is_using(self, empty_bytes: int = 0) -> bool:
        """Whether it holds more than `empty_bytes` or ever did work.

        Programs open every GPU that there is, to choose one of them.
        """
        is_holding = self.memory_bytes is None or self.memory_bytes > empty_bytes
        return is_holding or any(engine.busy for engine in self.engines.values())


class Clients(NamedTuple):
    """The clients by key. `reason` says why there may be others; on cards in `mute` the driver tells nothing."""

    found: dict[str, Client]
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

    def find(self, now: float, asleep: Mapping[str, str], own: Mapping[str, str], foreign: frozenset[str]) -> Clients:
        """`own` has addresses by the name in /dev/dri; `asleep` those of them not to be asked, `foreign` others' names.

        A name in neither is asked for its address: partitions of an MI300X have files of their own.
        """
        if self._searched_at is None or abs(now - self._searched_at) >= _SEARCH_SECONDS:
            self._search(foreign)
            self._searched_at = now
        found: dict[str, Client] = {}
        mute: set[str] = set()
        for handle in self._handles:
            client = self._ask(handle, asleep)
            if client is not None:
                found.setdefault(client.key, client)
            elif handle.node in own and self._is_open(handle):
                mute.add(own[handle.node])
        return Clients(found, self._reason, frozenset(mute))

    def _search(self, foreign: frozenset[str]) -> None:
        pids = sorted(int(name) for name in list_names(self._proc) if name.isdecimal())
        self._handles, hidden = [], 1 not in pids  # hidepid=2 leaves out the processes of others
        for pid in pids:
            try:
                self._handles += self._list_handles(pid, foreign)
            except PermissionError:
                hidden = True
            except OSError:
                continue  # the process is gone
        self._reason = NOT_SEEN if hidden else self._find_namespace_reason()

    def _list_handles(self, pid: int, foreign: frozenset[str]) -> Iterator[_Handle]:
        folder = f"{self._proc}/{pid}/fd"
        for number in os.listdir(folder):  # noqa: PTH208 - on every search, for every process
            try:
                target = os.readlink(f"{folder}/{number}")  # noqa: PTH115 - as above
            except FileNotFoundError:
                continue  # closed meanwhile
            if target.startswith(_FOLDER) and target[len(_FOLDER) :] not in foreign:
                yield _Handle(pid, number, target[len(_FOLDER) :])

    def _find_namespace_reason(self) -> str | None:
        try:
            namespace = os.readlink(f"{self._proc}/self/ns/pid")  # noqa: PTH115 - paths are text here
        except OSError:
            return None
        return None if namespace == _FIRST_PID_NAMESPACE else OTHER_NAMESPACE

    def _ask(self, handle: _Handle, asleep: Mapping[str, str]) -> Client | None:
        """The client behind an open file, or None where the process, the file or the driver's answer is not there."""
        key = f"{handle.pid}/{handle.number}"
        if handle.node in asleep:
            return Client(key, handle.pid, asleep[handle.node])
        try:
            text = read_text(f"{self._proc}/{handle.pid}/fdinfo/{handle.number}")
        except OSError:
            return None
        return parse_client(text, handle.pid, key)

    def _is_open(self, handle: _Handle) -> bool:
        try:
            target = os.readlink(f"{self._proc}/{handle.pid}/fd/{handle.number}")  # noqa: PTH115 - as above
        except OSError:
            return False
        return target == _FOLDER + handle.node


def parse_client(text: str, pid: int, key: str) -> Client | None:
    """What an fdinfo file says; None where it is not that of a GPU on the PCI bus. `key` is for drivers without ids."""
    lines = (line.partition(":") for line in text.splitlines() if line.startswith("drm-"))
    fields = {name: value.strip() for name, _, value in lines}
    address = fields.get("drm-pdev")
    if "drm-driver" not in fields or not address:
        return None
    if "drm-client-id" in fields:
        key = f"{address}/{fields['drm-client-id']}"
    return Client(key, pid, address, _parse_memory(fields), dict(_parse_engines(fields)))


def _parse_memory(fields: Mapping[str, str]) -> int | None:
    """The sum over the regions of the GPU's memory; None where there is none, or any cannot be understood."""
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
    return amount if amount is not None and amount < _BYTES_AT_MOST else None


def _parse_engines(fields: Mapping[str, str]) -> Iterator[tuple[str, Engine]]:
    """i915 and amdgpu count nanoseconds (`drm-engine-`), xe cycles of the engine's clock (`drm-cycles-`)."""
    for name, value in fields.items():
        kind, _, engine = name.removeprefix("drm-").partition("-")
        busy = _parse_count(value.removesuffix(" ns"))
        if busy is None or engine.startswith("capacity-") or kind not in {"engine", "cycles"}:
            continue
        total = _parse_count(fields.get(f"drm-total-cycles-{engine}", ""))
        if kind == "engine" or total is not None:
            capacity = _parse_count(fields.get(f"drm-engine-capacity-{engine}", "")) or 1
            yield engine, Engine(busy, total if kind == "cycles" else None, capacity)


def _parse_count(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 20 else None


def find_kfd_memory(sys: str) -> dict[str, dict[int, int | None]]:
    """What ROCm's processes hold, by PCI address and pid; None where it cannot be told. Every user may read this.

    They may hold memory without an open file in /dev/dri. KFD lists a process for every GPU that it could use: one
    that holds 0 there is not on that GPU.
    """
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
