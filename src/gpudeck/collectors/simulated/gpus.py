"""The simulated GPUs of one host as their driver would report them. A reading depends on its time alone."""

from collections.abc import Iterator
from math import floor, nan
from typing import ClassVar, NamedTuple

from msgspec.structs import replace

from gpudeck.collectors.base import NO_VALUE, UNSUPPORTED, WHOLE_BOARD
from gpudeck.collectors.drm_cards import AMD_REASONS
from gpudeck.collectors.nvml_board import UNDER_MIG
from gpudeck.collectors.nvml_device import NEEDS_HOPPER, NOT_ASKED_FOR
from gpudeck.collectors.proc import UNSUPPORTED as AMD_UNSUPPORTED
from gpudeck.collectors.simulated import physics
from gpudeck.collectors.simulated.chance import draw, wave
from gpudeck.collectors.simulated.inventory import FELL_OFF, GpuSlot, HostLifecycle
from gpudeck.collectors.simulated.jobs import SimulatedJob, Timeline
from gpudeck.collectors.simulated.physics import LoadSegment, SlotTrack
from gpudeck.collectors.simulated.work import ACTIVITY_METRICS
from gpudeck.model.catalog import GPU_METRICS
from gpudeck.model.report import GpuEvent, GpuReading, Number, Process

AMD_UNKNOWN = AMD_REASONS | {"fan_percent": AMD_UNSUPPORTED}
_PCIE = ("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second")
_ERRORS = ("ecc_corrected_count", "ecc_uncorrected_count")
_ROWS = ("remapped_rows_count", "remapped_rows_pending")
_LINKS = ("nvlink_active_count", "nvlink_inactive_count", "nvlink_error_count")
PCIE_LINK = ("pcie_generation", "pcie_generation_max", "pcie_width", "pcie_width_max")
_OF_BOARD = ("encoder_percent", "decoder_percent", "power_watts", "power_limit_watts", "energy_joules")
DAY = 86_400.0
_OF_PROGRAMS = 0.03
_OF_BOARDS = 0.002
_PROGRAM_CODES = (31, 13, 43, 45, 31)
_BOARD_CODES = (63, 94, 92, 109, 63)
_TEXTS = {
    13: "Graphics Exception: ESR 0x505648=0x1000e",
    31: "MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_0 faulted",
    43: "Ch 00000018, engmask 00000101",
    45: "Ch 00000010",
    48: "DBE (double bit error)",
    63: "Row Remapper: New row marked for remapping",
    74: "NVLINK: fatal error detected on link 2",
    79: "GPU has fallen off the bus.",
    92: "High single-bit ECC error rate",
    94: "Contained ECC error",
    109: "Context switch timeout",
}
MIB = 1 << 20

# A working GPU is read anew every 4 s, one at rest every 24 s, a process and the energy every 12 s: enough to look
# alive, and little enough that a stream of changes stays small.
WORK_UPDATE_SECONDS, REST_UPDATE_SECONDS, SLOW_UPDATE_SECONDS = 4.0, 24.0, 12.0

_TRIED_EVERY_S, _LASTS_S = 4.5 * 86_400, 1_260.0

_BREAKDOWN_EVERY_S, _STRAIN_S = 41 * 3600, 7200
"""An unstable GPU breaks down about every other day, and throttles for the hours before that."""
_BREAKDOWN_CODES = (94, 74, 48, 63)

_MEAN_POWER = 0.4
"""The counter of energy grows with this share of the power limit: it does not follow the work."""

_round_watts = GPU_METRICS["power_watts"].round


def settled(slot: GpuSlot) -> dict[str, Number]:
    features = slot.model.features
    values: dict[str, Number] = {"memory_total_bytes": slot.memory_mib * MIB}
    if slot.parent is not None:
        return values | dict.fromkeys(("throttled_thermal", "throttled_hardware", "remapped_rows_pending"), 0)
    values["power_limit_watts"] = slot.model.limit_watts
    if features.has_ecc:
        values |= dict.fromkeys(_ERRORS, 0)
    if features.remaps_rows:
        # Rows replaced in its whole life, and whether one more waits for a reset.
        rows = (3 + slot.salt % 4, 1) if slot.fault == "worn" else (int(slot.salt % 29 == 0), 0)
        values |= dict(zip(_ROWS, rows, strict=True))
    if features.links:
        down = int(slot.fault == "unlinked")
        values |= dict(zip(_LINKS, (features.links - down, down, 40 * down), strict=True))
        values |= {"nvlink_error_link": 3} if down else {}
    if slot.model.vendor == "nvidia":
        values |= dict(zip(PCIE_LINK, (*[features.generation] * 2, 16, 16), strict=True))
    return values


