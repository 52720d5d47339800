"""Which GPUs a page speaks of: its series, brought together by GPU and by MIG instance."""

from collections.abc import Iterable, Iterator

from msgspec import Struct, field

from gpudeck.sources.scrape_page import Sample, label
from gpudeck.sources.scrape_tables import Exporter

DEVICES_AT_MOST = 640
"""512 GPUs, and the boards of those that are MIG instances."""
_FACTS = ("index", "name", "pci", "profile", "instance_uuid")
Key = tuple[str, str]
"""The board's UUID, and the MIG instance's number there or an empty text."""


class Device(Struct):
    """What the page says of one GPU or MIG instance: numbers by series, what its labels tell, its processes' series.

    `holders` are the pods and jobs that it was given to.
    """

    board: str
    instance: str
    values: dict[str, float] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    holders: list[str] = field(default_factory=list)
    processes: list[Sample] = field(default_factory=list)


class Devices:
    """The devices of one page, DEVICES_AT_MOST of them; `left_out` counts sets of labels that name others. `conflicts`
    counts numbers that differ from an earlier one for the same device."""

    def __init__(self, exporter: Exporter, samples: Iterable[Sample], host: str) -> None:
        self.found: dict[Key, Device] = {}
        self.conflicts = 0
        self.left_out = 0
        self._exporter = exporter
        self._host = host
        self._process_series = _process_series(exporter)
        # The series of a GPU share one object of labels (see scrape_page), so most of them are looked at once.
        by_labels: dict[int, Device | None] = {}
        for sample in samples:
            known = id(sample.labels)
            if known not in by_labels:
                by_labels[known] = self._find(sample)
            device = by_labels[known]
            if device is not None:
                self._add(device, sample)
        self._settle_instances()

    def listed(self) -> Iterator[tuple[Device, Device | None]]:
        """Every GPU, and every MIG instance with its board where that has series too. A split board is none itself."""
        split = {board for board, instance in self.found if instance}
        for (board, instance), device in self.found.items():
            if instance or board not in split:
                yield device, self.found.get((board, "")) if instance else None

    def _find(self, sample: Sample) -> Device | None:
        labels = self._exporter.labels
        uuid, index = label(sample, labels.uuid), label(sample, labels.index)
        if not uuid and not index:
            return None
        board = _with_prefix(uuid, self._exporter.uuid_prefix) if uuid else f"{self._host}/gpu{index}"
        key = board, label(sample, labels.instance)
        if key not in self.found and len(self.found) >= DEVICES_AT_MOST:
            self.left_out += 1
            return None
        device = self.found.setdefault(key, Device(*key))
        for fact in _FACTS:
            if text := label(sample, getattr(labels, fact)):
                device.facts.setdefault(fact, text)
        holder = _holder(self._exporter, sample)
        if holder and holder not in device.holders:
            device.holders.append(holder)
        return device

    def _settle_instances(self) -> None:
        """Instances that are told by an index such as "0:1", and have a UUID of their own, come to their board."""
        boards = {device.facts.get("index"): board for (board, _), device in self.found.items()}
        for key, device in list(self.found.items()):
            index, colon, instance = device.facts.get("index", "").partition(":")
            if colon and instance and not device.instance:
                device.facts.setdefault("instance_uuid", device.board)
                device.facts["index"], device.instance = index, instance
                device.board = boards.get(index, "")
                del self.found[key]
                self.found[device.board or key[0], instance] = device

    def _add(self, device: Device, sample: Sample) -> None:
        if sample.name in self._process_series:
            device.processes.append(sample)
        elif device.values.setdefault(sample.name, sample.value) != sample.value == sample.value:
            self.conflicts += 1


def _process_series(exporter: Exporter) -> frozenset[str]:
    table = exporter.processes
    if table is None:
        return frozenset()
    single = (table.memory, table.utilization, table.running_seconds)
    return frozenset((*table.series, *(part.series for part in single if part)))


def _with_prefix(uuid: str, prefix: str) -> str:
    return uuid if uuid.startswith(prefix) else prefix + uuid


def _holder(exporter: Exporter, sample: Sample) -> str:
    """Who the GPU was given to, by Kubernetes or a batch system; an empty text where nobody is named."""
    labels = exporter.labels
    pod, job = label(sample, labels.pod), label(sample, labels.job)
    # Behind a Prometheus an idle GPU's series carry the pod of the exporter itself.
    if pod and exporter.name not in pod:
        namespace, container = label(sample, labels.namespace), label(sample, labels.container)
        return f"pod {f'{namespace}/' if namespace else ''}{pod}{f', container {container}' if container else ''}"
    return f"job {job}" if job else ""
