"""The GPUs of a page as readings, and those that were on an earlier page and are gone."""

import math

import msgspec

from gpudeck.collectors.idle import IdleWatch
from gpudeck.collectors.redaction import Commands
from gpudeck.collectors.smi_answer import read_bus_id
from gpudeck.model.catalog import GPU_METRICS, Rollup
from gpudeck.model.report import GpuReading
from gpudeck.sources.scrape_devices import Device, Devices
from gpudeck.sources.scrape_processes import ProcessReader, Starts
from gpudeck.sources.scrape_tables import Exporter
from gpudeck.sources.scrape_values import Groups, Measured, group_rows, measure

GPUS_AT_MOST = 512
WHOLE_BOARD = "measured on the whole board, not by MIG instance"
_LOADS = frozenset({"utilization_percent", "memory_utilization_percent", "encoder_percent", "decoder_percent"})
# The chip's temperature and clocks are every instance's; a sum would count them once for each.
_SHARED_BY_INSTANCES = frozenset(
    name for name, metric in GPU_METRICS.items() if metric.rollup is not Rollup.SUM and name not in _LOADS
)


class GpuReader:
    """Makes readings of one host's pages, one after the other: it knows what was there before."""

    def __init__(self, commands: Commands) -> None:
        self._starts = Starts()
        self._processes = ProcessReader(commands, self._starts)
        self._idle = IdleWatch()
        self._known: dict[str, GpuReading] = {}

    @property
    def has_known_gpus(self) -> bool:
        return bool(self._known)

    def read(self, exporter: Exporter, devices: Devices, now: float) -> list[GpuReading]:
        """The GPUs, at most GPUS_AT_MOST, sorted; those that are gone stand among them as missing."""
        readings = {}
        groups = group_rows(exporter.gpu)
        for number, (device, board) in enumerate(devices.listed()):
            reading = self._read_device(exporter, groups, device, board, number, now=now)
            readings[reading.uuid] = reading
        self._starts.turn()
        gone = [gpu for uuid, gpu in self._known.items() if uuid not in readings and not _was_split_anew(gpu, readings)]
        for gpu in gone:
            readings[gpu.uuid] = _as_missing(gpu, f"{exporter.name} no longer lists this GPU")
        kept = sorted(readings.values(), key=lambda gpu: (gpu.index, gpu.instance or 0, gpu.uuid))[:GPUS_AT_MOST]
        self._known = {gpu.uuid: gpu for gpu in kept}
        return kept

    def _read_device(
        self, exporter: Exporter, groups: Groups, device: Device, board: Device | None, number: int, *, now: float
    ) -> GpuReading:
        index, instance = _place(exporter, device, board, number)
        facts = (board.facts if board else {}) | device.facts
        measured = _measure(exporter, groups, device, board, is_instance=bool(device.instance))
        processes = self._processes.read(exporter, device, board, now)
        uuid = _uuid(exporter, device)
        utilization = measured.metrics.get("utilization_percent")
        return GpuReading(
            uuid=uuid,
            index=index,
            name=_name(facts, is_instance=bool(device.instance)),
            vendor="nvidia",
            parent=device.board[:256] or None if device.instance else None,
            instance=instance,
            pci_address=read_bus_id(facts.get("pci", "")),
            metrics=measured.metrics,
            unknown=measured.unknown,
            processes=None if isinstance(processes, str) else processes,
            processes_reason=processes if isinstance(processes, str) else None,
            idle_seconds=self._idle.track(uuid, utilization, now),
        )


def _measure(
    exporter: Exporter, groups: Groups, device: Device, board: Device | None, *, is_instance: bool
) -> Measured:
    measured = Measured({}, {})
    for name, metric in GPU_METRICS.items():
        rows, values = groups.get(name, []), device.values
        if is_instance:
            own = [row for row in rows if row.by_instance]
            if name in _SHARED_BY_INSTANCES:
                values = (board.values if board else {}) | values
            elif rows and not own:
                measured.unknown[name] = WHOLE_BOARD
                continue
            else:
                rows = own
        value = measure(metric, rows, values, exporter)
        if isinstance(value, str):
            measured.unknown[name] = value
        else:
            measured.metrics[name] = value
    return measured


def _place(exporter: Exporter, device: Device, board: Device | None, number: int) -> tuple[int, int | None]:
    """Index of the board and number of the MIG instance. Where no index is told it is the place on the page."""
    whole = board or device
    index = device.facts.get("index") or whole.facts.get("index", "")
    if not index and exporter.index_series:
        index = f"{whole.values.get(exporter.index_series, math.nan):.0f}"
    place = _number(index)
    return number if place is None else place, _number(device.instance)


def _number(text: str) -> int | None:
    is_number = text.isascii() and text.isdecimal() and len(text) <= 5
    return int(text) if is_number and int(text) <= 65535 else None


def _uuid(exporter: Exporter, device: Device) -> str:
    """The driver's UUID of a MIG instance, or one made of the board's where that is not told."""
    if not device.instance:
        return device.board[:256]
    told = device.facts.get("instance_uuid")
    if told is None:
        return f"{device.board[:240]}/{device.instance[:15]}"
    return (told if told.startswith(exporter.instance_prefix) else exporter.instance_prefix + told)[:256]


def _name(facts: dict[str, str], *, is_instance: bool) -> str:
    name = facts.get("name") or "NVIDIA GPU"
    return f"{name} MIG {facts.get('profile', '')}".rstrip()[:256] if is_instance else name


def _was_split_anew(gpu: GpuReading, readings: dict[str, GpuReading]) -> bool:
    """Whether its board is still there, with other MIG instances or as a whole: then nothing was lost."""
    boards = {reading.parent or reading.uuid for reading in readings.values() if reading.missing is None}
    if gpu.parent is not None:
        return gpu.parent in boards
    return gpu.uuid in boards


def _as_missing(gpu: GpuReading, reason: str) -> GpuReading:
    return msgspec.structs.replace(
        gpu,
        missing=reason,
        metrics={},
        unknown=dict.fromkeys(GPU_METRICS, reason),
        processes=None,
        processes_reason=reason,
        idle_seconds=None,
    )
