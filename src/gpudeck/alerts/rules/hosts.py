"""Rules about hosts: down, late, never seen, without a driver, short of disk or RAM, with a wrong clock or agent."""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from gpudeck.alerts.rule import FleetContext, HostSnapshot, RuleFinding, rule
from gpudeck.alerts.settings import Limits
from gpudeck.fleet.columns import DOWN, NEVER_SEEN, Flags, Floats
from gpudeck.fleet.table import FleetTable
from gpudeck.model.text import read_release, show_span
from gpudeck.model.view import Gpu

_OWN_AGENTS: Final = frozenset({"push", "pull", "simulated"})
"""Sources over which an agent of gpudeck reports its version."""
_FULL_PERCENT: Final = 99.0
"""From here on a full disk is critical."""


def _why_awaited(host: HostSnapshot, _: str, __: str) -> str | None:
    """`never_seen`: the hub's database does not answer, so the hosts of before this start are not known yet."""
    is_silent = host.is_restored or host.status == "never_seen"
    return "the host has not reported since the hub was started" if is_silent else None


def _why_silent(host: HostSnapshot, silent: str) -> str:
    if host.failure is None:
        return f"{host.name} {silent}"
    return f"{host.name} cannot be read: {host.failure.rstrip('.')}"


@rule(
    "host",
    preselect=lambda fleet, *_: fleet.hosts.status[: fleet.hosts.end] == DOWN,
    action="Look whether it has power and network, and whether its agent runs.",
    many="{count} hosts have stopped reporting",
    why_unknown=_why_awaited,
    sees_silent=True,
    inhibits_host=True,
)
def host_down(host: HostSnapshot, _: Sequence[Gpu], __: Limits, context: FleetContext) -> Iterator[RuleFinding]:
    if host.status == "down":
        yield RuleFinding(title=_why_silent(host, "has stopped reporting"), since=min(context.now, host.silent_since))


@rule(
    "host",
    preselect=lambda fleet, *_: fleet.hosts.status[: fleet.hosts.end] == NEVER_SEEN,
    action="Run `gpudeck hosts test` with its name on the hub: it says step by step what works.",
    many="{count} configured hosts have never been read",
    sees_silent=True,
)
def host_unreadable(host: HostSnapshot, _: Sequence[Gpu], __: Limits, ___: FleetContext) -> Iterator[RuleFinding]:
    if host.status == "never_seen" and host.is_expected:
        yield RuleFinding(title=_why_silent(host, "has never reported"))


