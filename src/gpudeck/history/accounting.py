"""Usage of each user, and of each run, in one hour of a host, as sums that can be added (docs/accounting.md).

A GPU is in use while it is monitored (`Hour.observed`) and either has a run or is BUSY or IDLE. The `used` of all users
of an hour adds up to exactly those seconds. If a GPU in use has no visible run, its user is None.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from gpudeck.history.base import UsageAmounts
from gpudeck.history.codec import Flags, Floats
from gpudeck.history.hour import BUSY, IDLE, Hour, RunSlice

_Indexes = NDArray[np.intp]

_SUMS: Final = 6
"""Seconds, active seconds, idle seconds, seconds with a known utilization, with a known power, joules."""


class RunPart(Struct):
    """Usage of one run in some time; parts of different hours can be added. `seconds`, `idle` and
    `utilization_seconds` are GPU-seconds of its presence, shared or not. `joules` and `metered` are by its share of
    each GPU. `memory_sum` is in byte-seconds over all its GPUs, during the `memory_seconds` in which the memory on
    every GPU was known. A value without seconds is unknown."""

    seconds: float = 0.0
    wall_seconds: float = 0.0
    memory_sum: float = 0.0
    memory_seconds: float = 0.0
    memory_peak: float = 0.0
    utilization_sum: float = 0.0
    utilization_seconds: float = 0.0
    idle: float = 0.0
    joules: float = 0.0
    metered: float = 0.0

    def add(self, other: "RunPart", sign: float = 1.0) -> None:
        """With the sign -1 `other` is subtracted, except for its peak: the previous one is unknown."""
        for name in _ADDED:
            setattr(self, name, getattr(self, name) + sign * getattr(other, name))
        self.memory_peak = max(self.memory_peak, other.memory_peak) if sign > 0 else self.memory_peak


_ADDED: Final = tuple(name for name in RunPart.__struct_fields__ if name != "memory_peak")


class _Claims(Struct):
    """Shares of GPUs over time: one row per user (or run) and GPU, sorted by GPU. `memory` is the known memory of
    the claimant there. The shares of a GPU in use add up to one."""

    names: list[str | None]
    gpu: _Indexes
    share: Floats
    memory: Floats


def uses(
    hour: Hour, models: Sequence[str], owners: Mapping[int, str | None]
) -> dict[tuple[str | None, str], UsageAmounts]:
    """By user (None: unknown) and model. Users who are on a GPU at the same time share its seconds by the memory of
    their runs there, or equally if that is not known of all of them, or is 0."""
    if not len(hour.times) or not hour.gpus:
        return {}
    facts = _facts(hour)
    found: dict[tuple[str | None, str], UsageAmounts] = {}
    for claim in (_claims_of_users(hour, owners), _claims_without_runs(hour)):
        sums = (claim.share * facts[:, claim.gpu]).sum(axis=2).T
        seen = (claim.share > 0) & (facts[0, claim.gpu] > 0)
        peaks = np.where(seen, claim.memory, 0.0).max(axis=1, initial=0.0)
        for name, gpu, line in zip(claim.names, claim.gpu.tolist(), np.column_stack([sums, peaks]), strict=True):
            found.setdefault((name, models[gpu]), UsageAmounts()).add(UsageAmounts(*line.tolist()))
    return {key: use for key, use in found.items() if use.used > 0}


def run_parts(hour: Hour) -> dict[int, RunPart]:
    """The part of each run, by the run. Runs share the joules of a GPU by memory, or equally if that is not known of
    all. Utilization is the run's own if known, else that of its GPU."""
    if not len(hour.times) or not hour.runs:
        return {}
    slices = sorted(hour.runs, key=lambda part: part.gpu)
    gpu = np.array([part.gpu for part in slices])
    present, memory = _presence(hour, slices)
    share = _shares(np.where(present, memory, 0.0), present, _starts(gpu))
    facts = _facts(hour)[:, gpu]
    _, _, _, _, metered, joules = np.einsum("st,kst->ks", share, facts)
    seconds, _, idle, _, _, _ = np.einsum("st,kst->ks", present, facts)
    own = np.array([part.utilization for part in slices])
    percent = np.where(np.isnan(own), hour.metric("utilization_percent")[gpu], own)
    is_measured = present & ~np.isnan(percent)
    busy, measured = np.where(is_measured, percent, 0.0) @ hour.covered, is_measured @ hour.covered
    order = np.argsort([part.run for part in slices], kind="stable")
    runs = np.array([slices[at].run for at in order])
    starts = _starts(runs)
    sums = np.add.reduceat(np.array([seconds, busy, measured, idle, joules, metered]).T[order], starts)
    # The memory of a run over all its GPUs is known at a moment if it is known on every GPU that it is on.
    there = np.logical_or.reduceat(present[order], starts)
    total = np.add.reduceat(np.where(present, memory, 0.0)[order], starts)
    known = there & ~np.isnan(total)
    total = np.where(known, total, 0.0)
    over_gpus = np.array([there @ hour.covered, total @ hour.covered, known @ hour.covered, total.max(axis=1)]).T
    rows = np.concatenate([sums[:, :1], over_gpus, sums[:, 1:]], axis=1).tolist()
    return {run: RunPart(*row) for run, row in zip(runs[starts].tolist(), rows, strict=True) if row[0] > 0}


