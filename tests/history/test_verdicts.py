"""Each rule of verdicts: a shape on which it fires, one like it on which it does not, and one that it cannot judge."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpudeck.history.base import Fault
from gpudeck.history.run_columns import EarlierRun, RunFacts, RunSamples
from gpudeck.history.verdict_rules import RULES
from gpudeck.history.verdicts import find_suggestions, judge_run

GIB = 2.0**30
HOUR = 360
"""Samples of an hour."""
Rows = Any


def make(
    utilization: Rows = 95.0, memory: Rows = 60.0, *, samples: int = HOUR, total: float = 80.0, **others: Any
) -> RunSamples:
    """Columns of an hour. A number is the same all the time, a line is that of one GPU; memory is in GiB."""
    fields = {name: others.pop(name) for name in tuple(others) if name in RunSamples.__struct_fields__}
    rows = np.atleast_2d(np.asarray(utilization, float))
    count = max([len(rows), *(np.atleast_2d(values).shape[0] for values in others.values())])
    shape = count, rows.shape[1] if rows.shape[1] > 1 else samples

    def spread(values: Rows) -> Any:
        return np.broadcast_to(np.atleast_2d(np.asarray(values, float)), shape).copy()

    metrics = {name: spread(values) for name, values in others.items()}
    metrics |= {"utilization_percent": spread(utilization), "memory_total_bytes": spread(total * GIB)}
    usual: dict[str, Any] = {
        "labels": [str(number) for number in range(count)],
        "models": ["H100"] * count,
        "times": 1e9 + 10.0 * np.arange(1, shape[1] + 1),
        "covered": np.full(shape[1], 10.0),
        "present": np.ones(shape, np.bool_),
        "memory": spread(memory) * GIB,
        "read": metrics.get,
        "cpu_percent": np.full(shape[1], 20.0),
        "wall_seconds": 10.0 * shape[1],
        "command": "python train.py",
    }
    return RunSamples(**(usual | fields))


def rules_of(columns: RunSamples) -> list[str]:
    return [rule.name for rule, _ in find_suggestions(RunFacts(columns))]


def line(*parts: tuple[int, float]) -> Any:
    """So many samples of each value."""
    return np.concatenate([np.full(count, value) for count, value in parts])


def sawtooth(samples: int = HOUR, low: float = 3.0) -> Any:
    return np.where(np.arange(samples) % 3 == 0, low, 92.0)


def rows(*lines: Rows) -> Any:
    """Of several GPUs, each a number or a line."""
    return np.array([np.broadcast_to(one, HOUR) for one in lines], float)


def restarts(utilization: float | None, pause: float = 30.0, seconds: float = 60.0) -> list[EarlierRun]:
    ends = [1e9 - number * (seconds + pause) - pause for number in range(4)]
    return [EarlierRun(end - seconds, end, utilization) for end in reversed(ends)]


grown = line((300, 50.0), (58, 50.0), (2, 78.0))
small = {"sm_activity_percent": 8.0, "memory": 20.0}
fp32 = {
    "sm_activity_percent": 85.0,
    "tensor_activity_percent": 0.0,
    "fp32_activity_percent": 55.0,
    "dram_activity_percent": 30.0,
}
tiny = {"utilization": 30.0, "memory": 4.0}
capped = {"throttled_power": 1.0, "power_limit_watts": 300.0}
slow_clock = rows(1000.0, 1900.0, 1900.0, 1900.0)
clocks = line((20, 1980.0), (340, 1000.0))

SHAPES: list[tuple[str, Callable[[], RunSamples], Callable[[], RunSamples], Callable[[], RunSamples] | None]] = [
    (
        "hardware_fault",
        lambda: make(faults=(Fault(1e9 + 60, 79),)),
        lambda: make(faults=(Fault(1e9 + 60, 94),)),
        None,
    ),
    ("program_fault", lambda: make(faults=(Fault(1e9 + 60, 31),)), lambda: make(faults=(Fault(1e9 + 60, 79),)), None),
    (
        "restart_loop",
        lambda: make(0.0, samples=6, earlier=restarts(0.0)),
        lambda: make(90.0, samples=6, earlier=restarts(80.0)),
        lambda: make(0.0, samples=6, earlier=restarts(None)),
    ),
    (
        "out_of_memory",
        lambda: make(memory=grown),
        lambda: make(memory=grown, is_over=False),
        lambda: make(memory=np.where(grown > 60, np.nan, grown)),
    ),
    (
        "idle_notebook",
        lambda: make(line((30, 80.0), (330, 0.0)), command="python -m ipykernel_launcher"),
        lambda: make(np.where(np.arange(HOUR) % 50 < 10, 80.0, 0.0), command="python -m ipykernel_launcher"),
        lambda: make(line((30, 80.0), (330, np.nan)), command="python -m ipykernel_launcher"),
    ),
    (
        "idle_now",
        lambda: make(line((354, 80.0), (6, 0.0)), command="python -m ipykernel_launcher", is_over=False),
        lambda: make(line((354, 80.0), (6, 0.0)), is_over=False),
        lambda: make(line((354, 80.0), (6, np.nan)), command="python -m ipykernel_launcher", is_over=False),
    ),
    ("never_used", lambda: make(0.0), lambda: make(line((359, 0.0), (1, 90.0))), lambda: make(np.nan)),
    (
        "idle_after_work",
        lambda: make(line((150, 95.0), (210, 0.0))),
        lambda: make(line((150, 95.0), (40, 0.0), (170, 95.0))),
        lambda: make(line((150, 95.0), (210, np.nan))),
    ),
    (
        "unused_gpus",
        lambda: make(rows(95.0, 0.0)),
        lambda: make(rows(95.0, 60.0)),
        lambda: make(rows(95.0, np.nan)),
    ),
    (
        "thermal_throttling",
        lambda: make(throttled_thermal=line((100, 1.0), (260, 0.0))),
        lambda: make(throttled_thermal=line((10, 1.0), (350, 0.0))),
        lambda: make(throttled_thermal=np.nan),
    ),
    (
        "power_limited",
        lambda: make(clock_sm_mhz=clocks, **capped),
        lambda: make(clock_sm_mhz=np.where(clocks < 1500, 1600.0, clocks), **capped),
        lambda: make(clock_sm_mhz=np.nan, **capped),
    ),
    (
        "slow_gpu",
        lambda: make(rows(95, 95, 95, 95), clock_sm_mhz=slow_clock, power_watts=300.0),
        lambda: make(rows(95, 95, 95, 95), clock_sm_mhz=rows(1700, 1900, 1900, 1900), power_watts=300.0),
        lambda: make(
            rows(95, 95, 95, 95), clock_sm_mhz=slow_clock, power_watts=300.0, models=["H100", "H100", "H100", "A100"]
        ),
    ),
    (
        "imbalance",
        lambda: make(rows(100, 100, 100), sm_activity_percent=rows(30, 80, 82)),
        lambda: make(rows(100, 100, 100), sm_activity_percent=rows(70, 80, 82)),
        lambda: make(rows(100, 100, 100), sm_activity_percent=rows(30, np.nan, 82)),
    ),
    (
        "pcie_bound",
        lambda: make(60.0, sm_activity_percent=30.0, pcie_receive_bytes_per_second=22e9),
        lambda: make(95.0, sm_activity_percent=85.0, pcie_receive_bytes_per_second=22e9),
        lambda: make(60.0, sm_activity_percent=30.0, pcie_receive_bytes_per_second=np.nan),
    ),
    (
        "cpu_bound",
        lambda: make(50.0, cpu_percent=np.full(HOUR, 97.0)),
        lambda: make(95.0, cpu_percent=np.full(HOUR, 97.0)),
        lambda: make(50.0, cpu_percent=np.full(HOUR, np.nan)),
    ),
    (
        "waiting_for_data",
        lambda: make(sawtooth()),
        lambda: make(np.where(np.arange(HOUR) % 60 < 20, 0.0, 92.0)),
        lambda: make(np.where(np.arange(HOUR) % 2 == 0, np.nan, sawtooth())),
    ),
    (
        "small_batches",
        lambda: make(60.0, **small),
        lambda: make(60.0, **(small | {"memory": 60.0})),
        lambda: make(60.0, 20.0),
    ),
    (
        "no_tensor_cores",
        lambda: make(**fp32),
        lambda: make(**(fp32 | {"dram_activity_percent": 85.0})),
        lambda: make(**(fp32 | {"fp32_activity_percent": np.nan})),
    ),
    (
        "gpu_too_large",
        lambda: make(sm_activity_percent=12.0, **(tiny | {"utilization": 20.0})),
        lambda: make(sm_activity_percent=28.0, **tiny),
        lambda: make(sm_activity_percent=12.0, **(tiny | {"memory": np.nan})),
    ),
    (
        "small_memory",
        lambda: make(50.0, 9.0),
        lambda: make(95.0, 9.0),
        lambda: make(np.nan, 9.0),
    ),
]


def test_every_rule_has_its_shapes() -> None:
    assert sorted(name for name, *_ in SHAPES) == sorted(rule.name for rule in RULES)


@pytest.mark.parametrize(("name", "fires"), [(name, fires) for name, fires, _, _ in SHAPES])
def test_it_fires(name: str, fires: Callable[[], RunSamples]) -> None:
    verdict = judge_run(fires())
    assert name in [one.rule for one in verdict.suggestions]
    assert verdict.rating in {"could_be_better", "poor"}


@pytest.mark.parametrize(("name", "healthy"), [(name, healthy) for name, _, healthy, _ in SHAPES])
def test_it_does_not_fire(name: str, healthy: Callable[[], RunSamples]) -> None:
    assert name not in rules_of(healthy())


@pytest.mark.parametrize(("name", "unknown"), [(name, unknown) for name, _, _, unknown in SHAPES if unknown])
def test_what_it_needs_is_unknown(name: str, unknown: Callable[[], RunSamples]) -> None:
    assert name not in rules_of(unknown())


@pytest.mark.parametrize(
    "columns",
    [
        make(np.where(np.arange(HOUR) % 90 < 4, 0.0, 96.0)),
        make(line((20, 0.0), (340, 97.0)), memory=70.0),
        make(memory=9.0, sm_activity_percent=88.0, tensor_activity_percent=40.0),
        make(throttled_power=1.0, clock_sm_mhz=np.where(np.arange(HOUR) % 7, 1600.0, 1980.0)),
        make(**(fp32 | {"fp32_activity_percent": 8.0, "dram_activity_percent": 87.0})),
        make(memory=line((1, 79.0), (359, 79.5))),
    ],
    ids=["checkpoints", "start", "small memory, much work", "at the power limit", "memory copies", "takes all memory"],
)
def test_a_healthy_run_gets_no_suggestion(columns: RunSamples) -> None:
    verdict = judge_run(columns)
    assert (verdict.rating, verdict.suggestions) == ("good", [])


def test_dips_of_a_server_are_not_waiting_for_data() -> None:
    assert rules_of(make(sawtooth(), command="vllm serve llama-8b")) == []
    uneven = np.where(np.arange(HOUR) < 150, sawtooth(), 92.0)
    assert rules_of(make(uneven, command="python service.py")) == []


def test_a_gpu_that_slows_itself_under_more_work_is_not_slower_than_others() -> None:
    busier = make(rows(95, 95, 95, 95), clock_sm_mhz=slow_clock, power_watts=rows(600, 300, 300, 300))
    assert "slow_gpu" not in rules_of(busier)
    assert "slow_gpu" not in rules_of(make(rows(95, 95, 95, 95), clock_sm_mhz=slow_clock))


@pytest.mark.parametrize("command", ["gmx mdrun -deffnm md", None])
def test_a_simulation_without_matrices_needs_no_tensor_cores(command: str | None) -> None:
    assert "no_tensor_cores" not in rules_of(make(command=command, **fp32))


def test_a_gpu_that_is_slow_from_heat_has_no_low_power_limit() -> None:
    hot = make(clock_sm_mhz=clocks, throttled_thermal=np.where(clocks < 1500, 1.0, 0.0), **capped)
    assert rules_of(hot) == ["thermal_throttling"]


def test_two_minutes_are_enough_for_kernels_and_too_few_for_idleness() -> None:
    tiny_kernels = make(20.0, 2.0, samples=12, sm_activity_percent=0.0)
    assert rules_of(tiny_kernels) == ["small_batches"]
    assert judge_run(make(0.0, samples=12)).suggestions == []
    assert judge_run(make(99.0, samples=12, sm_activity_percent=98.0, dram_activity_percent=87.0)).text == (
        "Mean utilization 99 % over 2m on 1 GPU, limited by memory bandwidth."
    )


def test_a_notebook_that_was_just_opened_is_not_reported() -> None:
    opened = make(0.0, samples=90, command="jupyter-lab")
    assert (judge_run(opened).rating, rules_of(opened)) == ("could_be_better", [])
    assert rules_of(make(0.0, samples=240, command="jupyter-lab")) == ["idle_notebook"]


def test_a_notebook_is_idle_a_minute_after_its_last_work() -> None:
    notebook = {"command": "python -m ipykernel_launcher -f k.json", "memory": 20.0, "is_over": False}
    one = judge_run(make(line((1, 40.0), (6, 0.0)), **notebook))
    held = "idle notebook, no work for 1m, 20 GiB of GPU memory held"
    assert (one.rating, one.text) == ("could_be_better", f"It holds a GPU and does no work at the moment: {held}.")
    assert rules_of(make(line((1, 40.0), (6, 0.0)), **notebook | {"is_over": True})) == []
    assert rules_of(make(line((1, 40.0), (5, 0.0)), **notebook)) == []
    assert rules_of(make(line((1, 40.0), (200, 0.0)), **notebook)) == ["idle_notebook"]


def test_another_program_may_prepare_for_minutes_and_a_server_may_wait() -> None:
    assert rules_of(make(line((10, 0.0), (1, 90.0), (29, 0.0)), is_over=False)) == []
    assert rules_of(make(line((10, 0.0), (1, 90.0), (30, 0.0)), is_over=False)) == ["idle_now"]
    assert rules_of(make(line((10, 90.0), (60, 0.0)), command="vllm serve a", is_over=False)) == []


def test_a_low_mean_alone_is_held_against_nobody_who_waits_for_others() -> None:
    ratings = [
        judge_run(make(9.0, command=command)).rating for command in ("python a.py", "vllm serve a", "jupyter-lab")
    ]
    assert ratings == ["poor", "could_be_better", "could_be_better"]
    short = judge_run(make(line((20, 0.0), (10, 90.0)), samples=30))
    assert short.reason == "5m is too short to judge a mean utilization of 30 %"


def test_at_most_three_suggestions_the_most_important_first() -> None:
    columns = make(
        rows(30.0, 0.0), 4.0, cpu_percent=np.full(HOUR, 97.0), throttled_thermal=1.0, faults=(Fault(1e9, 79),)
    )
    assert [one.rule for one in judge_run(columns).suggestions] == [
        *("hardware_fault", "unused_gpus", "thermal_throttling"),
    ]


def test_a_suggestion_names_its_evidence_and_threshold() -> None:
    (one,) = judge_run(make(line((150, 95.0), (210, 0.0)))).suggestions
    assert one.evidence == "35m without work in 1 stretch of 10 min or more, 58 % of 1h 0m; 35m of it before its end"
    assert one.threshold.startswith("30 min without work before its end")
    assert one.fix


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        (None, "its samples are not kept, or no longer"),
        (make(samples=5), "only 50s of it was sampled"),
        (make(wall_seconds=10_000.0), "only 36 % of its time was monitored"),
        (make(np.nan), "its utilization is not known: other programs were on its GPUs, or they do not report it"),
    ],
)
def test_unknown_has_its_reason(columns: RunSamples | None, reason: str) -> None:
    verdict = judge_run(columns)
    assert (verdict.rating, verdict.reason, verdict.suggestions) == ("unknown", reason, [])
