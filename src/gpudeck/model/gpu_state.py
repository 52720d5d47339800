"""The state of a GPU: its availability, its health, and whether jobs may start on it. Pure: facts in, one word and its
reason out.

free      not in use, not allocated, not reserved now and not drained
busy      work is happening, or happened less than `idle_after` ago
idle      a process or memory is on it, but no work for `idle_after`
allocated not in use, but a scheduler has given it to a job; wins over drained and reserved
reserved  not in use, but reserved now
drained   not in use, but drained for maintenance, or closed by its scheduler; wins over reserved
unknown   stale, missing or unreadable; never guessed, never free

Health is ok, warning, critical or unknown, with reason and next step. An XID of NVIDIA's driver is critical (do not use
the GPU), application (a program's own fault; the GPU is well) or warning. For prologs of schedulers and preflight
checks a host is ok, drain or unknown: known faults drain, also if the host has stopped reporting since; missing
information is unknown, never ok.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal, get_args

from msgspec import Meta, Struct, field

from gpudeck.model.report import GpuEvent
from gpudeck.model.settings import Duration, Memory

if TYPE_CHECKING:
    # Imported by a command that jobs wait for, which uses only the answer.
    from gpudeck.model.alert import Alert
    from gpudeck.model.reservation import Maintenance
    from gpudeck.model.view import Gpu, Host


Availability = Literal["free", "busy", "idle", "allocated", "reserved", "drained", "unknown"]
AVAILABILITIES: tuple[Availability, ...] = get_args(Availability)
UNUSED: frozenset[Availability] = frozenset(("free", "allocated", "reserved", "drained"))
"""The states of GPUs that are not in use."""
RARE: frozenset[Availability] = frozenset(("allocated", "drained"))
"""Many sites have no such GPUs: in counts, zeros of these are left out."""

Verdict = tuple[Availability, str | None]
"""The availability and, unless the word explains itself, the reason."""
STUCK_SECONDS: Final = 20.0
"""If a second took longer than this, the hub itself was suspended, and everything it knows is outdated."""
RETURN_SECONDS: Final = 120.0
"""Seconds for agents to return after a start or a suspension of the hub: they retry after up to a minute. No host
counts as silent before that."""


class AvailabilitySettings(Struct, frozen=True):
    """Where the lines between the states are drawn."""

    idle_after: Annotated[Duration, Meta(ge=0)] = 600.0
    """An occupied GPU without work for this long is idle."""
    work_percent: Annotated[float, Meta(gt=0, le=100)] = 5.0
    """Utilization from which on a GPU counts as working."""
    empty_bytes: Annotated[Memory, Meta(ge=0)] = 512 * 1024 * 1024
    """Memory in use without any known process up to which a GPU still counts as empty."""


def is_working(utilization_percent: float | None, settings: AvailabilitySettings) -> bool | None:
    return None if utilization_percent is None else utilization_percent >= settings.work_percent


def is_occupied(processes: int | None, memory_used_bytes: float | None, settings: AvailabilitySettings) -> bool | None:
    if processes:
        return True
    if memory_used_bytes is not None:
        return memory_used_bytes > settings.empty_bytes
    return None if processes is None else False


def judge(
    *,
    processes: int | None,
    memory_used_bytes: float | None,
    utilization_percent: float | None,
    idle_seconds: float,
    reserved: bool,
    drained: bool = False,
    allocated: bool = False,
    settings: AvailabilitySettings,
) -> Verdict:
    """The availability of a GPU whose reading is fresh. Display servers are left out of `processes` and
    `memory_used_bytes`. A MIG instance has no utilization of its own: a known, empty process list is then proof enough
    that it is free."""
    working = is_working(utilization_percent, settings)
    if working:
        return "busy", None
    occupied = is_occupied(processes, memory_used_bytes, settings)
    if occupied is None:
        return "unknown", "neither its processes nor its memory could be read"
    if occupied:
        return _judge_occupied(working, processes, idle_seconds, settings)
    if working is None and processes is None:
        return "unknown", "neither its processes nor its utilization could be read"
    if allocated:
        return "allocated", None
    return ("drained" if drained else "reserved" if reserved else "free"), None


def _judge_occupied(
    working: bool | None, processes: int | None, idle_seconds: float, settings: AvailabilitySettings
) -> Verdict:
    if working is None:
        return "busy", "it is in use; its utilization cannot be read"
    orphaned = None if processes is None or processes else "memory is in use, but no process is on it"
    return ("idle" if idle_seconds >= settings.idle_after else "busy"), orphaned


FAULT_SECONDS: Final = 24 * 3600.0
"""For how long a driver fault counts against a GPU's health."""