def _claims_of_users(hour: Hour, owners: Mapping[int, str | None]) -> _Claims:
    """Several runs of one user on one GPU are one claim, and so are those of all unknown users."""
    if not hour.runs:
        return _Claims([], np.empty(0, np.intp), np.empty((0, len(hour.times))), np.empty((0, len(hour.times))))
    numbers: dict[str | None, int] = {}
    keyed = [(part.gpu, numbers.setdefault(owners.get(part.run), len(numbers)), part) for part in hour.runs]
    keyed.sort(key=lambda key: key[:2])
    users = list(numbers)
    starts = _starts(np.array([gpu * len(users) + user for gpu, user, _ in keyed]))
    present, memory = _presence(hour, [part for _, _, part in keyed])
    there = np.logical_or.reduceat(present, starts)
    total = np.add.reduceat(np.where(present, memory, 0.0), starts)
    known = np.add.reduceat(np.where(present & ~np.isnan(memory), memory, 0.0), starts)
    gpu = np.array([keyed[at][0] for at in starts])
    return _Claims([users[keyed[at][1]] for at in starts], gpu, _shares(total, there, _starts(gpu)), known)


def _claims_without_runs(hour: Hour) -> _Claims:
    """GPUs in use without a visible run: the whole GPU and all its used memory."""
    is_used = (hour.states == BUSY) | (hour.states == IDLE)
    for part in hour.runs:
        is_used[part.gpu] &= ~part.present
    gpu = np.flatnonzero(is_used.any(axis=1))
    memory = np.nan_to_num(hour.metric("memory_used_bytes")[gpu])
    return _Claims([None] * len(gpu), gpu, is_used[gpu].astype(float), memory)


def _presence(hour: Hour, slices: Sequence[RunSlice]) -> tuple[Flags, Floats]:
    """When each slice was monitored, and its memory. A run on an unreadable GPU is not monitored."""
    gpu = [part.gpu for part in slices]
    return np.array([part.present for part in slices]) & (hour.observed[gpu] > 0), np.array(
        [part.memory for part in slices]
    )


def _shares(weights: Floats, present: Flags, starts: _Indexes) -> Floats:
    """Each row's share within its group at each moment: by weight; equal where one is NaN, or all are 0."""
    group = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(weights)))
    total = np.add.reduceat(weights, starts)[group]
    count = np.add.reduceat(present, starts, dtype=float)[group]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(total > 0, weights / total, present / count)
    return np.where(present, share, 0.0)


def _facts(hour: Hour) -> Floats:
    """The amounts per GPU and moment, in the order of _SUMS."""
    seconds = hour.observed
    utilization, power = hour.metric("utilization_percent"), hour.metric("power_watts")
    facts = np.empty((_SUMS, *seconds.shape))
    facts[0] = seconds
    facts[1] = seconds * np.nan_to_num(utilization) / 100
    facts[2] = np.where(hour.states == IDLE, seconds, 0.0)
    facts[3] = np.where(np.isnan(utilization), 0.0, seconds)
    facts[4] = np.where(np.isnan(power), 0.0, seconds)
    facts[5] = seconds * np.nan_to_num(power)
    return facts


def _starts(sorted_keys: NDArray[np.int64] | _Indexes) -> _Indexes:
    return np.flatnonzero(np.diff(sorted_keys, prepend=sorted_keys[0] - 1))
