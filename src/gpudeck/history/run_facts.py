"""What the rules of verdicts are told: the samples of a run or job as columns, and what several rules ask of them.

Time runs along the last axis of all arrays. NaN is unknown, and also stands where the run was not on the GPU.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
from msgspec import Struct, field

from gpudeck.history.base import Fault
from gpudeck.history.codec import Flags, Floats

GPU_INPUTS: Final[tuple[str, ...]] = (
    *("utilization_percent", "memory_used_bytes", "memory_total_bytes", "clock_sm_mhz", "power_watts"),
    "power_limit_watts",
    *("throttled_thermal", "throttled_hardware", "throttled_power"),
    *("pcie_receive_bytes_per_second", "pcie_transmit_bytes_per_second"),
    *("sm_activity_percent", "tensor_activity_percent", "fp32_activity_percent", "dram_activity_percent"),
)
HOST_INPUTS: Final = ("host_cpu_percent",)


KNOWN_SHARE: Final = 0.8
"""A metric is known if it is in so much of the time."""
WORK_PERCENT: Final = 5.0
STRETCH_SECONDS: Final = 600.0
_INTERACTIVE: Final = re.compile(r"ipykernel|jupyter|notebook|marimo|code-server|\bipython\b|rstudio", re.IGNORECASE)
_SERVING: Final = re.compile(
    r"serve|serving|\bvllm\b|sglang|triton|\btgi\b|text-generation|ollama|llama-server|uvicorn|gunicorn|gradio|streamlit",
    re.IGNORECASE,
)
_MULTIPLIES: Final = re.compile(r"python|torchrun|accelerate|deepspeed|julia", re.IGNORECASE)


class EarlierRun(Struct, frozen=True):
    """A run of the same command by the same user on the same GPUs. Its utilization is None if unknown."""

    first: float
    last: float
    utilization_percent: float | None


class RunSamples(Struct):
    """A run or job over its time. `present` and each of `metrics` are (GPUs, samples), `times`, `covered` (the seconds
    that a sample stands for) and `cpu_percent` (of its host, or of the cores that it may use) are lines. `memory` is
    its own. `wall_seconds` is the time that was asked for. `is_over`: it has ended."""

    labels: list[str]
    models: list[str]
    times: Floats
    covered: Floats
    present: Flags
    memory: Floats
    metrics: dict[str, Floats]
    cpu_percent: Floats
    wall_seconds: float
    is_over: bool = True
    command: str | None = None
    faults: Sequence[Fault] = ()
    earlier: list[EarlierRun] = field(default_factory=list)


class RunFacts:
    """What several rules ask of the same columns. Means are weighted with time, over the work: from its first sample
    with work until its last one, unless they say otherwise."""

    def __init__(self, columns: RunSamples) -> None:
        self.of = columns
        self._means: dict[str, Floats] = {}
        self._mean_of_all: dict[str, float] = {}
        self.utilization = self.metric("utilization_percent")
        self.count = len(columns.labels)
        self.seconds = columns.present * columns.covered
        self.is_busy = self.utilization >= WORK_PERCENT
        self.works = self.is_busy.any(axis=0)
        self.busy_seconds = self.is_busy @ columns.covered
        places = np.flatnonzero(self.works)
        first, last = (int(places[0]), int(places[-1]) + 1) if len(places) else (0, 0)
        self.work = slice(first, last)
        self.wall = float(columns.covered @ columns.present.any(axis=0))

    @cached_property
    def is_interactive(self) -> bool:
        return _INTERACTIVE.search(self.of.command or "") is not None

    @cached_property
    def is_serving(self) -> bool:
        return _SERVING.search(self.of.command or "") is not None

    @cached_property
    def may_multiply(self) -> bool:
        """Whether it is of a kind that usually multiplies matrices. Simulations of molecules or fluids do not."""
        return _MULTIPLIES.search(self.of.command or "") is not None

    @cached_property
    def worked(self) -> float:
        """Seconds in which any of its GPUs worked."""
        return float(self.of.covered @ self.works)

    @cached_property
    def idle_stretches(self) -> list[tuple[float, float]]:
        """From when until when none of its GPUs worked, of ten minutes and more, and all was known."""
        present = self.of.present
        is_unknown: Flags = np.logical_or.reduce(np.isnan(self.utilization) & present)
        known = np.logical_or.reduce(present) & ~is_unknown
        found = [
            (float(self.of.times[begin] - self.of.covered[begin]), float(self.of.times[end - 1]))
            for begin, end in find_blocks(known & ~self.works)
        ]
        return [(begin, end) for begin, end in found if end - begin >= STRETCH_SECONDS]

    @cached_property
    def mean_utilization(self) -> float | None:
        """Over all of its time."""
        known = ~np.isnan(self.utilization)
        seconds = (known * self.of.covered).sum()
        return float((np.where(known, self.utilization, 0.0) * self.of.covered).sum() / seconds) if seconds else None

    @cached_property
    def memory_share(self) -> float | None:
        """The most of a GPU's memory that it used on any of them, 0–1."""
        total = self.metric("memory_total_bytes")
        if not (self.is_known_everywhere(self.of.memory) and self.is_known_everywhere(total)):
            return None
        return float(np.nanmax(self.of.memory / total))

    def metric(self, name: str) -> Floats:
        found = self.of.metrics.get(name)
        return np.full(self.of.present.shape, np.nan) if found is None else found

    def is_known_everywhere(self, values: Floats) -> bool:
        """In nearly all of its time, of all its GPUs."""
        seconds = float(self.seconds.sum())
        return seconds > 0 and float((~np.isnan(values) * self.seconds).sum()) >= KNOWN_SHARE * seconds

    def by_gpu(self, name: str) -> Floats:
        """The mean of each GPU; NaN where it is not known in nearly all of the work."""
        if name not in self._means:
            self._means[name] = np.full(self.count, np.nan)
            if name in self.of.metrics:
                seconds = self.seconds[:, self.work]
                values = self.of.metrics[name][:, self.work] * seconds
                is_unknown = np.isnan(values)
                total = np.where(is_unknown, 0.0, seconds).sum(axis=1)
                is_known = (total > 0) & (total >= KNOWN_SHARE * seconds.sum(axis=1))
                values[is_unknown] = 0.0
                np.divide(values.sum(axis=1), total, out=self._means[name], where=is_known)
        return self._means[name]

    def mean(self, name: str) -> float:
        """Of all of its GPUs. A comparison with NaN, which is unknown, is false."""
        if name not in self._mean_of_all:
            values = self.by_gpu(name)
            self._mean_of_all[name] = float(values.mean()) if len(values) else float("nan")
        return self._mean_of_all[name]

    def places(self, which: Flags) -> str:
        names = [label for label, is_one in zip(self.of.labels, which, strict=True) if is_one]
        return f"GPU{'s' * (len(names) != 1)} {', '.join(names[:8])}{', …' if len(names) > 8 else ''}"


def find_blocks(flags: Flags) -> list[tuple[int, int]]:
    """Where each block of neighbours that are true begins, and ends."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], flags, [False])).astype(np.int8)))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
