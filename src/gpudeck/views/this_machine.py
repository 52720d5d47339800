"""This machine without a hub: its collectors' reports as a fleet of one host, as a hub would show it.

The rules for one GPU are those of model.gpu_state, with their default limits. A hub applies them to columns of all GPUs
with numpy, which a base install lacks and which takes longer to import than this machine to read.
"""

import contextlib
import math
import time
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import asdict

from gpudeck import __version__
from gpudeck.collectors.base import Collector, CollectorSettings
from gpudeck.collectors.host import host_name, machine_id
from gpudeck.collectors.machine import read_once, watch_this_machine
from gpudeck.model.catalog import GPU_METRICS, HOST_METRICS, Metric, Value
from gpudeck.model.gpu_state import (
    FAULT_SECONDS,
    Availability,
    FleetSettings,
    Verdict,
    is_occupied,
    judge,
    judge_faults,
    judge_health,
    judge_wear,
)
from gpudeck.model.report import (
    GpuEvent,
    GpuReading,
    Number,
    Occupancy,
    Process,
    Report,
    find_user,
    occupancy_of,
    users_of,
)
from gpudeck.model.text import without_maker
from gpudeck.model.view import Fleet, Gpu, Host, ShownProcess, show_event
from gpudeck.views.filter import count

_SETTINGS: Final = FleetSettings()
_NOT_REPORTED: Final = "not reported"


def read_this_machine(settings: CollectorSettings) -> Fleet:
    """One reading of this machine as a fleet of one host. Drivers are read in forks of this process, with a deadline:
    one that hangs costs only its GPUs, and Ctrl-C ends it."""
    with contextlib.closing(LocalWatch(read_once(settings), interval=60.0)) as watch:
        return watch.read()


def watch_locally(settings: CollectorSettings, interval: float = 1.0) -> "LocalWatch":
    """This machine for a live view. Drivers are read in child processes, with a deadline: one that hangs costs only its
    GPUs."""
    return LocalWatch(watch_this_machine(settings), interval)


class LocalWatch:
    """A fleet of this machine only, which remembers its last reading. `close` ends its child processes."""

    def __init__(self, machine: Collector, interval: float) -> None:
        self._machine = machine
        self._interval = interval
        self._gpus: dict[str, _ObservedGpu] = {}

    def read(self) -> Fleet:
        """This machine as a fleet of one host. Blocks while it is read."""
        now = time.time()
        host = self.show(self._machine.collect(now), now)
        return Fleet(demo=False, time=now, version=__version__, totals=count([host]), hosts=[host])

    def show(self, report: Report, now: float) -> Host:
        """This machine's current report, as a hub shows it that gets one after the other."""
        readings = report.gpus or []
        self._gpus = {one.uuid: self._gpus.get(one.uuid) or _ObservedGpu(one, now) for one in readings}
        numbers, reasons = _believe(HOST_METRICS, report.metrics, report.unknown)
        for name, word in (("driver_version", report.driver_version), ("os", report.os)):
            if word is None:
                reasons[name] = report.unknown.get(name, _NOT_REPORTED)
        if report.gpus is None:
            reasons["gpus"] = report.gpus_reason or "the GPUs of this host could not be read"
        called = host_name()
        return Host(
            id=machine_id() or called,
            name=called,
            display_name=called,
            status="up",
            via="local",
            last_report_at=round(now, 3),
            interval_seconds=self._interval,
            clock_skew_seconds=0.0,
            agent_version=__version__,
            driver_version=report.driver_version,
            os=report.os,
            labels=report.labels,
            disks=report.disks,
            addresses=report.addresses,
            problems=report.problems,
            reasons=reasons,
            gpus=[self._gpus[one.uuid].show(one, now) for one in readings],
            **numbers,
        )

    def close(self) -> None:
        self._machine.close()


