"""Rules about GPUs as hardware: lost, hot, slowed down, with failing memory, with a lower power limit than others."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gpudeck.alerts.finding import FleetColumns, Rule, RuleFinding, find_at
from gpudeck.alerts.limits import Limits
from gpudeck.alerts.rules.hosts import why_no_driver
from gpudeck.alerts.snapshot import Around, SeenHost
from gpudeck.fleet.columns import Flags
from gpudeck.model.view import Gpu


def find_lost(host: SeenHost, gpus: Sequence[Gpu], _: Limits, __: Around) -> Sequence[RuleFinding]:
    """Those that cannot be read, and those that are not told of any more. Where none can be read it is the driver."""
    missing = [gpu for gpu in gpus if gpu.health == "critical" and host.boards[gpu.uuid].missing is not None]
    if not missing and not host.gone:
        return ()
    lost = [] if why_no_driver(host) is not None else [_lose(host, gpu) for gpu in missing]
    gone = [
        RuleFinding(
            title=f"GPU {gpu.label} of {host.name} is gone", gpu=gpu.uuid, label=gpu.label, model=gpu.model, part=""
        )
        for gpu in host.gone
    ]
    return [*lost, *gone]


def preselect_lost(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    """Hosts with GPUs that are gone are always looked at."""
    return fleet.gpus.is_missing[: fleet.gpus.end]


def _lose(host: SeenHost, gpu: Gpu) -> RuleFinding:
    reason = host.boards[gpu.uuid].missing or ""
    return _find(host, gpu, f"cannot be read: {reason.rstrip('.')}", action=gpu.health_action)


def why_not_lost(host: SeenHost, gpu: str, _: str) -> str | None:
    """A GPU of which nothing is said is not there again."""
    return None if gpu in host.boards else "the host does not tell of it"


def find_hot(host: SeenHost, gpus: Sequence[Gpu], limits: Limits, around: Around) -> Sequence[RuleFinding]:
    clear = limits.end
    hot = [gpu for gpu in gpus if (value := gpu.temperature_celsius) is not None and value >= clear]
    return [_heat(host, gpu, limits, around) for gpu in hot] if hot else ()


def preselect_hot(fleet: FleetColumns, limits: Limits, _: Around) -> Flags:
    return fleet.gpus.metric("temperature_celsius") >= limits.end


def _heat(host: SeenHost, gpu: Gpu, limits: Limits, around: Around) -> RuleFinding:
    celsius, above = gpu.temperature_celsius or 0.0, limits.begin
    is_critical = celsius >= max(above, around.critical_celsius)
    severity = "critical" if is_critical else None
    return _find(host, gpu, f"is at {celsius:.0f} °C", is_bad=celsius >= above, severity=severity)


def find_throttled(host: SeenHost, gpus: Sequence[Gpu], _: Limits, __: Around) -> Sequence[RuleFinding]:
    slow = [gpu for gpu in gpus if gpu.throttled_thermal or gpu.throttled_hardware]
    return [_find(host, gpu, f"is slowed down by {_brake(gpu)}") for gpu in slow] if slow else ()


def preselect_throttled(fleet: FleetColumns, _: Limits, __: Around) -> Flags:
    return (fleet.gpus.metric("throttled_thermal") > 0) | (fleet.gpus.metric("throttled_hardware") > 0)


def _brake(gpu: Gpu) -> str:
    return "heat" if gpu.throttled_thermal else "its hardware (power brake or slowdown)"


def find_errors(host: SeenHost, gpus: Sequence[Gpu], limits: Limits, _: Around) -> Sequence[RuleFinding]:
    above = max(limits.begin, 1.0)
    worn = [gpu for gpu in gpus if gpu.remapped_rows_pending or (gpu.ecc_uncorrected_count or 0) >= above]
    return [_find(host, gpu, _wear(gpu)) for gpu in worn] if worn else ()


def preselect_errors(fleet: FleetColumns, limits: Limits, _: Around) -> Flags:
    errors, pending = fleet.gpus.metric("ecc_uncorrected_count"), fleet.gpus.metric("remapped_rows_pending")
    return (pending > 0) | (errors >= max(limits.begin, 1.0))


def _wear(gpu: Gpu) -> str:
    count = gpu.ecc_uncorrected_count or 0
    errors = f"has had {count:.0f} uncorrected memory error{'s' if count != 1 else ''}" if count else ""
    rows = "has memory rows that wait to be replaced" if gpu.remapped_rows_pending else ""
    return " and ".join(part for part in (errors, rows) if part)


def find_capped(host: SeenHost, gpus: Sequence[Gpu], limits: Limits, around: Around) -> Sequence[RuleFinding]:
    """Against the usual limit of its model in this fleet: what all have is somebody's decision."""
    usual, least = around.power_limits, 1.0 - limits.end / 100.0
    capped = [gpu for gpu in gpus if (watts := gpu.power_limit_watts) and watts < least * usual.get(gpu.name, 0.0)]
    return [_cap(host, gpu, limits, usual[gpu.name]) for gpu in capped] if capped else ()


