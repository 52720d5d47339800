"""A host of the simulated fleet at thousands of moments at once: what `HostSimulator.report` says of each of them, as
columns.

The simulator answers about one moment in a quarter of a millisecond, which is far too long for the hundred thousands of
a past of weeks. Everything here repeats the simulator's formulas on arrays, one GPU at a time, and comes to the same
numbers: `tests/demo/test_columns.py` compares them.
"""

from collections.abc import Callable, Iterator
from math import pi
from typing import Any, Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.collectors.simulated import physics
from gpudeck.collectors.simulated.chance import ACTIVITY, KNOTS
from gpudeck.collectors.simulated.fleet import (
    BEAT_S,
    CHECKPOINT_BYTES_PER_SECOND,
    DISK_BEAT_S,
    FETCH_BYTES_PER_SECOND,
    HostSimulator,
)
from gpudeck.collectors.simulated.gpus import (
    MIB,
    REST_BEAT_S,
    SLOW_BEAT_S,
    WORK_BEAT_S,
    MissingSimulatedGpu,
    errors,
    settled,
    wears,
)
from gpudeck.collectors.simulated.inventory import GpuSlot, HostSpec, Volume
from gpudeck.collectors.simulated.jobs import SimulatedJob
from gpudeck.collectors.simulated.work import ACTIVITY_METRICS
from gpudeck.history.codec import Bytes, Flags, Floats
from gpudeck.history.hour import BUSY, FREE, IDLE, UNKNOWN
from gpudeck.history.sample import HOST_NAMES
from gpudeck.model.availability import AvailabilitySettings
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS

_Indexes = NDArray[np.int64]
_Metrics = dict[str, Floats]
_KINDS: Final = {"training": 0, "loader": 1, "notebook": 2, "inference": 3, "holder": 4}
_TRAINING, _LOADER, _NOTEBOOK, _INFERENCE, _HOLDER = _KINDS.values()
_RULES: Final = AvailabilitySettings()
_BLOCKS_BEFORE: Final = 8
"""How warm a GPU is depends on up to three stretches before, of which one may be longer than a block."""
_GIB, _TIB = 1 << 30, 1 << 40
_OF_WORK: Final = (
    *("load_s", "ramp_s", "period_s", "rest_s", "rest_level", "level", "swing", "intensity", "bandwidth"),
    *("memory_share", "threads", "ram_bytes", "salt"),
)
_ACTIVITY: Final = np.array(ACTIVITY)
_KNOTS: Final = np.array(KNOTS)


class RunColumns(Struct):
    """One job on one GPU, from its first moment to its last: `places` are those moments."""

    job: SimulatedJob
    pid: int
    places: slice
    present: Flags
    memory: Floats
    utilization: Floats


class SampledGpus(Struct):
    """`runs` are in the order of their first moments. NaN is unknown."""

    slot: GpuSlot
    states: Bytes
    metrics: _Metrics
    runs: list[RunColumns]


class SampledHosts(Struct):
    """`is_alive` is False where the host sends nothing; then everything is unknown."""

    spec: HostSpec
    times: Floats
    is_alive: Flags
    gpus: list[SampledGpus]
    metrics: _Metrics

    def stack(self) -> tuple[Bytes, _Metrics, _Metrics]:
        """The states, (GPUs, moments), all metrics of the GPUs, and those of the host."""
        nothing = np.full(len(self.times), np.nan)
        tables = {name: np.stack([gpu.metrics.get(name, nothing) for gpu in self.gpus]) for name in GPU_METRICS}
        own = {name: self.metrics.get(name, nothing) for name in HOST_METRICS}
        return np.stack([gpu.states for gpu in self.gpus]), tables, own


class _Segments(Struct):
    """`physics.LoadSegment` of each moment: `runs` and `levels` are those of the job and of its guest, -1 where there
    is none. `idle_since` is NaN while there is work."""

    start: Floats
    runs: tuple[_Indexes, _Indexes]
    levels: tuple[Floats, Floats]
    heat: Floats
    idle_since: Floats


def read_columns(station: HostSimulator, times: Floats) -> SampledHosts:
    """`times` are in order."""
    return _HostReader(station, times).read()