XidKind = Literal["critical", "application", "warning"]
HealthLevel = Literal["ok", "warning", "critical", "unknown"]


class Xid(Struct, frozen=True):
    """One code. `text` continues the words "XID 79:", `action` is a whole sentence."""

    kind: XidKind
    text: str
    action: str


_WATCH = "Look at the kernel log (dmesg) of the host. If it comes again, reset the GPU."
_CONTACT_OWNER = "Tell the owner of the process."
_RESET_CARD = "Take the GPU out of use and reset it. If it comes again, have the card checked."
_RESTART = (
    "Take the GPU out of use and restart the host. If it comes again, update the driver or have the card checked."
)

_CRITICAL = {
    48: ("a memory error that could not be corrected", _RESET_CARD),
    62: ("its internal controller halted", _RESET_CARD),
    64: ("a broken part of its memory could not be replaced", "Take the GPU out of use and have the card replaced."),
    74: ("an NVLink failed", "Reset the GPU. If it comes again, have its NVLink connections checked."),
    79: ("it fell off the bus", "Check the card's power, seat and cooling, then power the host off and on."),
    95: ("a memory error that may have reached other programs", "Stop all work on it, then reset the GPU."),
    119: ("its firmware (GSP) does not answer", _RESTART),
    120: ("its firmware (GSP) failed", _RESTART),
}
_APPLICATION = {
    13: "a program made it execute something invalid",
    31: "illegal memory access by a program",
    43: "a program's work was stopped because it failed",
    45: "a program's work was removed: it was killed or had failed before",
    68: "a program made the video decoder fail",
    69: "a program gave it an invalid command",
    137: "a program accessed memory of another GPU without permission",
}
_WARNING = {
    8: "it stopped working on a program and was stirred up again",
    32: "commands reached it damaged",
    38: "its driver's firmware failed",
    61: "its internal controller stopped at a fault",
    63: "a broken part of its memory is to be replaced at the next reset",
    92: "it corrects unusually many memory errors",
    94: "a memory error that stopped one program and no other",
    109: "it could not switch between programs in time",
    110: "it refused something for its own security",
    121: "its link to the CPU had errors that were corrected",
    122: "its memory for settings could not be read",
    140: "memory errors that could not be corrected",
    143: "it could not be set up",
    154: "the driver asks for a step to recover it",
}

XIDS: dict[int, Xid] = {
    **{code: Xid("critical", text, action) for code, (text, action) in _CRITICAL.items()},
    **{code: Xid("application", text, _CONTACT_OWNER) for code, text in _APPLICATION.items()},
    **{code: Xid("warning", text, _WATCH) for code, text in _WARNING.items()},
}
"""The codes known here."""

_OTHER = Xid("warning", "a fault without a known meaning", _WATCH)


def find_xid(code: int) -> Xid:
    return XIDS.get(code, _OTHER)


BURST_SECONDS: Final = 600.0
_BURST_PROCESSES: Final = 4


def is_repeat(fault: GpuEvent, known: Iterable[GpuEvent]) -> bool:
    """Whether the event repeats a known one of the same GPU: within ten minutes each code counts once per process, for
    at most four processes. A driver may log it hundreds of thousands of times."""
    same = [one for one in known if one.code == fault.code and abs(fault.at - one.at) < BURST_SECONDS]
    return len(same) >= _BURST_PROCESSES or any(one.process == fault.process for one in same)


class Health(Struct, frozen=True):
    """`reason` and `action` are None exactly when `level` is ok."""

    level: HealthLevel
    reason: str | None = None
    action: str | None = None


