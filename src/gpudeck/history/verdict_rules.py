"""The rules of verdicts on runs and jobs, the most important first.

A rule is a pure function of `RunFacts` that returns its evidence, or None if it does not apply. It does not apply if a
metric that it needs is unknown: a missing suggestion costs less than a wrong one.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from gpudeck.history.base import Fault
from gpudeck.history.codec import Flags
from gpudeck.history.run_columns import (
    KNOWN_SHARE,
    STRETCH_SECONDS,
    WORK_PERCENT,
    EarlierRun,
    RunFacts,
    find_blocks,
)
from gpudeck.model.gpu_state import find_xid
from gpudeck.model.text import show_amount, show_count, show_span

_GIB: Final = 2.0**30
_MINUTE: Final = 60.0
_MIN_WORK_SECONDS: Final = 45.0
"""Five samples: each has the mean activity of ten seconds."""
_IDLE_NOTEBOOK_SECONDS, _IDLE_SECONDS = 55.0, 300.0
"""Time without work until now. Programs other than notebooks read data, compile and write checkpoints for minutes."""
_SMALL_CARD: Final = 20 * _GIB
"""Smaller cards hardly exist."""


class VerdictRule(Struct, frozen=True):
    """`find` returns the evidence, or None. `hides` names rules whose suggestions say less about the same thing."""

    name: str
    text: str
    threshold: str
    fix: str
    needs: str
    find: Callable[[RunFacts], str | None]
    is_major: bool = False
    hides: tuple[str, ...] = ()


_RULES: list[VerdictRule] = []
_Find = Callable[[RunFacts], str | None]


def _rule(  # noqa: PLR0917 - the columns of a table
    text: str, threshold: str, fix: str, needs: str, is_major: bool = False, hides: tuple[str, ...] = ()
) -> Callable[[_Find], _Find]:
    """Adds a rule with the name of the function."""

    def add(find: _Find) -> _Find:
        _RULES.append(VerdictRule(find.__name__, text, threshold, fix, needs, find, is_major, hides))
        return find

    return add


@_rule(
    "A GPU reported a fault of its hardware or driver",
    "any critical XID while it ran",
    "Report this to your administrator, check the results, and use another GPU.",
    "events",
    is_major=True,
)
def hardware_fault(facts: RunFacts) -> str | None:
    return _describe_faults([one for one in facts.of.faults if find_xid(one.code).kind == "critical"])


@_rule(
    "It starts, ends and starts again without working",
    "4 starts in a row, each under 5 min and under 20 % utilization, less than 2 min apart",
    "Look at the program's log. Stop restarting it until the error is fixed.",
    "runs of the same command",
    is_major=True,
    hides=("never_used",),
)
def restart_loop(facts: RunFacts) -> str | None:
    """Short starts in a row that hardly used the GPU. A sweep of short runs works most of its time."""
    chain: list[EarlierRun] = []
    begin = float(facts.of.times[0])
    is_short = facts.wall < 5 * _MINUTE and facts.worked < 0.5 * facts.wall
    for one in reversed(facts.of.earlier if is_short else []):
        is_empty = one.utilization_percent is not None and one.utilization_percent < 20
        if one.last - one.first >= 5 * _MINUTE or begin - one.last > 2 * _MINUTE or not is_empty:
            break
        chain.append(one)
        begin = one.first
    if len(chain) < 3:
        return None
    return f"{len(chain) + 1} starts of the same command within {show_span(float(facts.of.times[-1]) - begin)}"


@_rule(
    "It probably ran out of GPU memory",
    "it ended within 20 s of reaching 95 % of the memory, having grown by 10 % of it in 10 min",
    "Use a smaller batch, gradient accumulation or checkpointing, or a GPU with more memory.",
    "memory",
    is_major=True,
)
def out_of_memory(facts: RunFacts) -> str | None:
    """It ended while its memory grew to the limit. The memory of an allocator that takes everything at its start
    does not grow."""
    if not facts.of.is_over or facts.is_interactive or len(facts.of.times) < 6:
        return None
    share = facts.of.memory[:, -60:] / facts.metric("memory_total_bytes")[:, -60:]
    last, before = share[:, -2:].max(axis=1), share[:, :-3]
    if not (last >= 0.95).any():
        return None
    grown = last - np.median(before, axis=1)
    is_full = (last >= 0.95) & (grown >= 0.1)
    if not is_full.any():
        return None
    most, more = 100 * float(last[is_full].max()), 100 * float(grown[is_full].max())
    return f"{most:.0f} % of the memory of {facts.places(is_full)} in its last seconds, {more:.0f} % more than before"


@_rule(
    "The program made an error on the GPU",
    "any XID of a program while it ran",
    "Run it with CUDA_LAUNCH_BLOCKING=1, or with compute-sanitizer, to find the kernel.",
    "events",
)
def program_fault(facts: RunFacts) -> str | None:
    return _describe_faults([one for one in facts.of.faults if find_xid(one.code).kind == "application"])


def _describe_faults(faults: Sequence[Fault]) -> str | None:
    if not faults:
        return None
    codes = sorted({one.code for one in faults})
    return "; ".join(
        f"XID {code}, {show_count(sum(one.code == code for one in faults), 'time')}: {find_xid(code).text}"
        for code in codes[:3]
    )


@_rule(
    "The notebook holds a GPU without using it",
    "30 min without work before its end, or in half of its time, in stretches of 10 min and more",
    "Shut the kernel down when you pause; save what you need to a file first.",
    "utilization, command",
    is_major=True,
    hides=("idle_now",),
)
def idle_notebook(facts: RunFacts) -> str | None:
    return _find_idle(facts, 0.5) if facts.is_interactive else None


@_rule(
    "No GPU was ever used",
    "no sample with 5 % utilization in 10 min and more",
    "Check that the program finds the GPU, or run it without one.",
    "utilization",
    is_major=True,
    hides=("idle_now",),
)
def never_used(facts: RunFacts) -> str | None:
    if (
        facts.is_interactive
        or facts.works.any()
        or facts.wall < STRETCH_SECONDS
        or not facts.is_known_everywhere(facts.utilization)
    ):
        return None
    return f"utilization below {WORK_PERCENT:.0f} % in all of {show_span(facts.wall)}"


@_rule(
    "It holds GPUs after their work is done, or between work",
    "30 min without work before its end, or in 20 % of its time, in stretches of 10 min and more",
    "End the process when its work is done, and do long CPU work in a process without a GPU.",
    "utilization",
    is_major=True,
    hides=("idle_now",),
)
def idle_after_work(facts: RunFacts) -> str | None:
    if facts.is_interactive or not facts.works.any():
        return None
    return _find_idle(facts, 0.2)


def _find_idle(facts: RunFacts, least_share: float) -> str | None:
    stretches = facts.idle_stretches
    idle = sum(end - begin for begin, end in stretches)
    last = float(facts.of.times[-1])
    tail = max((end - begin for begin, end in stretches if end >= last), default=0.0)
    if idle < 30 * _MINUTE or (tail < 30 * _MINUTE and idle < least_share * facts.wall):
        return None
    count = f"{len(stretches)} stretch{'es' * (len(stretches) != 1)}"
    how = f"{show_span(idle)} without work in {count} of 10 min or more"
    end = "before its end" if facts.of.is_over else "until now"
    return f"{how}, {100 * idle / facts.wall:.0f} % of {show_span(facts.wall)}" + (
        f"; {show_span(tail)} of it {end}" if tail else ""
    )


@_rule(
    "It holds a GPU and does no work at the moment",
    "still there, without work in the last minute of a notebook, or the last 5 min of another program",
    "If it pauses for longer: save what you need, and end it.",
    "utilization, command",
)
def idle_now(facts: RunFacts) -> str | None:
    """It runs and did nothing lately. Servers are excluded, as they wait for requests."""
    if facts.of.is_over or facts.is_serving or not facts.is_idle[-1]:
        return None
    begins, ends = find_blocks(facts.is_idle)
    seconds = float(facts.of.covered[begins[-1] : ends[-1]].sum())
    if seconds < (_IDLE_NOTEBOOK_SECONDS if facts.is_interactive else _IDLE_SECONDS):
        return None
    memory = facts.of.memory[:, -1]
    held = "" if np.isnan(memory).any() else f", {show_amount(int(memory.sum()))} of GPU memory held"
    return f"{'idle notebook, ' * facts.is_interactive}no work for {show_span(seconds)}{held}"


@_rule(
    "Some of its GPUs were never used",
    "no work on a GPU in 10 min and more, while another one worked for 10 min",
    "Request fewer GPUs, or start the program so that it uses all (torchrun, accelerate launch).",
    "utilization",
    is_major=True,
)
def unused_gpus(facts: RunFacts) -> str | None:
    seconds = facts.seconds_by_gpu
    unused = facts.busy_seconds <= 0.01 * seconds
    if facts.count < 2 or not unused.any() or facts.busy_seconds.max() < STRETCH_SECONDS:
        return None
    known = (~np.isnan(facts.utilization) * facts.seconds).sum(axis=1) >= KNOWN_SHARE * seconds
    unused &= known & (seconds >= STRETCH_SECONDS)
    if not unused.any() or unused.all():
        return None
    return f"{int(unused.sum())} of {facts.count} GPUs did no work ({facts.places(unused)})"


@_rule(
    "A GPU was too hot and slowed itself",
    "thermal or hardware slowdown in 10 % of the working time, and in 5 min",
    "Report this to your administrator: the cooling of the host needs attention.",
    "throttling flags",
    hides=("slow_gpu",),
)
def thermal_throttling(facts: RunFacts) -> str | None:
    hot = _is_hot(facts) & facts.is_busy
    if not hot.any():
        return None
    slowed = hot @ facts.of.covered
    share = np.divide(slowed, facts.busy_seconds, out=np.zeros(facts.count), where=facts.busy_seconds > 0)
    which = (share >= 0.1) & (slowed >= 5 * _MINUTE)
    if not which.any():
        return None
    return f"slowed in {100 * share.max():.0f} % of the working time of {facts.places(which)}"


def _is_hot(facts: RunFacts) -> Flags:
    hot: Flags = (facts.metric("throttled_thermal") > 0) | (facts.metric("throttled_hardware") > 0)
    return hot


@_rule(
    "A low power limit slows the GPU down",
    "at its power limit for half of the working time, with less than 65 % of the highest clock seen",
    "Ask your administrator whether the limit is intended.",
    "throttling flags, clocks",
    hides=("slow_gpu",),
)
def power_limited(facts: RunFacts) -> str | None:
    """Large cards reach their power limit under full load, which alone is normal, so the clock decides. One slow GPU
    of several has another reason."""
    capped, least = (
        facts.is_busy & (facts.metric("throttled_power") > 0),
        np.maximum(STRETCH_SECONDS, 0.5 * facts.busy_seconds),
    )
    if not (capped @ facts.of.covered >= least).all():
        return None
    clocks = facts.metric("clock_sm_mhz")
    capped &= ~np.isnan(clocks) & ~_is_hot(facts)
    if not (capped @ facts.of.covered >= least).all():
        return None
    best = float(np.nanmax(clocks))
    middle = [float(np.median(row[which])) for row, which in zip(clocks, capped, strict=True)]
    if max(middle) >= 0.65 * best:
        return None
    limits = facts.metric("power_limit_watts")
    limit = "" if np.isnan(limits).all() else f" at a limit of {np.nanmin(limits):.0f} W"
    return f"median SM clock {max(middle):.0f} MHz while limited{limit}, up to {best:.0f} MHz otherwise"


@_rule(
    "One GPU is slower than the others, and they wait for it",
    "a median SM clock below 85 % of its peers of the same model, under work, without more power than they draw",
    "Report this to your administrator, and exclude this GPU until it is checked.",
    "clocks and power of several GPUs",
    hides=("imbalance",),
)
def slow_gpu(facts: RunFacts) -> str | None:
    """Its clock is lower than that of its peers of the same model under the same work."""
    if facts.count < 2 or facts.worked < STRETCH_SECONDS or len(set(facts.of.models)) != 1:
        return None
    clocks = facts.metric("clock_sm_mhz")
    lowest, highest = clocks.min(axis=0), clocks.max(axis=0)
    together = facts.is_busy.all(axis=0) & ~np.isnan(lowest)
    if float(facts.of.covered @ together) < STRETCH_SECONDS:
        return None
    if 2 * np.count_nonzero(together & (lowest < 0.85 * highest)) < np.count_nonzero(together):
        return None  # no GPU can be below the others in half of the samples: the medians need not be looked for
    clocks = clocks[:, together]
    # At the same moments, as the clock depends on the work.
    peers = np.median(clocks, axis=0) if facts.count > 2 else clocks.max(axis=0)
    slow = np.median(clocks / np.maximum(peers, 1.0), axis=1) < 0.85
    if not slow.any() or slow.all():
        return None
    # One that draws more power has more work: then its clock goes down by itself.
    power = facts.by_gpu("power_watts")
    slow &= power <= 1.1 * np.median(power[~slow])
    if not slow.any():
        return None
    own, others = np.median(clocks[slow]), np.median(clocks[~slow])
    return f"median SM clock {own:.0f} MHz on {facts.places(slow)}, {others:.0f} MHz on the others"


@_rule(
    "The work is unevenly distributed over the GPUs",
    "a GPU's mean SM activity (or utilization) below 60 % of that of the others, which is 30 % or more",
    "Give each GPU the same amount of work; check the sharding and the length of batches.",
    "SM activity or utilization of several GPUs",
)
def imbalance(facts: RunFacts) -> str | None:
    """By SM activity if known: a GPU that waits for another one in a collective operation shows 100 % utilization."""
    used = facts.busy_seconds > 0.01 * facts.seconds_by_gpu
    if used.sum() < 2 or facts.worked < STRETCH_SECONDS:
        return None
    name, levels = "SM activity", facts.by_gpu("sm_activity_percent")
    if np.isnan(levels[used]).any():
        name, levels = "utilization", facts.by_gpu("utilization_percent")
    if np.isnan(levels[used]).any():
        return None
    middle = float(np.median(levels[used])) if used.sum() > 2 else float(levels[used].max())
    lagging = used & (levels < 0.6 * middle)
    if middle < 30 or not lagging.any():
        return None
    return f"mean {name} {levels[used].min():.0f} % on {facts.places(lagging)}, {middle:.0f} % on the others"


@_rule(
    "It waits for transfers between GPU and host",
    "10 GB/s and more over PCIe on average, and SM activity (or utilization) below 50 %",
    "Keep data on the GPU, use pinned memory and asynchronous copies, or offload less.",
    "PCIe rates",
    hides=("cpu_bound", "waiting_for_data", "small_batches"),
)
def pcie_bound(facts: RunFacts) -> str | None:
    if facts.worked < 5 * _MINUTE:
        return None
    name, level = _find_level(facts)
    if not level < 50:
        return None
    rates = [facts.mean(f"pcie_{way}_bytes_per_second") / 1e9 for way in ("receive", "transmit")]
    rate = max((one for one in rates if one >= 10), default=None)
    return None if rate is None else f"{rate:.0f} GB/s over PCIe on average, mean {name} {level:.0f} %"


def _find_level(facts: RunFacts) -> tuple[str, float]:
    """The use of the GPU: SM activity, or utilization if that is unknown."""
    activity = facts.mean("sm_activity_percent")
    return ("utilization", facts.mean("utilization_percent")) if np.isnan(activity) else ("SM activity", activity)


@_rule(
    "The GPU waits for a CPU that is fully used",
    "90 % CPU and less than 70 % utilization, on average",
    "Request more cores, move augmentation to the GPU, or prepare the data beforehand.",
    "CPU",
    hides=("waiting_for_data",),
)
def cpu_bound(facts: RunFacts) -> str | None:
    if facts.is_interactive or facts.is_serving or facts.worked < STRETCH_SECONDS:
        return None
    level, known = facts.mean("utilization_percent"), facts.of.cpu_percent[facts.work]
    if not level < 70 or np.isnan(known).mean() > 1 - KNOWN_SHARE:
        return None
    cpu = float(np.nanmean(known))
    return f"CPU at {cpu:.0f} %, mean utilization {level:.0f} %" if cpu >= 90 else None


@_rule(
    "The GPU waits between steps: for data, offloading or requests",
    "20 % of the samples in dips below 25 % of up to 30 s, 20 of them, evenly over the time",
    "Profile a few steps. If it loads data: more workers and prefetching; if it offloads: offload less.",
    "utilization",
)
def waiting_for_data(facts: RunFacts) -> str | None:
    """Short dips between bursts, all the time. Checkpoints and evaluations are few and long; requests to a server
    and the cells of a notebook are uneven."""
    if facts.is_interactive or facts.is_serving or facts.worked < STRETCH_SECONDS / 2:
        return None
    shares = [share for row in range(facts.count) if (share := _dip_share(facts, row)) is not None]
    if len(shares) < max(1, facts.count // 2 + 1):
        return None
    share = 100 * float(np.median(shares))
    return f"utilization below 25 % in {share:.0f} % of the samples, in dips of up to 30 s between bursts above 50 %"


def _dip_share(facts: RunFacts, row: int) -> float | None:
    """The part of one GPU's samples that are in short dips, without long pauses; None if they are not a pattern."""
    values, covered = facts.utilization[row, facts.work], facts.of.covered[facts.work]
    is_low = values < 25
    if np.count_nonzero(is_low) < 20 or np.isnan(values).mean() > 1 - KNOWN_SHARE:
        return None
    begins, ends = find_blocks(is_low)
    until = np.concatenate(([0.0], covered.cumsum()))
    is_short = until[ends] - until[begins] <= 35
    if np.count_nonzero(is_short) < 20:
        return None
    # Each low sample is of the block that began last.
    dips = is_low & np.append(is_short, False)[np.searchsorted(begins, np.arange(len(values)), side="right") - 1]
    kept = (dips | ~is_low) & ~np.isnan(values)
    if float(covered @ kept) < STRETCH_SECONDS:
        return None
    share = float(dips[kept].mean())
    parts = [float(part.mean()) for part in np.array_split(dips[kept], 5)]
    is_even = min(parts) >= 0.5 * share
    return share if share >= 0.2 and is_even and float((values[kept] >= 50).mean()) >= 0.2 else None


