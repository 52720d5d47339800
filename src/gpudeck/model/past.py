"""What the history answers about a metric over time and about programs. Pure. Times are Unix seconds."""

from typing import Literal

from msgspec import Struct

from gpudeck.model.job import RunVerdict

Point = tuple[float, float | None, float | None, float | None]
"""When the step begins, the mean over it, the smallest and the largest value. None: unknown."""
Resolution = Literal["raw", "quarter_hour", "hour"]


class Series(Struct, omit_defaults=True):
    """Whose points these are: exactly one of the names is there; with `by` two, as `gpu` and `user`. `label` is what
    people call that GPU or host, `model` what a GPU is, where the store knows it. With `by: user` the series without a
    user is that of unknown users."""

    points: list[Point]
    gpu: str | None = None
    label: str | None = None
    model: str | None = None
    host: str | None = None
    user: str | None = None
    run: int | None = None
    fleet: bool | None = None


class Answer(Struct):
    """`step` is how many seconds a point stands for, `resolution` what it was made from."""

    metric: str
    unit: str
    step: float
    start: float
    end: float
    resolution: Resolution
    series: list[Series]


class Run(Struct):
    """One program from its start to its end. `started_at` is what the host says; `seen_at` when it was first seen.
    `ended_at` is when it was last seen, None while it is there. Memory is over all its GPUs, utilization the mean of
    theirs while it was there; both None if unknown. `command_reason` is why a known command is not shown.
    `verdict` is there where it was asked for."""

    id: int
    host: str
    host_name: str
    pid: int
    user: str | None
    command: str | None
    container: str | None
    job: str | None
    gpus: list[str]
    labels: list[str]
    model: str | None
    started_at: float | None
    seen_at: float
    ended_at: float | None
    gpu_seconds: float
    peak_memory_bytes: float | None
    mean_memory_bytes: float | None
    mean_utilization_percent: float | None
    idle_seconds: float
    energy_joules: float | None
    command_reason: str | None = None
    verdict: RunVerdict | None = None


class Runs(Struct):
    """`next` is the `before` of the next page, None on the last."""

    runs: list[Run]
    next: int | None = None
