"""Rules about GPUs: lost, hot, throttled, with failing memory or links, slower than others, in use but idle."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gpudeck.alerts.rule import LOADED_PERCENT, FleetContext, HostSnapshot, Rule, RuleFinding, find_at, rule
from gpudeck.alerts.rules.hosts import why_no_driver
from gpudeck.alerts.settings import Limits
from gpudeck.fleet.columns import IDLE, NAN, NOBODY, Flags, Floats, GpuColumns
from gpudeck.fleet.table import FleetTable
from gpudeck.model.event import Severity
from gpudeck.model.gpu_state import XidKind, find_xid
from gpudeck.model.view import Gpu

_HOUR, _DAY = 3600.0, 86_400.0
_IN_USE_PERCENT = 50.0
"""Below this utilization a slow PCIe link may only save power."""
_SEVERITIES: dict[XidKind, Severity | None] = {"critical": None, "warning": "warning", "application": "info"}
_RESET = "Let its jobs end, then reset the GPU (nvidia-smi -r) or restart the host; if it comes again, replace it."
_CARD = "Let its jobs end, then reset the GPU; if it goes on, have the card checked."

Measure = Callable[[Sequence[Gpu], FleetContext, float], Iterable[tuple[Gpu, float]]]
"""Returns the GPUs whose value is at least the lower limit, with the value."""
Column = Callable[[GpuColumns, FleetContext], Floats]
Words = Callable[[Gpu, float, FleetContext], str]


def limit_rule(
    name: str,
    words: Words,
    *,
    metric: str = "",
    measure: Measure | None = None,
    column: Column | None = None,
    critical_from: Callable[[Limits, FleetContext], float] = lambda *_: float("inf"),
    **fields: Any,
) -> Rule:
    """A rule about one number: `metric`, or the one that `measure` compares for some GPUs and `column` has for all.

    `words` follow the name of the GPU in the title. From `critical_from` on the alert is critical.
    """

    def compare(gpus: Sequence[Gpu], _: FleetContext, end: float) -> Iterable[tuple[Gpu, float]]:
        return [(gpu, value) for gpu in gpus if (value := getattr(gpu, metric)) is not None and value >= end]

    find_values = measure or compare
    values_of_all = column or (lambda gpus, _: gpus.metric(metric))

    def find(host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, context: FleetContext) -> Iterator[RuleFinding]:
        for gpu, value in find_values(gpus, context, limits.end):
            severity: Severity | None = "critical" if value >= critical_from(limits, context) else None
            yield _find(host, gpu, words(gpu, value, context), is_bad=value >= limits.begin, severity=severity)

    def preselect(fleet: FleetTable, limits: Limits, context: FleetContext) -> Flags:
        return values_of_all(fleet.gpus, context) >= limits.end

    read = {"needs": (metric,), "reads": (metric,)} if metric else {}
    return Rule(name=name, scope="gpu", find=find, preselect=preselect, **(read | fields))


def growth_rule(name: str, counter: str, words: Words, *, window: float, **fields: Any) -> Rule:
    """A rule about how much a counter grew within the last `window` seconds. `words` get that growth as their value."""

    def measure(gpus: Sequence[Gpu], context: FleetContext, end: float) -> Iterable[tuple[Gpu, float]]:
        grown = context.growth.get(name)
        found = [(gpu, grown[gpu.uuid].amount) for gpu in gpus if gpu.uuid in grown] if grown else ()
        return [(gpu, amount) for gpu, amount in found if amount >= end] if found else ()

    def column(gpus: GpuColumns, context: FleetContext) -> Floats:
        amounts = np.full(gpus.end, NAN)
        for growth in context.growth.get(name, {}).values():
            if 0 <= growth.gpu.row < gpus.end:
                amounts[growth.gpu.row] = growth.amount
        return amounts

    fields |= {"needs": (counter,), "counter": counter, "window": window}
    return limit_rule(name, words, measure=measure, column=column, **fields)


def _find(host: HostSnapshot, gpu: Gpu, words: str, **others: Any) -> RuleFinding:
    return find_at(gpu, f"GPU {gpu.label} of {host.name} {words}", **others)


def _percent_below(gpus: GpuColumns, metric: str, usual: Mapping[str, float]) -> Floats:
    """How far the metric of each GPU is below the usual value of its model, in percent."""
    # A row without a GPU has the model -1, which is the last place.
    values = np.full(len(gpus.models) + 1, NAN)
    for model, value in usual.items():
        if model in gpus.models and value:
            values[gpus.models[model]] = value
    expected, actual = values[gpus.model[: gpus.end]], gpus.metric(metric)
    below: Floats = np.where(actual > 0, 100.0 * (expected - actual) / expected, NAN)
    return below


@rule(
    "gpu",
    # Hosts with GPUs that are gone are always looked at.
    preselect=lambda fleet, *_: fleet.gpus.is_missing[: fleet.gpus.end],
    action="Look at the kernel log (dmesg) of the host; check the card's power, seat and cooling.",
    many="{count} GPUs are lost",
    # A GPU that the host does not report has not returned.
    why_unknown=lambda host, gpu, _: None if gpu in host.boards else "the host does not report it",
    reads_missing=True,
)
def gpu_lost(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    """GPUs that cannot be read, and those that are no longer reported. If none can be read, it is the driver."""
    for gpu in gpus:
        if gpu.health == "critical" and (reason := host.boards[gpu.uuid].missing) and why_no_driver(host) is None:
            yield _find(host, gpu, f"cannot be read: {reason.rstrip('.')}", action=gpu.health_action)
    for gone in host.gone:
        title = f"GPU {gone.label} of {host.name} is gone"
        yield RuleFinding(title=title, gpu=gone.uuid, label=gone.label, model=gone.model)


gpu_hot = limit_rule(
    "gpu_hot",
    lambda _, celsius, __: f"is at {celsius:.0f} °C",
    metric="temperature_celsius",
    critical_from=lambda limits, context: max(limits.begin, context.critical_celsius),
    action="Check the fans and the airflow of the host.",
    many="{count} GPUs are hot",
)


@rule(
    "gpu",
    preselect=lambda fleet, *_: (
        (fleet.gpus.metric("throttled_thermal") > 0) | (fleet.gpus.metric("throttled_hardware") > 0)
    ),
    action="Check the cooling and the power supply of the host: programs run slower than they could.",
    many="{count} GPUs are throttled",
    needs=("throttled_thermal", "throttled_hardware"),
    reads=("throttled_thermal", "throttled_hardware"),
)
def gpu_throttled(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    for gpu in gpus:
        if gpu.throttled_thermal or gpu.throttled_hardware:
            reason = "thermal" if gpu.throttled_thermal else "hardware slowdown or power brake"
            yield _find(host, gpu, f"is throttled ({reason})")


@rule(
    "gpu",
    preselect=lambda fleet, limits, _: (
        (fleet.gpus.metric("remapped_rows_pending") > 0)
        | (fleet.gpus.metric("ecc_uncorrected_count") >= max(limits.begin, 1.0))
    ),
    action=_RESET,
    many="The memory of {count} GPUs fails",
    needs=("ecc_uncorrected_count",),
    reads=("ecc_uncorrected_count", "remapped_rows_pending"),
)
def ecc(host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, _: FleetContext) -> Iterator[RuleFinding]:
    for gpu in gpus:
        count = gpu.ecc_uncorrected_count or 0
        if gpu.remapped_rows_pending or count >= max(limits.begin, 1.0):
            errors = f"has had {count:.0f} uncorrected memory error{'s' if count != 1 else ''}" if count else ""
            rows = "has a row remap pending" if gpu.remapped_rows_pending else ""
            yield _find(host, gpu, " and ".join(filter(None, (errors, rows))))


power_capped = limit_rule(
    "power_capped",
    lambda gpu, _, context: (
        f"is limited to {gpu.power_limit_watts:.0f} W; others of its model have {context.power_limits[gpu.name]:.0f} W"
    ),
    # Against the usual limit of its model in this fleet: a limit that all have was set on purpose.
    measure=lambda gpus, context, end: [
        (gpu, below)
        for gpu in gpus
        if (watts := gpu.power_limit_watts) and (usual := context.power_limits.get(gpu.name))
        if (below := 100.0 * (usual - watts) / usual) >= end
    ],
    column=lambda gpus, context: _percent_below(gpus, "power_limit_watts", context.power_limits),
    action="If this is not intended, reset it with nvidia-smi -pl; otherwise override power_capped for this host.",
    many="{count} GPUs have a lower power limit than others of their model",
    needs=("power_limit_watts",),
    reads=("power_limit_watts",),
)


def _preselect_degraded_link(fleet: FleetTable, _: Limits, __: FleetContext) -> Flags:
    metric = fleet.gpus.metric
    is_slow = (metric("pcie_generation") < metric("pcie_generation_max")) & (
        metric("utilization_percent") >= _IN_USE_PERCENT
    )
    is_bad: Flags = (metric("pcie_width") < metric("pcie_width_max")) | is_slow
    return is_bad


@rule(
    "gpu",
    preselect=_preselect_degraded_link,
    action="Reseat the card or its riser, and check the BIOS. If its slot has fewer lanes, disable the rule there.",
    many="The PCIe links of {count} GPUs are below their best",
    needs=("pcie_width", "pcie_generation"),
    reads=("pcie_width", "pcie_width_max", "pcie_generation", "pcie_generation_max", "utilization_percent"),
)
def pcie_degraded(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, __: FleetContext) -> Iterator[RuleFinding]:
    """The width counts always, the speed while the GPU works: a slow link of an idle GPU neither starts nor ends an
    alert."""
    for gpu in gpus:
        is_narrow = (gpu.pcie_width or 0) < (gpu.pcie_width_max or 0) and gpu.pcie_width is not None
        is_slow = (gpu.pcie_generation or 0) < (gpu.pcie_generation_max or 0) and gpu.pcie_generation is not None
        if is_narrow or is_slow:
            words = [f"{gpu.pcie_width:.0f} of {gpu.pcie_width_max:.0f} lanes"] if is_narrow else []
            words += [f"generation {gpu.pcie_generation:.0f} of {gpu.pcie_generation_max:.0f}"] if is_slow else []
            is_bad = is_narrow or (gpu.utilization_percent or 0.0) >= _IN_USE_PERCENT
            title = f"The PCIe link of GPU {gpu.label} of {host.name} has {' and '.join(words)}"
            yield find_at(gpu, title, is_bad=is_bad)


def _describe_nvlink_errors(gpu: Gpu, amount: float, _: FleetContext) -> str:
    most = "" if gpu.nvlink_error_link is None else f", most of all on link {gpu.nvlink_error_link:.0f}"
    return f"has had {amount:.0f} NVLink errors within an hour{most}"


nvlink_errors = growth_rule(
    "nvlink_errors",
    "nvlink_error_count",
    _describe_nvlink_errors,
    window=_HOUR,
    action="Look at nvidia-smi nvlink -e; reseat or replace the bridge or the board if it goes on.",
    many="The NVLinks of {count} GPUs have errors",
)
row_remaps = growth_rule(
    "row_remaps",
    "remapped_rows_count",
    lambda _, rows, __: f"has replaced {rows:.0f} row{'s' if rows != 1 else ''} of its memory within a day",
    window=_DAY,
    action=_CARD,
    many="{count} GPUs replace rows of their memory",
)
ecc_rate = growth_rule(
    "ecc_rate",
    "ecc_corrected_count",
    lambda _, errors, __: f"has corrected {errors:,.0f} memory errors within an hour",
    window=_HOUR,
    action=_CARD,
    many="{count} GPUs correct many memory errors",
)


def _measure_slowness(gpus: Sequence[Gpu], context: FleetContext, end: float) -> Iterable[tuple[Gpu, float]]:
    """Against others of its model that work as hard, except GPUs that their power limit slows down."""
    return [
        (gpu, below)
        for gpu in gpus
        if (gpu.utilization_percent or 0.0) >= LOADED_PERCENT and not gpu.throttled_power
        if (clock := gpu.clock_sm_mhz) and (usual := context.usual_clocks.get(gpu.name))
        if (below := 100.0 * (usual - clock) / usual) >= end
    ]


def _slowness_of_all(gpus: GpuColumns, context: FleetContext) -> Floats:
    is_comparable = (gpus.metric("utilization_percent") >= LOADED_PERCENT) & ~(gpus.metric("throttled_power") > 0)
    return np.where(is_comparable, _percent_below(gpus, "clock_sm_mhz", context.usual_clocks), NAN)


def _why_not_compared(host: HostSnapshot, gpu: str, _: str) -> str | None:
    board = host.boards.get(gpu)
    utilization = None if board is None else board.value("utilization_percent")
    return None if utilization is None or utilization >= LOADED_PERCENT else "it is not under load now"


gpu_slow = limit_rule(
    "gpu_slow",
    lambda gpu, _, context: (
        f"runs at {gpu.clock_sm_mhz:.0f} MHz; others under load at {context.usual_clocks[gpu.name]:.0f} MHz"
    ),
    measure=_measure_slowness,
    column=_slowness_of_all,
    action="Look for locked clocks (nvidia-smi -q -d CLOCK), heat and power: a job on several GPUs waits for it.",
    many="{count} GPUs run slower than others of their model",
    needs=("clock_sm_mhz", "utilization_percent"),
    why_unknown=_why_not_compared,
)
thermal_headroom = limit_rule(
    "thermal_headroom",
    lambda _, above, __: f"is {-above:.0f} °C below the temperature at which it slows down",
    # The limits are negative. `gpu_throttled` is about GPUs that heat slows down already.
    measure=lambda gpus, _, end: [
        (gpu, -margin)
        for gpu in gpus
        if (margin := gpu.temperature_margin_celsius) is not None and -margin >= end and not gpu.throttled_thermal
    ],
    column=lambda gpus, _: -gpus.metric("temperature_margin_celsius"),
    action="Check the fans and the airflow of the host before it slows down.",
    many="{count} GPUs are close to slowing down because of heat",
    needs=("temperature_margin_celsius",),
    reads=("temperature_margin_celsius", "throttled_thermal"),
)


def _preselect_faults(fleet: FleetTable, limits: Limits, context: FleetContext) -> Flags:
    gpus, end = fleet.gpus, fleet.gpus.end
    now = context.now + np.nan_to_num(fleet.hosts.clock_skew[gpus.host[:end]])
    is_recent = now - gpus.last_fault_at[:end] < max(limits.clear_after, 1.0)
    return is_recent | (now - gpus.last_critical_at[:end] < _DAY)


@rule(
    "gpu",
    preselect=_preselect_faults,
    action="Look at the kernel log (dmesg) of the host.",
    many="{count} faults of GPUs (XID)",
    reads_missing=True,
    clears_itself=True,
    notifies_end=False,
)
def xid(host: HostSnapshot, gpus: Sequence[Gpu], limits: Limits, context: FleetContext) -> Iterator[RuleFinding]:
    """Each code of each GPU once, by its newest fault. Hardware faults count for a day, even if the hub was away when
    they happened, others for `clear_after`."""
    skew = host.view.clock_skew_seconds or 0.0
    for gpu in gpus:
        for event in {event.code: event for event in gpu.events}.values():
            at = min(context.now, event.at - skew)
            if context.now - at >= (_DAY if event.kind == "critical" else max(limits.clear_after, 1.0)):
                continue
            is_of_program = event.kind == "application"
            action = "Look at your program: its driver said that it failed."
            yield find_at(
                gpu,
                f"XID {event.code} on GPU {gpu.label} of {host.name}: {event.text}",
                part=str(event.code),
                since=at,
                severity=_SEVERITIES[event.kind],
                action=action if is_of_program else find_xid(event.code).action,
                users=() if event.user is None else (event.user,),
                is_personal=is_of_program,
            )


def why_no_processes(host: HostSnapshot, gpu: str, _: str) -> str | None:
    board = host.boards.get(gpu)
    seen = None if board is None else board.view()
    is_known = seen is not None and seen.processes is not None and seen.availability != "unknown"
    return None if is_known else "its users are not known now"


def _began(gpu: Gpu, context: FleetContext) -> float:
    """When it entered its state, now at the latest."""
    return context.now if gpu.since is None else min(context.now, gpu.since)


def _preselect_idle(fleet: FleetTable, _: Limits, __: FleetContext) -> Flags:
    gpus, end = fleet.gpus, fleet.gpus.end
    is_own = gpus.is_reserved[:end] & ~gpus.has_conflict[:end]
    is_idle: Flags = (gpus.availability[:end] == IDLE) & (gpus.user[:end] != NOBODY) & ~is_own
    return is_idle


@rule(
    "gpu",
    preselect=_preselect_idle,
    action="If you do not need it now, end your process, so that others can use it.",
    many="{count} GPUs are idle",
    why_unknown=why_no_processes,
    notifies_end=False,
)
def gpu_idle(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, context: FleetContext) -> Iterator[RuleFinding]:
    """For the users of a GPU. If they have reserved it, it may be idle."""
    for gpu in gpus:
        is_own = gpu.reservation is not None and gpu.reservation_conflict is None
        if gpu.availability == "idle" and gpu.users and not is_own:
            words = f"is idle, in use by {' and '.join(gpu.users[:3])}"
            yield _find(host, gpu, words, since=_began(gpu, context), users=tuple(gpu.users), is_personal=True)


@rule(
    "gpu",
    preselect=lambda fleet, *_: (
        (fleet.gpus.availability[: fleet.gpus.end] == IDLE) & (fleet.gpus.workers[: fleet.gpus.end] == 0)
    ),
    action="Look for what is left of a process there (fuser -v /dev/nvidia*), or reset the GPU.",
    many="Memory of {count} GPUs is in use without a process",
    needs=("memory_used_bytes",),
    why_unknown=why_no_processes,
)
def orphaned_memory(host: HostSnapshot, gpus: Sequence[Gpu], _: Limits, context: FleetContext) -> Iterator[RuleFinding]:
    """Memory in use without a process. A process list that could not be read proves nothing."""
    for gpu in gpus:
        if gpu.availability == "idle" and gpu.processes is not None and all(one.display for one in gpu.processes):
            amount = f"{(gpu.memory_used_bytes or 0) / 2**30:.1f} GiB of GPU {gpu.label} of {host.name}"
            yield find_at(gpu, f"{amount} are in use, but no process is on it", since=_began(gpu, context))
