"""Runs whose faults are known: what a program does, second by second, and what the driver would show of it.

Made from the structure of programs (steps of waiting and computing, pauses, phases), not from what any rule looks for.
A step is some waiting and some computing. The driver shows utilization as the part of the last second in which a kernel
ran, and activity (Hopper and newer) as a mean over ten seconds: how much of the GPU those kernels filled.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Noise = Callable[[float], Floats]
STEP = 10.0
GIB = 2.0**30
MINUTE, HOUR = 60.0, 3600.0
CARDS = (
    # model, memory in GiB, highest clock, power limit, whether activity is known, how often
    ("NVIDIA H100 80GB HBM3", 79.6, 1980, 700, True, 0.4),
    ("NVIDIA H200", 140.0, 1980, 700, True, 0.2),
    ("NVIDIA A100-SXM4-80GB", 79.3, 1410, 400, False, 0.25),
    ("NVIDIA L40S", 45.0, 2520, 350, False, 0.15),
)
TRAINING = ("python train.py --config c.yaml --seed {n}", "torchrun --nproc-per-node={g} train.py --run {n}")


@dataclass
class Traits:
    """What kind of kernels a program has. `fill` is how much of the GPU they fill while they run, the others are parts
    of that; `pcie` is in GB/s while it runs."""

    fill: float = 0.8
    tensor: float = 0.45
    single: float = 0.15
    dram: float = 0.35
    pcie: tuple[float, float] = (0.5, 0.2)
    memory: float = 0.7
    """The part of the card's memory."""


@dataclass
class Program:
    """One run with its truth: `cause` is what is wrong, None for a healthy one; `also` is true of it as well. Tables
    are (GPUs, samples), lines are of the host."""

    kind: str
    cause: str | None
    also: frozenset[str]
    command: str
    card: int
    gpus: int
    tables: dict[str, Floats]
    cpu: Floats
    faults: list[tuple[float, int]] = field(default_factory=list)
    restarts: list[float] = field(default_factory=list)
    """Seconds of earlier starts of the same command, and of the pauses after them, in turns."""

    @property
    def samples(self) -> int:
        return len(self.cpu)