@_rule(
    "The GPU's kernels are too small to fill it",
    "SM activity below 30 % and below half of the utilization, with less than half of the memory",
    "Use larger batches, CUDA graphs or torch.compile, or several programs on one GPU.",
    "SM activity, memory",
    hides=("gpu_too_large", "small_memory"),
)
def small_batches(facts: RunFacts) -> str | None:
    if facts.worked < _MIN_WORK_SECONDS:
        return None
    activity, level = facts.mean("sm_activity_percent"), facts.mean("utilization_percent")
    if not (activity < 30 and level >= 10 and activity < 0.5 * level):
        return None
    memory = facts.memory_share
    if memory is None or memory >= 0.5:
        return None
    return f"mean SM activity {activity:.0f} % at {level:.0f} % utilization, {100 * memory:.0f} % of the memory used"


@_rule(
    "The tensor cores are not used",
    "tensor activity below 1 %, FP32 at 30 % and more, SM activity at 40 % and more, in Python or Julia",
    "If it multiplies matrices: use bf16 or fp16 (autocast), or allow TF32.",
    "SM, tensor and FP32 activity, command",
)
def no_tensor_cores(facts: RunFacts) -> str | None:
    """FP32 arithmetic fills the GPU, and tensor cores do not work. Memory copies and integer work use no FP32."""
    if not facts.may_multiply or facts.worked < _MIN_WORK_SECONDS:
        return None
    activity = facts.mean("sm_activity_percent")
    if not activity >= 40 or not (tensor := facts.mean("tensor_activity_percent")) < 1:
        return None
    single = facts.mean("fp32_activity_percent")
    if not single >= 30 or facts.mean("dram_activity_percent") >= 60:
        return None
    return f"mean tensor activity {tensor:.1f} %, FP32 {single:.0f} %, SM activity {activity:.0f} %"


