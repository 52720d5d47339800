"""Rules about GPUs that still work and will fail, or are slower than they could be: links, counters that grow, clocks,
heat."""

from collections.abc import Callable, Sequence

import numpy as np

from gpudeck.alerts.rule import FleetContext, HostSnapshot, Rule, RuleFinding, find_at
from gpudeck.alerts.settings import Limits
from gpudeck.alerts.trends import LOADED_PERCENT
from gpudeck.fleet.columns import Flags
from gpudeck.fleet.table import FleetTable
from gpudeck.model.view import Gpu

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
    gpus = fleet.gpus
    # A row that no GPU has stands for the model -1, which is the last.
    usual = np.zeros(len(gpus.models) + 1)
    for model, clock in context.usual_clocks.items():
        usual[gpus.models.get(model, -1)] = clock
    usual[-1] = 0.0
    is_loaded = (gpus.metric("utilization_percent") >= LOADED_PERCENT) & ~(gpus.metric("throttled_power") > 0)
    return is_loaded & (gpus.metric("clock_sm_mhz") < (1.0 - limits.end / 100.0) * usual[gpus.model[: gpus.end]])


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