class Timeline:
    """Waiting and computing in turns: how long kernels have run until any moment."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._parts: list[Floats] = []
        self.seconds = 0.0

    def wait(self, seconds: float) -> "Timeline":
        return self._add(np.array([[seconds, 0.0]]))

    def steps(self, seconds: float, compute: float, wait: float, spread: float = 0.1) -> "Timeline":
        """`spread` is how much the waiting differs from step to step: a loader that is behind stalls at times."""
        rng, count = self._rng, int(1.3 * seconds / (compute + wait)) + 20
        waits = wait * rng.lognormal(-spread * spread / 2, spread, count)
        parts = np.stack([waits, np.abs(rng.normal(compute, 0.06 * compute, count))], axis=1)
        ends = parts.sum(axis=1).cumsum()
        return self._add(parts[: int(np.searchsorted(ends, seconds)) + 1])

    def training(self, seconds: float, compute: float, wait: float, spread: float = 0.1) -> "Timeline":
        """Steps with checkpoints, evaluations and new epochs."""
        rng, until = self._rng, self.seconds + seconds
        every, pause = rng.uniform(8, 60) * MINUTE, rng.uniform(4, 70)
        evaluates = rng.random() < 0.5
        while self.seconds < until:
            self.steps(min(every, until - self.seconds), compute, wait, spread)
            self.wait(pause * rng.uniform(0.7, 1.5))
            if evaluates and self.seconds < until:
                self.steps(rng.uniform(20, 200), compute * 0.4, rng.uniform(0.02, 0.6) * compute, 0.4)
        return self

    def requests(self, seconds: float, rate: float, length: float) -> "Timeline":
        """A server: requests come by chance, more of them at some times than at others."""
        rng, until = self._rng, self.seconds + seconds
        while self.seconds < until:
            now = rate * float(rng.lognormal(0, 0.7))
            span = min(rng.uniform(1, 15) * MINUTE, until - self.seconds)
            waits = rng.exponential(1 / now, int(1.5 * span * now) + 5)
            parts = np.stack([waits, rng.gamma(2.0, length / 2, len(waits))], axis=1)
            self._add(parts[: int(np.searchsorted(parts.sum(axis=1).cumsum(), span)) + 1])
        return self

    def _add(self, parts: Floats) -> "Timeline":
        self._parts.append(parts)
        self.seconds += float(parts.sum())
        return self

    def sample(self, times: Floats, spin: float = 0.0) -> tuple[Floats, Floats, Floats]:
        """By sample: utilization and the mean of the computing (0–1). With `spin` so much of the waiting is inside of
        a collective, which counts as utilization."""
        parts = np.concatenate(self._parts)
        edges = np.concatenate(([0.0], parts.reshape(-1).cumsum()))
        computed = np.stack([np.zeros(len(parts)), parts[:, 1]], axis=1).reshape(-1)
        # Who waits for minutes does so outside of any collective.
        waits = np.where(parts[:, 0] < 30, spin * parts[:, 0], 0.0)
        resident = np.stack([waits, parts[:, 1]], axis=1).reshape(-1)
        work, there = (np.concatenate(([0.0], line.cumsum())) for line in (computed, resident))
        since = np.maximum(times - 1.0, 0)
        utilization = np.interp(times, edges, there) - np.interp(since, edges, there)
        before = np.maximum(times - STEP, 0)
        mean = (np.interp(times, edges, work) - np.interp(before, edges, work)) / STEP
        most = (np.interp(times, edges, there) - np.interp(before, edges, there)) / STEP
        return np.clip(utilization, 0, 1), np.clip(mean, 0, 1), np.clip(most, 0, 1)


class Maker:
    """Draws programs. Each `make_…` below sets what is wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self._number = 0

    def pick_card(self) -> int:
        return int(self.rng.choice(len(CARDS), p=[card[-1] for card in CARDS]))

    def pick_gpus(self) -> int:
        return int(self.rng.choice([1, 2, 4, 8], p=[0.66, 0.14, 0.13, 0.07]))

    def length(self, median: float = HOUR, least: float = 12 * MINUTE, most: float = 10 * HOUR) -> float:
        return float(np.clip(self.rng.lognormal(np.log(median), 0.9), least, most))

    def begin(self, most: float = 4 * MINUTE) -> Timeline:
        """Imports, reading the model, compiling."""
        begun = Timeline(self.rng).wait(self.rng.uniform(10, most))
        if self.rng.random() < 0.4:
            begun.steps(self.rng.uniform(10, 120), 0.05, self.rng.uniform(0.1, 1.0), 0.8)
        return begun

    def program(
        self,
        kind: str,
        line: Timeline,
        traits: Traits,
        *,
        cause: str | None = None,
        also: tuple[str, ...] = (),
        command: str = "",
        gpus: int = 1,
        card: int | None = None,
        cpu: float | None = None,
        levels: Floats | None = None,
        spin: float = 0.0,
    ) -> Program:
        """`levels` is how much of the work each GPU gets (0–1)."""
        rng = self.rng
        self._number += 1
        card = self.pick_card() if card is None else card
        count = max(3, int(line.seconds / STEP))
        times = STEP * np.arange(1, count + 1, dtype=np.float64)
        levels = np.ones(gpus) if levels is None else levels
        rows = [line.sample(times, spin * rng.uniform(0.5, 1.0)) for _ in range(gpus)]
        seen = np.array(
            [
                level * row[0] if not spin else np.where(level > 0, row[0], 0.0)
                for level, row in zip(levels, rows, strict=True)
            ]
        )
        work = np.array([level * row[1] for level, row in zip(levels, rows, strict=True)])

        def noise(size: float) -> Floats:
            return rng.normal(1.0, size, work.shape)

        tables = {
            "utilization_percent": np.clip(np.rint(100 * seen * noise(0.02)), 0, 100),
            **self._activity(work, traits, card, noise),
            **self._board(work, traits, card, count, gpus, noise),
        }
        is_small = traits.memory < 0.2 and cause is not None
        truths = frozenset((*also, *(("small_memory",) if is_small else ())))
        busy = rng.uniform(3, 35) if cpu is None else cpu
        return Program(
            kind, cause, truths, (command or str(rng.choice(TRAINING))).format(n=self._number, g=gpus), card, gpus,
            tables, np.clip(busy + rng.normal(0, 2, count), 0.5, 100),
        )  # fmt: skip

    def _activity(self, work: Floats, traits: Traits, card: int, noise: Noise) -> dict[str, Floats]:
        if not CARDS[card][4]:
            return {}
        active = 100 * work * traits.fill
        parts = {"tensor": traits.tensor, "fp32": traits.single, "dram": traits.dram / max(traits.fill, 0.05)}
        found = {
            f"{name}_activity_percent": np.clip(active * part * noise(0.05), 0, 100) for name, part in parts.items()
        }
        found["sm_activity_percent"] = np.clip(active * noise(0.03), 0, 100)
        receive, transmit = traits.pcie
        found["pcie_receive_bytes_per_second"] = 1e9 * work * receive * noise(0.1)
        found["pcie_transmit_bytes_per_second"] = 1e9 * work * transmit * noise(0.1)
        return found

    def _board(self, work: Floats, traits: Traits, card: int, count: int, gpus: int, noise: Noise) -> dict[str, Floats]:
        _, gib, clock, limit, _, _ = CARDS[card]
        grown = np.minimum(1.0, np.arange(1, count + 1) / self.rng.integers(2, 25))
        drawn = work * (0.35 + 0.65 * traits.fill * (0.6 + traits.tensor))
        capped = (drawn > 0.72) & (self.rng.random(work.shape) < 0.85)
        slowed = 1.0 - np.where(capped, np.clip(drawn - 0.6, 0.05, 0.3), 0.02 * drawn)
        return {
            "memory_used_bytes": np.maximum(0.45, gib * traits.memory * grown * np.ones((gpus, 1))) * GIB,
            "memory_total_bytes": np.full((gpus, count), gib * GIB),
            "power_watts": limit * np.clip(0.15 + 0.85 * drawn, 0, 1) * noise(0.01),
            "power_limit_watts": np.full((gpus, count), float(limit)),
            "clock_sm_mhz": np.rint(clock * slowed / 15) * 15,
            "throttled_power": capped.astype(float),
            "throttled_thermal": (self.rng.random(work.shape) < 0.004).astype(float),
            "throttled_hardware": np.zeros((gpus, count)),
        }


