"""The GPUs of one host as its driver would show them: each class is one way a GPU can be.

What is kept between two readings is only what could be worked out again: a reading depends on its moment alone.
"""

from collections.abc import Sequence
from math import nan
from typing import ClassVar

from msgspec.structs import replace

from gpudeck.collectors.simulated import reasons
from gpudeck.collectors.simulated.boards import errors, settled, unknowns, wears
from gpudeck.collectors.simulated.chance import draw, wave
from gpudeck.collectors.simulated.energy import Meter
from gpudeck.collectors.simulated.faults import Faults
from gpudeck.collectors.simulated.inventory import Slot
from gpudeck.collectors.simulated.jobs import Run
from gpudeck.collectors.simulated.mishaps import FELL_OFF, Life
from gpudeck.collectors.simulated.phases import Stretch
from gpudeck.collectors.simulated.physics import (
    Doing,
    add_up,
    clock_sm_mhz,
    fan_percent,
    is_capped,
    is_slowed_by_heat,
    is_slowed_down,
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

# A working GPU is read anew every 4 s, one at rest every 24 s, a process and the energy every 12 s: enough to look
# alive, and little enough that a stream of changes stays small.
_WORK_BEAT_S, _REST_BEAT_S, _SLOW_BEAT_S = 4.0, 24.0, 12.0

_TRIED_EVERY_S, _LASTS_S = 4.5 * 86_400, 1_260.0

_round_watts = GPU_METRICS["power_watts"].round


class Gpu:
    """A GPU that works as it should."""

    process_reasons: ClassVar[dict[str, str]] = {}

    def __init__(self, slot: Slot, track: Track, life: Life, meter: Meter, faults: Faults) -> None:
        self._slot, self._track, self._life, self._meter, self._faults = slot, track, life, meter, faults
        self._offset_s = slot.salt % 24
        self._stretch: Stretch | None = None
        self._lively_until = 0.0
        self._frame_at = nan
        self._metrics: dict[str, Number] = {}
        self._processes: list[Process] = []
        self._settled = settled(slot)
        self._wears = wears(slot)
        self.unknown = unknowns(slot)

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
            pci_address=slot.pci_address,
            metrics=self._metrics.copy(),
            unknown=self.unknown.copy(),
            processes=self._processes.copy(),
            idle_seconds=0 if idle_since is None else round(now - idle_since),
            events=self._faults.last_day(now),
        )

    def _make_frame(self, stretch: Stretch, now: float) -> None:
        """Works the values out for the beat that `now` falls into, unless that was done last time."""
        if stretch is not self._stretch:
            self._stretch, self._frame_at = stretch, nan
            self._lively_until = max([run.start + run.work.ramp_s for run, _ in stretch.parts], default=0.0)
        is_lively = stretch.idle_since is None or now < self._lively_until
        beat_s = _WORK_BEAT_S if is_lively else _REST_BEAT_S
        t = max(stretch.start, now - (now + self._offset_s) % beat_s)
        if t != self._frame_at:
            self._frame_at = t
            self._processes = self._read_processes(stretch, t)
            self._metrics = self._read_metrics(stretch, t)

    def _read_metrics(self, stretch: Stretch, t: float) -> dict[str, Number]:
        slot, model, is_taken = self._slot, self._slot.model, bool(stretch.parts)
        doing, celsius = add_up(stretch.parts, slot.number, t), self._celsius(t)
        watts = power_watts(model, doing.effort, is_taken=is_taken, ripple=wave(slot.salt, t, 7.0))
        metrics = self._settled.copy()
        metrics["utilization_percent"] = round(100 * doing.load)
        metrics["memory_utilization_percent"] = round(100 * doing.bandwidth)
        metrics["temperature_celsius"] = round(celsius)
        metrics["power_watts"] = _round_watts(watts)
        metrics["memory_used_bytes"] = self._used_mib() * MIB
        metrics["clock_sm_mhz"] = clock_sm_mhz(model, doing.effort, celsius, is_taken=is_taken)
        metrics["clock_memory_mhz"] = model.clock_memory_mhz[is_taken]
        if model.features.memory_warmth is not None:
            metrics["memory_temperature_celsius"] = round(celsius * model.features.memory_warmth)
        if model.features.fan:
            metrics["fan_percent"] = round(fan_percent(celsius))
        if model.vendor == "nvidia":
            metrics |= self._read_driver(doing, celsius, watts, is_taken=is_taken)
            metrics["energy_joules"] = int(self._meter.joules(self._slow_beat(stretch.start, t)))
        return metrics | errors(slot, t - self._life.booted(t)) if self._wears else metrics

    def _read_driver(self, doing: Doing, celsius: float, watts: float, *, is_taken: bool) -> dict[str, Number]:
        """What NVIDIA's driver tells beside that."""
        model = self._slot.model
        return {
            "encoder_percent": round(40 * doing.video) if model.features.encodes else 0,
            "decoder_percent": round(100 * doing.video),
            "performance_state": model.features.states[is_taken],
            "throttled_power": int(is_capped(model, watts)),
            "throttled_thermal": int(is_slowed_by_heat(celsius)),
            "throttled_hardware": int(is_slowed_down(celsius)),
        }

    def _slow_beat(self, since: float, t: float) -> float:
        return max(since, t - (t + self._offset_s) % _SLOW_BEAT_S)

    def _celsius(self, t: float) -> float:
        slot = self._slot
        return temperature(slot.model, self._track.warmth(t), room_offset(slot.salt, t))

    def _used_mib(self) -> int:
        """What its processes hold, and the little that the driver keeps for itself."""
        slot = self._slot
        held = sum([process.memory_used_bytes or 0 for process in self._processes]) // MIB
        kept = slot.memory_mib // 200 if held else 1 + slot.salt % 12
        return min(slot.memory_mib, held + kept)

    def _read_processes(self, stretch: Stretch, t: float) -> list[Process]:
        processes = [self._read_process(run, level, stretch.start, t) for run, level in stretch.parts]
        return [*processes, self._display(t)] if self._slot.has_display else processes

    def _read_process(self, run: Run, level: float, since: float, t: float) -> Process:
        slot = self._slot
        pid = run.pids[run.slots.index(slot.number)]
        return Process(
            pid=pid,
            user=run.user,
            command=run.command,
            memory_used_bytes=memory_mib(run.work, slot.memory_mib, t - run.start) * MIB,
            started_at=run.start,
            utilization_percent=self._process_percent(run, level, self._slow_beat(since, t)),
            container=run.container,
            job=run.job,
            evidence=run.tell_owner(pid),
            reasons=self.process_reasons.copy(),
        )

    def _process_percent(self, run: Run, level: float, t: float) -> float | None:
        return round(utilization(run.work, level, self._slot.number, t))

    def _display(self, t: float) -> Process:
        pid = 1200 + self._slot.salt % 600
        return Process(
            pid=pid,
            user="root",
            command="Xorg :0 -nolisten tcp vt2",
            memory_used_bytes=(8 + self._slot.salt % 40) * MIB,
            started_at=self._life.booted(t) + 20,
            utilization_percent=0,
            evidence=f"uid 0 of /proc/{pid}",
            display=True,
        )