class _ObservedGpu:
    """The state of a GPU between two readings."""

    def __init__(self, reading: GpuReading, now: float) -> None:
        self._last_work_at = now - (reading.idle_seconds or 0.0)
        self._occupied_since: float | None = None
        self._is_new = True
        self._availability: Availability | None = None
        self._since = now
        self._faults: dict[GpuEvent, str | None] = {}
        self._processes: list[Process] = []

    def show(self, reading: GpuReading, now: float) -> Gpu:
        numbers, reasons = _believe(
            GPU_METRICS, reading.metrics, reading.unknown, absent=reading.missing or _NOT_REPORTED
        )
        self._take_events(reading)
        there = occupancy_of(reading.processes)
        began = None if there.oldest_start is None else min(now, there.oldest_start)
        availability, why = self._judge(reading.missing, numbers, there, began, now)
        self._settle(availability, began, now)
        faults = judge_faults([event for event in reading.events if now - event.at <= FAULT_SECONDS])
        celsius, unread = numbers["temperature_celsius"], reasons.get("temperature_celsius")
        health = judge_health(reading.missing, celsius, _SETTINGS.health, faults, unread, wear=judge_wear(numbers))
        if reading.processes is None:
            reasons["processes"] = reading.processes_reason or reading.missing or _NOT_REPORTED
        return Gpu(
            uuid=reading.uuid,
            index=reading.index,
            label=str(reading.index) if reading.instance is None else f"{reading.index}.{reading.instance}",
            name=reading.name,
            display_name=without_maker(reading.name),
            vendor=reading.vendor,
            parent=reading.parent,
            pci_address=reading.pci_address,
            availability=availability,
            availability_reason=why,
            since=self._since,
            health=health.level,
            health_reason=health.reason,
            health_action=health.action,
            users=users_of(reading.processes),
            processes=None if reading.processes is None else [ShownProcess(**asdict(one)) for one in reading.processes],
            events=[show_event(event, user) for event, user in self._faults.items()],
            reasons=reasons,
            **numbers,
        )

    def _take_events(self, reading: GpuReading) -> None:
        """Apply faults with their users. The process has often ended by now, and was in the reading before."""
        there = {one.pid: one for one in (*self._processes, *(reading.processes or ()))}
        self._faults = {
            event: self._faults[event] if event in self._faults else find_user(event, there) for event in reading.events
        }
        self._processes = reading.processes or []

    def _judge(
        self, missing: str | None, numbers: Mapping[str, Value], there: Occupancy, began: float | None, now: float
    ) -> Verdict:
        """`began` is when its oldest process was started."""
        is_new, self._is_new = self._is_new, False
        if missing is not None:
            return "unknown", missing
        rules, utilization, memory = (
            _SETTINGS.availability,
            numbers["utilization_percent"],
            numbers["memory_used_bytes"],
        )
        if memory is not None:
            # If the share of a display server is unknown, so is the rest.
            memory = None if there.display_bytes is None else memory - there.display_bytes
        if utilization is None or utilization >= rules.work_percent or self._last_work_at > now:
            self._last_work_at = now
        if not is_occupied(there.workers, memory, rules):
            self._occupied_since = None
        elif self._occupied_since is None:
            # A user who was there at the first reading may have come at any time before.
            self._occupied_since = 0.0 if is_new else now
        # A user is idle for no longer than they have been on the GPU.
        came = began if began is not None else self._occupied_since
        return judge(
            processes=there.workers,
            memory_used_bytes=memory,
            utilization_percent=utilization,
            idle_seconds=now - (self._last_work_at if came is None else max(self._last_work_at, came)),
            reserved=False,
            settings=rules,
        )

    def _settle(self, availability: Availability, began: float | None, now: float) -> None:
        """Record since when it is in this state. The first reading, and the one after an unknown state, may know
        better."""
        if availability != self._availability:
            is_first_sight = self._availability in {None, "unknown"} and availability != "unknown"
            beginning = self._last_work_at if availability != "busy" else began
            self._since = round(now if beginning is None or not is_first_sight else min(now, beginning), 3)
            self._availability = availability


def _believe(
    catalog: Mapping[str, Metric],
    metrics: Mapping[str, Number],
    unknown: Mapping[str, str],
    absent: str = _NOT_REPORTED,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Every metric of the catalog, None if it is unknown or out of range, and the reasons for these."""
    numbers: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    for name, metric in catalog.items():
        value = metrics.get(name)
        if value is None:
            reasons[name] = unknown.get(name, absent)
        elif not metric.low <= value <= metric.high:
            is_number = math.isfinite(value)
            reasons[name] = f"the agent sent {value:.15g}, which cannot be" if is_number else "not a number"
            value = None
        else:
            value = int(value) if metric.precision >= 1 and float(value).is_integer() else float(value)
        numbers[name] = value
    return numbers, reasons