@_rule(
    "A smaller GPU would be enough",
    "SM activity (or utilization) below 20 % and less than 25 % of the memory of a card of 20 GiB and more",
    "Use a smaller GPU or a MIG instance, or run several programs on one GPU.",
    "SM activity or utilization, memory",
    hides=("small_memory",),
)
def gpu_too_large(facts: RunFacts) -> str | None:
    name, level = _find_level(facts)
    if not level < 20 or not _is_worth_a_smaller_card(facts):
        return None
    return f"mean {name} {level:.0f} %, {100 * (facts.memory_share or 0.0):.0f} % of the memory used"


@_rule(
    "Most of the GPU's memory is unused",
    "less than 25 % of the memory of a card of 20 GiB and more, and SM activity (or utilization) below 60 %",
    "Use larger batches, or a GPU with less memory, or a MIG instance.",
    "memory, SM activity or utilization",
)
def small_memory(facts: RunFacts) -> str | None:
    """Little memory is no waste on a GPU that computes all the time."""
    if not _find_level(facts)[1] < 60 or not _is_worth_a_smaller_card(facts):
        return None
    peak, total = float(np.nanmax(facts.of.memory)), float(np.nanmax(facts.metric("memory_total_bytes")))
    return f"at most {peak / _GIB:.1f} of {total / _GIB:.0f} GiB used on a GPU"


def _is_worth_a_smaller_card(facts: RunFacts) -> bool:
    """It used less than a quarter of the memory for long enough, and smaller cards exist."""
    if facts.worked < STRETCH_SECONDS or facts.wall < 30 * _MINUTE or facts.is_interactive:
        return False
    share = facts.memory_share
    return share is not None and share < 0.25 and bool(np.nanmax(facts.metric("memory_total_bytes")) >= _SMALL_CARD)


RULES: Final = tuple(_RULES)