class HotGpu(Gpu):
    """A GPU whose airflow is blocked."""

    def _celsius(self, t: float) -> float:
        return stifled_temperature(self._track.warmth(t), room_offset(self._slot.salt, t))


class CutBoard:
    """A board in MIG mode. Its instances share what the chip alone has, made by the work of all of them."""

    def __init__(self, slots: Sequence[Slot], tracks: Sequence[Track]) -> None:
        self._model, self._salt = slots[0].model, slots[0].salt
        self._shares = [(slot.share, track) for slot, track in zip(slots, tracks, strict=True)]
        self._read_at = nan
        self._metrics: dict[str, Number] = {}

    def metrics(self, now: float) -> dict[str, Number]:
        """Read every 24 s, for all instances at the same moment."""
        t = now - now % _REST_BEAT_S
        if t != self._read_at:
            self._read_at = t
            self._metrics = self._read(t)
        return self._metrics

    def _read(self, t: float) -> dict[str, Number]:
        model, stretches = self._model, [(share, track.at(t)) for share, track in self._shares]
        is_taken = any(stretch.parts for _, stretch in stretches)
        effort = min(1.0, sum(share * stretch.heat for share, stretch in stretches))
        warmth = sum(share * track.warmth(t) for share, track in self._shares)
        celsius = temperature(model, warmth, room_offset(self._salt, t))
        watts = power_watts(model, effort, is_taken=is_taken, ripple=0.0)
        return {
            "temperature_celsius": round(celsius),
            "memory_temperature_celsius": round(celsius * (model.features.memory_warmth or 1.0)),
            "clock_sm_mhz": clock_sm_mhz(model, effort, celsius, is_taken=is_taken),
            "clock_memory_mhz": model.clock_memory_mhz[is_taken],
            "performance_state": model.features.states[is_taken],
            "throttled_power": int(is_capped(model, watts)),
        }


