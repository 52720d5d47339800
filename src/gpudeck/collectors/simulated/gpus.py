"""The GPUs of one host as its driver would show them: each class is one way a GPU can be.

What is kept between two readings is only what could be worked out again: a reading depends on its moment alone.
"""

from collections.abc import Sequence
from math import nan
from typing import ClassVar

from msgspec.structs import replace

from gpudeck.collectors.simulated.chance import draw, wave
from gpudeck.collectors.simulated.inventory import Slot
from gpudeck.collectors.simulated.jobs import Run
from gpudeck.collectors.simulated.mishaps import FELL_OFF, Life
from gpudeck.collectors.simulated.phases import Stretch
from gpudeck.collectors.simulated.physics import (
    clock_sm_mhz,
    fan_percent,
    memory_mib,
    power_watts,
    room_offset,
    stifled_temperature,
    temperature,
    utilization,
)
from gpudeck.collectors.simulated.track import Track
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.report import GpuReading, Number, Process

MIB = 1 << 20
NO_FAN = "not supported by this GPU"
NOT_FOR_INSTANCES = "not available for a MIG instance"
WHOLE_BOARD = "measured for the whole board"
NOT_SIMULATED = "not simulated"

# A working GPU is read anew every 4 s, one at rest every 24 s, a process every 12 s: enough to look alive, and little
# enough that a stream of changes stays small.
_WORK_BEAT_S, _REST_BEAT_S, _PROCESS_BEAT_S = 4.0, 24.0, 12.0

_SIMULATED = (
    *("utilization_percent", "memory_utilization_percent", "memory_used_bytes", "memory_total_bytes"),
    *("temperature_celsius", "power_watts", "power_limit_watts", "fan_percent", "clock_sm_mhz", "clock_memory_mhz"),
)
_LEFT_OUT = {name: NOT_SIMULATED for name in GPU_METRICS if name not in _SIMULATED}


def _rounded(values: dict[str, float]) -> dict[str, Number]:
    return {name: GPU_METRICS[name].round(value) for name, value in values.items()}


class Gpu:
    """A GPU that works as it should."""

    process_reasons: ClassVar[dict[str, str]] = {}

    def __init__(self, slot: Slot, track: Track, life: Life) -> None:
        self._slot, self._track, self._life = slot, track, life
        self._offset_s = slot.salt % 24
        self._stretch: Stretch | None = None
        self._lively_until = 0.0
        self._frame_at = nan
        self._metrics: dict[str, Number] = {}
        self._processes: list[Process] = []
        self.unknown = _LEFT_OUT | ({} if slot.model.fan else {"fan_percent": NO_FAN})

    def reading(self, now: float) -> GpuReading:
        """The GPU's row at that moment."""
        stretch = self._track.at(now)
        self._make_frame(stretch, now)
        slot, idle_since = self._slot, stretch.idle_since
        return GpuReading(
            uuid=slot.uuid,
            index=slot.index,
            name=slot.name,
            vendor=slot.model.vendor,
            parent=slot.parent,
            instance=slot.instance,
            metrics=self._metrics.copy(),
            unknown=self.unknown.copy(),
            processes=self._processes.copy(),
            idle_seconds=0 if idle_since is None else round(now - idle_since),
        )

    def _make_frame(self, stretch: Stretch, now: float) -> None:
        """Works the values out for the beat that `now` falls into, unless that was done last time."""
        if stretch is not self._stretch:
            self._stretch, self._frame_at = stretch, nan
            self._lively_until = max((run.start + run.work.ramp_s for run, _ in stretch.parts), default=0.0)
        is_lively = stretch.idle_since is None or now < self._lively_until
        beat_s = _WORK_BEAT_S if is_lively else _REST_BEAT_S
        t = max(stretch.start, now - (now + self._offset_s) % beat_s)
        if t != self._frame_at:
            self._frame_at = t
            self._processes = self._read_processes(stretch, t)
            self._metrics = self._read_metrics(stretch, t)

    def _read_metrics(self, stretch: Stretch, t: float) -> dict[str, Number]:
        slot, model, parts = self._slot, self._slot.model, stretch.parts
        load = effort = bandwidth = 0.0
        for run, level in parts:
            share = utilization(run.work, level, slot.number, t) / 100
            load += share
            effort += share * run.work.intensity
            bandwidth += share * run.work.bandwidth
        celsius = self._celsius(t)
        ripple = wave(slot.salt, t, 7.0)
        values = {
            "utilization_percent": min(100.0, 100 * load),
            "memory_utilization_percent": min(100.0, 100 * bandwidth),
            "memory_used_bytes": self._used_mib() * MIB,
            "memory_total_bytes": slot.memory_mib * MIB,
            "temperature_celsius": celsius,
            "power_watts": power_watts(model, min(1.0, effort), is_taken=bool(parts), ripple=ripple),
            "power_limit_watts": model.limit_watts,
            "clock_sm_mhz": clock_sm_mhz(model, min(1.0, effort), celsius, is_taken=bool(parts)),
            "clock_memory_mhz": model.clock_memory_mhz[bool(parts)],
        }
        if model.fan:
            values["fan_percent"] = fan_percent(celsius)
        return _rounded(values)

    def _celsius(self, t: float) -> float:
        slot = self._slot
        return temperature(slot.model, self._track.warmth(t), room_offset(slot.salt, t))

    def _used_mib(self) -> int:
        """What its processes hold, and the little that the driver keeps for itself."""
        slot = self._slot
        held = sum(process.memory_used_bytes or 0 for process in self._processes) // MIB
        kept = slot.memory_mib // 200 if held else 1 + slot.salt % 12
        return min(slot.memory_mib, held + kept)

    def _read_processes(self, stretch: Stretch, t: float) -> list[Process]:
        processes = [self._read_process(run, level, stretch.start, t) for run, level in stretch.parts]
        return [*processes, self._display(t)] if self._slot.has_display else processes

    def _read_process(self, run: Run, level: float, since: float, t: float) -> Process:
        slot = self._slot
        beat = max(since, t - (t + self._offset_s) % _PROCESS_BEAT_S)
        return Process(
            pid=run.pids[run.slots.index(slot.number)],
            user=run.user,
            command=run.command,
            memory_used_bytes=memory_mib(run.work, slot.memory_mib, t - run.start) * MIB,
            started_at=run.start,
            utilization_percent=self._process_percent(run, level, beat),
            container=run.container,
            job=run.job,
            evidence=run.evidence,
            reasons=self.process_reasons.copy(),
        )

    def _process_percent(self, run: Run, level: float, t: float) -> float | None:
        return round(utilization(run.work, level, self._slot.number, t))

    def _display(self, t: float) -> Process:
        return Process(
            pid=1200 + self._slot.salt % 600,
            user="root",
            command="Xorg :0 -nolisten tcp vt2",
            memory_used_bytes=(8 + self._slot.salt % 40) * MIB,
            started_at=self._life.booted(t) + 20,
            utilization_percent=0,
            evidence="uid 0 owns the process",
            display=True,
        )