def _busy(maker: Maker, **others: Any) -> Traits:
    rng = maker.rng
    usual = {
        "fill": rng.uniform(0.62, 0.96), "tensor": rng.uniform(0.2, 0.7), "single": rng.uniform(0.03, 0.25),
        "dram": rng.uniform(0.15, 0.6), "memory": rng.uniform(0.3, 0.95),
    }  # fmt: skip
    return Traits(**(usual | others))


def healthy_training(maker: Maker) -> Program:
    rng, gpus = maker.rng, maker.pick_gpus()
    compute = float(rng.uniform(0.08, 2.5))
    line = maker.begin().training(maker.length(1.6 * HOUR), compute, compute * rng.uniform(0.01, 0.15), 0.3)
    return maker.program("training", line, _busy(maker), gpus=gpus, spin=float(rng.uniform(0, 0.7)) * (gpus > 1))


def healthy_compact(maker: Maker) -> Program:
    """It computes all the time in little memory."""
    line = maker.begin().training(maker.length(), 0.4, 0.01)
    return maker.program(
        "compact", line, _busy(maker, memory=maker.rng.uniform(0.04, 0.25), fill=maker.rng.uniform(0.75, 0.97))
    )


def healthy_short(maker: Maker) -> Program:
    line = maker.begin(MINUTE).steps(maker.rng.uniform(60, 900), 0.3, 0.03)
    return maker.program("short", line, _busy(maker))