def unknowns(slot: GpuSlot) -> dict[str, str]:
    if slot.model.vendor == "amd":
        return AMD_UNKNOWN.copy()
    features = slot.model.features
    lacking = {
        ("fan_percent",): not features.fan,
        ("memory_temperature_celsius",): features.memory_warmth is None,
        _ERRORS: not features.has_ecc,
        _ROWS: not features.remaps_rows,
        _LINKS: not features.links,
        ("utilization_percent", "memory_utilization_percent"): slot.parent is not None,
    }
    unknown = {name: UNSUPPORTED for names, is_lacking in lacking.items() if is_lacking for name in names}
    if slot.parent is not None:
        unknown |= dict.fromkeys((*_OF_BOARD, *_ERRORS, _ROWS[0], *_LINKS, *PCIE_LINK), WHOLE_BOARD)
    if slot.fault != "unlinked" or not features.links:
        unknown["nvlink_error_link"] = NO_VALUE if features.links else UNSUPPORTED
    if not features.measures_activity:
        unknown |= dict.fromkeys(ACTIVITY_METRICS, NEEDS_HOPPER) | dict.fromkeys(_PCIE, NOT_ASKED_FOR)
    return unknown


def wears(slot: GpuSlot) -> bool:
    return slot.model.features.has_ecc and slot.parent is None and (slot.fault == "worn" or slot.salt % 13 == 0)


def errors(slot: GpuSlot, uptime_s: float) -> dict[str, Number]:
    days = uptime_s / DAY
    counts = (5 + 31 * days, 1 + days / 9) if slot.fault == "worn" else (0.4 * days, 0)
    return dict(zip(_ERRORS, map(int, counts), strict=True))


class Breakdown(NamedTuple):
    """One failure of an unstable GPU: it throttles, reports a fault at `at`, is lost a minute later, and works again
    after the reset at `reset_at`. Unix seconds."""

    at: int
    reset_at: int
    code: int

    @property
    def lost_at(self) -> int:
        return self.at + 60


def breakdowns(salt: int, start: float, end: float) -> Iterator[Breakdown]:
    """One failure in each interval of `_BREAKDOWN_EVERY_S` seconds, from the interval of `start` to that of `end`."""
    for number in range(floor(start / _BREAKDOWN_EVERY_S), floor(end / _BREAKDOWN_EVERY_S) + 1):
        luck = draw(salt, 5 * number) * (_BREAKDOWN_EVERY_S - _STRAIN_S - 1200)
        at = number * _BREAKDOWN_EVERY_S + _STRAIN_S + int(luck)
        code = _BREAKDOWN_CODES[int(draw(salt, 5 * number + 1) * len(_BREAKDOWN_CODES))]
        yield Breakdown(at, at + 180 + int(draw(salt, 5 * number + 2) * 900), code)


