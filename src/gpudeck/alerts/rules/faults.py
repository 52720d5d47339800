"""The rule about faults that the driver tells of, by class: hardware is for those who run it, the fault of a program is
for its owner alone."""

from collections.abc import Sequence

import numpy as np

from gpudeck.alerts.finding import FleetColumns, Rule, RuleFinding, find_at
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.fleet.columns import Flags
from gpudeck.model.event import Severity
from gpudeck.model.view import Gpu, ShownEvent
from gpudeck.model.xid import XidKind, find_xid

_DAY = 86_400.0
_SEVERITIES: dict[XidKind, Severity | None] = {"critical": None, "warning": "warning", "application": "info"}


def find_faults(host: SeenHost, gpus: Sequence[Gpu], limits: Limits, around: Around) -> Sequence[RuleFinding]:
    """Each code of each GPU once, by its newest fault. One that needs somebody to act counts for a day, even if the hub
    was away when it happened; others as long as their end takes."""
    faulty = [gpu for gpu in gpus if gpu.events]
    if not faulty:
        return ()
    skew = host.view.clock_skew_seconds or 0.0
    found: list[RuleFinding] = []
    for gpu in faulty:
        newest = {event.code: event for event in gpu.events}
        for event in newest.values():
            at = min(around.now, event.at - skew)
            span = _DAY if event.kind == "critical" else max(limits.clear_after, 1.0)
            if around.now - at < span:
                found.append(_describe(host, gpu, event, at))
    return found


def preselect_faults(fleet: FleetColumns, limits: Limits, around: Around) -> Flags:
    gpus, end = fleet.gpus, fleet.gpus.end
    now = around.now + np.nan_to_num(fleet.hosts.clock_skew[gpus.host[:end]])
    is_recent = now - gpus.last_fault_at[:end] < max(limits.clear_after, 1.0)
    return is_recent | (now - gpus.last_critical_at[:end] < _DAY)


def _describe(host: SeenHost, gpu: Gpu, event: ShownEvent, at: float) -> RuleFinding:
    is_own_fault = event.kind == "application"
    return find_at(
        gpu,
        f"XID {event.code} on GPU {gpu.label} of {host.name}: {event.text}",
        part=str(event.code),
        since=at,
        severity=_SEVERITIES[event.kind],
        action="Look at your program: its driver said that it failed." if is_own_fault else _action(event.code),
        users=() if event.user is None else (event.user,),
        is_personal=is_own_fault,
    )


def _action(code: int) -> str:
    return find_xid(code).action


FAULT_RULES = (
    Rule(
        name="xid",
        scope="gpu",
        find=find_faults,
        preselect=preselect_faults,
        action="Look at the kernel log (dmesg) of the host.",
        many="{count} faults of GPUs (XID)",
        reads_missing=True,
        tells_end=False,
    ),
)