def healthy_server(maker: Maker) -> Program:
    line = maker.begin().requests(maker.length(3 * HOUR), maker.rng.uniform(0.15, 3), maker.rng.uniform(0.3, 4))
    command = str(
        maker.rng.choice(
            [
                "vllm serve llama-8b --port 8{n}",
                "python -m sglang.launch_server --tp 1",
                "tritonserver --model-repository=m",
                "python service.py --port 8{n}",
            ],
            p=[0.4, 0.25, 0.2, 0.15],
        )
    )
    return maker.program(
        "server",
        line,
        _busy(maker, memory=maker.rng.uniform(0.6, 0.93), fill=maker.rng.uniform(0.4, 0.8)),
        command=command,
    )


def healthy_notebook(maker: Maker) -> Program:
    """Its user is there: cells, and thinking for some minutes."""
    rng, line = maker.rng, maker.begin(40)
    until = maker.length(HOUR, most=4 * HOUR)
    while line.seconds < until:
        line.wait(rng.exponential(2.5 * MINUTE) % (9 * MINUTE)).steps(
            rng.uniform(3, 300), 0.2, rng.uniform(0.01, 0.3), 0.5
        )
    return maker.program("notebook", line, _busy(maker), command="python -m ipykernel_launcher -f kernel-{n}.json")


def healthy_simulation(maker: Maker) -> Program:
    """Molecules: single or double precision without matrices."""
    single = maker.rng.uniform(0.2, 0.55)
    line = maker.begin(30).steps(maker.length(2 * HOUR), 0.5, 0.03)
    command = str(
        maker.rng.choice(
            [
                "gmx mdrun -deffnm md_{n}",
                "pmemd.cuda -O -i md.in",
                "lmp -sf gpu -in in.lj",
                "namd3 +p8 run{n}.namd",
                "python openmm_run.py --step {n}",
            ]
        )
    )
    return maker.program(
        "simulation",
        line,
        _busy(maker, tensor=0.0, single=single, memory=maker.rng.uniform(0.02, 0.3), fill=maker.rng.uniform(0.7, 0.95)),
        command=command,
    )


def healthy_memory_bound(maker: Maker) -> Program:
    line = maker.begin().steps(maker.length(), 1.0, 0.02)
    return maker.program(
        "memory-bound",
        line,
        _busy(maker, tensor=0.0, single=maker.rng.uniform(0.02, 0.12), dram=maker.rng.uniform(0.7, 0.92), fill=0.97),
        command="python analyse.py --table {n}",
    )


def healthy_phases(maker: Maker) -> Program:
    """Reinforcement learning with generation: phases of different load, each of some minutes."""
    rng, line = maker.rng, maker.begin()
    until = maker.length(2 * HOUR)
    while line.seconds < until:
        line.steps(rng.uniform(40, 240), 0.15, rng.uniform(0.03, 0.15), 0.4).steps(
            rng.uniform(60, 400), 0.8, 0.03
        ).wait(rng.uniform(2, 25))
    return maker.program(
        "phases",
        line,
        _busy(maker, memory=rng.uniform(0.5, 0.95)),
        gpus=int(rng.choice([1, 4, 8])),
        command="python -m trl.ppo --run {n}",
    )


def healthy_pipeline(maker: Maker) -> Program:
    """Stages on several GPUs with somewhat different work."""
    gpus = int(maker.rng.choice([2, 4, 8]))
    line = maker.begin().training(maker.length(2 * HOUR), 0.6, 0.06)
    return maker.program("pipeline", line, _busy(maker), gpus=gpus, levels=maker.rng.uniform(0.72, 1.0, gpus))


def healthy_sweep(maker: Maker) -> Program:
    """The same command again and again, a few minutes each, and it works."""
    rng, line = (
        maker.rng,
        Timeline(maker.rng).wait(maker.rng.uniform(5, 40)).steps(maker.rng.uniform(60, 280), 0.2, 0.02),
    )
    made = maker.program("sweep", line, _busy(maker), command="python sweep.py --agent {n}")
    made.restarts = [float(one) for _ in range(6) for one in (rng.uniform(80, 280), rng.uniform(5, 40))]
    return made


