"""Detects events: compares a host before and after a report, or after time has passed.

A hub that has just started reports no old events. While late reports of a host come in, events of the live host wait,
so that they are in order.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from msgspec import Struct, field, structs

from gpudeck.events.store import KnownFaults
from gpudeck.fleet.baseline import GpuBaseline, HostBaseline, has_other_name
from gpudeck.fleet.gpu import GpuState
from gpudeck.fleet.host import HostState
from gpudeck.fleet.observers import FleetObserver
from gpudeck.model.event import Event, FlapSuppressor, Severity, make_event
from gpudeck.model.gpu_state import (
    BURST_SECONDS,
    RETURN_SECONDS,
    STUCK_SECONDS,
    HealthLevel,
    XidKind,
    find_xid,
    is_repeat,
)
from gpudeck.model.report import GpuEvent
from gpudeck.model.text import show_length

_RANKS: dict[HealthLevel, int] = {"unknown": 0, "ok": 0, "warning": 1, "critical": 2}
_SEVERITIES: dict[XidKind, Severity] = {"critical": "critical", "warning": "warning", "application": "info"}
OLD_FAULT: Final = 2 * 86_400.0
"""A fault is at most this old when it is reported: its host's clock may be wrong."""


class HostDiff:
    def __init__(
        self, host_id: str, before: HostBaseline, after: HostBaseline, now: float, flapping: FlapSuppressor
    ) -> None:
        self._id = host_id
        self._before = before
        self._after = after
        self._now = now
        self._flapping = flapping

    def find_changes(self, *, is_muted: bool = False, at_start: bool = False) -> Iterator[Event]:
        """Changes of the host, then those of its GPUs. `at_start`: the hub has just been started, and its hosts report
        one after the other."""
        if not is_muted:
            yield from self._emit_software()
        if not at_start:
            yield from self._report_duplicates()
            yield from self._emit_inventory()
        for uuid, gpu in self._after.gpus.items():
            last = self._before.gpus.get(uuid)
            if last is not None:
                yield from self._emit_gpu(uuid, last, gpu)
            else:
                yield from self._emit_faults(uuid, {}, gpu)

    def find_status_changes(self) -> tuple[list[Event], bool]:
        """Events of its status, and whether it is flapping, so that its return is not reported."""
        before, after, name = self._before, self._after, self._after.name
        key = ("status", self._id)
        if after.is_down and not before.is_down:
            silent = f"Nothing has come from it for {show_length(self._now - after.silent_since)}."
            fall = self._make("host_down", f"{name} has stopped reporting", severity="critical", detail=silent)
            return list(self._suppress_flapping(key, fall, f"{name} is flapping")), False
        if not before.is_down or after.is_down:
            return [], False
        if not self._flapping.rise(key):
            return [], True
        away = show_length(self._now - before.silent_since)
        return [self._make("host_up", f"{name} reports again", detail=f"It was away for {away}.")], False

    def _emit_software(self) -> Iterator[Event]:
        before, after = self._before, self._after
        # Another source has another boot id of the same boot, and another agent version or none.
        if before.via == after.via and before.boot_id != after.boot_id:
            yield self._make("host_rebooted", f"{after.name} was booted")
        # A version that could not be read has not changed.
        if before.driver_version and after.driver_version and before.driver_version != after.driver_version:
            title = f"{after.name} has driver {after.driver_version}, after {before.driver_version}"
            yield self._make("driver_changed", title)
        is_known = before.agent_version and after.agent_version
        if before.via == after.via and is_known and before.agent_version != after.agent_version:
            title = f"{after.name} has agent {after.agent_version}, after {before.agent_version}"
            yield self._make("agent_changed", title)

    def _report_duplicates(self) -> Iterator[Event]:
        for kind, sentence in self._after.duplicates.items():
            if kind not in self._before.duplicates:
                fall = self._make("duplicate_host", f"{self._after.name}: {sentence}", severity="warning")
                yield from self._suppress_flapping(("duplicate_host", kind, self._id), fall, fall.title)

    def _emit_inventory(self) -> Iterator[Event]:
        """GPUs that are no longer reported, and new ones. A board that is split into MIG instances is not lost, nor are
        the instances when it is whole again."""
        before, after = self._before.gpus, self._after.gpus
        boards = {gpu.parent for gpu in after.values()}
        for uuid, gpu in before.items():
            is_known = uuid in after or uuid in boards or gpu.parent in after or has_other_name(uuid, gpu.label, after)
            if not is_known and gpu.missing is None:
                fall = self._make_gpu("gpu_lost", uuid, gpu, "is gone", severity="warning")
                yield from self._suppress_flapping(("lost", self._id, uuid), fall, f"{self._name(gpu)} is flapping")
        for uuid, gpu in after.items():
            is_known = uuid in before or has_other_name(uuid, gpu.label, before)
            if not is_known and gpu.missing is None and self._flapping.rise(("lost", self._id, uuid)):
                yield self._make_gpu("gpu_found", uuid, gpu, "is there", detail=f"{gpu.model}, {uuid}")

    def _emit_gpu(self, uuid: str, before: GpuBaseline, after: GpuBaseline) -> Iterator[Event]:
        faults = list(self._emit_faults(uuid, before.faults, after))
        yield from faults
        if (before.missing is None) != (after.missing is None):
            yield from self._emit_missing(uuid, after)
        elif after.missing is None and all(fault.severity == _SEVERITIES["application"] for fault in faults):
            # After a fault, another event about bad health would say nothing new.
            yield from self._emit_health(uuid, before, after)

    def _emit_faults(self, uuid: str, before: Iterable[GpuEvent], after: GpuBaseline) -> Iterator[Event]:
        known = list(before)
        for fault in after.faults:
            if fault not in before and not is_repeat(fault, known):
                known.append(fault)
                yield self._emit_fault(uuid, after, fault)

    def _emit_fault(self, uuid: str, gpu: GpuBaseline, fault: GpuEvent) -> Event:
        xid = find_xid(fault.code)
        process = f"process {fault.process}" if fault.process is not None else ""
        said = ", ".join(part for part in (fault.text.rstrip("."), process) if part)
        return make_event(
            # By the host's corrected clock, within limits: its error may be unknown.
            min(self._now, max(fault.at - self._after.skew, self._now - OLD_FAULT)),
            "xid",
            f"XID {fault.code} on {self._name(gpu)}: {xid.text}",
            severity=_SEVERITIES[xid.kind],
            host=self._after.name,
            host_id=self._id,
            gpu=uuid,
            label=gpu.label,
            user=gpu.faults[fault],
            detail=f"{said}. {xid.action}" if said else xid.action,
        )

    def _emit_missing(self, uuid: str, gpu: GpuBaseline) -> Iterator[Event]:
        key = ("lost", self._id, uuid)
        if gpu.missing is not None:
            fall = self._make_gpu(
                "gpu_lost", uuid, gpu, f"cannot be read: {gpu.missing}", severity="critical", detail=gpu.action or ""
            )
            yield from self._suppress_flapping(key, fall, f"{self._name(gpu)} is flapping")
        elif self._flapping.rise(key):
            yield self._make_gpu("gpu_found", uuid, gpu, "can be read again")

    def _emit_health(self, uuid: str, before: GpuBaseline, after: GpuBaseline) -> Iterator[Event]:
        worse = _RANKS[after.health] - _RANKS[before.health]
        key = ("health", self._id, uuid)
        severity: Severity = "critical" if after.health == "critical" else "warning"
        if worse > 0:
            words = f"is {'critical' if severity == 'critical' else 'not well'}: {after.reason}"
            fall = self._make_gpu("health_raised", uuid, after, words, severity=severity, detail=after.action or "")
            yield from self._suppress_flapping(
                key, fall, f"{self._name(after)} is flapping between healthy and unhealthy"
            )
        elif worse < 0 and self._flapping.rise(key):
            if after.health == "warning":
                words = f"is no longer critical: {after.reason}"
                yield self._make_gpu("health_cleared", uuid, after, words, severity="warning")
            else:
                yield self._make_gpu("health_cleared", uuid, after, "is well again", detail=f"It was: {before.reason}")

    def _suppress_flapping(self, key: tuple[str, ...], fall: Event, often: str) -> Iterator[Event]:
        where = {"host": fall.host, "host_id": fall.host_id, "gpu": fall.gpu, "label": fall.label}

        def sum_up(count: int) -> Event:
            detail = "Flapping: further events are suppressed until it is stable."
            title = f"{often}: {count} times within an hour"
            return make_event(fall.at, "flapping", title, severity="warning", detail=detail, **where)

        event = self._flapping.fall(key, fall, sum_up)
        if event is not None:
            yield event

    def _name(self, gpu: GpuBaseline) -> str:
        return f"GPU {gpu.label} of {self._after.name}"

    def _make(self, kind: str, title: str, **others: Any) -> Event:
        return make_event(self._now, kind, title, host=self._after.name, host_id=self._id, **others)

    def _make_gpu(self, kind: str, uuid: str, gpu: GpuBaseline, words: str, **others: Any) -> Event:
        title = f"{self._name(gpu)} {words}"
        return self._make(kind, title, gpu=uuid, label=gpu.label, **others)