class HotGpu(Gpu):
    """A GPU whose airflow is blocked."""

    def _celsius(self, t: float) -> float:
        return stifled_temperature(self._track.warmth(t), room_offset(self._slot.salt, t))


class CutBoard:
    """A board in MIG mode. Its instances share one temperature, made by the work of all of them."""

    def __init__(self, slots: Sequence[Slot], tracks: Sequence[Track]) -> None:
        self._model, self._salt = slots[0].model, slots[0].salt
        self._shares = [(slot.share, track) for slot, track in zip(slots, tracks, strict=True)]
        self._read_at = nan
        self._celsius = 0.0

    def celsius(self, now: float) -> float:
        """Read every 24 s, for all instances at the same moment."""
        t = now - now % _REST_BEAT_S
        if t != self._read_at:
            self._read_at = t
            warmth = sum(share * track.warmth(t) for share, track in self._shares)
            self._celsius = temperature(self._model, warmth, room_offset(self._salt, t))
        return self._celsius


class GpuInstance(Gpu):
    """A MIG instance: it has its own memory and processes; what the board alone can tell is unknown."""

    process_reasons: ClassVar[dict[str, str]] = {"utilization_percent": NOT_FOR_INSTANCES}

    def __init__(self, slot: Slot, track: Track, life: Life, board: CutBoard) -> None:
        super().__init__(slot, track, life)
        self._board = board
        self.unknown |= {
            "utilization_percent": NOT_FOR_INSTANCES,
            "memory_utilization_percent": NOT_FOR_INSTANCES,
            "power_watts": WHOLE_BOARD,
            "power_limit_watts": WHOLE_BOARD,
        }

    def reading(self, now: float) -> GpuReading:
        # The board's temperature moves to its own beat, which is not the one this instance's frame was made for.
        reading = super().reading(now)
        reading.metrics["temperature_celsius"] = GPU_METRICS["temperature_celsius"].round(self._board.celsius(now))
        return reading

    def _read_metrics(self, stretch: Stretch, t: float) -> dict[str, Number]:
        slot, model = self._slot, self._slot.model
        return _rounded(
            {
                "memory_used_bytes": self._used_mib() * MIB,
                "memory_total_bytes": slot.memory_mib * MIB,
                "clock_sm_mhz": model.clock_sm_mhz[1],
                "clock_memory_mhz": model.clock_memory_mhz[1],
            }
        )

    def _process_percent(self, run: Run, level: float, t: float) -> float | None:
        return None


class OrphanedGpu(Gpu):
    """A GPU on which no process is left, though memory is still held."""

    def _used_mib(self) -> int:
        return int(self._slot.memory_mib * (0.25 + 0.4 * draw(self._slot.salt, 0)))

    def reading(self, now: float) -> GpuReading:
        return replace(super().reading(now), idle_seconds=round(now - self._life.booted(now)))


class MissingGpu:
    """A GPU that belongs here and cannot be read any more."""

    def __init__(self, slot: Slot, life: Life) -> None:
        self._slot, self._life = slot, life

    def reading(self, now: float) -> GpuReading:
        """What is still known: which one it is."""
        slot = self._slot
        return GpuReading(
            uuid=slot.uuid,
            index=slot.index,
            name=slot.name,
            vendor=slot.model.vendor,
            missing=FELL_OFF,
            unknown=dict.fromkeys(GPU_METRICS, FELL_OFF),
            processes_reason=FELL_OFF,
            idle_seconds=round(now - self._life.booted(now)),
        )
