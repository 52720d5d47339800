"""This machine: the reports of all its collectors combined into one.

A collector that fails never hides what the others read. GPUs that were seen once are reported as missing when they
cannot be read.
"""

import logging
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from gpudeck.collectors.base import Collector, CollectorSettings, is_due, plugin_names
from gpudeck.collectors.cgroups import CgroupWatch
from gpudeck.collectors.child import ChildCollector, Spawn, fork_child, spawn_child
from gpudeck.collectors.containers import SlurmCollector
from gpudeck.collectors.drm_cards import find_cards
from gpudeck.collectors.host import HostCollector
from gpudeck.collectors.kubernetes import PodWatch
from gpudeck.collectors.xids import XidWatch
from gpudeck.model.errors import Absent, PluginError, Wrong
from gpudeck.model.report import GpuReading, Report

log = logging.getLogger(__name__)

# Without nvidia-persistenced a driver with eight GPUs takes that long to be opened.
_ONCE_DEADLINE = 30.0

_ABSENT_SECONDS = 60.0
_SENTENCE_LENGTH = 1000
_MAX_PROBLEMS = 64


class _CollectorState:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._last = Report()
        self._known: dict[str, GpuReading] = {}
        self._failure: PluginError | None = None
        self._failing_since = 0.0
        self._asked_at: float | None = None

    def read(self, now: float) -> Report:
        """The collector's report, or a report of its failure. Never raises."""
        if isinstance(self._failure, Absent) and not is_due(self._asked_at, _ABSENT_SECONDS, now):
            return self._stand_in()
        self._asked_at = now
        try:
            report = self._collector.collect(now)
        except PluginError as error:
            self._fail(error, now)
        except Exception as error:  # noqa: BLE001 - a bug in one collector must not silence the machine
            wrong = Wrong(f"The collector {self._collector.name} failed: {type(error).__name__}: {error}.")
            wrong.__cause__ = error
            self._fail(wrong, now)
        else:
            if self._failure is not None:
                log.info("%s: can be read again after %.0f s", self._collector.name, now - self._failing_since)
                self._failure = None
            return self._complete(report)
        return self._stand_in()

    def close(self) -> None:
        self._collector.close()

    def _fail(self, error: PluginError, now: float) -> None:
        """Logged when it begins or changes its kind, not at every reading."""
        before, self._failure = self._failure, error
        if before is None:
            self._failing_since = now
        if type(before) is type(error):
            return
        if isinstance(error, Absent) and not self._known:
            log.info("%s: %s", self._collector.name, error)
        else:
            is_bug = isinstance(error, Wrong)
            log.warning("%s: %s", self._collector.name, error, exc_info=error if is_bug else None)

    def _complete(self, report: Report) -> Report:
        """`report` and the GPUs of boards that were here before and are not in it. MIG instances may come and go."""
        self._last = report
        if report.gpus is None:
            return report
        boards = {gpu.parent or gpu.uuid for gpu in report.gpus}
        gone = [gpu for gpu in self._known.values() if (gpu.parent or gpu.uuid) not in boards]
        self._known = {gpu.uuid: gpu for gpu in (*report.gpus, *gone)}
        missing = [_as_missing(gpu, "the driver no longer lists this GPU") for gpu in gone]
        return replace(report, gpus=[*report.gpus, *missing]) if missing else report

    def _stand_in(self) -> Report:
        """The report for a collector that cannot be read: all values it had are unknown."""
        reason = str(self._failure)[:_SENTENCE_LENGTH]
        unknown = dict.fromkeys((*self._last.metrics, *self._last.unknown), reason)
        gpus = [_as_missing(gpu, reason) for gpu in self._known.values()] or None
        problems = [] if isinstance(self._failure, Absent) and gpus is None else [reason]
        return Report(gpus=gpus, gpus_reason=reason, unknown=unknown, problems=problems)


