"""A collector: accelerators that gpudeck does not know, from a JSON file that their vendor's tool writes.

    [{"serial": "A-17", "model": "Acme T1", "load": 40, "memory_used": 1024, "memory": 4096}]

`load` is in percent, memory in MiB. A value that is missing is unknown.
"""

import os
from pathlib import Path

import msgspec

from gpudeck.collectors.base import CollectorSettings, Measured
from gpudeck.model.errors import Absent, Temporary
from gpudeck.model.report import GpuReading, Report

FILE = "ACME_ACCELERATORS"
MIB = 2**20


class Card(msgspec.Struct):
    serial: str
    model: str
    load: float | None = None
    memory_used: int | None = None
    memory: int | None = None


class AcmeCollector:
    name = "accelerators"

    def __init__(self, file: Path) -> None:
        self._file = file

    def collect(self, now: float) -> Report:
        if not self._file.exists():
            raise Absent(f"{self._file} is not there: this machine has no such accelerators.")
        try:
            cards = msgspec.json.decode(self._file.read_bytes(), type=list[Card])
        except (OSError, msgspec.DecodeError) as error:
            raise Temporary(f"{self._file} cannot be read: {error}.") from error
        return Report(gpus=[self._read(number, card) for number, card in enumerate(cards)])

    def close(self) -> None:
        return

    def _read(self, number: int, card: Card) -> GpuReading:
        values = Measured({}, {})
        values.take("utilization_percent", card.load)
        values.take("memory_used_bytes", None if card.memory_used is None else card.memory_used * MIB)
        values.take("memory_total_bytes", None if card.memory is None else card.memory * MIB)
        return GpuReading(
            uuid=f"ACME-{card.serial}",
            index=number,
            name=card.model,
            metrics=values.metrics,
            unknown=values.unknown,
            processes_reason="the vendor's tool lists no processes",
        )


def make(settings: CollectorSettings) -> AcmeCollector:
    return AcmeCollector(Path(os.environ.get(FILE, "/run/acme/accelerators.json")))
