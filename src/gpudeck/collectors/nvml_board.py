"""One NVIDIA board of the inventory: what is asked of it on which beat, and what it said last.

On every beat the cheap calls; every ten seconds the dear ones, whose last value stays until then. What a board does not
support is asked for again once a minute: a refusal can cost much more than an answer (77 µs for the fan that an H200
does not have).
"""

from collections.abc import Iterator
from typing import Any

from msgspec import Struct, field

from gpudeck.collectors.nvml_device import (
    NOT_ASKED_FOR,
    PCIE,
    READINGS,
    SLOW_READINGS,
    Measured,
    Reading,
    measure,
)
from gpudeck.collectors.nvml_errors import LASTING, NO_SUCH_INSTANCE, RELOADED, explain
from gpudeck.collectors.nvml_instances import Instance, Instances, find_instances, measure_instance
from gpudeck.collectors.nvml_processes import UNDER_MIG, Loads, Use, read_uses

# A little less than ten seconds and a minute, so that a beat that comes a moment early is not left out.
_SLOW_SECONDS = 9.5
_EXPLORE_SECONDS = 59.5
_NO_INSTANCES = "in MIG mode, but without instances: nothing can run on it"


class Draft(Struct):
    """A row of the report before its processes have owners. `uses` is None, with the reason, when they are unknown."""

    board: "Board"
    measured: Measured
    uses: dict[int, Use] | None = None
    uses_reason: str | None = None
    instance: Instance | None = None
    loads: Loads = field(default_factory=lambda: Loads(reason=UNDER_MIG))


class Board(Struct):
    """A GPU of the inventory. It stays there, with its reason in `missing`, when it can no longer be read.

    `instances` is None where the board is used as a whole. `readings` and `slow_readings` are those worth asking for,
    `lasting` has the metrics of the others with their reasons. Handles are good until the driver is opened again.
    """

    uuid: str
    index: int
    name: str
    handle: Any = None
    has_pcie: bool = False
    pci_address: str | None = None
    missing: str | None = None
    instances: Instances | None = None
    readings: tuple[Reading, ...] = ()
    slow_readings: tuple[Reading, ...] = ()
    lasting: dict[str, str] = field(default_factory=dict)
    slow: Measured = field(default_factory=lambda: Measured({}, {}))
    loads: Loads = field(default_factory=Loads)
    slow_at: float | None = None
    explored_at: float | None = None

    @property
    def problems(self) -> list[str]:
        """What an admin should know of it, beside what its rows say."""
        refused = self.instances.refused if self.instances is not None and self.missing is None else []
        return [f"GPU {self.index}: {sentence}." for sentence in refused]

    def read(self, nvml: Any, now: float) -> list[Draft]:
        """Its rows: itself, or its MIG instances. Raises only what concerns every board."""
        if self.missing is None:
            try:
                return list(self._read(nvml, now))
            except nvml.NVMLError as error:
                if error.value in RELOADED:
                    raise
                self.missing = explain(error)
        return [Draft(self, Measured({}, {}))]

    def _read(self, nvml: Any, now: float) -> Iterator[Draft]:
        is_slow_beat = _is_due(self.slow_at, _SLOW_SECONDS, now)
        if is_slow_beat:
            self._read_slowly(nvml, now)
        measured = self._measure(nvml, self.readings)
        for part in (self.slow.unknown, self.lasting):
            measured.unknown.update(part)
        measured.metrics.update(self.slow.metrics)
        if self.instances is None:
            yield self._read_whole(nvml, measured, now if is_slow_beat else None)
        else:
            rows = list(self._read_instances(nvml, self.instances.opened, measured))
            reason = "; ".join(self.instances.refused[:1]) or _NO_INSTANCES
            yield from rows or [Draft(self, measured, None, reason)]

    def _read_slowly(self, nvml: Any, now: float) -> None:
        if _is_due(self.explored_at, _EXPLORE_SECONDS, now):
            self._forget_what_was_refused()
            self.explored_at = now
        self.instances = find_instances(nvml, self.handle)
        self.slow = self._measure(nvml, self.slow_readings)
        self.slow_at = now

    def _forget_what_was_refused(self) -> None:
        self.readings, self.slow_readings = READINGS, (*SLOW_READINGS, *([PCIE] if self.has_pcie else []))
        self.lasting = {} if self.has_pcie else dict.fromkeys(PCIE.names, NOT_ASKED_FOR)
        self.loads.reason = None

    def _measure(self, nvml: Any, readings: tuple[Reading, ...]) -> Measured:
        measured = measure(nvml, self.handle, readings)
        refused = {name: why for name, why in measured.unknown.items() if why in LASTING}
        if refused:
            self.lasting |= refused
            self.readings = _leave_out(self.readings, refused)
            self.slow_readings = _leave_out(self.slow_readings, refused)
        return measured

    def _read_whole(self, nvml: Any, measured: Measured, slow_at: float | None) -> Draft:
        uses, reason = read_uses(nvml, self.handle)
        if slow_at is not None and uses:
            self.loads.update(nvml, self.handle, frozenset(uses), slow_at)
        return Draft(self, measured, uses, reason, loads=self.loads)

    def _read_instances(self, nvml: Any, instances: list[Instance], measured: Measured) -> Iterator[Draft]:
        for instance in instances:
            try:
                of_instance = measure_instance(nvml, instance, measured)
                yield Draft(self, of_instance, *read_uses(nvml, instance.handle), instance)
            except nvml.NVMLError as error:
                if error.value not in NO_SUCH_INSTANCE:
                    raise
                self.slow_at = None  # destroyed since it was found: look again on the next reading


def _is_due(last: float | None, seconds: float, now: float) -> bool:
    """A clock that was set back makes everything due, rather than nothing for as long as it was set back."""
    return last is None or abs(now - last) >= seconds


def _leave_out(readings: tuple[Reading, ...], refused: dict[str, str]) -> tuple[Reading, ...]:
    return tuple(reading for reading in readings if not refused.keys() >= set(reading.names))
