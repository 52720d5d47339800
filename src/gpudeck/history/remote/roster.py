"""Who is known: hosts and GPUs by their ids, with the names that people call them by.

What was taken since the hub started is known at once; of everything else the store is asked.
"""

from collections.abc import Iterable

from msgspec import Struct

from gpudeck.history.base import HistoryRefused
from gpudeck.history.measures import suggest
from gpudeck.history.remote.names import OBSERVED, STATE
from gpudeck.history.remote.promql import any_of, select
from gpudeck.history.remote.read import Reader
from gpudeck.history.sample import HostSample
from gpudeck.model.clock import Clock

_DAY = 86_400.0


class KnownHost(Struct, frozen=True):
    host_id: str
    name: str


class Roster:
    """One thread notes samples, others ask."""

    def __init__(self, reader: Reader, clock: Clock) -> None:
        self._reader = reader
        self._clock = clock
        self._names: dict[str, str] = {}
        self._labels: dict[str, str] = {}
        self._hosts: dict[str, set[str]] = {}

    def note(self, sample: HostSample) -> None:
        # The newest comes last, so that of two hosts of one name the one that is there is found.
        self._names.pop(sample.host_id, None)
        self._names[sample.host_id] = sample.name
        for gpu in sample.gpus:
            self._labels[gpu.uuid] = gpu.label
            if sample.host_id not in (hosts := self._hosts.setdefault(gpu.uuid, set())):
                self._hosts[gpu.uuid] = {*hosts, sample.host_id}

    def find_host(self, name: str) -> KnownHost:
        """By id or by name. Raises HistoryRefused for one that was never there."""
        known = dict(self._names)
        if name in known:
            return KnownHost(name, known[name])
        named = [host_id for host_id, shown in known.items() if shown == name]
        if named:
            return KnownHost(named[-1], name)
        found = self._ask([select(OBSERVED, {"host_id": name}), select(OBSERVED, {"host": name})])
        found.sort(key=lambda labels: labels.get("host_id") == name)
        if not found:
            hint = suggest(name, known.values(), "It knows")
            raise HistoryRefused("unknown_host", f"the history knows no host {name[:80]!r}", hint)
        return KnownHost(found[-1]["host_id"], found[-1].get("host", ""))

    def find_gpu(self, uuid: str) -> str:
        """Its label. Raises HistoryRefused for one that was never there."""
        label = self.labels_of([uuid]).get(uuid)
        if label is None:
            hint = suggest(uuid, dict(self._labels), "It knows")
            raise HistoryRefused("unknown_gpu", f"the history knows no GPU {uuid[:80]!r}", hint)
        return label

    def labels_of(self, uuids: Iterable[str]) -> dict[str, str]:
        """The labels of those that were ever there."""
        wanted = list(uuids)
        found = {uuid: self._labels[uuid] for uuid in wanted if uuid in self._labels}
        missing = [uuid for uuid in wanted if uuid not in found]
        if missing:
            for labels in self._ask([select(STATE, {}, any_of("gpu", missing))]):
                found[labels["gpu"]] = labels.get("index", "")
        return found

    def hosts_of(self, uuids: Iterable[str]) -> list[str]:
        """The ids of the hosts that these GPUs are in, or were before the hub started."""
        wanted = list(uuids)
        missing = [uuid for uuid in wanted if uuid not in self._hosts]
        if missing:
            for labels in self._ask([select(STATE, {}, any_of("gpu", missing))]):
                known = self._hosts.get(labels["gpu"], set())
                self._hosts[labels["gpu"]] = {*known, labels.get("host_id", "")}
        return sorted({host for uuid in wanted for host in self._hosts.get(uuid, ())})

    def count_gpus(self, host_id: str) -> int:
        """How many GPUs the host ever had."""
        return len({labels.get("gpu") for labels in self._ask([select(STATE, {"host_id": host_id})])})

    def _ask(self, selectors: list[str]) -> list[dict[str, str]]:
        return self._reader.labels(selectors, 1.0, self._clock() + _DAY)
