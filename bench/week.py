"""A made-up fleet of 16 hosts with 8 GPUs each, every 10 s: noise, steps and lags like those of real readings.

Not the simulated fleet, which takes ten times as long to ask: jobs in phases give a level, arrays make the rest of it.
Utilization is noisy, memory goes in steps, power follows utilization to 0.1 W, temperatures follow slowly, totals stay.
"""

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from msgspec import Struct

from gpudeck.history.sample import GPU_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample

HOSTS, GPUS = 16, 8
STEP = 10.0
HOUR = 3600.0
USERS = tuple(f"user{number:02d}" for number in range(30))
MODEL = "NVIDIA H100 80GB HBM3"
_LANES = ((0, 1, 2, 3), (4, 5), (6,), (7,))
"""The GPUs that a job gets together."""
_MIB = float(1 << 20)
_TOTAL_MIB = 81_559
_UNKNOWN = ("fan_percent", "pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second")
_KNOWN = tuple(name for name in GPU_NAMES if name not in _UNKNOWN)
_PLACES = {name: place for place, name in enumerate(_KNOWN)}
_FREE, _BUSY, _IDLE = (STATE_NUMBERS[word] for word in ("free", "busy", "idle"))
GPU_VALUES, HOST_VALUES = len(_KNOWN), 12
"""How many values of a GPU and of a host are known in each sample."""
_SETTLED = {
    "memory_total_bytes": _TOTAL_MIB * _MIB,
    "power_limit_watts": 700,
    "clock_memory_mhz": 2619,
    "nvlink_active_count": 18,
}


def uuid_of(host: int, gpu: int) -> str:
    return f"GPU-{host:08x}-{gpu:04x}-4b7e-9a61-2d3c4b5a6978"