def idle_after_work(maker: Maker) -> Program:
    rng, line = maker.rng, maker.begin().training(maker.length(), 0.5, 0.03)
    if rng.random() < 0.7:
        line.wait(float(rng.uniform(20, 480)) * MINUTE)
    else:
        for _ in range(rng.integers(2, 5)):
            line.wait(rng.uniform(12, 70) * MINUTE).training(rng.uniform(10, 60) * MINUTE, 0.5, 0.03)
    return maker.program("idle", line, _busy(maker), cause="idle_after_work", gpus=int(rng.choice([1, 1, 2, 4])))


def idle_notebook(maker: Maker) -> Program:
    rng, line = maker.rng, maker.begin(40)
    for _ in range(rng.integers(1, 5)):
        line.steps(rng.uniform(5, 600), 0.2, 0.1, 0.5).wait(rng.uniform(20, 300) * MINUTE)
    return maker.program(
        "idle notebook",
        line,
        _busy(maker, memory=rng.uniform(0.02, 0.5)),
        cause="idle_notebook",
        command="jupyter-lab --no-browser --port 8{n}",
    )


def never_used(maker: Maker) -> Program:
    line = Timeline(maker.rng).wait(maker.length())
    return maker.program(
        "never used", line, Traits(memory=0.006), cause="never_used", cpu=float(maker.rng.uniform(10, 60))
    )


def waiting_for_data(maker: Maker) -> Program:
    """Storage or too few workers: slow batches, or stalls when a buffer runs empty; a part is too quick to be seen."""
    rng, way = maker.rng, maker.rng.random()
    if way < 0.4:
        compute, wait, spread = rng.uniform(1.5, 8), rng.uniform(0.5, 2.2), 0.5
    elif way < 0.75:
        compute, wait, spread = rng.uniform(5, 40), rng.uniform(0.3, 1.2), 0.8
    else:
        compute, wait, spread = rng.uniform(0.05, 0.4), rng.uniform(0.5, 2.0), 0.5
    line = maker.begin().training(maker.length(), compute, compute * wait, spread)
    gpus = int(rng.choice([1, 1, 1, 2, 4]))
    return maker.program(
        "data",
        line,
        _busy(maker),
        cause="waiting_for_data",
        gpus=gpus,
        cpu=float(rng.uniform(4, 45)),
        spin=float(rng.uniform(0, 0.3)) * (gpus > 1),
    )


def cpu_bound(maker: Maker) -> Program:
    compute = maker.rng.uniform(0.05, 3)
    line = maker.begin().training(maker.length(), compute, compute * maker.rng.uniform(0.4, 2.5), 0.4)
    return maker.program(
        "cpu", line, _busy(maker), cause="cpu_bound", also=("waiting_for_data",), cpu=float(maker.rng.uniform(88, 100))
    )


def small_batches(maker: Maker) -> Program:
    """Kernels that fill a part of the GPU, one after the other or with gaps in which the next is launched."""
    rng = maker.rng
    line = maker.begin().training(maker.length(), 0.02 if rng.random() < 0.5 else 0.5, rng.uniform(0.0005, 0.03), 0.2)
    fill = rng.uniform(0.03, 0.34)
    return maker.program(
        "small",
        line,
        _busy(maker, fill=fill, dram=0.1 * fill, memory=rng.uniform(0.02, 0.5)),
        cause="small_batches",
        also=("gpu_too_large", "small_memory"),
    )


def no_tensor_cores(maker: Maker) -> Program:
    """Training in single precision."""
    line = maker.begin().training(maker.length(), 0.6, 0.03)
    return maker.program(
        "fp32",
        line,
        _busy(maker, tensor=0.0, single=maker.rng.uniform(0.3, 0.75), dram=maker.rng.uniform(0.1, 0.5)),
        cause="no_tensor_cores",
    )


def unused_gpus(maker: Maker) -> Program:
    gpus = int(maker.rng.choice([2, 4, 8]))
    levels = np.zeros(gpus)
    levels[: maker.rng.integers(1, gpus)] = 1.0
    line = maker.begin().training(maker.length(), 0.5, 0.03)
    return maker.program(
        "unused",
        line,
        _busy(maker),
        cause="unused_gpus",
        gpus=gpus,
        levels=levels,
        command="python train.py --data-parallel --run {n}",
    )


