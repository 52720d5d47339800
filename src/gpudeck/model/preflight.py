"""Whether jobs may start on a host's GPUs: ok, drain or unknown, for prologs of schedulers and preflight checks. Pure.

What is known to be bad drains, also if the host has stopped reporting since; what nobody can say is unknown, never ok.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, Literal

from msgspec import Struct, field

if TYPE_CHECKING:
    # A command that a job waits for imports this for the answer alone.
    from gpudeck.model.alert import Alert
    from gpudeck.model.maintenance import Maintenance
    from gpudeck.model.view import Gpu, Host

HealthVerdict = Literal["ok", "drain", "unknown"]
_SILENCE: Final = frozenset(("host_down", "host_unreadable"))
"""Alerts that say that nothing is known of a host."""
_RANKS: Final[dict[HealthVerdict, int]] = {"ok": 0, "unknown": 1, "drain": 2}


class GpuHealth(Struct, frozen=True):
    """`reasons` of `ok` are warnings. `uuid` is null for a GPU that was asked for and is not there."""

    label: str
    uuid: str | None
    verdict: HealthVerdict
    reasons: list[str] = field(default_factory=list)


class HostHealth(Struct, frozen=True):
    """The worst of its GPUs: drain, then unknown, then ok. `reasons` are those of the host as a whole, which count for
    each GPU. `time` is the hub's."""

    host: str
    verdict: HealthVerdict
    time: float
    reasons: list[str] = field(default_factory=list)
    gpus: list[GpuHealth] = field(default_factory=list)

    def explain(self) -> list[str]:
        """A line for the host, if anything is to be said of it, and for each GPU that is not ok or has a warning."""
        lines = [f"{self.host}: {reason}" for reason in self.reasons]
        return lines + [f"GPU {gpu.label}: {reason}" for gpu in self.gpus for reason in gpu.reasons]


def judge_host(host: "Host", alerts: "Iterable[Alert]", wanted: Sequence[str], now: float) -> HostHealth:
    """`alerts` are those of the host that fire: critical ones drain, whether they are acknowledged or muted or not.
    `wanted` are labels or UUIDs of GPUs; none: all."""
    critical = [alert for alert in alerts if alert.severity == "critical" and alert.rule not in _SILENCE]
    drains = [*_tell(host.maintenance), *(alert.title for alert in critical if alert.gpu is None)]
    silent = [] if host.status == "up" else [f"the host is {host.status.replace('_', ' ')}"]
    there = {gpu.uuid: gpu for gpu in host.gpus}
    gone = {
        alert.gpu: alert.label or alert.gpu for alert in critical if alert.gpu is not None and alert.gpu not in there
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
    return found or [GpuHealth(name, None, "unknown", ["the host has no such GPU"])]


def _judge_gpu(gpu: "Gpu", host: "Host", critical: "Sequence[Alert]", *, is_silent: bool) -> GpuHealth:
    drains = [*(_tell(gpu.maintenance) if gpu.maintenance != host.maintenance else ()), *_titles(critical, gpu.uuid)]
    said = [gpu.health_reason] if gpu.health_reason and not is_silent else []
    if drains or gpu.health == "critical":
        return GpuHealth(gpu.label, gpu.uuid, "drain", [*drains, *(said if gpu.health == "critical" else ())])
    return GpuHealth(gpu.label, gpu.uuid, "unknown" if is_silent or gpu.health == "unknown" else "ok", said)


def _titles(critical: "Sequence[Alert]", uuid: str) -> list[str]:
    return [alert.title for alert in critical if alert.gpu == uuid]


def _tell(maintenance: "Maintenance | None") -> list[str]:
    return [] if maintenance is None else [f"in maintenance: {maintenance.reason} ({maintenance.by})"]