@rule(
    "host",
    preselect=lambda fleet, limits, _: fleet.hosts.late_times[: fleet.hosts.end] >= max(limits.end, 1.0),
    action="Look at its load and at the network between it and the hub.",
    many="{count} hosts often report late",
)
def host_late(host: HostSnapshot, _: Sequence[Gpu], limits: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    if host.late_times >= max(limits.end, 1.0):
        title = f"{host.name} often reports late: {host.late_times} times within an hour"
        yield RuleFinding(title=title, is_bad=host.late_times >= limits.begin)


def why_no_driver(host: HostSnapshot) -> str | None:
    """Why none of the GPUs of a host that reports can be read; None if some can, or if it has none.

    A machine without GPUs reports that nothing could be read too, but has no problem with it.
    """
    reason: str | None = host.view.reasons.get("gpus")
    if reason is not None:
        has_trouble = any(problem and problem in reason for problem in host.view.problems)
        return reason if host.boards or has_trouble else None
    missing = {gpu.missing for gpu in host.boards.values()}
    # If a host has one GPU, the rule `gpu_lost` is about it.
    return next(iter(missing)) if len(host.boards) > 1 and len(missing) == 1 else None


def _preselect_unanswering(fleet: FleetTable, _: Limits, __: FleetContext) -> Flags:
    gpus, hosts = fleet.gpus, fleet.hosts
    is_selected: Flags = hosts.has_no_gpus[: hosts.end].copy()
    is_selected[gpus.host[: gpus.end][gpus.is_missing[: gpus.end]]] = True
    return is_selected


@rule(
    "host",
    preselect=_preselect_unanswering,
    action="Look at nvidia-smi and at the kernel log (dmesg) there; a restart of the host often is what helps.",
    many="The drivers of {count} hosts do not answer",
)
def driver_not_answering(host: HostSnapshot, _: Sequence[Gpu], __: Limits, ___: FleetContext) -> Iterator[RuleFinding]:
    if (reason := why_no_driver(host)) is not None:
        yield RuleFinding(title=f"The GPUs of {host.name} cannot be read: {reason.rstrip('.')}")


def _disks(host: HostSnapshot) -> Iterator[tuple[str, float]]:
    """Mounts, and how full they are in percent."""
    view = host.view
    if view.disk_used_bytes is not None and view.disk_total_bytes:
        yield "/", 100.0 * view.disk_used_bytes / view.disk_total_bytes
    for disk in view.disks:
        if disk.total_bytes > 0 and disk.mount != "/":
            yield disk.mount, 100.0 * disk.used_bytes / disk.total_bytes


def _why_no_disk(host: HostSnapshot, _: str, mount: str) -> str | None:
    return None if any(name == mount for name, _ in _disks(host)) else f"the host does not report {mount} now"


def _preselect_full_disk(fleet: FleetTable, limits: Limits, _: FleetContext) -> Flags:
    hosts = fleet.hosts
    used, total = hosts.metric("disk_used_bytes"), hosts.metric("disk_total_bytes")
    share: Floats = np.divide(100.0 * used, total, out=np.full(hosts.end, np.nan), where=total > 0)
    return (share >= limits.end) | (hosts.disk_percent[: hosts.end] >= limits.end)


@rule(
    "host",
    preselect=_preselect_full_disk,
    action="Delete or move what is not needed: old checkpoints, caches, logs.",
    many="{count} disks are nearly full",
    why_unknown=_why_no_disk,
    reads=("disks", "disk_used_bytes", "disk_total_bytes"),
)
def disk_full(host: HostSnapshot, _: Sequence[Gpu], limits: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    for mount, share in _disks(host):
        if share >= limits.end:
            yield RuleFinding(
                title=f"{mount} of {host.name} is {share:.0f} % full",
                part=mount,
                is_bad=share >= limits.begin,
                severity="critical" if share >= max(_FULL_PERCENT, limits.begin) else None,
            )


def _preselect_full_ram(fleet: FleetTable, limits: Limits, _: FleetContext) -> Flags:
    used, total = fleet.hosts.metric("memory_used_bytes"), fleet.hosts.metric("memory_total_bytes")
    return (100.0 * used >= limits.end * total) & (total > 0)


@rule(
    "host",
    preselect=_preselect_full_ram,
    action="Look which process takes it, before the kernel ends one.",
    many="The RAM of {count} hosts is nearly full",
    needs=("memory_used_bytes", "memory_total_bytes"),
    reads=("memory_used_bytes", "memory_total_bytes"),
)
def ram_full(host: HostSnapshot, _: Sequence[Gpu], limits: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    used, total = host.view.memory_used_bytes, host.view.memory_total_bytes
    if used is not None and total and 100.0 * used >= limits.end * total:
        share = 100.0 * used / total
        yield RuleFinding(title=f"{share:.0f} % of the RAM of {host.name} is in use", is_bad=share >= limits.begin)


@rule(
    "host",
    preselect=lambda fleet, limits, _: np.abs(fleet.hosts.clock_skew[: fleet.hosts.end]) >= max(limits.end, 0.1),
    action="Check its time service (chronyc tracking, timedatectl).",
    many="The clocks of {count} hosts are wrong",
    needs=("clock_skew_seconds",),
    reads=("clock_skew_seconds",),
)
def clock_skew(host: HostSnapshot, _: Sequence[Gpu], limits: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    skew = host.view.clock_skew_seconds
    if skew is not None and abs(skew) >= max(limits.end, 0.1):
        title = f"The clock of {host.name} is {show_span(abs(skew))} {'ahead of' if skew > 0 else 'behind'} the hub's"
        yield RuleFinding(title=title, is_bad=abs(skew) >= limits.begin)


def _preselect_outdated(fleet: FleetTable, _: Limits, context: FleetContext) -> Flags:
    release = fleet.hosts.agent_release[: fleet.hosts.end]
    return (release >= 0) & (release < (read_release(context.version) or 0))


@rule(
    "host",
    preselect=_preselect_outdated,
    action="Update gpudeck there.",
    many="The agents of {count} hosts are older than the hub",
    reads=("agent_version", "via"),
)
def agent_outdated(host: HostSnapshot, _: Sequence[Gpu], __: Limits, context: FleetContext) -> Iterator[RuleFinding]:
    version = host.view.agent_version
    hub, agent = read_release(context.version), read_release(version)
    if host.view.via in _OWN_AGENTS and hub is not None and agent is not None and agent < hub:
        yield RuleFinding(title=f"The agent of {host.name} is {version}, the hub is {context.version}")