class HealthSettings(Struct, frozen=True):
    """From which temperature on a GPU is worth a look."""

    hot_celsius: float = 87.0
    """A GPU this hot is a warning."""
    critical_celsius: float = 95.0
    """A GPU this hot is critical."""

    def __post_init__(self) -> None:
        if self.hot_celsius > self.critical_celsius:
            raise ValueError("hot_celsius has to be at most critical_celsius")


class FleetSettings(Struct, frozen=True):
    """When a host counts as gone, and where the lines between GPU states are drawn."""

    down_after: Annotated[Duration, Meta(gt=0)] = 60.0
    """A host that has not reported for this long is down. It is late after three missed reports."""
    forget_after: Annotated[Duration, Meta(gt=0)] = 30 * 86_400.0
    """A host that has not reported for this long is removed from the fleet."""
    max_hosts: Annotated[int, Meta(ge=1)] = 20_000
    """Reports of further hosts are refused."""
    max_hosts_per_token: Annotated[int, Meta(ge=1)] = 2_000
    """Reports of further hosts with the same agent token are refused: a stolen token cannot fill the fleet. A fleet of
    more hosts that share one token needs a higher number."""
    availability: AvailabilitySettings = field(default_factory=AvailabilitySettings)
    health: HealthSettings = field(default_factory=HealthSettings)


OK = Health("ok")
_UNREAD = "its temperature could not be read"
_RESET = "Let its jobs end, then reset the GPU (nvidia-smi -r) or restart the host."
_SIGNS = (
    ("remapped_rows_pending", "row remap pending", _RESET),
    ("ecc_uncorrected_count", "{count} uncorrected memory errors since the driver was loaded", _RESET),
    ("nvlink_inactive_count", "NVLink: {count} down", "Look at nvidia-smi nvlink -s, and reseat or replace."),
)
WEAR = tuple(name for name, _, _ in _SIGNS)
"""The counters that `judge_wear` reads."""
_DMESG = "Look at the host's problems and at its kernel log (dmesg)."
_SEVERITY: dict[HealthLevel, int] = {"ok": 0, "unknown": 1, "warning": 2, "critical": 3}


def judge_health(
    missing: str | None,
    temperature_celsius: float | None,
    settings: HealthSettings,
    faults: Health = OK,
    why_unread: str | None = None,
    *,
    wear: Health = OK,
) -> Health:
    """The health of a GPU whose reading is fresh. Values that could not be read are unknown, never ok."""
    if missing is not None:
        return Health("critical", f"{missing} ({faults.reason})" if faults.reason else missing, faults.action or _DMESG)
    heat = _judge_heat(temperature_celsius, settings) if temperature_celsius is not None else _admit(why_unread)
    # Of two that are equally bad, the first in this order is shown: a fault says more than the wear behind it.
    return max((faults, wear, heat), key=lambda health: _SEVERITY[health.level])


def judge_faults(events: Sequence[GpuEvent]) -> Health:
    """Health by the newest of the worst faults that still count. A program's fault does not affect the GPU's health."""
    worst = OK
    for event in events:
        xid = find_xid(event.code)
        if xid.kind != "application" and _SEVERITY[xid.kind] >= _SEVERITY[worst.level]:
            worst = Health(xid.kind, f"XID {event.code}: {xid.text}", xid.action)
    return worst


def judge_wear(metrics: Mapping[str, float | None]) -> Health:
    """Health by the GPU's own error counters, named as in the catalog. Unknown counters are skipped."""
    for name, text, action in _SIGNS:
        count = metrics.get(name)
        if count:
            return Health("warning", text.format(count=f"{count:.0f}"), action)
    return OK


def _admit(why: str | None) -> Health:
    return Health("unknown", f"{_UNREAD} ({why})" if why else _UNREAD, "See the host's problems for the cause.")


def _judge_heat(temperature_celsius: float, settings: HealthSettings) -> Health:
    if temperature_celsius < settings.hot_celsius:
        return OK
    level: HealthLevel = "critical" if temperature_celsius >= settings.critical_celsius else "warning"
    return Health(level, f"{temperature_celsius:.0f} °C", "Check the fans and the airflow of the host.")


HealthVerdict = Literal["ok", "drain", "unknown"]
_SILENCE: Final = frozenset(("host_down", "host_unreadable"))
"""Alerts for hosts in an unknown state."""
_RANKS: Final[dict[HealthVerdict, int]] = {"ok": 0, "unknown": 1, "drain": 2}