def missing_spans(slot: GpuSlot, start: float, end: float) -> list[tuple[float, float]]:
    """When the GPU is missing: all spans that may overlap the time from `start` to `end`."""
    if slot.fault == "unstable":
        return [(one.lost_at, one.reset_at) for one in breakdowns(slot.salt, start, end)]
    if slot.fault != "missing":
        return []
    first = start - (start + slot.salt) % _TRIED_EVERY_S
    tries = [first + number * _TRIED_EVERY_S for number in range(int((end - first) // _TRIED_EVERY_S) + 1)]
    return [(tried + _LASTS_S, tried + _TRIED_EVERY_S) for tried in tries]


def faults_between(slot: GpuSlot, timeline: Timeline, start: float, end: float) -> Iterator[GpuEvent]:
    """The XIDs of a GPU from `start` until before `end`: at most one a day of an ordinary GPU."""
    if slot.model.vendor != "nvidia" or slot.parent is not None or not slot.takes_jobs:
        return
    if slot.fault == "unstable":
        found = [xid for one in breakdowns(slot.salt, start, end) for xid in ((one.at, one.code), (one.lost_at, 79))]
        yield from (GpuEvent(float(at), code, text=_TEXTS[code]) for at, code in found if start <= at < end)
        return
    for day in range(floor(start / DAY), floor(end / DAY) + 1):
        luck = draw(slot.salt, 4 * day + 1_000_003)
        if luck >= _OF_PROGRAMS + _OF_BOARDS:
            continue
        at = float(int((day + draw(slot.salt, 4 * day + 1_000_004)) * DAY))
        codes = _BOARD_CODES if luck < _OF_BOARDS else _PROGRAM_CODES
        code = codes[int(draw(slot.salt, 4 * day + 1_000_005) * len(codes))]
        if not start <= at < end:
            continue
        if luck < _OF_BOARDS:
            yield GpuEvent(at, code, text=_TEXTS[code])
        elif (run := timeline.tenure(slot.number, at).run) is not None and run.start + 60 < at < run.end:
            yield GpuEvent(at, code, run.pids[run.slots.index(slot.number)], _TEXTS[code])


class SimulatedGpu:
    """A GPU as its driver reports it. Values are kept for one interval."""

    process_reasons: ClassVar[dict[str, str]] = {}

    def __init__(self, slot: GpuSlot, timeline: Timeline, track: SlotTrack, life: HostLifecycle) -> None:
        self.slot, self._timeline, self._track, self._life = slot, timeline, track, life
        self._gpu = GpuReading(
            slot.uuid, slot.index, slot.name, slot.model.vendor, slot.parent, slot.instance, slot.pci_address
        )
        self._offset_s = slot.salt % 24
        self._segment: LoadSegment | None = None
        self._read_at = nan
        self._metrics: dict[str, Number] = {}
        self._processes: list[Process] = []
        self._settled = settled(slot)
        self._wears = wears(slot)
        self._unknown = unknowns(slot)

    def reading(self, now: float) -> GpuReading:
        segment = self._track.at(now)
        idle_since = self._life.booted(now) if self.slot.fault in {"orphaned", "missing"} else segment.idle_since
        idle_seconds = 0 if idle_since is None else round(now - idle_since)
        if any(start <= now < end for start, end in missing_spans(self.slot, now, now)):
            unknown = dict.fromkeys(GPU_METRICS, FELL_OFF)
            lost = {"missing": FELL_OFF, "unknown": unknown, "processes_reason": FELL_OFF}
            return replace(self._gpu, idle_seconds=idle_seconds, **lost)
        self._read(segment, now)
        return replace(
            self._gpu,
            metrics=self._metrics.copy(),
            unknown=self._unknown.copy(),
            processes=self._processes.copy(),
            idle_seconds=idle_seconds,
            events=list(faults_between(self.slot, self._timeline, now - DAY, now)),
        )

    def _read(self, segment: LoadSegment, now: float) -> None:
        is_lively = segment.idle_since is None or any(now < run.start + run.work.ramp_s for run, _ in segment.parts)
        update_seconds = WORK_UPDATE_SECONDS if is_lively else REST_UPDATE_SECONDS
        t = max(segment.start, now - (now + self._offset_s) % update_seconds)
        if segment is not self._segment or t != self._read_at:
            self._segment, self._read_at = segment, t
            self._processes = self._read_processes(segment, t)
            self._metrics = self._read_metrics(segment, t)

    def _read_metrics(self, segment: LoadSegment, t: float) -> dict[str, Number]:
        slot, model, is_taken = self.slot, self.slot.model, bool(segment.parts)
        doing, celsius = physics.sum_loads(segment.parts, slot.number, t), self._celsius(t)
        watts = physics.power_watts(model, doing.effort, is_taken=is_taken, noise=wave(slot.salt, t, 7.0))
        metrics = self._settled.copy()
        metrics["utilization_percent"] = round(100 * doing.load)
        metrics["memory_utilization_percent"] = round(100 * doing.bandwidth)
        metrics["temperature_celsius"] = round(celsius)
        metrics["power_watts"] = _round_watts(watts)
        metrics["memory_used_bytes"] = self._used_mib() * MIB
        metrics["clock_sm_mhz"] = physics.clock_sm_mhz(model, doing.effort, celsius, is_taken=is_taken)
        metrics["clock_memory_mhz"] = model.clock_memory_mhz[is_taken]
        if model.features.memory_warmth is not None:
            metrics["memory_temperature_celsius"] = round(celsius * model.features.memory_warmth)
        if model.features.fan:
            metrics["fan_percent"] = round(physics.fan_percent(celsius))
        if model.vendor == "nvidia":
            metrics["encoder_percent"] = round(40 * doing.video) if model.features.encodes else 0
            metrics["decoder_percent"] = round(100 * doing.video)
            metrics["performance_state"] = model.features.states[is_taken]
            metrics["throttled_power"] = int(watts >= physics.CAPPED * model.limit_watts)
            metrics["throttled_thermal"] = int(celsius >= physics.THROTTLE_CELSIUS)
            metrics["throttled_hardware"] = int(celsius >= physics.SLOWDOWN_CELSIUS)
            metrics["temperature_margin_celsius"] = round(physics.SLOWDOWN_CELSIUS) - round(celsius)
            metrics["energy_joules"] = int(_MEAN_POWER * model.limit_watts * (t - self._life.booted(t)))
            if model.features.measures_activity:
                slow = self._last_slow_update(segment.start, t)
                metrics |= physics.sum_activity(segment.parts, slot.number, slow)
        return metrics | errors(slot, t - self._life.booted(t)) if self._wears else metrics

    def _last_slow_update(self, since: float, t: float) -> float:
        return max(since, t - (t + self._offset_s) % SLOW_UPDATE_SECONDS)

    def _celsius(self, t: float) -> float:
        """An unstable GPU is too hot while it works in the hours before it fails."""
        slot, heat, ambient = self.slot, self._track.at(t).heat, physics.ambient_offset(self.slot.salt, t)
        if slot.fault == "hot":
            return physics.throttled_temperature(heat, ambient)
        if slot.fault == "unstable" and heat > physics.WORKING_HEAT:
            (one,) = breakdowns(slot.salt, t, t)
            if 0 <= one.at - t < _STRAIN_S:
                return physics.throttled_temperature(1.0, ambient)
        return physics.temperature(slot.model, heat, ambient)

    def _used_mib(self) -> int:
        slot = self.slot
        if slot.fault == "orphaned":
            return int(slot.memory_mib * (0.25 + 0.4 * draw(slot.salt, 0)))
        held = sum([process.memory_used_bytes or 0 for process in self._processes]) // MIB
        kept = slot.memory_mib // 200 if held else 1 + slot.salt % 12
        return min(slot.memory_mib, held + kept)

    def _read_processes(self, segment: LoadSegment, t: float) -> list[Process]:
        processes = [self._read_process(run, level, segment.start, t) for run, level in segment.parts]
        return [*processes, self._display(t)] if self.slot.has_display else processes

    def _read_process(self, run: SimulatedJob, level: float, since: float, t: float) -> Process:
        slot = self.slot
        pid = run.pids[run.slots.index(slot.number)]
        return Process(
            pid=pid,
            user=run.user,
            command=run.command,
            memory_used_bytes=physics.memory_mib(run.work, slot.memory_mib, t - run.start) * MIB,
            started_at=run.start,
            utilization_percent=self._process_percent(run, level, self._last_slow_update(since, t)),
            container=run.container,
            job=run.job,
            evidence=run.describe_owner(pid),
            reasons=self.process_reasons.copy(),
        )

    def _process_percent(self, run: SimulatedJob, level: float, t: float) -> float | None:
        return round(physics.utilization(run.work, level, self.slot.number, t))

    def _display(self, t: float) -> Process:
        pid = 1200 + self.slot.salt % 600
        return Process(
            pid=pid,
            user="root",
            command="Xorg :0 -nolisten tcp vt2",
            memory_used_bytes=(8 + self.slot.salt % 40) * MIB,
            started_at=self._life.booted(t) + 20,
            utilization_percent=0,
            evidence=f"uid 0 of /proc/{pid}",
            display=True,
        )


def board_metrics(slot: GpuSlot, now: float) -> dict[str, Number]:
    """The metrics that all MIG instances of a board share. They depend on the time alone, not on the work."""
    model, t = slot.model, now - now % REST_UPDATE_SECONDS
    salt = slot.salt - (slot.instance or 0)
    effort = 0.45 + 0.3 * wave(salt, t, 1800.0)
    celsius = physics.temperature(model, effort, physics.ambient_offset(salt, t))
    return {
        "temperature_celsius": round(celsius),
        "memory_temperature_celsius": round(celsius * (model.features.memory_warmth or 1.0)),
        "clock_sm_mhz": physics.clock_sm_mhz(model, effort, celsius, is_taken=True),
        "clock_memory_mhz": model.clock_memory_mhz[True],
        "performance_state": model.features.states[True],
        "throttled_power": 0,
        "temperature_margin_celsius": round(physics.SLOWDOWN_CELSIUS) - round(celsius),
    }


class GpuInstance(SimulatedGpu):
    """A MIG instance: it has its own memory and processes; metrics of the board alone are unknown."""

    process_reasons: ClassVar[dict[str, str]] = {"utilization_percent": UNDER_MIG}

    def reading(self, now: float) -> GpuReading:
        # The board moves at its own interval, which is not the one this instance's frame was made for.
        reading = super().reading(now)
        reading.metrics.update(board_metrics(self.slot, now))
        return reading

    def _read_metrics(self, segment: LoadSegment, t: float) -> dict[str, Number]:
        return self._settled | {"memory_used_bytes": self._used_mib() * MIB}

    def _process_percent(self, run: SimulatedJob, level: float, t: float) -> float | None:
        return None
