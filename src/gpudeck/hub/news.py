"""What two portraits of a host differ in, in words. Pure, but for the damper that it asks."""

from collections.abc import Generator, Iterator
from typing import Any

from gpudeck.hub.damper import Damper
from gpudeck.hub.portrait import GpuPortrait, Portrait, has_other_name
from gpudeck.model.event import Event, Severity, make_event
from gpudeck.model.health import HealthLevel
from gpudeck.model.report import GpuEvent
from gpudeck.model.xid import XidKind, find_xid

_RANKS: dict[HealthLevel, int] = {"unknown": 0, "ok": 0, "warning": 1, "critical": 2}
_SEVERITIES: dict[XidKind, Severity] = {"critical": "critical", "warning": "warning", "application": "info"}
_OLD_FAULT = 2 * 86_400.0


class News:
    """One comparison: of the host with that id, at `now`, which is the report's own time."""

    def __init__(self, host_id: str, before: Portrait, after: Portrait, now: float, damper: Damper) -> None:
        self._id = host_id
        self._before = before
        self._after = after
        self._now = now
        self._damper = damper

    def tell_changes(self, *, is_muted: bool = False, at_start: bool = False) -> Iterator[Event]:
        """What changed on the host, the host itself first. `at_start`: the hub has just been started, and learns of
        hosts one after the other what was so before."""
        if not is_muted:
            yield from self._tell_software()
        if not at_start:
            yield from self._tell_twins()
            yield from self._tell_inventory()
        for uuid, gpu in self._after.gpus.items():
            last = self._before.gpus.get(uuid)
            if last is not None:
                yield from self._tell_gpu(uuid, last, gpu)

    def tell_status(self) -> Generator[Event, None, bool]:
        """Whether it is heard of. Returns whether it comes and goes so often that its return is not told."""
        before, after, name = self._before, self._after, self._after.name
        key = ("status", self._id)
        if after.is_down and not before.is_down:
            silent = f"Nothing has come from it for {in_words(self._now - after.silent_since)}."
            fall = self._make("host_down", f"{name} has stopped reporting", severity="critical", detail=silent)
            yield from self._damp(key, fall, f"{name} goes down again and again")
        elif before.is_down and not after.is_down:
            if not self._damper.rise(key):
                return True
            away = in_words(max(0.0, self._now - before.silent_since))
            yield self._make("host_up", f"{name} reports again", detail=f"It was away for {away}.")
        return False

    def _tell_software(self) -> Iterator[Event]:
        before, after = self._before, self._after
        # Another way in tells another boot id of the same boot, and has no agent, or another one.
        if before.via == after.via and before.boot_id != after.boot_id:
            yield self._make("host_rebooted", f"{after.name} was booted")
        # A version that could not be read is no other version.
        if before.driver_version and after.driver_version and before.driver_version != after.driver_version:
            title = f"{after.name} has driver {after.driver_version}, after {before.driver_version}"
            yield self._make("driver_changed", title)
        is_known = before.agent_version and after.agent_version
        if before.via == after.via and is_known and before.agent_version != after.agent_version:
            title = f"{after.name} has agent {after.agent_version}, after {before.agent_version}"
            yield self._make("agent_changed", title)

    def _tell_twins(self) -> Iterator[Event]:
        for kind, sentence in self._after.twins.items():
            if kind not in self._before.twins:
                fall = self._make("twin", f"{self._after.name}: {sentence}", severity="warning")
                yield from self._damp(("twin", kind, self._id), fall, fall.title)

    def _tell_inventory(self) -> Iterator[Event]:
        """GPUs that are no longer told of, and new ones. A board that is cut into instances is not lost, nor are they
        when it is whole again."""
        before, after = self._before.gpus, self._after.gpus
        boards = {gpu.parent for gpu in after.values()}
        for uuid, gpu in before.items():
            is_known = uuid in after or uuid in boards or gpu.parent in after or has_other_name(uuid, gpu.label, after)
            if not is_known and gpu.missing is None:
                fall = self._make_gpu("gpu_lost", uuid, gpu, "is gone", severity="warning")
                yield from self._damp(("lost", self._id, uuid), fall, f"{self._name(gpu)} comes and goes")
        for uuid, gpu in after.items():
            is_known = uuid in before or has_other_name(uuid, gpu.label, before)
            if not is_known and gpu.missing is None and self._damper.rise(("lost", self._id, uuid)):
                yield self._make_gpu("gpu_found", uuid, gpu, "is there", detail=f"{gpu.model}, {uuid}")

    def _tell_gpu(self, uuid: str, before: GpuPortrait, after: GpuPortrait) -> Iterator[Event]:
        faults = [fault for fault in after.faults if fault not in before.faults]
        for fault in faults:
            yield self._tell_fault(uuid, after, fault)
        if (before.missing is None) != (after.missing is None):
            yield from self._tell_missing(uuid, after)
        elif after.missing is None and not any(find_xid(fault.code).kind != "application" for fault in faults):
            # A fault says already that the GPU is not well.
            yield from self._tell_health(uuid, before, after)

    def _tell_fault(self, uuid: str, gpu: GpuPortrait, fault: GpuEvent) -> Event:
        xid = find_xid(fault.code)
        process = f"process {fault.process}" if fault.process is not None else ""
        said = ", ".join(part for part in (fault.text.rstrip("."), process) if part)
        return make_event(
            # By the host's clock, set right; one of which nobody knows that it is wrong must not put it into another
            # year.
            min(self._now, max(fault.at - self._after.skew, self._now - _OLD_FAULT)),
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

    def _tell_missing(self, uuid: str, gpu: GpuPortrait) -> Iterator[Event]:
        key = ("lost", self._id, uuid)
        if gpu.missing is not None:
            fall = self._make_gpu(
                "gpu_lost", uuid, gpu, f"cannot be read: {gpu.missing}", severity="critical", detail=gpu.action or ""
            )
            yield from self._damp(key, fall, f"{self._name(gpu)} comes and goes")
        elif self._damper.rise(key):
            yield self._make_gpu("gpu_found", uuid, gpu, "can be read again")

    def _tell_health(self, uuid: str, before: GpuPortrait, after: GpuPortrait) -> Iterator[Event]:
        worse = _RANKS[after.health] - _RANKS[before.health]
        key = ("health", self._id, uuid)
        severity: Severity = "critical" if after.health == "critical" else "warning"
        if worse > 0:
            words = f"is {'critical' if severity == 'critical' else 'not well'}: {after.reason}"
            fall = self._make_gpu("health_raised", uuid, after, words, severity=severity, detail=after.action or "")
            yield from self._damp(key, fall, f"{self._name(after)} is well and not well in turn")
        elif worse < 0 and self._damper.rise(key):
            if after.health == "warning":
                words = f"is no longer critical: {after.reason}"
                yield self._make_gpu("health_cleared", uuid, after, words, severity="warning")
            else:
                yield self._make_gpu("health_cleared", uuid, after, "is well again", detail=f"It was: {before.reason}")

    def _damp(self, key: tuple[str, ...], fall: Event, often: str) -> Iterator[Event]:
        where = {"host": fall.host, "host_id": fall.host_id, "gpu": fall.gpu, "label": fall.label}

        def sum_up(count: int) -> Event:
            detail = "Each single time is not told until it is calm again."
            title = f"{often}: {count} times within an hour"
            return make_event(fall.at, "flapping", title, severity="warning", detail=detail, **where)

        told = self._damper.fall(key, fall, sum_up)
        if told is not None:
            yield told

    def _name(self, gpu: GpuPortrait) -> str:
        return f"GPU {gpu.label} of {self._after.name}"

    def _make(self, kind: str, title: str, **others: Any) -> Event:
        return make_event(self._now, kind, title, host=self._after.name, host_id=self._id, **others)

    def _make_gpu(self, kind: str, uuid: str, gpu: GpuPortrait, words: str, **others: Any) -> Event:
        title = f"{self._name(gpu)} {words}"
        return self._make(kind, title, gpu=uuid, label=gpu.label, **others)


def in_words(seconds: float) -> str:
    """A length of time in its two largest units."""
    rest = round(max(0.0, seconds))
    parts: list[str] = []
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
    return " ".join(part for part in parts[:2] if part) or "0 s"