def imbalance(maker: Maker) -> Program:
    """One GPU has much less, or the others wait for it in a collective."""
    rng, gpus = maker.rng, int(maker.rng.choice([2, 4, 8]))
    levels = rng.uniform(0.9, 1.0, gpus)
    levels[rng.integers(gpus)] = rng.uniform(0.2, 0.62)
    line = maker.begin().training(maker.length(), 0.6, 0.04)
    return maker.program(
        "uneven", line, _busy(maker), cause="imbalance", gpus=gpus, levels=levels, spin=float(rng.choice([0.0, 0.8]))
    )


def slow_gpu(maker: Maker) -> Program:
    rng, gpus = maker.rng, int(maker.rng.choice([2, 4, 8]))
    line = maker.begin().training(maker.length(), 0.6, 0.04)
    made = maker.program("slow", line, _busy(maker), cause="slow_gpu", also=("imbalance",), gpus=gpus, spin=0.8)
    made.tables["clock_sm_mhz"][rng.integers(gpus)] *= rng.uniform(0.5, 0.88)
    return made


def thermal_throttling(maker: Maker) -> Program:
    rng, gpus = maker.rng, maker.pick_gpus()
    made = maker.program(
        "hot",
        maker.begin().training(maker.length(), 0.6, 0.04),
        _busy(maker),
        cause="thermal_throttling",
        also=("slow_gpu",),
        gpus=gpus,
    )
    row, work = rng.integers(gpus), made.tables["utilization_percent"] > 30
    # It heats up, slows down, cools down.
    wave = np.sin(np.arange(made.samples) * rng.uniform(0.02, 0.3)) < rng.uniform(-0.8, 1.0)
    hot = wave & work[row]
    made.tables["throttled_thermal"][row] = np.maximum(made.tables["throttled_thermal"][row], hot)
    made.tables["clock_sm_mhz"][row] *= np.where(hot, rng.uniform(0.5, 0.85), 1.0)
    return made


def power_limited(maker: Maker) -> Program:
    """Somebody has set a limit far below the card's."""
    rng = maker.rng
    made = maker.program(
        "limited",
        maker.begin().training(maker.length(), 0.6, 0.04),
        _busy(maker),
        cause="power_limited",
        gpus=int(rng.choice([1, 2, 4])),
    )
    share = rng.uniform(0.35, 0.65)
    capped = made.tables["utilization_percent"] > 40
    made.tables["throttled_power"] = capped.astype(float)
    made.tables["power_limit_watts"] *= share
    made.tables["clock_sm_mhz"] *= np.where(capped, share + rng.uniform(-0.02, 0.1), 1.0)
    return made


def pcie_bound(maker: Maker) -> Program:
    """Weights or the optimizer in the host's memory."""
    rng = maker.rng
    compute = rng.uniform(0.2, 1.5)
    line = maker.begin().training(maker.length(), compute, compute * rng.uniform(0.6, 2.5))
    made = maker.program(
        "offload",
        line,
        _busy(maker),
        cause="pcie_bound",
        command="deepspeed train.py --offload --run {n}",
    )
    if "pcie_receive_bytes_per_second" in made.tables:
        rate = rng.uniform(8, 40) * 1e9
        active = made.tables["utilization_percent"] > 0
        for way in ("receive", "transmit"):
            made.tables[f"pcie_{way}_bytes_per_second"] = np.where(active, rate * rng.uniform(0.6, 1.0), 1e6)
    return made


def gpu_too_large(maker: Maker) -> Program:
    """A small model at a low rate."""
    rng = maker.rng
    fill = rng.uniform(0.2, 0.6)
    line = maker.begin().steps(maker.length(1.5 * HOUR, 40 * MINUTE), 0.05, rng.uniform(0.1, 0.9), 0.3)
    return maker.program(
        "tiny",
        line,
        _busy(maker, fill=fill, memory=rng.uniform(0.01, 0.18)),
        cause="gpu_too_large",
        also=("small_memory", *(("small_batches",) if fill < 0.4 else ())),
        command="python predict.py --stream {n}",
    )