class GpuHealth(Struct, frozen=True):
    """`reasons` of `ok` are warnings. `uuid` is null for a requested GPU that is not there."""

    label: str
    uuid: str | None
    verdict: HealthVerdict
    reasons: list[str] = field(default_factory=list)


class HostHealth(Struct, frozen=True):
    """The worst state of its GPUs: drain, then unknown, then ok. `reasons` are about the host as a whole and apply to
    each GPU. `time` is the hub's."""

    host: str
    verdict: HealthVerdict
    time: float
    reasons: list[str] = field(default_factory=list)
    gpus: list[GpuHealth] = field(default_factory=list)

    def explain(self) -> list[str]:
        """A line for the host, if there is a reason, and one for each GPU that is not ok or has a warning."""
        lines = [f"{self.host}: {reason}" for reason in self.reasons]
        return lines + [f"GPU {gpu.label}: {reason}" for gpu in self.gpus for reason in gpu.reasons]


def judge_host(host: "Host", alerts: "Iterable[Alert]", wanted: Sequence[str], now: float) -> HostHealth:
    """`alerts` are the firing ones of the host: critical ones drain it, whether or not they are acknowledged or muted.
    `wanted` are labels or UUIDs of GPUs; empty: all."""
    critical = [alert for alert in alerts if alert.severity == "critical" and alert.rule not in _SILENCE]
    drains = [*_explain_maintenance(host.maintenance), *(alert.title for alert in critical if alert.gpu is None)]
    silent = [] if host.status == "up" else [f"the host is {host.status.replace('_', ' ')}"]
    present = {gpu.uuid: gpu for gpu in host.gpus}
    gone = {
        alert.gpu: alert.label or alert.gpu for alert in critical if alert.gpu is not None and alert.gpu not in present
    }
    judged = [_judge_gpu(gpu, host, critical, is_silent=bool(silent)) for gpu in host.gpus]
    judged += [GpuHealth(label, uuid, "drain", _titles(critical, uuid)) for uuid, label in gone.items()]
    if wanted:
        judged = [gpu for name in dict.fromkeys(wanted) for gpu in _find(name, judged)]
    elif not judged and not silent:
        silent = [host.reasons.get("gpus") or "the host reports no GPU"]
    own: HealthVerdict = "drain" if drains else "unknown" if silent else "ok"
    verdict = max([own, *(gpu.verdict for gpu in judged)], key=_RANKS.__getitem__)
    return HostHealth(host.name, verdict, now, drains + silent, judged)


def _find(name: str, judged: Sequence[GpuHealth]) -> Sequence[GpuHealth]:
    """The number of a board stands for all of its MIG instances."""
    found = [gpu for gpu in judged if name in {gpu.uuid, gpu.label, gpu.label.partition(".")[0]}]
    labels = ", ".join(gpu.label for gpu in judged) or "none"
    return found or [GpuHealth(name, None, "unknown", [f"the host has no such GPU (it has {labels})"])]


def _judge_gpu(gpu: "Gpu", host: "Host", critical: "Sequence[Alert]", *, is_silent: bool) -> GpuHealth:
    own = gpu.maintenance if gpu.maintenance != host.maintenance else None
    drains = [*_explain_maintenance(own), *_titles(critical, gpu.uuid)]
    known = [gpu.health_reason] if gpu.health_reason and not is_silent else []
    if drains or gpu.health == "critical":
        # The title of an alert contains the health's reason.
        is_new = gpu.health == "critical" and not any(reason in title for reason in known for title in drains)
        return GpuHealth(gpu.label, gpu.uuid, "drain", [*drains, *(known if is_new else ())])
    return GpuHealth(gpu.label, gpu.uuid, "unknown" if is_silent or gpu.health == "unknown" else "ok", known)


def _titles(critical: "Sequence[Alert]", uuid: str) -> list[str]:
    return [alert.title for alert in critical if alert.gpu == uuid]


def _explain_maintenance(maintenance: "Maintenance | None") -> list[str]:
    return [] if maintenance is None else [f"in maintenance: {maintenance.reason} ({maintenance.by})"]