def draw(salt: _Indexes, number: _Indexes) -> Floats:
    """As `chance.draw`."""
    mask = np.uint64(0xFFFFFFFF)
    mixed = salt.astype(np.uint64) * np.uint64(0x9E3779B1) + number.astype(np.uint64) * np.uint64(0x85EBCA77)
    mixed = (mixed + np.uint64(0x27D4EB2F)) & mask
    mixed = ((mixed ^ (mixed >> np.uint64(15))) * np.uint64(0x2C1B3C6D)) & mask
    mixed = ((mixed ^ (mixed >> np.uint64(12))) * np.uint64(0x297A2D39)) & mask
    return (mixed ^ (mixed >> np.uint64(15))) / 0x100000000


def wave(salt: "int | _Indexes", t: Floats, seconds: float) -> Floats:
    """As `chance.wave`."""
    position = t / seconds + salt * 0.618034
    whole = position.astype(np.int64)
    part = position - whole
    knot = whole % (len(_KNOTS) - 1)
    before = _KNOTS[knot]
    found: Floats = before + (_KNOTS[knot + 1] - before) * part * part * (3.0 - 2.0 * part)
    return found


class _Jobs:
    """All jobs of a host in a span, and what each slot has when."""

    def __init__(self, station: HostSimulator, start: float, end: float) -> None:
        self.jobs: list[SimulatedJob] = []
        self._numbers: dict[tuple[float, int], int] = {}
        self._life, self._slots = station.host.life, station.host.slots
        numbers = range(self._life.number(start) - _BLOCKS_BEFORE, self._life.number(end) + 1)
        blocks = [station.timeline.work_out(number).runs for number in numbers]
        entries = [self._entries(slot, numbers, [block[slot.number] for block in blocks]) for slot in self._slots]
        self.tables = [np.array(one, np.float64).T for one in entries]
        """For each slot: from when on, since when, which job (-1: none), and what its counter of energy had."""
        works = [job.work for job in self.jobs]
        self.of_work: dict[str, NDArray[Any]] = {
            name: np.array([getattr(work, name) for work in works] or [0]) for name in _OF_WORK
        }
        self.activity = np.array([work.activity for work in works] or [(0.0,) * len(ACTIVITY_METRICS)])
        self.kind: _Indexes = np.array([_KINDS[work.kind] for work in works] or [0])
        self.start = np.array([job.start for job in self.jobs] or [0.0])
        self.end = np.array([job.end for job in self.jobs] or [0.0])
        guests = [job.guest for job in self.jobs]
        self.guest: _Indexes = np.array([-1 if one is None else self._number(one) for one in guests] or [-1])
        self.guest_slot: _Indexes = np.array([-1 if one is None else one.slots[0] for one in guests] or [-1])

    def _number(self, job: SimulatedJob) -> int:
        key = job.start, job.pids[0]
        if key not in self._numbers:
            self._numbers[key] = len(self.jobs)
            self.jobs.append(job)
            if job.guest is not None:
                self._number(job.guest)
        return self._numbers[key]

    def _entries(
        self, slot: GpuSlot, numbers: range, blocks: list[list[SimulatedJob]]
    ) -> list[tuple[float, float, int, float, float]]:
        """As `Timeline.tenure` and `Timeline.counted` answer about each stretch of time."""
        life, entries, previous = self._life, list[tuple[float, float, int, float, float]](), list[SimulatedJob]()
        for number, runs in zip(numbers, blocks, strict=True):
            opens, closes = life.opens(number), life.opens(number + 1)
            since = previous[-1].end if previous else life.opens(number - 1)
            since = opens if life.boots_at(number) else since
            counted_since, joules, begin = opens, 0.0, opens
            for place, run in enumerate(runs):
                if run.start > begin:
                    entries.append((begin, since, -1, counted_since, joules))
                if not place:
                    counted_since = min(opens, run.start)
                is_crossing_out = run.end > closes
                counted = (run.start, 0.0) if is_crossing_out else (counted_since, joules)
                entries.append((max(run.start, opens), run.start, self._number(run), *counted))
                joules += taken(slot, run, run.end)
                since = begin = run.end
            if begin < closes:
                entries.append((begin, since, -1, counted_since, joules))
            previous = runs
        return entries


def taken(slot: GpuSlot, run: SimulatedJob, t: float) -> float:
    """As `physics.EnergyMeter` counts a job that has ended."""
    model, guest = slot.model, run.guest
    joules = physics.taken_by(model, run, t) + (model.ready_watts - model.idle_watts) * (min(t, run.end) - run.start)
    if guest is not None and slot.number in guest.slots and t > guest.start:
        joules += physics.taken_by(model, guest, t)
    return joules