class MachineCollector:
    """All collectors of a machine as one. `collect` never raises. `xids` is asked about NVIDIA GPUs that are missing:
    the kernel log often has the reason. `pods` adds what Kubernetes has given to pods, `cgroups` what jobs use of the
    host."""

    name = "machine"

    def __init__(
        self,
        collectors: Iterable[Collector],
        xids: XidWatch | None = None,
        pods: PodWatch | None = None,
        cgroups: CgroupWatch | None = None,
    ) -> None:
        self._sources = [_CollectorState(collector) for collector in collectors]
        self._xids = xids
        self._pods = pods
        self._cgroups = cgroups

    def collect(self, now: float) -> Report:
        report = combine([source.read(now) for source in self._sources])
        if self._pods is not None:
            report = self._pods.add_to(report)
        if self._cgroups is not None:
            report = self._cgroups.add_to(report, now)
        if self._xids is None or not any(map(_is_gone, report.gpus or ())):
            return report
        self._xids.check(None, now)
        return replace(report, gpus=[self._add_faults(gpu, now) if _is_gone(gpu) else gpu for gpu in report.gpus or ()])

    def _add_faults(self, gpu: GpuReading, now: float) -> GpuReading:
        """Adds the faults in the log to a missing GPU, if there are more than its collector reported."""
        events = self._xids.events_of(gpu.uuid, gpu.pci_address, now) if self._xids is not None else []
        return replace(gpu, events=events) if len(events) > len(gpu.events) else gpu

    def close(self) -> None:
        for source in self._sources:
            source.close()
        for other in (self._xids, self._pods):
            if other is not None:
                other.close()


def combine(parts: Sequence[Report]) -> Report:
    """One report of partial ones. If two have the same value, the first one counts; a value counts before a reason."""
    lists = [part.gpus for part in parts if part.gpus is not None]
    reasons = [part.gpus_reason for part in parts if part.gpus_reason]
    metrics = {name: value for part in reversed(parts) for name, value in part.metrics.items()}
    unknown = {name: why for part in reversed(parts) for name, why in part.unknown.items() if name not in metrics}
    return Report(
        gpus=[gpu for gpus in lists for gpu in gpus] if lists else None,
        gpus_reason=None if lists else _put_in_a_row(reasons) or "nothing here reads GPUs",
        metrics=metrics,
        unknown=unknown,
        driver_version=next((part.driver_version for part in parts if part.driver_version), None),
        os=next((part.os for part in parts if part.os), None),
        labels={key: value for part in reversed(parts) for key, value in part.labels.items()},
        disks=[disk for part in parts for disk in part.disks],
        addresses=[address for part in parts for address in part.addresses],
        interfaces={address: name for part in parts for address, name in part.interfaces.items()},
        problems=[problem for part in parts for problem in part.problems][:_MAX_PROBLEMS],
        slurm_gpus=[address for part in parts for address in part.slurm_gpus],
    )


def _put_in_a_row(reasons: Sequence[str]) -> str:
    row = reasons if len(reasons) < 2 else [f"{reason.rstrip('.')}." for reason in reasons]
    return " ".join(row)[:_SENTENCE_LENGTH]


def watch_this_machine(settings: CollectorSettings, spawn: Spawn = spawn_child) -> MachineCollector:
    """The machine this runs on, with everything that can be read here. Nothing is opened before the first reading."""
    return MachineCollector(
        [
            *(ChildCollector(name, settings, spawn=spawn) for name in ("nvml", "drm", *plugin_names())),
            *(HostCollector(), SlurmCollector()),
        ],
        XidWatch(),
        PodWatch(settings.kubernetes),
        CgroupWatch(),
    )


def read_once(settings: CollectorSettings) -> MachineCollector:
    """The same for a single reading that a person waits for: longer deadlines, and forks instead of new processes."""
    read_in_forks = (
        ChildCollector(name, settings, deadline=_ONCE_DEADLINE, spawn=fork_child)
        for name in ("nvml", "drm", *plugin_names())
    )
    return MachineCollector([*read_in_forks, HostCollector()], pods=PodWatch(settings.kubernetes))


def has_gpus(root: Path = Path("/"), probe: Collector | None = None) -> bool:
    """Whether this machine has GPUs, also ones that cannot be read right now. `probe` is asked where the kernel's files
    do not settle it (WSL has none, a container sees the host's)."""
    if (root / "dev/nvidiactl").exists() and any((root / "proc/driver/nvidia/gpus").glob("*")):
        return True
    if find_cards(root, ""):
        return True
    probe = probe or ChildCollector("nvml")
    try:
        return bool(probe.collect(time.time()).gpus)
    except Absent:
        return False
    except PluginError as error:
        log.warning("%s: %s", probe.name, error)
        return True
    finally:
        probe.close()


def _is_gone(gpu: GpuReading) -> bool:
    return gpu.missing is not None and gpu.vendor == "nvidia"


def _as_missing(gpu: GpuReading, reason: str) -> GpuReading:
    """The identity and the faults of the GPU are kept."""
    unread = {"processes": None, "processes_reason": None, "idle_seconds": None}
    return replace(gpu, missing=reason, metrics={}, unknown={}, **unread)
