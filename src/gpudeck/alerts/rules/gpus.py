"""Rules about GPUs: lost, hot, throttled, with failing memory or links, slower than others, unused though in use."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from gpudeck.alerts.rule import FleetContext, HostSnapshot, Rule, RuleFinding, find_at
from gpudeck.alerts.rules.hosts import why_no_driver
from gpudeck.alerts.settings import DEFAULTS, Limits
from gpudeck.alerts.trends import LOADED_PERCENT
from gpudeck.fleet.columns import IDLE, NOBODY, Flags, Floats, GpuColumns
from gpudeck.fleet.table import FleetTable
from gpudeck.model.event import Severity
from gpudeck.model.gpu_state import HealthSettings, XidKind, find_xid
from gpudeck.model.view import Gpu, ShownEvent

_DAY = 86_400.0
_SEVERITIES: dict[XidKind, Severity | None] = {"critical": None, "warning": "warning", "application": "info"}


def find_lost(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Sequence[RuleFinding]:
    """Those that cannot be read, and those that are no longer reported. Where none can be read it is the driver."""
    missing = [gpu for gpu in gpus if gpu.health == "critical" and host.boards[gpu.uuid].missing is not None]
    if not missing and not host.gone:
        return ()
    lost = [
        _find(
            host, gpu, f"cannot be read: {(host.boards[gpu.uuid].missing or '').rstrip('.')}", action=gpu.health_action
        )
        for gpu in missing
    ]
    gone = [
        RuleFinding(title=f"GPU {gpu.label} of {host.name} is gone", gpu=gpu.uuid, label=gpu.label, model=gpu.model)
        for gpu in host.gone
    ]
    return gone if why_no_driver(host) is not None else [*lost, *gone]


def find_hot(host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, context: FleetContext) -> Sequence[RuleFinding]:
    found = []
    for gpu in gpus:
        celsius = gpu.temperature_celsius
        if celsius is not None and celsius >= limits.end:
            severity = "critical" if celsius >= max(limits.begin, context.critical_celsius) else None
            words = f"is at {celsius:.0f} °C"
            found.append(_find(host, gpu, words, is_bad=celsius >= limits.begin, severity=severity))
    return found


def limits_of_heat(health: HealthSettings) -> Limits:
    return replace(DEFAULTS["gpu_hot"], above=health.hot_celsius, clear=health.hot_celsius - 5.0)


def find_throttled(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Sequence[RuleFinding]:
    slow = [
        (gpu, "thermal" if gpu.throttled_thermal else "hardware slowdown or power brake")
        for gpu in gpus
        if gpu.throttled_thermal or gpu.throttled_hardware
    ]
    return [_find(host, gpu, f"is throttled ({reason})") for gpu, reason in slow]


def find_errors(host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, _: FleetContext) -> Sequence[RuleFinding]:
    found = []
    for gpu in gpus:
        count = gpu.ecc_uncorrected_count or 0
        if gpu.remapped_rows_pending or count >= max(limits.begin, 1.0):
            errors = f"has had {count:.0f} uncorrected memory error{'s' if count != 1 else ''}" if count else ""
            rows = "has a row remap pending" if gpu.remapped_rows_pending else ""
            found.append(_find(host, gpu, " and ".join(filter(None, (errors, rows)))))
    return found


def find_capped(
    host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, context: FleetContext
) -> Sequence[RuleFinding]:
    """Against the usual limit of its model in this fleet: a limit that all have was set on purpose."""
    found = []
    for gpu in gpus:
        watts, usual = gpu.power_limit_watts, context.power_limits.get(gpu.name, 0.0)
        if watts and watts < (1.0 - limits.end / 100.0) * usual:
            words = f"is limited to {watts:.0f} W; others of its model have {usual:.0f} W"
            found.append(_find(host, gpu, words, is_bad=watts <= (1.0 - limits.begin / 100.0) * usual))
    return found


def preselect_capped(fleet: FleetTable, limits: Limits, context: FleetContext) -> Flags:
    usual = _by_row(fleet.gpus, context.power_limits)
    return fleet.gpus.metric("power_limit_watts") < (1.0 - limits.end / 100.0) * usual


def _by_row(gpus: GpuColumns, by_model: Mapping[str, float]) -> Floats:
    """0 for other models."""
    # A row that no GPU has stands for the model -1, which is the last.
    values = np.zeros(len(gpus.models) + 1)
    for model, value in by_model.items():
        values[gpus.models.get(model, -1)] = value
    values[-1] = 0.0
    found: Floats = values[gpus.model[: gpus.end]]
    return found


def _find(host: HostSnapshot, gpu: Gpu, words: str, **others: Any) -> RuleFinding:
    return find_at(gpu, f"GPU {gpu.label} of {host.name} {words}", **others)


_RESET = "Let its jobs end, then reset the GPU (nvidia-smi -r) or restart the host; if it comes again, replace it."

GPU_RULES = (
    Rule(
        name="gpu_lost",
        scope="gpu",
        find=find_lost,
        # Hosts with GPUs that are gone are always looked at.
        preselect=lambda fleet, *_: fleet.gpus.is_missing[: fleet.gpus.end],
        action="Look at the kernel log (dmesg) of the host; check the card's power, seat and cooling.",
        many="{count} GPUs are lost",
        # A GPU of which nothing is said is not there again.
        why_unknown=lambda host, gpu, _: None if gpu in host.boards else "the host does not tell of it",
        reads_missing=True,
        sees_gone=True,
    ),
    Rule(
        name="gpu_hot",
        scope="gpu",
        find=find_hot,
        preselect=lambda fleet, limits, _: fleet.gpus.metric("temperature_celsius") >= limits.end,
        action="Check the fans and the airflow of the host.",
        many="{count} GPUs are hot",
        needs=("temperature_celsius",),
        reads=("temperature_celsius",),
        limits_from=limits_of_heat,
    ),
    Rule(
        name="gpu_throttled",
        scope="gpu",
        find=find_throttled,
        preselect=lambda fleet, *_: (
            (fleet.gpus.metric("throttled_thermal") > 0) | (fleet.gpus.metric("throttled_hardware") > 0)
        ),
        action="Check the cooling and the power supply of the host: programs run slower than they could.",
        many="{count} GPUs are throttled",
        needs=("throttled_thermal", "throttled_hardware"),
        reads=("throttled_thermal", "throttled_hardware"),
    ),
    Rule(
        name="ecc",
        scope="gpu",
        find=find_errors,
        preselect=lambda fleet, limits, _: (
            (fleet.gpus.metric("remapped_rows_pending") > 0)
            | (fleet.gpus.metric("ecc_uncorrected_count") >= max(limits.begin, 1.0))
        ),
        action=_RESET,
        many="The memory of {count} GPUs fails",
        needs=("ecc_uncorrected_count",),
        reads=("ecc_uncorrected_count", "remapped_rows_pending"),
    ),
    Rule(
        name="power_capped",
        scope="gpu",
        find=find_capped,
        preselect=preselect_capped,
        action="If this is not intended, reset it with nvidia-smi -pl; otherwise override power_capped for this host.",
        many="{count} GPUs have a lower power limit than others of their model",
        needs=("power_limit_watts",),
        reads=("power_limit_watts",),
    ),
)


def find_faults(
    host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, context: FleetContext
) -> Sequence[RuleFinding]:
    """Each code of each GPU once, by its newest fault. One that needs an operator counts for a day, even if the hub
    was away when it happened; others as long as their end takes."""
    skew = host.view.clock_skew_seconds or 0.0
    found: list[RuleFinding] = []
    for gpu in gpus:
        for event in {event.code: event for event in gpu.events}.values():
            at = min(context.now, event.at - skew)
            span = _DAY if event.kind == "critical" else max(limits.clear_after, 1.0)
            if context.now - at < span:
                found.append(_describe(host, gpu, event, at))
    return found


def preselect_faults(fleet: FleetTable, limits: Limits, context: FleetContext) -> Flags:
    gpus, end = fleet.gpus, fleet.gpus.end
    now = context.now + np.nan_to_num(fleet.hosts.clock_skew[gpus.host[:end]])
    is_recent = now - gpus.last_fault_at[:end] < max(limits.clear_after, 1.0)
    return is_recent | (now - gpus.last_critical_at[:end] < _DAY)


def _describe(host: HostSnapshot, gpu: Gpu, event: ShownEvent, at: float) -> RuleFinding:
    is_own_fault = event.kind == "application"
    return find_at(
        gpu,
        f"XID {event.code} on GPU {gpu.label} of {host.name}: {event.text}",
        part=str(event.code),
        since=at,
        severity=_SEVERITIES[event.kind],
        action="Look at your program: its driver said that it failed." if is_own_fault else find_xid(event.code).action,
        users=() if event.user is None else (event.user,),
        is_personal=is_own_fault,
    )


FAULT_RULES = (
    Rule(
        name="xid",
        scope="gpu",
        find=find_faults,
        preselect=preselect_faults,
        action="Look at the kernel log (dmesg) of the host.",
        many="{count} faults of GPUs (XID)",
        reads_missing=True,
        clears_itself=True,
        notifies_end=False,
    ),
)


def find_idle(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, context: FleetContext) -> Sequence[RuleFinding]:
    """For their users. A GPU that its user has reserved may be idle."""
    found = []
    for gpu in gpus:
        is_own = gpu.reservation is not None and gpu.reservation_conflict is None
        if gpu.availability == "idle" and gpu.users and not is_own:
            title = f"GPU {gpu.label} of {host.name} is idle, in use by {' and '.join(gpu.users[:3])}"
            found.append(find_at(gpu, title, since=_began(gpu, context), users=tuple(gpu.users), is_personal=True))
    return found


def preselect_idle(fleet: FleetTable, _: Limits, __: FleetContext) -> Flags:
    gpus, end = fleet.gpus, fleet.gpus.end
    is_own = gpus.is_reserved[:end] & ~gpus.has_conflict[:end]
    is_idle: Flags = (gpus.availability[:end] == IDLE) & (gpus.user[:end] != NOBODY) & ~is_own
    return is_idle


def find_orphaned(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, context: FleetContext) -> Sequence[RuleFinding]:
    """Memory in use without a process. A process list that could not be read proves nothing."""
    found = []
    for gpu in gpus:
        if gpu.availability == "idle" and gpu.processes is not None and all(one.display for one in gpu.processes):
            amount = f"{(gpu.memory_used_bytes or 0) / 2**30:.1f} GiB of GPU {gpu.label} of {host.name}"
            title = f"{amount} are in use, but no process is on it"
            found.append(find_at(gpu, title, since=_began(gpu, context)))
    return found


def _began(gpu: Gpu, context: FleetContext) -> float:
    """When it entered its state, now at the latest."""
    return context.now if gpu.since is None else min(context.now, gpu.since)


def why_no_processes(host: HostSnapshot, gpu: str, _: str) -> str | None:
    board = host.boards.get(gpu)
    seen = None if board is None else board.view()
    is_known = seen is not None and seen.processes is not None and seen.availability != "unknown"
    return None if is_known else "who is on it is not known now"


USE_RULES = (
    Rule(
        name="gpu_idle",
        scope="gpu",
        find=find_idle,
        preselect=preselect_idle,
        action="If you do not need it now, end your process, so that others can use it.",
        many="{count} GPUs are idle",
        why_unknown=why_no_processes,
        notifies_end=False,
    ),
    Rule(
        name="orphaned_memory",
        scope="gpu",
        find=find_orphaned,
        preselect=lambda fleet, *_: (
            (fleet.gpus.availability[: fleet.gpus.end] == IDLE) & (fleet.gpus.workers[: fleet.gpus.end] == 0)
        ),
        action="Look for what is left of a process there (fuser -v /dev/nvidia*), or reset the GPU.",
        many="Memory of {count} GPUs is in use without a process",
        needs=("memory_used_bytes",),
        why_unknown=why_no_processes,
    ),
)


_IN_USE_PERCENT = 50.0
"""From this utilization on a PCIe link is not slow to save power."""
Words = Callable[[Gpu, float], str]


def find_degraded_link(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Sequence[RuleFinding]:
    """Its width always, its speed while the GPU works. At rest a slow link says nothing, and ends no alert."""
    found = []
    for gpu in gpus:
        is_narrow = (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0) and gpu.pcie_width is not None
        is_slow = (gpu.pcie_generation or 0) < (gpu.pcie_generation_max or 0) and gpu.pcie_generation is not None
        if is_narrow or is_slow:
            words = [f"{gpu.pcie_width:.0f} of {gpu.pcie_width_max:.0f} lanes"] if is_narrow else []
            words += [f"generation {gpu.pcie_generation:.0f} of {gpu.pcie_generation_max:.0f}"] if is_slow else []
            is_bad = is_narrow or (gpu.utilization_percent or 0.0) >= _IN_USE_PERCENT
            title = f"The PCIe link of GPU {gpu.label} of {host.name} has {' and '.join(words)}"
            found.append(find_at(gpu, title, is_bad=is_bad))
    return found


def preselect_degraded_link(fleet: FleetTable, _: Limits, __: FleetContext) -> Flags:
    metric = fleet.gpus.metric
    is_slow = (metric("pcie_generation") < metric("pcie_generation_max")) & (
        metric("utilization_percent") >= _IN_USE_PERCENT
    )
    is_bad: Flags = (metric("pcie_width") < metric("pcie_width_max")) | is_slow
    return is_bad


def find_slow(host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, context: FleetContext) -> Sequence[RuleFinding]:
    """Against others of its model that work as hard, without those that their power limit slows down."""
    found = []
    for gpu in gpus:
        clock, usual = gpu.clock_sm_mhz or 0.0, context.usual_clocks.get(gpu.name, 0.0)
        is_comparable = (gpu.utilization_percent or 0.0) >= LOADED_PERCENT and not gpu.throttled_power
        if is_comparable and 0 < clock < (1.0 - limits.end / 100.0) * usual:
            title = f"GPU {gpu.label} of {host.name} runs at {clock:.0f} MHz; others under load at {usual:.0f} MHz"
            found.append(find_at(gpu, title, is_bad=clock <= (1.0 - limits.begin / 100.0) * usual))
    return found


def preselect_slow(fleet: FleetTable, limits: Limits, context: FleetContext) -> Flags:
    metric, usual = fleet.gpus.metric, _by_row(fleet.gpus, context.usual_clocks)
    is_loaded = (metric("utilization_percent") >= LOADED_PERCENT) & ~(metric("throttled_power") > 0)
    return is_loaded & (metric("clock_sm_mhz") < (1.0 - limits.end / 100.0) * usual)


def why_not_compared(host: HostSnapshot, gpu: str, _: str) -> str | None:
    board = host.boards.get(gpu)
    utilization = None if board is None else board.value("utilization_percent")
    return None if utilization is None or utilization >= LOADED_PERCENT else "it is not under load now"


def find_near_slowdown(
    host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, _: FleetContext
) -> Sequence[RuleFinding]:
    """The limits are below zero: so far from the slowdown. `gpu_throttled` is about GPUs that are slow already."""
    found = []
    for gpu in gpus:
        margin = gpu.temperature_margin_celsius
        if margin is not None and -margin >= limits.end and not gpu.throttled_thermal:
            title = f"GPU {gpu.label} of {host.name} is {margin:.0f} °C below the temperature at which it slows down"
            found.append(find_at(gpu, title, is_bad=-margin >= limits.begin))
    return found


def _grows(name: str, metric: str, words: Words, action: str, many: str) -> Rule:
    """A rule about a counter: the limits are its growth within the time of `trends.WINDOWS`."""

    def find(host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, context: FleetContext) -> Sequence[RuleFinding]:
        grown = context.growth.get(metric, {})
        return [
            find_at(gpu, f"GPU {gpu.label} of {host.name} has {words(gpu, amount)}", is_bad=amount >= limits.begin)
            for gpu in gpus
            if gpu.uuid in grown and (amount := grown[gpu.uuid].amount) >= limits.end
        ]

    def preselect(fleet: FleetTable, limits: Limits, context: FleetContext) -> Flags:
        is_grown = np.zeros(fleet.gpus.end, np.bool_)
        for growth in context.growth.get(metric, {}).values():
            if growth.amount >= limits.end and 0 <= growth.gpu.row < len(is_grown):
                is_grown[growth.gpu.row] = True
        return is_grown

    return Rule(
        name=name,
        scope="gpu",
        find=find,
        preselect=preselect,
        action=action,
        many=many,
        needs=(metric,),
    )


def _name_links(gpu: Gpu, amount: float) -> str:
    most = "" if gpu.nvlink_error_link is None else f", most of all on link {gpu.nvlink_error_link:.0f}"
    return f"had {amount:.0f} NVLink errors within an hour{most}"


_CARD = "Let its jobs end, then reset the GPU; if it goes on, have the card checked."

EARLY_RULES = (
    Rule(
        name="pcie_degraded",
        scope="gpu",
        find=find_degraded_link,
        preselect=preselect_degraded_link,
        action="Reseat the card or its riser, and check the BIOS. If its slot has fewer lanes, disable the rule there.",
        many="The PCIe links of {count} GPUs are below their best",
        needs=("pcie_width", "pcie_generation"),
        reads=("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max", "utilization_percent"),
    ),
    _grows(
        "nvlink_errors",
        "nvlink_error_count",
        _name_links,
        "Look at nvidia-smi nvlink -e; reseat or replace the bridge or the board if it goes on.",
        "The NVLinks of {count} GPUs have errors",
    ),
    _grows(
        "row_remaps",
        "remapped_rows_count",
        lambda _, amount: f"replaced {amount:.0f} row{'s' if amount != 1 else ''} of its memory within a day",
        _CARD,
        "{count} GPUs replace rows of their memory",
    ),
    _grows(
        "ecc_rate",
        "ecc_corrected_count",
        lambda _, amount: f"corrected {amount:,.0f} memory errors within an hour",
        _CARD,
        "{count} GPUs correct many memory errors",
    ),
    Rule(
        name="gpu_slow",
        scope="gpu",
        find=find_slow,
        preselect=preselect_slow,
        action="Look for locked clocks (nvidia-smi -q -d CLOCK), heat and power: a job on several GPUs waits for it.",
        many="{count} GPUs run slower than others of their model",
        needs=("clock_sm_mhz", "utilization_percent"),
        why_unknown=why_not_compared,
    ),
    Rule(
        name="thermal_headroom",
        scope="gpu",
        find=find_near_slowdown,
        preselect=lambda fleet, limits, _: -fleet.gpus.metric("temperature_margin_celsius") >= limits.end,
        action="Check the fans and the airflow of the host before it slows down.",
        many="{count} GPUs are close to slowing down because of heat",
        needs=("temperature_margin_celsius",),
        reads=("temperature_margin_celsius", "throttled_thermal"),
    ),
)
