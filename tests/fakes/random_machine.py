"""A host that reports at random."""

import random

from msgspec.structs import replace

from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric
from gpudeck.model.report import Disk, GpuEvent, GpuReading, Process, Report
from gpudeck.wire import Envelope

REASONS = ("not supported", "the GPU sleeps", "not permitted")


class Machine:
    """A host that reports at random: MIG changes, lost cards, values that cannot be, clocks that are set."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.name, self.chance = name, chance
        self.sequence, self.run = 0, "run-0"
        self.skew = chance.choice((0.0, 0.0, 3.0, -40.0))
        self.gpus = list(range(chance.randint(0, 4)))
        self.busy: dict[int, list[Process]] = {}
        self.last: Report | None = None

    def report(self, now: float, *, steady: float = 0.0) -> Envelope:
        """With the chance `steady` nothing but numbers is other than in the report before."""
        chance = self.chance
        if self.last is not None and chance.random() < steady:
            self.sequence += chance.choice((1, 1, 1, 2))
            return self._seal(self._renumber(self.last), now)
        if chance.random() < 0.05:
            self.gpus = sorted(chance.sample(range(6), chance.randint(0, 5)))
        if chance.random() < 0.02:
            self.run, self.sequence = f"run-{chance.randint(0, 9)}", 0
        self.sequence += chance.choice((1, 1, 1, 2))
        at = now + self.skew
        gpus = None if chance.random() < 0.03 else [self._gpu(index, at) for index in self.gpus]
        metrics, unknown = self._metrics(HOST_METRICS)
        report = Report(
            gpus=gpus,
            gpus_reason="driver not loaded" if gpus is None and chance.random() < 0.5 else None,
            metrics=metrics,
            unknown=unknown,
            driver_version=chance.choice((None, "570.1", "570.1", "580.2")),
            os=chance.choice((None, "Debian 13")),
            labels=chance.choice(({}, {"rack": "a"})),
            problems=chance.choice(([], [], ["disk is slow"])),
            disks=[Disk("/data", chance.choice((2**40, 2**41)), 2**42)] if chance.random() < 0.5 else [],
        )
        return self._seal(report, now)

    def _seal(self, report: Report, now: float) -> Envelope:
        self.last = report
        return Envelope(
            version=1,
            host=self.name,
            boot_id="boot",
            run_id=self.run,
            sequence=self.sequence,
            collected_at=now + self.skew,
            interval_seconds=self.chance.choice((5.0, 5.0, 10.0)),
            report=report,
        )

    def _renumber(self, report: Report) -> Report:
        """The same words, other numbers."""
        chance = self.chance
        return replace(
            report,
            metrics=self._other_values(report.metrics, HOST_METRICS),
            disks=[Disk(disk.mount, chance.choice((0, disk.used_bytes, 2**39)), 2**42) for disk in report.disks],
            gpus=report.gpus
            and [
                replace(
                    gpu,
                    metrics=self._other_values(gpu.metrics, GPU_METRICS),
                    idle_seconds=chance.choice((None, 0.0, 12.5, 700.0)),
                    processes=gpu.processes
                    and [
                        replace(
                            one,
                            memory_used_bytes=chance.choice((None, one.memory_used_bytes, 3 * 2**30)),
                            utilization_percent=chance.choice((None, one.utilization_percent, 99.5)),
                        )
                        for one in gpu.processes
                    ],
                )
                for gpu in report.gpus
            ],
        )

    def _other_values(self, metrics: dict[str, float], catalog: dict[str, Metric]) -> dict[str, float]:
        chance, others = self.chance, {}
        for name, value in metrics.items():
            metric, draw = catalog[name], chance.random()
            wrong = (metric.low - 1, metric.high * 2 + 1, float("inf"), 2**60 + 1)
            others[name] = value if draw < 0.3 else chance.choice(wrong) if draw < 0.33 else self._value(metric)
        return others

    def _gpu(self, index: int, at: float) -> GpuReading:
        chance = self.chance
        metrics, unknown = self._metrics(GPU_METRICS)
        missing = "the GPU is lost" if chance.random() < 0.05 else None
        events = [
            GpuEvent(at=at - chance.choice((10.0, 90_000.0)), code=chance.choice((13, 31, 48, 63, 79)), process=100)
            for _ in range(chance.choice((0, 0, 0, 0, 0, 1, 2)))
        ]
        processes = self._processes(index, at)
        return GpuReading(
            uuid=f"GPU-{self.name}-{index}",
            index=index,
            name=chance.choice(("H200", "H200", "H200", "A100")) if chance.random() < 0.02 else "H200",
            missing=missing,
            metrics={} if missing else metrics,
            unknown={} if missing else unknown,
            processes=processes,
            processes_reason=None if processes is not None else chance.choice((None, "not permitted")),
            idle_seconds=chance.choice((None, 0.0, 700.0)),
            events=events,
        )

    def _processes(self, index: int, at: float) -> list[Process] | None:
        chance = self.chance
        if chance.random() < 0.05:
            return None
        if chance.random() < 0.3:
            self.busy[index] = [
                Process(
                    pid=100 + number,
                    user=chance.choice((None, "ann", "bob")),
                    command=chance.choice((None, 'python "a".py,"availability":', "train")),
                    memory_used_bytes=chance.choice((None, 2**30, 5 * 2**30)),
                    started_at=chance.choice((None, at - 5.0, at - 3_000.0, at + 50.0)),
                    utilization_percent=chance.choice((None, 0.0, 50.0)),
                    display=chance.random() < 0.2,
                )
                for number in range(chance.choice((0, 0, 1, 2)))
            ]
        return self.busy.get(index, [])

    def _metrics(self, catalog: dict[str, Metric]) -> tuple[dict[str, float], dict[str, str]]:
        chance = self.chance
        metrics: dict[str, float] = {}
        unknown: dict[str, str] = {}
        for metric in catalog.values():
            draw = chance.random()
            if draw < 0.06:
                unknown[metric.name] = chance.choice(REASONS)
            elif draw < 0.08:
                metrics[metric.name] = chance.choice((metric.low - 1, metric.high * 2 + 1, float("nan"), float("inf")))
            elif draw < 0.12:
                # Another monitor's exporter rounds nothing.
                metrics[metric.name] = self._value(metric)
            elif draw < 0.95:
                metrics[metric.name] = metric.round(self._value(metric))
        return metrics, unknown

    def _value(self, metric: Metric) -> float:
        chance = self.chance
        if metric.unit in {"flag", "count"}:
            return float(chance.random() < 0.05)
        if metric.name == "memory_used_bytes":
            return chance.choice((0.0, 2.0**20, 600 * 2.0**20, 2.0**33))
        if metric.name == "utilization_percent":
            return chance.choice((0.0, 0.0, 4.9, 5.0, 90.0))
        if metric.name == "temperature_celsius":
            return chance.choice((40.0, 60.0, 86.5, 87.0, 94.0, 99.0))
        return metric.low + chance.random() * (min(metric.high, 1e6) - metric.low)
