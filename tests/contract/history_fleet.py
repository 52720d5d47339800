"""Some hours of a small fleet, made up but always the same, and the slow, plain way to sum them up.

It has what stores get wrong: gaps, a GPU that vanishes, values that nobody knows, two people on one GPU, people that
come and go, and a host whose name needs quoting.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, STATES, GpuSample, HostSample, ProcessSample
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Rollup
from gpudeck.model.history import Point

START: Final = 1_789_920_000
"""Midnight in UTC: hours, days and steps begin there."""
HOURS: Final = 3
EVERY: Final = 10.0
END: Final = START + HOURS * 3600
GIB: Final = 2**30
STRANGE: Final = 'be"ta\\ {}=~|\n.*'
VANISHING: Final = "GPU-b2"
SHARED: Final = "GPU-a0"

Pick = Callable[[HostSample], dict[str, float | None]]
"""A value of each device of a host."""


def samples() -> list[HostSample]:
    """In order of time."""
    return sorted((*_host("id-alpha", "alpha", 2, 1), *_host("id-beta", STRANGE, 3, 2)), key=lambda sample: sample.at)


def _host(host_id: str, name: str, gpus: int, seed: int) -> Iterator[HostSample]:
    rng = random.Random(seed)
    for number in range(int((END - START) / EVERY)):
        after = number * EVERY
        # One host exactly where steps begin, the other in between.
        at = START + after + 0.25 * (seed - 1)
        made = tuple(_gpu(f"GPU-{host_id[3]}{index}", index, after, rng) for index in range(gpus))
        if _is_there(host_id, after):
            yield HostSample(
                host_id, name, at, EVERY, _host_values(rng, after), tuple(filter(_still_there(after), made))
            )


def _is_there(host_id: str, after: float) -> bool:
    """A quarter hour and, later, five minutes of beta were not observed."""
    return host_id != "id-beta" or not (900 <= after < 1800 or 7300 <= after < 7600)


def _still_there(after: float) -> Callable[[GpuSample], bool]:
    return lambda gpu: gpu.uuid != VANISHING or after < 3600


def _gpu(uuid: str, index: int, after: float, rng: random.Random) -> GpuSample:
    state = STATE_NUMBERS[("busy", "idle", "free")[int(after / 1800 + index) % 3]]
    values = {name: _number(name, rng) for name in GPU_NAMES}
    values["memory_total_bytes"] = 80.0 * GIB
    if 4000 <= after < 5200:
        values["utilization_percent"] = None
    if uuid.endswith("1"):
        values["power_watts"] = None
    processes = () if state == STATE_NUMBERS["free"] else tuple(_people(uuid, after))
    return GpuSample(uuid, str(index), "NVIDIA H200", state, tuple(values.values()), processes)


def _people(uuid: str, after: float) -> Iterator[ProcessSample]:
    yield _process(100, "alice", 10 * GIB)
    if uuid == SHARED and after >= 2000:
        yield _process(200, "bob", 30 * GIB)


def _process(pid: int, user: str, memory: int) -> ProcessSample:
    return ProcessSample(pid, float(START), user, "python train.py", None, None, memory, None)


def _number(name: str, rng: random.Random) -> float | None:
    metric = GPU_METRICS[name]
    return float(metric.round(rng.uniform(metric.low, min(metric.high, metric.low + 100 * metric.precision))))


def _host_values(rng: random.Random, after: float) -> tuple[float | None, ...]:
    values = {name: float(HOST_METRICS[name].round(rng.uniform(0, 100))) for name in HOST_NAMES}
    values["uptime_seconds"] = after // 60 * 60
    return tuple(values.values())


def gpu_value(metric: str) -> Pick:
    place = GPU_NAMES.index(metric)
    return lambda sample: {gpu.uuid: gpu.values[place] for gpu in sample.gpus}


def host_value(metric: str) -> Pick:
    place = HOST_NAMES.index(metric)
    return lambda sample: {sample.host_id: sample.values[place]}


def state_value(word: str) -> Pick:
    return lambda sample: {gpu.uuid: float(STATES[gpu.state] == word) for gpu in sample.gpus}


def memory_value(gpu: str, user: str) -> Pick:
    def pick(sample: HostSample) -> dict[str, float | None]:
        shown = [process for one in sample.gpus if one.uuid == gpu for process in one.processes or ()]
        is_there = any(one.uuid == gpu for one in sample.gpus)
        return {user: _held(shown, user)} if is_there else {}

    return pick


def _held(processes: list[ProcessSample], user: str) -> float:
    return float(sum(process.memory_bytes or 0 for process in processes if process.user == user))


Steps = dict[float, dict[str, list[float]]]
"""The known values of each device in each step."""


def cut_up(taken: Iterable[HostSample], pick: Pick, step: float) -> Steps:
    found: Steps = {}
    for sample in taken:
        for device, value in pick(sample).items():
            if value is not None:
                begin = math.floor(sample.at / step) * step
                found.setdefault(float(begin), {}).setdefault(device, []).append(value)
    return found


def points_of(steps: Steps, device: str, rollup: Rollup = Rollup.MEAN) -> list[Point]:
    """One device by itself."""
    shown = [(begin, devices[device]) for begin, devices in sorted(steps.items()) if device in devices]
    is_last = rollup is Rollup.LAST
    return [
        (begin, values[-1] if is_last else sum(values) / len(values), min(values), max(values))
        for begin, values in shown
    ]


def points_of_all(steps: Steps, rollup: Rollup) -> list[Point]:
    """All devices as one."""
    return [(begin, *_JOIN[rollup](list(devices.values()))) for begin, devices in sorted(steps.items())]


def _add(devices: list[list[float]]) -> tuple[float, float, float]:
    return sum(sum(one) / len(one) for one in devices), sum(map(min, devices)), sum(map(max, devices))


def _average(devices: list[list[float]]) -> tuple[float, float, float]:
    every = [value for one in devices for value in one]
    return sum(every) / len(every), min(every), max(every)


def _largest(devices: list[list[float]]) -> tuple[float, float, float]:
    every = [value for one in devices for value in one]
    return max(every), min(every), max(every)


_JOIN = {Rollup.SUM: _add, Rollup.MEAN: _average, Rollup.LAST: _average, Rollup.MAX: _largest}