class Job(Struct):
    """`levels` are its utilization (0–1) in turns of `period` seconds, each of which ends with a pause."""

    user: str
    command: str
    pid: int
    start: float
    end: float
    levels: list[float]
    period: float
    pause: float
    swing: float
    intensity: float
    bandwidth: float
    memory_mib: int

    def level(self, times: np.ndarray) -> np.ndarray:
        turn, since = np.divmod(times - self.start, self.period)
        levels = np.take(self.levels, turn.astype(int), mode="wrap")
        return np.where((since < self.period - self.pause) & (times - self.start > 60), levels, 0.0)

    def memory(self, times: np.ndarray) -> np.ndarray:
        """It grows for two minutes, then stays but for a step now and then."""
        grown = np.minimum(1.0, (times - self.start + STEP) / 120)
        found: np.ndarray = np.floor(self.memory_mib * grown) + 64 * ((times - self.start) // 7200 % 5)
        return found


def _draw_job(rng: random.Random, start: float) -> Job:
    kind = rng.choices(("training", "loader", "notebook", "server", "holder"), (10, 4, 7, 2, 4))[0]
    level, swing, period, pause = {
        "training": ([rng.uniform(0.84, 0.98)], 3, rng.uniform(900, 3600), rng.uniform(15, 75)),
        "loader": ([rng.uniform(0.36, 0.52)], 11, 1e9, 0),
        "notebook": ([rng.choice((0, 0, rng.uniform(0.2, 0.9))) for _ in range(9)], 14, rng.uniform(300, 900), 0),
        "server": ([rng.uniform(0.08, 0.36) for _ in range(50)], 9, rng.uniform(240, 480), 0),
        "holder": ([rng.uniform(0.4, 0.9), *[0.0] * 400], 8, rng.uniform(600, 4200), 0),
    }[kind]
    return Job(
        user=rng.choices(USERS, [1 / (2 + rank) for rank in range(len(USERS))])[0],
        command=f"python {kind}.py --config configs/{rng.randrange(100)}.yaml --seed {rng.randrange(1000)}",
        pid=rng.randrange(2000, 4_000_000),
        start=start,
        end=start + min(40 * HOUR, rng.lognormvariate(9.4, 1.0)),
        levels=level,
        period=period,
        pause=pause,
        swing=swing,
        intensity=rng.uniform(0.6, 1.0),
        bandwidth=rng.uniform(0.3, 0.7),
        memory_mib=int(rng.uniform(0.06, 0.94) * _TOTAL_MIB),
    )


class Host:
    """One host, hour after hour. What one hour leaves to the next is kept here."""

    def __init__(self, number: int, start: float, step: float = STEP) -> None:
        self.name, self._id = f"gpu{number:02d}", f"machine-{number:02d}"
        self._rng, self._noise, self._step = random.Random(number), np.random.default_rng(number), step
        self._uuids = [uuid_of(number, gpu) for gpu in range(GPUS)]
        self._offset = number * step / HOSTS
        self._jobs = [self._next_job(start) for _ in _LANES]
        self._worked_at = np.full(GPUS, start)
        self._warmth, self._energy = np.zeros(GPUS), np.zeros(GPUS)

    def hour(self, start: float) -> list[HostSample]:
        """The samples of the hour that begins then. Hours have to be asked for in order."""
        times = np.arange(start, start + HOUR, self._step) + self._offset
        levels, swings, taken = (np.zeros((GPUS, len(times))) for _ in range(3))
        intensity, bandwidth, memory = np.zeros_like(levels), np.zeros_like(levels), np.full_like(levels, 7.0)
        here: list[list[Job | None]] = [[None] * len(times) for _ in _LANES]
        for lane, gpus in enumerate(_LANES):
            for job, begin, end in self._jobs_of(lane, times):
                span, rows = slice(begin, end), list(gpus)
                levels[rows, span], swings[rows, span], taken[rows, span] = job.level(times[span]), job.swing, 1
                intensity[rows, span], bandwidth[rows, span] = job.intensity, job.bandwidth
                memory[rows, span] = job.memory(times[span]) + 407
                here[lane][begin:end] = [job] * (end - begin)
        table = self._readings(levels, swings, taken, intensity, bandwidth, memory)
        states = self._states(times, table[_PLACES["utilization_percent"]], taken)
        return self._samples(times, table, states, here)

    def _jobs_of(self, lane: int, times: np.ndarray) -> Iterator[tuple[Job, int, int]]:
        while True:
            job = self._jobs[lane]
            begin, end = np.searchsorted(times, (job.start, job.end))
            if begin < end:
                yield job, int(begin), int(end)
            if job.end > times[-1]:
                return
            self._jobs[lane] = self._next_job(job.end)

    def _next_job(self, after: float) -> Job:
        return _draw_job(self._rng, after + self._rng.expovariate(1 / 5400))

    def _readings(
        self,
        levels: np.ndarray,
        swings: np.ndarray,
        taken: np.ndarray,
        intensity: np.ndarray,
        bandwidth: np.ndarray,
        memory: np.ndarray,
    ) -> np.ndarray:
        draw, shape = self._noise, levels.shape
        percent = np.where(
            levels > 0, np.clip(np.rint(100 * levels + swings * draw.uniform(-1, 1, shape)), 6, 100), 0.0
        )
        effort = percent / 100 * intensity
        rest = np.where(taken > 0, 115.0, 70.0)
        drawn = rest + (700 - rest) * effort
        watts = np.rint(np.minimum(700, drawn + draw.uniform(-1, 1, shape) * (0.6 + 0.012 * drawn)) * 10) / 10
        celsius = np.rint(28 + 39 * self._lag(effort) + np.cumsum(draw.normal(0, 0.03, shape), axis=1))
        energy = self._energy[:, None] + np.cumsum(watts, axis=1) * self._step
        self._energy = energy[:, -1]
        columns: dict[str, Any] = _SETTLED | {
            "utilization_percent": percent,
            "memory_utilization_percent": np.rint(percent * bandwidth),
            "memory_used_bytes": memory * _MIB,
            "temperature_celsius": celsius,
            "memory_temperature_celsius": np.rint(celsius * 0.9),
            "power_watts": watts,
            "clock_sm_mhz": np.where(taken > 0, 1980 * (1 - 0.14 * effort**2) // 15 * 15, 345),
            "throttled_power": watts >= 665,
            "energy_joules": np.floor(energy),
        }
        table = np.zeros((GPU_VALUES, *shape))
        for name, values in columns.items():
            table[_PLACES[name]] = values
        return table

    def _lag(self, effort: np.ndarray) -> np.ndarray:
        keep = np.exp(-self._step / 55)
        warmth = np.empty_like(effort)
        for place in range(effort.shape[1]):
            self._warmth = effort[:, place] + (self._warmth - effort[:, place]) * keep
            warmth[:, place] = self._warmth
        return warmth

    def _states(self, times: np.ndarray, percent: np.ndarray, taken: np.ndarray) -> list[list[int]]:
        worked = np.maximum.accumulate(np.where((percent >= 5) | (taken == 0), times, self._worked_at[:, None]), axis=1)
        self._worked_at = worked[:, -1]
        states: list[list[int]] = np.where(taken == 0, _FREE, np.where(times - worked >= 600, _IDLE, _BUSY)).T.tolist()
        return states

    def _samples(
        self, times: np.ndarray, table: np.ndarray, states: list[list[int]], here: list[list[Job | None]]
    ) -> list[HostSample]:
        rows = table.transpose(2, 1, 0).tolist()
        jitter = self._noise.uniform(0, 0.05, len(times))
        lane_of = [lane for lane, gpus in enumerate(_LANES) for _ in gpus]
        own = self._host_values(times, table)
        samples = []
        for place, at in enumerate((np.rint((times + jitter) * 1000) / 1000).tolist()):
            gpus = tuple(
                [
                    GpuSample(
                        self._uuids[gpu],
                        str(gpu),
                        MODEL,
                        states[place][gpu],
                        (*row[:7], None, *row[7:], None, None),
                        _processes(here[lane_of[gpu]][place], row),
                    )
                    for gpu, row in enumerate(rows[place])
                ]
            )
            samples.append(HostSample(self._id, self.name, at, self._step, own[place], gpus))
        return samples

    def _host_values(self, times: np.ndarray, table: np.ndarray) -> list[tuple[float, ...]]:
        count = len(times)
        load = table[_PLACES["utilization_percent"]].mean(axis=0)
        draw = self._noise.uniform
        cpu = np.rint(np.clip(3 + load * 0.4 * (1 + 0.12 * draw(-1, 1, count)), 0, 100) * 10) / 10
        ram = np.rint((80 + load * 4) * 1024 + draw(0, 30, count)) * _MIB
        network = [np.rint(load * 3e5 * (1 + 0.4 * draw(-1, 1, count)) / 1000) * 1000 for _ in range(2)]
        flat = [np.full(count, value) for value in (192.0, 2048 * 1024 * _MIB, 6e12, 3e13, 0.0, 0.0)]
        columns = [cpu, flat[0], np.rint(cpu * 1.92 * 100) / 100, ram, *flat[1:], *network, times % 4e6 // 60 * 60]
        return list(zip(*(column.tolist() for column in columns), strict=True))


def _processes(job: Job | None, row: list[float]) -> tuple[ProcessSample, ...]:
    if job is None:
        return ()
    memory = int(row[2]) - 407 * int(_MIB)
    return (ProcessSample(job.pid, job.start, job.user, job.command, None, None, memory, row[0]),)


def ticks(start: float, hours: int, step: float = STEP) -> Iterator[list[HostSample]]:
    """One sample of every host, step after step."""
    hosts = [Host(number, start, step) for number in range(HOSTS)]
    for hour in range(hours):
        yield from map(list, zip(*(host.hour(start + hour * HOUR) for host in hosts), strict=True))