class GpuInstance(Gpu):
    """A MIG instance: it has its own memory and processes; what the board alone can tell is unknown."""

    process_reasons: ClassVar[dict[str, str]] = {"utilization_percent": reasons.UNDER_MIG}

    def __init__(self, slot: Slot, track: Track, life: Life, meter: Meter, faults: Faults, *, board: CutBoard) -> None:
        super().__init__(slot, track, life, meter, faults)
        self._board = board

    def reading(self, now: float) -> GpuReading:
        # The board moves to its own beat, which is not the one this instance's frame was made for.
        reading = super().reading(now)
        reading.metrics.update(self._board.metrics(now))
        return reading

    def _read_metrics(self, stretch: Stretch, t: float) -> dict[str, Number]:
        return self._settled | {"memory_used_bytes": self._used_mib() * MIB}

    def _process_percent(self, run: Run, level: float, t: float) -> float | None:
        return None


class OrphanedGpu(Gpu):
    """A GPU on which no process is left, though memory is still held."""

    def _used_mib(self) -> int:
        return int(self._slot.memory_mib * (0.25 + 0.4 * draw(self._slot.salt, 0)))

    def reading(self, now: float) -> GpuReading:
        return replace(super().reading(now), idle_seconds=round(now - self._life.booted(now)))


class MissingGpu:
    """A GPU that belongs here and cannot be read any more. Every few days somebody gets it going, and it is `itself`
    for some minutes."""

    def __init__(self, itself: Gpu, slot: Slot, life: Life) -> None:
        self._itself, self._slot, self._life = itself, slot, life

    def is_missing(self, now: float) -> bool:
        return (now + self._slot.salt) % _TRIED_EVERY_S >= _LASTS_S

    def turns(self, start: float, end: float) -> list[float]:
        """When it comes back, and when it is lost again."""
        first = start - (start + self._slot.salt) % _TRIED_EVERY_S
        tries = [first + number * _TRIED_EVERY_S for number in range(int((end - first) // _TRIED_EVERY_S) + 1)]
        return [moment for tried in tries for moment in (tried, tried + _LASTS_S) if start <= moment < end]

    def reading(self, now: float) -> GpuReading:
        """While it is missing what is still known: which one it is."""
        if not self.is_missing(now):
            return self._itself.reading(now)
        slot = self._slot
        return GpuReading(
            uuid=slot.uuid,
            index=slot.index,
            name=slot.name,
            vendor=slot.model.vendor,
            pci_address=slot.pci_address,
            missing=FELL_OFF,
            unknown=dict.fromkeys(GPU_METRICS, FELL_OFF),
            processes_reason=FELL_OFF,
            idle_seconds=round(now - self._life.booted(now)),
        )