def small_memory(maker: Maker) -> Program:
    """A batch that leaves most of the memory unused, at a medium load."""
    rng = maker.rng
    line = maker.begin().training(maker.length(1.5 * HOUR, 40 * MINUTE), 0.1, rng.uniform(0.05, 0.12), 0.2)
    return maker.program(
        "small memory",
        line,
        _busy(maker, fill=rng.uniform(0.45, 0.9), memory=rng.uniform(0.03, 0.19)),
        cause="small_memory",
    )


def out_of_memory(maker: Maker) -> Program:
    """A long sample or a leak takes the last of the memory, and it dies."""
    rng, line = maker.rng, maker.begin().training(maker.length(20 * MINUTE, 3 * MINUTE), 0.5, 0.03)
    made = maker.program("oom", line, _busy(maker, memory=rng.uniform(0.6, 0.9)), cause="out_of_memory")
    memory, last = made.tables["memory_used_bytes"], int(rng.integers(1, 40))
    full = CARDS[made.card][1] * GIB * rng.uniform(0.96, 0.998)
    ramp = np.clip(np.arange(-last, 1) / last + 1, 0, 1)[-min(last + 1, made.samples) :]
    memory[:, -len(ramp) :] += (full - memory[:, -len(ramp) :]) * ramp
    return made


def restart_loop(maker: Maker) -> Program:
    rng, line = maker.rng, Timeline(maker.rng).wait(maker.rng.uniform(15, 150))
    made = maker.program(
        "restarts",
        line,
        Traits(memory=0.05),
        cause="restart_loop",
        also=("never_used",),
        command="python train.py --resume latest --run {n}",
    )
    made.restarts = [
        float(one) for _ in range(rng.integers(3, 8)) for one in (rng.uniform(20, 150), rng.uniform(3, 60))
    ]
    return made


def hardware_fault(maker: Maker) -> Program:
    made = healthy_training(maker)
    code = int(maker.rng.choice([48, 74, 79, 95, 119]))
    made.kind, made.cause, made.faults = (
        "xid",
        "hardware_fault",
        [(float(maker.rng.uniform(0.1, 0.9)) * made.samples * STEP, code)],
    )
    return made


def program_fault(maker: Maker) -> Program:
    made = healthy_short(maker)
    made.kind, made.cause, made.faults = (
        "fault",
        "program_fault",
        [(made.samples * STEP - 3.0, int(maker.rng.choice([13, 31])))],
    )
    return made


HEALTHY: tuple[tuple[Callable[[Maker], Program], float], ...] = (
    (healthy_training, 0.36),
    (healthy_compact, 0.07),
    (healthy_short, 0.1),
    (healthy_server, 0.1),
    (healthy_notebook, 0.1),
    (healthy_simulation, 0.07),
    (healthy_memory_bound, 0.05),
    (healthy_phases, 0.06),
    (healthy_pipeline, 0.05),
    (healthy_sweep, 0.04),
)
FAULTY: tuple[Callable[[Maker], Program], ...] = (
    hardware_fault, restart_loop, out_of_memory, program_fault, idle_notebook, never_used, idle_after_work, unused_gpus,
    thermal_throttling, power_limited, slow_gpu, imbalance, pcie_bound, cpu_bound, waiting_for_data, small_batches,
    no_tensor_cores, gpu_too_large, small_memory,
)  # fmt: skip


def make_programs(count: int, seed: int) -> list[Program]:
    """Half of them healthy, the others with one cause each, all causes alike."""
    maker = Maker(seed)
    makers, weights = zip(*HEALTHY, strict=True)
    found = [makers[int(maker.rng.choice(len(makers), p=weights))](maker) for _ in range(count // 2)]
    found += [FAULTY[place % len(FAULTY)](maker) for place in range(count - len(found))]
    maker.rng.shuffle(found)
    return found
