"""Rules about hosts: silent, late, never read, without a driver, short of disk or RAM, with a wrong clock or agent."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gpudeck.alerts.finding import FleetColumns, Rule, RuleFinding
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.fleet.columns import DOWN, NEVER, Flags, Floats
from gpudeck.model.quantity import show_span
from gpudeck.model.release import read_release
from gpudeck.model.view import Gpu

_OWN_AGENTS: Final = frozenset({"push", "pull", "simulated"})
"""Ways in on which an agent of ours tells its version."""
_FULL_PERCENT: Final = 99.0
"""From here on a disk is as good as full, which is critical."""


def find_down(host: SeenHost, _: Sequence[Gpu], __: Limits, around: Around) -> Sequence[RuleFinding]:
    if host.status != "down":
        return ()
    return (RuleFinding(title=_why_silent(host, "has stopped reporting"), since=min(around.now, host.silent_since)),)


def preselect_down(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    is_down: Flags = fleet.hosts.status[: fleet.hosts.end] == DOWN
    return is_down


def why_awaited(host: SeenHost, _: str, __: str) -> str | None:
    """`never`: what the hub remembers of the host could not be read yet, as its database does not answer."""
    is_silent = host.is_recalled or host.status == "never"
    return "the host has not reported since the hub was started" if is_silent else None


def find_unreadable(host: SeenHost, _: Sequence[Gpu], __: Limits, ___: Around) -> Sequence[RuleFinding]:
    if host.status != "never" or not host.is_expected:
        return ()
    return (RuleFinding(title=_why_silent(host, "has never reported")),)


def preselect_unreadable(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    is_new: Flags = fleet.hosts.status[: fleet.hosts.end] == NEVER
    return is_new


def _why_silent(host: SeenHost, silent: str) -> str:
    if host.failure is None:
        return f"{host.name} {silent}"
    return f"{host.name} cannot be read: {host.failure.rstrip('.')}"


def find_late(host: SeenHost, _: Sequence[Gpu], limits: Limits, __: Around) -> Sequence[RuleFinding]:
    above, clear = limits.begin, limits.end
    if host.late_times < max(clear, 1.0):
        return ()
    title = f"{host.name} reports late again and again: {host.late_times} times within an hour"
    return (RuleFinding(title=title, is_bad=host.late_times >= above),)


def preselect_late(fleet: FleetColumns, limits: Limits, _: Around) -> Flags:
    return fleet.hosts.late_times[: fleet.hosts.end] >= max(limits.end, 1.0)


def find_unanswering(host: SeenHost, _: Sequence[Gpu], __: Limits, ___: Around) -> Sequence[RuleFinding]:
    reason = why_no_driver(host)
    return (
        () if reason is None else (RuleFinding(title=f"The GPUs of {host.name} cannot be read: {reason.rstrip('.')}"),)
    )


def preselect_unanswering(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    gpus, hosts = fleet.gpus, fleet.hosts
    is_selected: Flags = hosts.has_no_gpus[: hosts.end].copy()
    is_selected[gpus.host[: gpus.end][gpus.is_missing[: gpus.end]]] = True
    return is_selected


def why_no_driver(host: SeenHost) -> str | None:
    """Why none of the GPUs of a host that reports can be read; None where some can, or where it has none.

    A machine without GPUs says that nothing could be read too, but has no problem with it.
    """
    reason: str | None = host.view.reasons.get("gpus")
    if reason is not None:
        has_trouble = any(problem and problem in reason for problem in host.view.problems)
        return reason if host.boards or has_trouble else None
    missing = {gpu.missing for gpu in host.boards.values()}
    # One GPU alone that is missing is that GPU's affair.
    return next(iter(missing)) if len(host.boards) > 1 and len(missing) == 1 else None


def find_full_disk(host: SeenHost, _: Sequence[Gpu], limits: Limits, __: Around) -> Sequence[RuleFinding]:
    view = host.view
    used, total, clear = view.disk_used_bytes, view.disk_total_bytes, limits.end
    is_root_full = used is not None and total and 100.0 * used >= clear * total
    disks = view.disks
    if not is_root_full and not any(100.0 * disk.used_bytes >= clear * disk.total_bytes > 0 for disk in disks):
        return ()
    return [_describe_disk(host, mount, share, limits) for mount, share in _disks(host) if share >= clear]


def preselect_full_disk(fleet: FleetColumns, limits: Limits, _: Around) -> Flags:
    hosts = fleet.hosts
    used, total = hosts.metric("disk_used_bytes"), hosts.metric("disk_total_bytes")
    share: Floats = np.divide(100.0 * used, total, out=np.full(hosts.end, np.nan), where=total > 0)
    return (share >= limits.end) | (hosts.disk_percent[: hosts.end] >= limits.end)


def _describe_disk(host: SeenHost, mount: str, share: float, limits: Limits) -> RuleFinding:
    return RuleFinding(
        title=f"{mount} of {host.name} is {share:.0f} % full",
        part=mount,
        is_bad=share >= limits.begin,
        severity="critical" if share >= max(_FULL_PERCENT, limits.begin) else None,
    )


def _disks(host: SeenHost) -> Iterator[tuple[str, float]]:
    view = host.view
    if view.disk_used_bytes is not None and view.disk_total_bytes:
        yield "/", 100.0 * view.disk_used_bytes / view.disk_total_bytes
    for disk in view.disks:
        if disk.total_bytes > 0 and disk.mount != "/":
            yield disk.mount, 100.0 * disk.used_bytes / disk.total_bytes


def why_no_disk(host: SeenHost, _: str, mount: str) -> str | None:
    return None if any(name == mount for name, _ in _disks(host)) else f"the host does not tell of {mount} now"


def find_full_ram(host: SeenHost, _: Sequence[Gpu], limits: Limits, __: Around) -> Sequence[RuleFinding]:
    used, total = host.view.memory_used_bytes, host.view.memory_total_bytes
    if used is None or not total or 100.0 * used < limits.end * total:
        return ()
    share = 100.0 * used / total
    return (RuleFinding(title=f"{share:.0f} % of the RAM of {host.name} is in use", is_bad=share >= limits.begin),)


def preselect_full_ram(fleet: FleetColumns, limits: Limits, _: Around) -> Flags:
    used, total = fleet.hosts.metric("memory_used_bytes"), fleet.hosts.metric("memory_total_bytes")
    return (100.0 * used >= limits.end * total) & (total > 0)


def find_skew(host: SeenHost, _: Sequence[Gpu], limits: Limits, __: Around) -> Sequence[RuleFinding]:
    skew = host.view.clock_skew_seconds
    if skew is None or abs(skew) < max(limits.end, 0.1):
        return ()
    title = f"The clock of {host.name} is {show_span(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the hub's"
    return (RuleFinding(title=title, is_bad=abs(skew) >= limits.begin),)


def preselect_skew(fleet: FleetColumns, limits: Limits, _: Around) -> Flags:
    return np.abs(fleet.hosts.clock_skew[: fleet.hosts.end]) >= max(limits.end, 0.1)


def find_outdated(host: SeenHost, _: Sequence[Gpu], __: Limits, around: Around) -> Sequence[RuleFinding]:
    view = host.view
    version = view.agent_version
    if version == around.version or view.via not in _OWN_AGENTS:
        return ()
    own, others = read_release(around.version), read_release(version)
    if own is None or others is None or others >= own:
        return ()
    return (RuleFinding(title=f"The agent of {host.name} is {version}, the hub is {around.version}"),)


def preselect_outdated(fleet: FleetColumns, _: Limits, around: Around) -> Flags:
    release = fleet.hosts.agent_release[: fleet.hosts.end]
    return (release >= 0) & (release < (read_release(around.version) or 0))


HOST_RULES = (
    Rule(
        name="host_down",
        scope="host",
        find=find_down,
        preselect=preselect_down,
        action="Look whether it has power and network, and whether its agent runs.",
        many="{count} hosts have stopped reporting",
        over="{place} reports again",
        over_many="{count} hosts report again",
        why_unknown=why_awaited,
        sees_silent=True,
    ),
    Rule(
        name="host_unreadable",
        scope="host",
        find=find_unreadable,
        preselect=preselect_unreadable,
        action="Run `gpudeck hosts test` with its name on the hub: it says step by step what works.",
        many="{count} configured hosts have never been read",
        over="{place} reports",
        over_many="{count} hosts report",
        sees_silent=True,
    ),
    Rule(
        name="host_late",
        scope="host",
        find=find_late,
        preselect=preselect_late,
        action="Look at its load and at the network between it and the hub.",
        many="{count} hosts report late again and again",
        over="{place} reports in time",
        over_many="{count} hosts report in time",
    ),
    Rule(
        name="driver_not_answering",
        scope="host",
        find=find_unanswering,
        preselect=preselect_unanswering,
        action="Look at nvidia-smi and at the kernel log (dmesg) there; a restart of the host often is what helps.",
        many="The drivers of {count} hosts do not answer",
        over="The GPUs of {place} can be read again",
        over_many="The GPUs of {count} hosts can be read again",
    ),
    Rule(
        name="disk_full",
        scope="host",
        find=find_full_disk,
        preselect=preselect_full_disk,
        action="Delete or move what is not needed: old checkpoints, caches, logs.",
        many="{count} disks are nearly full",
        over="A disk of {place} has room again",
        over_many="{count} disks have room again",
        why_unknown=why_no_disk,
        reads=("disks", "disk_used_bytes", "disk_total_bytes"),
    ),
    Rule(
        name="ram_full",
        scope="host",
        find=find_full_ram,
        preselect=preselect_full_ram,
        action="Look which process takes it, before the kernel ends one.",
        many="The RAM of {count} hosts is nearly full",
        over="{place} has free RAM again",
        over_many="{count} hosts have free RAM again",
        needs=("memory_used_bytes", "memory_total_bytes"),
        reads=("memory_used_bytes", "memory_total_bytes"),
    ),
    Rule(
        name="clock_skew",
        scope="host",
        find=find_skew,
        preselect=preselect_skew,
        action="Check its time service (chronyc tracking, timedatectl).",
        many="The clocks of {count} hosts are wrong",
        over="The clock of {place} is right again",
        over_many="The clocks of {count} hosts are right again",
        needs=("clock_skew_seconds",),
        reads=("clock_skew_seconds",),
    ),
    Rule(
        name="agent_outdated",
        scope="host",
        find=find_outdated,
        preselect=preselect_outdated,
        action="Update gpudeck there.",
        many="The agents of {count} hosts are older than the hub",
        over="The agent of {place} is up to date",
        over_many="The agents of {count} hosts are up to date",
        reads=("agent_version", "via"),
    ),
)
