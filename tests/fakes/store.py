"""A history that remembers what it was asked, and answers what a test wants."""

import threading
from collections.abc import Iterator, Sequence

from gpudeck.history.base import (
    Heat,
    HeatQuery,
    HeatRow,
    MomentQuery,
    Overview,
    OverviewQuery,
    PastHost,
    RunsQuery,
    SeriesQuery,
    StoreStats,
    UsageQuery,
    VerdictQuery,
)
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.model.history import Answer, Series
from gpudeck.model.job import Run, Runs, RunVerdict, Suggestion
from gpudeck.model.usage import Usage, UsageRow

VERDICT = RunVerdict(
    "poor", "It was idle.", None, [Suggestion("idle_after_work", "It was idle", "72 % of 2h", "20 %", "End it.")]
)
RUN = Run(
    id=7,
    host="id-1",
    host_name="gpu01",
    pid=4711,
    user="alice",
    command="python train.py",
    container=None,
    job=None,
    gpus=["GPU-100"],
    labels=["0"],
    model="H200",
    started_at=1_790_000_000.0,
    seen_at=1_790_000_010.0,
    ended_at=None,
    gpu_seconds=3600.0,
    peak_memory_bytes=1e9,
    mean_memory_bytes=1e9,
    mean_utilization_percent=50.0,
    idle_seconds=0.0,
    energy_joules=None,
)


def make_row(user: str | None = None, hours: float = 2.0) -> UsageRow:
    return UsageRow(hours, hours, 1.0, 0.5, 0.1, 1e9, 0.7, user=user)


class FakeStore:
    """`history.base.Store`. Answers wait for `may_answer`; `at_once` is how many were asked at the same time."""

    problem: str | None = None

    def __init__(self) -> None:
        self.asked: list[object] = []
        self.trouble: Exception | None = None
        self.users = ["alice"]
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.now_asking = self.at_once = 0
        self._lock = threading.Lock()

    def _take(self, ask: object) -> None:
        with self._lock:
            self.asked.append(ask)
            self.now_asking += 1
            self.at_once = max(self.at_once, self.now_asking)
        try:
            assert self.may_answer.wait(30)
            if self.trouble is not None:
                raise self.trouble
        finally:
            with self._lock:
                self.now_asking -= 1

    def take(self, samples: list[HostSample]) -> None:
        raise AssertionError("nobody samples here")

    def series(self, ask: SeriesQuery) -> Answer:
        self._take(ask)
        series = [Series([(ask.start, 50.0, None, 100.0)], gpu=ask.gpu)]
        return Answer(ask.metric, "percent", 60, ask.start, ask.end, "raw", series)

    def heat(self, ask: HeatQuery) -> Heat:
        self._take(ask)
        return Heat(ask.metric, "percent", ask.step, [ask.start], [HeatRow("id-1", "gpu01", [None])])

    def usage(self, ask: UsageQuery) -> Usage:
        self._take(ask)
        rows = [make_row(user) for user in self.users]
        return Usage(ask.by, ask.start, ask.end, 0.987, 20.0, "EUR", rows, make_row())

    def overview(self, ask: OverviewQuery) -> Overview:
        self._take(ask)
        rows = [make_row(user) for user in self.users]
        usage = Usage(ask.by, ask.start, ask.end, 0.987, 20.0, "EUR", rows, make_row())
        series = [Answer("gpus_free", "gpus", 900, ask.start, ask.end, "quarter_hour", [])]
        return Overview(ask.end, series, usage, None)

    def runs(self, ask: RunsQuery) -> Runs:
        self._take(ask)
        return Runs([RUN], 7)

    def run(self, key: int) -> Run | None:
        self._take(key)
        return {7: RUN}.get(key)

    def verdicts(self, asks: Sequence[VerdictQuery]) -> list[RunVerdict]:
        for ask in asks:
            self._take(ask)
        return [VERDICT for _ in asks]

    def moment(self, ask: MomentQuery) -> Iterator[PastHost]:
        self._take(ask)
        process = ProcessSample(4711, 1_790_000_000.0, "alice", "python train.py", None, None, 2**30, 40.0)
        values = {"utilization_percent": 97.0, "power_watts": 650.0, "temperature_celsius": 61.0}
        numbers = tuple(values.get(name) for name in GPU_NAMES)
        gpu = GpuSample("GPU-100", "0", "NVIDIA H200", STATE_NUMBERS["busy"], numbers, (process,))
        own = (12.5, *(None,) * (len(HOST_NAMES) - 1))
        yield PastHost(HostSample("id-1", "gpu01", ask.at - 4, 10.0, own, (gpu,)), [None])

    def stats(self) -> StoreStats:
        return StoreStats("fake", 0, 0, 0, 0, 0, None, None, 0.0)

    def close(self) -> None:
        pass