class _HostReader:
    def __init__(self, station: HostSimulator, times: Floats) -> None:
        self._station, self._times = station, times
        self._spec = station.host
        self._jobs = _Jobs(station, float(times[0]), float(times[-1]))
        life = self._spec.life
        moments = times.tolist()
        self._booted = np.array([life.booted(t) for t in moments])
        self._is_alive = np.array([life.is_alive(t) for t in moments])

    def read(self) -> SampledHosts:
        segments = [self._segments(slot.number, self._times) for slot in self._spec.slots]
        missing = {gpu.slot.number: gpu for gpu in self._station.missing}
        boards: dict[str, _Metrics] = {}
        gpus = []
        for slot, found in zip(self._spec.slots, segments, strict=True):
            if slot.parent is not None and slot.parent not in boards:
                boards[slot.parent] = self._read_board([one for one in self._spec.slots if one.parent == slot.parent])
            gpu = self._read_gpu(slot, found, boards.get(slot.parent or ""))
            if slot.number in missing:
                self._lose(gpu, missing[slot.number])
            gpus.append(gpu)
        metrics = self._read_system(segments)
        for table, gone in ((gpu.metrics, gpu) for gpu in gpus):
            self._hide(table)
            gone.states[~self._is_alive] = UNKNOWN
        self._hide(metrics)
        for gpu in gpus:
            gpu.runs = [run for one in gpu.runs if (run := _cut(one, gpu.states)) is not None]
        return SampledHosts(self._spec, self._times, self._is_alive, gpus, metrics)

    def _hide(self, metrics: _Metrics) -> None:
        for values in metrics.values():
            values[~self._is_alive] = np.nan

    def _lose(self, gpu: SampledGpus, simulated: MissingSimulatedGpu) -> None:
        is_missing = np.array([simulated.is_missing(t) for t in self._times.tolist()])
        gpu.states[is_missing] = UNKNOWN
        for values in gpu.metrics.values():
            values[is_missing] = np.nan

    # What a slot does

    def _phase(self, runs: _Indexes, t: Floats) -> tuple[Floats, Floats]:
        """As `physics.phase_at`: when it began, and the level."""
        jobs, work = self._jobs, self._jobs.of_work
        kind, period, level = jobs.kind[runs], work["period_s"][runs], work["level"][runs]
        started = jobs.start[runs]
        begun = started + work["load_s"][runs]
        first = begun + (t - begun) // period * period
        pause = first + period - work["rest_s"][runs]
        is_training, done = kind == _TRAINING, begun + period
        cases = [t < begun, is_training & (t < pause), is_training, kind == _LOADER, kind == _HOLDER]
        starts = np.select(cases, [started, first, pause, begun, np.where(t < done, begun, done)])
        held = np.where(t < done, level, 0.0)
        levels = np.select(cases, [0.0, level, work["rest_level"][runs], level, held])
        bursts = np.flatnonzero(((kind == _NOTEBOOK) | (kind == _INFERENCE)) & (t >= begun))
        if len(bursts):
            starts[bursts], levels[bursts] = self._by_bursts(runs[bursts], t[bursts], begun[bursts])
        return starts, levels

    def _by_bursts(self, runs: _Indexes, t: Floats, begun: Floats) -> tuple[Floats, Floats]:
        number = ((t - begun) // self._jobs.of_work["period_s"][runs]).astype(np.int64)
        is_there, opens, closes, level = self._burst(runs, begun, number)
        is_inside = is_there & (opens <= t) & (t < closes)
        starts = np.where(is_inside, opens, self._jobs.start[runs])
        left = np.flatnonzero(~is_inside)
        while len(left):
            is_there, _, closes, _ = self._burst(runs[left], begun[left], number[left])
            is_over = is_there & (closes <= t[left])
            starts[left[is_over]] = closes[is_over]
            number[left] -= 1
            left = left[~is_over & (number[left] >= 0)]
        return starts, np.where(is_inside, level, 0.0)

    def _burst(self, runs: _Indexes, begun: Floats, number: _Indexes) -> tuple[Flags, Floats, Floats, Floats]:
        work = self._jobs.of_work
        period, salt = work["period_s"][runs], work["salt"][runs]
        opens = begun + number * period
        is_server = self._jobs.kind[runs] == _INFERENCE
        eager = _ACTIVITY[(opens // 3600).astype(np.int64) % len(_ACTIVITY)]
        is_there = draw(salt, 3 * number) <= np.where(is_server, 0.93, 0.2 + 0.7 * eager)
        luck = draw(salt, 3 * number + 1)
        level = np.maximum(physics.LEAST_LEVEL, work["level"][runs] * (0.4 + 0.6 * luck))
        offset = np.where(is_server, 0, np.floor(period * 0.3 * luck))
        length = np.where(is_server, period, np.floor(period * (0.1 + 0.5 * draw(salt, 3 * number + 2))))
        return is_there, opens + offset, opens + offset + length, level

    def _segments(self, slot: int, t: Floats) -> _Segments:
        """As `physics.segment_at`."""
        jobs = self._jobs
        _, since, run = self._tenures(slot, t)[:3]
        runs = run.astype(np.int64)
        started, level = self._phase(runs, t)
        is_there = runs >= 0
        guests = np.where(is_there & (jobs.guest_slot[runs] == slot), jobs.guest[runs], -1)
        start = np.where(is_there, started, since)
        idle_since = start.copy()
        beside = np.flatnonzero(guests >= 0)
        guest_start, guest_level = np.zeros(len(t)), np.zeros(len(t))
        if len(beside):
            guest_start[beside], guest_level[beside] = self._phase(guests[beside], t[beside])
            begins, ends = jobs.start[guests], jobs.end[guests]
            is_after, is_inside = (guests >= 0) & (t >= ends), (guests >= 0) & (t >= begins) & (t < ends)
            together = np.maximum(start, guest_start)
            idle_since = np.where(is_inside, together, idle_since)
            start = np.where(is_after, np.maximum(start, ends), start)
            start = np.where(is_inside, np.maximum(together, begins), start)
            guests = np.where(is_inside, guests, -1)
        levels = np.where(is_there, level, 0.0), np.where(guests >= 0, guest_level, 0.0)
        intensity = jobs.of_work["intensity"]
        heat = np.minimum(1.0, levels[0] * intensity[runs] + levels[1] * intensity[guests])
        idle_since = np.where((levels[0] > 0) | (levels[1] > 0), np.nan, idle_since)
        return _Segments(start, (runs, guests), levels, heat, idle_since)

    def _tenures(self, slot: int, t: Floats) -> Floats:
        table = self._jobs.tables[slot]
        return table[:, np.maximum(table[0].searchsorted(t, side="right") - 1, 0)]

    def _warmth(self, slot: int, t: Floats, now: _Segments) -> Floats:
        """As `SlotTrack.warmth`."""
        before: list[_Segments] = [now]
        for _ in range(3):
            before.append(self._segments(slot, before[-1].start - 1.0))
        warmth = before[3].heat
        for earlier, later in ((before[2], before[1]), (before[1], now)):
            warmth = _cooled(earlier.heat, warmth, later.start - earlier.start)
        since = t - now.start
        return np.where(since > physics.SETTLED_S, now.heat, _cooled(now.heat, warmth, since))

    # What its driver says

    def _read_gpu(self, slot: GpuSlot, found: _Segments, board: _Metrics | None) -> SampledGpus:
        now, work, jobs = self._times, self._jobs.of_work, self._jobs
        offset, is_taken = slot.salt % 24, found.runs[0] >= 0
        ramped = [np.where(run >= 0, jobs.start[run] + work["ramp_s"][run], 0.0) for run in found.runs]
        is_lively = np.isnan(found.idle_since) | (now < np.maximum(*ramped))
        beat = np.where(is_lively, WORK_BEAT_S, REST_BEAT_S)
        t = np.maximum(found.start, now - (now + offset) % beat)
        slow = np.maximum(found.start, t - (t + offset) % SLOW_BEAT_S)
        memory = [self._memory_mib(slot, run, t) for run in found.runs]
        display = (8 + slot.salt % 40) if slot.has_display else 0
        held = memory[0] + memory[1] + display
        used = np.minimum(slot.memory_mib, held + np.where(held > 0, slot.memory_mib // 200, 1 + slot.salt % 12))
        if slot.fault == "orphaned":
            used = np.full(len(now), float(int(slot.memory_mib * (0.25 + 0.4 * _draw_one(slot.salt, 0)))))
        metrics = {name: np.full(len(now), float(value)) for name, value in settled(slot).items()}
        metrics["memory_used_bytes"] = used * MIB
        if board is not None:
            metrics |= {name: values.copy() for name, values in board.items()}
        else:
            metrics |= self._read_board_of_one(slot, found, t, slow, is_taken)
        states = self._judge(slot, found, metrics, display)
        runs = list[RunColumns]()
        for number, held_mib, level in zip(found.runs, memory, found.levels, strict=True):
            percent = np.rint(self._utilization(number, level, slot.number, slow))
            percent = np.full(len(now), np.nan) if slot.parent is not None else percent
            runs += self._split_runs(slot, number, held_mib * MIB, percent)
        runs.sort(key=lambda run: (run.places.start, run.pid))
        return SampledGpus(slot, states, metrics, runs)

    def _memory_mib(self, slot: GpuSlot, runs: _Indexes, t: Floats) -> Floats:
        """As `physics.memory_mib`; 0 without a job."""
        work, age = self._jobs.of_work, t - self._jobs.start[runs]
        full = np.floor(work["memory_share"][runs] * slot.memory_mib)
        ramp = work["ramp_s"][runs]
        context = np.minimum(physics.CONTEXT_MIB, full)
        growing = context + np.floor((full - context) * age / np.maximum(ramp, 1))
        return np.where(runs >= 0, np.where(age >= ramp, full, growing), 0.0)

    def _utilization(self, runs: _Indexes, level: Floats, salt: int, t: Floats) -> Floats:
        """As `physics.utilization`."""
        work = self._jobs.of_work
        swung = 100.0 * level + work["swing"][runs] * wave(work["salt"][runs] + salt, t, 12.0)
        return np.where(level > 0, np.minimum(100.0, np.maximum(6.0, swung)), 0.0)

    def _read_board_of_one(self, slot: GpuSlot, found: _Segments, t: Floats, slow: Floats, is_taken: Flags) -> _Metrics:
        """What a GPU that is not divided has of its own."""
        model, work, features = slot.model, self._jobs.of_work, slot.model.features
        shares = [
            self._utilization(run, level, slot.number, t) / 100
            for run, level in zip(found.runs, found.levels, strict=True)
        ]
        load = np.minimum(1.0, shares[0] + shares[1])
        effort, bandwidth, video = (
            sum(share * weights[run] for share, run in zip(shares, found.runs, strict=True))
            for weights in (work["intensity"], work["bandwidth"], 0.4 * self._plays_films())
        )
        effort, bandwidth = np.minimum(1.0, effort), np.minimum(1.0, bandwidth)
        celsius = self._celsius(slot, found, t)
        watts = _power_watts(slot, effort, is_taken, wave(slot.salt, t, 7.0))
        metrics = {
            "utilization_percent": np.rint(100 * load),
            "memory_utilization_percent": np.rint(100 * bandwidth),
            "temperature_celsius": np.rint(celsius),
            "power_watts": _round("power_watts", watts),
            "clock_sm_mhz": _clock_sm_mhz(slot, effort, celsius, is_taken),
            "clock_memory_mhz": np.where(is_taken, model.clock_memory_mhz[1], model.clock_memory_mhz[0]).astype(float),
        }
        if features.memory_warmth is not None:
            metrics["memory_temperature_celsius"] = np.rint(celsius * features.memory_warmth)
        if features.fan:
            metrics["fan_percent"] = np.rint(np.clip(30.0 + (celsius - 42.0) * 1.7, 30.0, 100.0))
        if model.vendor == "nvidia":
            metrics["encoder_percent"] = np.rint(40 * video) if features.encodes else np.zeros(len(t))
            metrics["decoder_percent"] = np.rint(100 * video)
            metrics["performance_state"] = np.where(is_taken, features.states[1], features.states[0]).astype(float)
            metrics["throttled_power"] = (watts >= physics.CAPPED * model.limit_watts).astype(float)
            metrics["throttled_thermal"] = (celsius >= physics.STIFLED_CELSIUS).astype(float)
            metrics["throttled_hardware"] = (celsius >= physics.SLOWDOWN_CELSIUS).astype(float)
            metrics["temperature_margin_celsius"] = round(physics.SLOWDOWN_CELSIUS) - np.rint(celsius)
            metrics["energy_joules"] = np.floor(self._joules(slot, found, slow))
            if features.measures_activity:
                metrics |= self._add_up_activity(slot, found, slow)
        if wears(slot):
            booted = np.array([self._spec.life.booted(moment) for moment in t.tolist()])
            counts = [errors(slot, uptime) for uptime in (t - booted).tolist()]
            metrics |= {name: np.array([one[name] for one in counts], np.float64) for name in counts[0]}
        return metrics

    def _add_up_activity(self, slot: GpuSlot, found: _Segments, t: Floats) -> _Metrics:
        """As `physics.add_up_activity`."""
        sums = np.zeros((len(ACTIVITY_METRICS), len(t)))
        for run, level in zip(found.runs, found.levels, strict=True):
            sums += self._utilization(run, level, slot.number, t) / 100 * self._jobs.activity[run].T
        return {
            name: np.rint(100 * np.minimum(1.0, value)) if name.endswith("_percent") else _round(name, value)
            for name, value in zip(ACTIVITY_METRICS, sums, strict=True)
        }

    def _plays_films(self) -> Floats:
        is_server = self._jobs.kind == _INFERENCE
        return np.where(is_server & (self._jobs.of_work["salt"] % 4 == 0), 1.0, 0.0)

    def _celsius(self, slot: GpuSlot, found: _Segments, t: Floats) -> Floats:
        warmth, room = self._warmth(slot.number, t, found), _room_offset(slot.salt, t)
        usual = physics.temperature(slot.model, warmth, room)  # type: ignore[arg-type]
        if slot.fault == "hot":
            return _stifled(warmth, room)
        unstable = next((gpu for gpu in self._station.missing if gpu.slot.number == slot.number), None)
        if unstable is None or slot.fault != "unstable":
            return np.asarray(usual)
        is_strained = np.array([unstable.is_strained(moment) for moment in t.tolist()])
        return np.where(is_strained & (warmth > physics.WORKING_WARMTH), _stifled(np.ones(len(t)), room), usual)

    def _joules(self, slot: GpuSlot, found: _Segments, t: Floats) -> Floats:
        """As `physics.EnergyMeter`."""
        _, _, _, since, before = self._tenures(slot.number, t)
        model, runs = slot.model, found.runs[0]
        own = self._taken_by(slot, runs, t)
        own += (model.ready_watts - model.idle_watts) * (np.minimum(t, self._jobs.end[runs]) - self._jobs.start[runs])
        guests = np.where(self._jobs.guest_slot[runs] == slot.number, self._jobs.guest[runs], -1)
        has_guest = (guests >= 0) & (t > self._jobs.start[guests])
        own = own + np.where(has_guest, self._taken_by(slot, guests, t), 0.0)
        joules: Floats = model.idle_watts * (t - since) + before + np.where(runs >= 0, own, 0.0)
        return joules

    def _taken_by(self, slot: GpuSlot, runs: _Indexes, t: Floats) -> Floats:
        """As `physics.taken_by`, with `physics.effort_seconds`."""
        work, kind = self._jobs.of_work, self._jobs.kind[runs]
        period, level = work["period_s"][runs], work["level"][runs]
        worked = np.maximum(0.0, np.minimum(t, self._jobs.end[runs]) - self._jobs.start[runs] - work["load_s"][runs])
        periods, begun = np.divmod(worked, np.maximum(period, 1))
        rest_s, steady_s = work["rest_s"][runs], period - work["rest_s"][runs]
        steady = periods * steady_s + np.minimum(begun, steady_s)
        rest = periods * rest_s + np.maximum(0.0, begun - steady_s)
        training = (steady * level + rest * work["rest_level"][runs]) * work["intensity"][runs]
        duty = np.array([physics.DUTY.get(name, 1.0) for name in _KINDS])[kind]
        worked = np.where(kind == _HOLDER, np.minimum(worked, period), worked)
        others = worked * level * work["intensity"][runs] * duty
        effort: Floats = np.where(kind == _TRAINING, training, others)
        return effort * (slot.model.limit_watts - slot.model.ready_watts)

    def _read_board(self, slots: list[GpuSlot]) -> _Metrics:
        """As `gpus.MigBoard`."""
        model, salt, t = slots[0].model, slots[0].salt, self._times - self._times % REST_BEAT_S
        effort, warmth = np.zeros(len(t)), np.zeros(len(t))
        is_taken = np.zeros(len(t), np.bool_)
        for slot in slots:
            found = self._segments(slot.number, t)
            is_taken |= found.runs[0] >= 0
            effort += slot.share * found.heat
            warmth += slot.share * self._warmth(slot.number, t, found)
        effort = np.minimum(1.0, effort)
        celsius = np.asarray(physics.temperature(model, warmth, _room_offset(salt, t)))  # type: ignore[arg-type]
        watts = _power_watts(slots[0], effort, is_taken, np.zeros(len(t)))
        return {
            "temperature_celsius": np.rint(celsius),
            "memory_temperature_celsius": np.rint(celsius * (model.features.memory_warmth or 1.0)),
            "clock_sm_mhz": _clock_sm_mhz(slots[0], effort, celsius, is_taken),
            "clock_memory_mhz": np.where(is_taken, model.clock_memory_mhz[1], model.clock_memory_mhz[0]).astype(float),
            "performance_state": np.where(is_taken, model.features.states[1], model.features.states[0]).astype(float),
            "throttled_power": (watts >= physics.CAPPED * model.limit_watts).astype(float),
            "temperature_margin_celsius": round(physics.SLOWDOWN_CELSIUS) - np.rint(celsius),
        }

    def _judge(self, slot: GpuSlot, found: _Segments, metrics: _Metrics, display_mib: int) -> Bytes:
        """As `model.availability.judge`."""
        now = self._times
        idle = np.where(np.isnan(found.idle_since), 0.0, np.rint(now - found.idle_since))
        if slot.fault == "orphaned":
            idle = np.rint(now - self._booted)
        oldest = [np.where(run >= 0, self._jobs.start[run], np.inf) for run in found.runs]
        idle = np.minimum(idle, np.where(found.runs[0] >= 0, now - np.minimum(*oldest), np.inf))
        is_occupied = (found.runs[0] >= 0) | (metrics["memory_used_bytes"] - display_mib * MIB > _RULES.empty_bytes)
        percent = metrics.get("utilization_percent")
        if percent is None:
            return np.where(is_occupied, BUSY, FREE).astype(np.uint8)
        is_idle = is_occupied & (idle >= _RULES.idle_after)
        cases = [percent >= _RULES.work_percent, is_idle, is_occupied]
        return np.select(cases, [BUSY, IDLE, BUSY], FREE).astype(np.uint8)

    def _split_runs(self, slot: GpuSlot, runs: _Indexes, memory: Floats, percent: Floats) -> Iterator[RunColumns]:
        edges = np.flatnonzero(np.diff(runs, prepend=-2, append=-2))
        for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            if runs[first] >= 0:
                job, places = self._jobs.jobs[runs[first]], slice(first, last)
                pid = job.pids[job.slots.index(slot.number)]
                there: Flags = np.ones(last - first, np.bool_)
                yield RunColumns(job, pid, places, there, memory[places].copy(), percent[places].copy())

    # The host

    def _read_system(self, segments: list[_Segments]) -> _Metrics:
        """As `SystemSimulator`."""
        now, spec, work = self._times, self._spec, self._jobs.of_work
        chassis, salt = spec.chassis, spec.salt
        t = now - (now + salt % 12) % BEAT_S
        threads = np.full(len(t), 1.0 + 0.4 * _draw_one(salt, 1))
        ram = np.zeros(len(t))
        receive = np.full(len(t), 4e4 + 2e5 * _draw_one(salt, 3))
        transmit = receive.copy()
        for found in segments:
            for run, level in zip(found.runs, found.levels, strict=True):
                is_there, own = run >= 0, work["threads"][run]
                fetched = FETCH_BYTES_PER_SECOND * own * level
                grown = np.minimum(1.0, (t - self._jobs.start[run] + BEAT_S) / (BEAT_S + work["ramp_s"][run]))
                is_saving = (
                    (self._jobs.kind[run] == _TRAINING)
                    & (level == work["rest_level"][run])
                    & (found.start >= self._jobs.start[run] + work["load_s"][run])
                )
                threads += np.where(is_there, own * (0.15 + 0.85 * (level > 0)), 0.0)
                ram += np.where(is_there, work["ram_bytes"][run] * grown, 0.0)
                receive += np.where(is_there, fetched, 0.0)
                sent = np.where(is_saving, CHECKPOINT_BYTES_PER_SECOND, 0.05 * fetched)
                transmit += np.where(is_there, sent, 0.0)
        threads = np.minimum(chassis.cpu_threads * 0.97, threads * (1 + 0.12 * wave(salt, t, 40.0)))
        total, swap = chassis.ram_gib * _GIB, spec.swap_gib * _GIB
        share = np.minimum(0.92, 0.03 + ram / total)
        values: dict[str, Floats | float] = {
            "cpu_percent": 100 * threads / chassis.cpu_threads,
            "cpu_count": chassis.cpu_threads,
            "load_1m": threads * (1.05 + 0.05 * wave(salt + 1, t, 90.0)),
            "memory_used_bytes": share * total,
            "memory_total_bytes": total,
            "swap_used_bytes": swap * (0.02 + 0.1 * _draw_one(salt, 7) + 0.6 * np.maximum(0.0, share - 0.4)),
            "swap_total_bytes": swap,
            "disk_used_bytes": _disk_used(spec.volumes[0], t - t % DISK_BEAT_S),
            "disk_total_bytes": int(spec.volumes[0].tib * _TIB),
            "network_receive_bytes_per_second": receive * (1 + 0.4 * wave(salt + 2, t, 30.0)),
            "network_transmit_bytes_per_second": transmit * (1 + 0.4 * wave(salt + 3, t, 30.0)),
            "uptime_seconds": now - self._booted,
        }
        return {name: _round_host(name, np.broadcast_to(values[name], len(t))) for name in HOST_NAMES if name in values}


def _cut(run: RunColumns, states: Bytes) -> RunColumns | None:
    """Without the moments at which nothing could be read; None where that is all of them."""
    is_seen = states[run.places] > UNKNOWN
    if is_seen.all():
        return run
    run.present &= is_seen
    run.memory[~is_seen] = run.utilization[~is_seen] = np.nan
    return run if is_seen.any() else None


def _cooled(heat: Floats, warmth: Floats, seconds: Floats) -> Floats:
    return heat + (warmth - heat) * np.exp(-seconds / physics.COOLING_S)


def _draw_one(salt: int, number: int) -> float:
    return float(draw(np.array([salt]), np.array([number]))[0])


def _room_offset(salt: int, t: Floats) -> Floats:
    return 1.2 * np.sin(2 * pi * (t / 86_400 - 0.38)) + 1.1 * wave(salt, t, 900.0)


def _stifled(warmth: Floats, room: Floats) -> Floats:
    hot = physics.STIFLED_CELSIUS
    return np.minimum(physics.HOTTEST_CELSIUS, np.maximum(hot, hot + 4.0 * warmth + room))


def _power_watts(slot: GpuSlot, effort: Floats, is_taken: Flags, ripple: Floats) -> Floats:
    model = slot.model
    rest = np.where(is_taken, model.ready_watts, model.idle_watts)
    drawn = rest + (model.limit_watts - rest) * effort
    return np.minimum(float(model.limit_watts), drawn + ripple * (0.6 + drawn * 0.012))


def _clock_sm_mhz(slot: GpuSlot, load: Floats, celsius: Floats, is_taken: Flags) -> Floats:
    empty, full = slot.model.clock_sm_mhz
    pace = 1.0 - 0.14 * load * load - np.where(celsius >= physics.STIFLED_CELSIUS, 0.22, 0.0)
    return np.where(is_taken, np.floor(full * pace) // 15 * 15, float(empty))


def _disk_used(volume: Volume, t: Floats) -> Floats:
    share = np.minimum(0.995, volume.share + volume.swing * wave(volume.salt, t, 4 * 86_400))
    used: Floats = np.floor(int(volume.tib * _TIB) * share) // MIB * MIB
    return used


def _rounder(catalog: Any) -> Callable[[str, Floats], Floats]:
    def round_all(name: str, values: Floats) -> Floats:
        precision = catalog[name].precision
        steps: Floats = np.rint(values / precision) * precision
        return steps if precision >= 1 else np.round(steps, 6)

    return round_all


_round, _round_host = _rounder(GPU_METRICS), _rounder(HOST_METRICS)