_OVERDUE_EVERY: Final = 60.0
_MAX_AN_HOUR: Final = 200
_MAX_DEFERRED: Final = 100
_HOUR: Final = 3600.0

Take = Callable[[Event], None]


class _Deferred(Struct):
    """The baseline of a live host before late reports of it came in, and its later baselines with their times."""

    before: HostBaseline | None
    baselines: list[tuple[float, HostBaseline]] = field(default_factory=list)

    def note(self, at: float, after: HostBaseline) -> None:
        """Keep a baseline that differs. Of too many, the last is replaced."""
        if self.baselines:
            last = structs.replace(self.baselines[-1][1], silent_since=after.silent_since, skew=after.skew)
            if last == after:
                return
        del self.baselines[_MAX_DEFERRED - 1 :]
        self.baselines.append((at, after))


class EventDetector(FleetObserver):
    """`take` gets each event. `known` are the hosts that were seen before this start, by id: since when one is down.
    Without it no host is new; if it `learns`, this is decided when `learn` is called. `faults` are the driver errors
    that have an event: others in the first report of a known host are new. One event loop owns it.
    """

    name = "events"

    def __init__(
        self,
        take: Take,
        started_at: float,
        known: Mapping[str, float | None] | None = None,
        faults: KnownFaults | None = None,
        *,
        learns: bool = False,
    ) -> None:
        self._take = take
        self._unjudged: list[tuple[HostState, HostBaseline, float]] | None = [] if learns else None
        self._known: dict[str, float | None] = dict(known or {})
        self._knows_all = known is None
        self._faults = faults
        self._starting_until = self._returning_until = started_at + RETURN_SECONDS
        self._passed_at: float | None = None
        self._looked_overdue_at = started_at
        self._waiting: dict[int, HostState] = {}
        self._deferred: dict[HostState, _Deferred] = {}
        self._flapping = FlapSuppressor()
        self._quotas: dict[str, tuple[float, int]] = {}

    def learn(self, known: Mapping[str, float | None], faults: KnownFaults | None = None) -> None:
        unjudged, self._unjudged = self._unjudged or [], None
        self._faults = faults
        self._known, self._knows_all = dict(known), False
        for host, baseline, at in unjudged:
            self._welcome(host, baseline, at)

    def on_time(self, now: float) -> None:
        """If a second took much longer, the hub was suspended, and hosts have time to return."""
        if self._passed_at is not None and not 0 <= now - self._passed_at < STUCK_SECONDS:
            self._returning_until = now + RETURN_SECONDS
        self._passed_at = now
        if self._waiting and now >= self._returning_until:
            waiting, self._waiting = self._waiting, {}
            for host in waiting.values():
                self.on_host_changed(host, now)
        if not 0 <= now - self._looked_overdue_at < _OVERDUE_EVERY:
            self._looked_overdue_at = now
            self._emit_all(self._flapping.overdue(now))

    def on_host_changed(self, host: HostState, now: float) -> None:
        if host.status == "never_seen":
            return
        before, after = host.baseline, take_baseline(host, host.baseline)
        if before is not None and not before.is_down and after.is_down and self._may_return(host, now):
            after = structs.replace(after, is_down=False)
            self._waiting[id(host)] = host
        host.baseline = after
        deferred = self._deferred.get(host)
        at = now if after.is_down else min(now, host.observed_at)
        if before is None:
            self._welcome(host, after, now)
        else:
            diff = HostDiff(host.id, before, after, now, self._flapping)
            events, is_muted = diff.find_status_changes()
            self._emit_all(events)
            if deferred is None:
                self._emit_changes(host, before, after, at, is_muted=is_muted)
        if deferred is not None:
            deferred.note(at, after)

    def on_backlog_start(self, host: HostState) -> None:
        """Events of the live host wait for `on_backlog_end`."""
        if host not in self._deferred:
            self._deferred[host] = _Deferred(host.baseline)

    def on_late_change(self, replay: HostState, observed_at: float) -> None:
        before = replay.baseline
        after = replay.baseline = take_baseline(replay, before)
        if before is not None:
            self._emit_all(HostDiff(replay.id, before, after, observed_at, self._flapping).find_changes())

    def on_backlog_end(self, host: HostState, replay: HostState | None) -> None:
        """Report the changes of the live host since the last late report, or if there was none, since its events were
        deferred."""
        deferred = self._deferred.pop(host, None)
        if deferred is None:
            return
        before = None if replay is None else replay.baseline
        if before is not None and deferred.baselines:
            # Late reports do not have duplicate hosts, which the hub finds.
            before = structs.replace(before, duplicates=(deferred.before or deferred.baselines[0][1]).duplicates)
        before = before or deferred.before
        for at, after in deferred.baselines:
            if before is not None:
                self._emit_changes(host, before, after, at)
            before = after

    def _may_return(self, host: HostState, now: float) -> bool:
        """Whether it is too early to call the host down: the hub was away, and has had no report of it since."""
        return now < self._returning_until and host.silent_since <= self._returning_until - RETURN_SECONDS

    def _emit_changes(
        self, host: HostState, before: HostBaseline, after: HostBaseline, at: float, *, is_muted: bool = False
    ) -> None:
        diff = HostDiff(host.id, before, after, at, self._flapping)
        self._emit_all(diff.find_changes(is_muted=is_muted, at_start=at < self._starting_until))

    def _emit_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self._emit(event)

    def _welcome(self, host: HostState, baseline: HostBaseline, now: float) -> None:
        if self._unjudged is not None:
            self._unjudged.append((host, baseline, now))
            return
        is_known = self._knows_all or host.id in self._known
        down_since = self._known.pop(host.id, None)
        self._known[host.id] = None
        make = partial(make_event, now, host=baseline.name, host_id=host.id)
        if baseline.is_down:
            # It was known before this start, and has not returned.
            if down_since is None:
                silent = f"Nothing has come from it for {show_length(now - baseline.silent_since)}."
                title = f"{baseline.name} has stopped reporting"
                self._take(make("host_down", title, severity="critical", detail=silent))
        elif not is_known:
            count = len(baseline.gpus)
            detail = f"{count} GPU{'s' if count != 1 else ''}, by way of {baseline.via}."
            self._take(make("host_seen", f"{baseline.name} reports for the first time", detail=detail))
        elif down_since is not None:
            # It was reported as down before this start.
            self._take(make("host_up", f"{baseline.name} reports again"))
        if not is_known or self._faults is not None:
            before = structs.replace(baseline, gpus={})
            diff = HostDiff(host.id, before, baseline, now, self._flapping)
            self._emit_all(diff.find_changes(is_muted=True, at_start=True))

    def _emit(self, event: Event) -> None:
        """Of a host with too many events, the rest of the hour is left out."""
        known = (self._faults or {}).get((event.gpu, event.title), ())
        if any(abs(event.at - at) < BURST_SECONDS for at in known):
            # From before the start. Its time may differ: it depends on what is known of the host's clock.
            return
        start, count = self._quotas.get(event.host_id or "", (event.at, 0))
        if not 0 <= event.at - start < _HOUR:
            start, count = event.at, 0
        self._quotas[event.host_id or ""] = (start, count + 1)
        if count < _MAX_AN_HOUR:
            self._take(event)
        elif count == _MAX_AN_HOUR:
            title = f"{event.host} has more than {_MAX_AN_HOUR} events an hour: the rest is left out"
            self._take(
                make_event(event.at, "flapping", title, severity="warning", host=event.host, host_id=event.host_id)
            )


def take_baseline(host: HostState, before: HostBaseline | None) -> HostBaseline:
    """The host as it is now. Values that could not be read stay as they were."""
    facts = host.facts
    return HostBaseline(
        name=host.name,
        via=host.via,
        is_down=host.status == "down",
        silent_since=host.silent_since,
        boot_id=host.order.boot_id,
        driver_version=facts.driver_version or (before.driver_version if before else None),
        agent_version=facts.agent_version or (before.agent_version if before else ""),
        duplicates=host.duplicates(),
        gpus=dict(_take_gpus(host.gpus, before.gpus if before else {})),
        skew=facts.clock_skew_seconds or 0.0,
    )


def _take_gpus(gpus: Mapping[str, GpuState], before: Mapping[str, GpuBaseline]) -> Iterator[tuple[str, GpuBaseline]]:
    for uuid, gpu in gpus.items():
        health, last = gpu.health, before.get(uuid)
        level, reason, action = health.level, health.reason, health.action
        if level == "unknown" and last is not None:
            level, reason, action = last.health, last.reason, last.action
        yield (
            uuid,
            GpuBaseline(gpu.label, gpu.display_name, gpu.parent, gpu.missing, level, reason, action, gpu.faults),
        )