def preselect_capped(fleet: FleetColumns, limits: Limits, around: Around) -> Flags:
    gpus = fleet.gpus
    # A row that nobody has stands for the model -1, which is the last.
    usual = np.zeros(len(gpus.models) + 1)
    for model, watts in around.power_limits.items():
        usual[gpus.models.get(model, -1)] = watts
    usual[-1] = 0.0
    return gpus.metric("power_limit_watts") < (1.0 - limits.end / 100.0) * usual[gpus.model[: gpus.end]]


def _cap(host: SeenHost, gpu: Gpu, limits: Limits, usual: float) -> RuleFinding:
    watts = gpu.power_limit_watts or 0.0
    words = f"is limited to {watts:.0f} W; others of its model have {usual:.0f} W"
    return _find(host, gpu, words, is_bad=watts <= (1.0 - limits.begin / 100.0) * usual)


def _find(host: SeenHost, gpu: Gpu, words: str, **others: Any) -> RuleFinding:
    return find_at(gpu, f"GPU {gpu.label} of {host.name} {words}", **others)


_RESET = "Let its jobs end, then reset the GPU (nvidia-smi -r) or restart the host; if it comes again, replace it."

GPU_RULES = (
    Rule(
        name="gpu_lost",
        scope="gpu",
        find=find_lost,
        preselect=preselect_lost,
        action="Look at the kernel log (dmesg) of the host; check the card's power, seat and cooling.",
        many="{count} GPUs are lost",
        over="{place} is there again",
        over_many="{count} GPUs are there again",
        why_unknown=why_not_lost,
        reads_missing=True,
    ),
    Rule(
        name="gpu_hot",
        scope="gpu",
        find=find_hot,
        preselect=preselect_hot,
        action="Check the fans and the airflow of the host.",
        many="{count} GPUs are hot",
        over="{place} has cooled down",
        over_many="{count} GPUs have cooled down",
        needs=("temperature_celsius",),
        reads=("temperature_celsius",),
    ),
    Rule(
        name="gpu_throttled",
        scope="gpu",
        find=find_throttled,
        preselect=preselect_throttled,
        action="Check the cooling and the power supply of the host: what runs there takes longer than it has to.",
        many="{count} GPUs are slowed down",
        over="{place} is as fast as it should be again",
        over_many="{count} GPUs are as fast as they should be again",
        needs=("throttled_thermal", "throttled_hardware"),
        reads=("throttled_thermal", "throttled_hardware"),
    ),
    Rule(
        name="ecc",
        scope="gpu",
        find=find_errors,
        preselect=preselect_errors,
        action=_RESET,
        many="The memory of {count} GPUs fails",
        over="The memory of {place} shows no errors since it was reset",
        over_many="The memory of {count} GPUs shows no errors since they were reset",
        needs=("ecc_uncorrected_count",),
        reads=("ecc_uncorrected_count", "remapped_rows_pending"),
    ),
    Rule(
        name="power_capped",
        scope="gpu",
        find=find_capped,
        preselect=preselect_capped,
        action="If nobody meant it, set it back (nvidia-smi -pl); else override power_capped for this host.",
        many="{count} GPUs have a lower power limit than others of their model",
        over="{place} has the usual power limit again",
        over_many="{count} GPUs have the usual power limit again",
        needs=("power_limit_watts",),
        reads=("power_limit_watts",),
    ),
)
