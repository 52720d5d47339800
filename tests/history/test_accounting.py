"""Who used what: against a slow reference that says the rules one second at a time, and rule by rule."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from gpudeck.history.accounting import RunPart, run_parts, uses
from gpudeck.history.base import UsageAmounts
from gpudeck.history.hour import ABSENT, BUSY, FREE, IDLE, RESERVED, UNKNOWN, Hour, RunSlice

NAN = math.nan
GIB = float(2**30)
LABEL = "H200"


def make_hour(
    states: Sequence[Sequence[int]],
    *,
    covered: Sequence[float] | None = None,
    runs: Sequence[RunSlice] = (),
    **metrics: Sequence[Sequence[float]],
) -> Hour:
    """An hour of one row of states a GPU, with a sample each ten seconds unless said otherwise."""
    count = len(states[0])
    seconds = np.array(covered if covered is not None else [10.0] * count)
    return Hour(
        start=0,
        times=np.arange(count) * 10.0,
        covered=seconds,
        gpus=list(range(len(states))),
        states=np.array(states, dtype=np.uint8),
        metrics={name: np.array(values, dtype=float) for name, values in metrics.items()},
        runs=list(runs),
    )


def make_run(
    run: int, gpu: int, memory: Sequence[float], utilization: Sequence[float] | None = None, there: str = ""
) -> RunSlice:
    """`there` has a letter a sample: a dot where the run was not there."""
    present = np.array([letter != "." for letter in there or "x" * len(memory)])
    own = np.array(utilization if utilization is not None else [NAN] * len(memory))
    return RunSlice(run, gpu, present, np.where(present, memory, NAN), np.where(present, own, NAN))


class Reference:
    """The rules, one GPU and one moment at a time."""

    def __init__(self, hour: Hour) -> None:
        self.hour = hour

    def uses(
        self, models: Sequence[str], owners: Mapping[int, str | None]
    ) -> dict[tuple[str | None, str], UsageAmounts]:
        found: dict[tuple[str | None, str], UsageAmounts] = defaultdict(UsageAmounts)
        for gpu, model in enumerate(models):
            for at in range(len(self.hour.times)):
                for user, (share, peak) in self.users(gpu, at, owners).items():
                    found[user, model].add(self.use(gpu, at, share, peak))
        return dict(found)

    def users(self, gpu: int, at: int, owners: Mapping[int, str | None]) -> dict[str | None, tuple[float, float]]:
        """Users of a GPU at a moment, with their share and what is known of their memory."""
        state = self.hour.states[gpu, at]
        if state in {ABSENT, UNKNOWN}:
            return {}
        memories: dict[str | None, list[float]] = defaultdict(list)
        for part in self.there(gpu, at):
            memories[owners[part.run]].append(float(part.memory[at]))
        if not memories and state in {BUSY, IDLE}:
            used = self.value("memory_used_bytes", gpu, at)
            return {None: (1.0, 0.0 if math.isnan(used) else used)}
        shares = split({user: math.fsum(values) for user, values in memories.items()})
        known = {user: math.fsum(v for v in values if not math.isnan(v)) for user, values in memories.items()}
        return {user: (shares[user], known[user]) for user in memories}

    def use(self, gpu: int, at: int, share: float, peak: float) -> UsageAmounts:
        used = share * float(self.hour.covered[at])
        utilization, power = self.value("utilization_percent", gpu, at), self.value("power_watts", gpu, at)
        return UsageAmounts(
            used=used,
            active=0.0 if math.isnan(utilization) else used * utilization / 100,
            idle=used if self.hour.states[gpu, at] == IDLE else 0.0,
            measured=0.0 if math.isnan(utilization) else used,
            metered=0.0 if math.isnan(power) else used,
            joules=0.0 if math.isnan(power) else used * power,
            peak=peak,
        )

    def parts(self) -> dict[int, RunPart]:
        found: dict[int, RunPart] = defaultdict(RunPart)
        for at in range(len(self.hour.times)):
            memories: dict[int, float] = defaultdict(float)
            for gpu in range(len(self.hour.gpus)):
                visible = self.there(gpu, at) if self.hour.states[gpu, at] not in {ABSENT, UNKNOWN} else []
                shares = split({part.run: float(part.memory[at]) for part in visible})
                for part in visible:
                    memories[part.run] += float(part.memory[at])
                    found[part.run].add(self.part(part, at, shares[part.run]))
            for run, memory in memories.items():
                found[run].add(self.memory_part(memory, float(self.hour.covered[at])))
        return dict(found)

    def part(self, part: RunSlice, at: int, share: float) -> RunPart:
        use = self.use(part.gpu, at, 1.0, 0.0)
        shared = self.use(part.gpu, at, share, 0.0)
        own = float(part.utilization[at])
        percent = self.value("utilization_percent", part.gpu, at) if math.isnan(own) else own
        known = 0.0 if math.isnan(percent) else use.used
        return RunPart(
            seconds=use.used,
            utilization_sum=known * percent if known else 0.0,
            utilization_seconds=known,
            idle=use.idle,
            joules=shared.joules,
            metered=shared.metered,
        )

    def memory_part(self, memory: float, seconds: float) -> RunPart:
        if math.isnan(memory):
            return RunPart(wall_seconds=seconds)
        return RunPart(wall_seconds=seconds, memory_sum=memory * seconds, memory_seconds=seconds, memory_peak=memory)

    def there(self, gpu: int, at: int) -> list[RunSlice]:
        return [part for part in self.hour.runs if part.gpu == gpu and part.present[at]]

    def value(self, name: str, gpu: int, at: int) -> float:
        values = self.hour.metrics.get(name)
        return NAN if values is None else float(values[gpu, at])


def split(memories: Mapping[Any, float]) -> dict[Any, float]:
    """Shares by memory; equal where any is unknown, or all are 0."""
    total = sum(memories.values())
    if total > 0:
        return {name: memory / total for name, memory in memories.items()}
    return dict.fromkeys(memories, 1 / len(memories)) if memories else {}


SAMPLES = st.integers(1, 6)
STATES = st.sampled_from([ABSENT, UNKNOWN, FREE, BUSY, IDLE, RESERVED])
MEMORY = st.sampled_from([NAN, 0.0, GIB, 3 * GIB, 10 * GIB])
PERCENT = st.sampled_from([NAN, 0.0, 40.0, 100.0])
USERS = st.sampled_from([None, "alice", "bob"])


@st.composite
def hours(draw: st.DrawFn) -> Hour:
    """Any hour: runs come and go, on one GPU or several, and everything may be unknown."""
    samples, gpus = draw(SAMPLES), draw(st.integers(1, 3))

    def rows(values: st.SearchStrategy[float]) -> list[list[float]]:
        return draw(st.lists(st.lists(values, min_size=samples, max_size=samples), min_size=gpus, max_size=gpus))

    places = draw(st.sets(st.tuples(st.integers(1, 4), st.integers(0, gpus - 1)), max_size=6))
    row = st.lists(MEMORY, min_size=samples, max_size=samples)
    runs = [
        make_run(
            run,
            gpu,
            draw(row),
            draw(st.lists(PERCENT, min_size=samples, max_size=samples)),
            draw(st.text("x.", min_size=samples, max_size=samples)),
        )
        for run, gpu in draw(st.permutations(sorted(places)))
    ]
    metrics = {"utilization_percent": rows(PERCENT), "power_watts": rows(PERCENT), "memory_used_bytes": rows(MEMORY)}
    known = draw(st.sets(st.sampled_from(sorted(metrics))))
    states = [[int(state) for state in row] for row in rows(STATES)]
    covered = draw(st.lists(st.sampled_from([7.5, 10.0, 30.0]), min_size=samples, max_size=samples))
    return make_hour(states, covered=covered, runs=runs, **{name: metrics[name] for name in known})


def close(value: Any) -> Any:
    return pytest.approx(structs.asdict(value), rel=1e-9, abs=1e-6)


@given(hours(), st.fixed_dictionaries(dict.fromkeys(range(1, 5), USERS)))
def test_uses_are_those_of_the_plain_rules(hour: Hour, owners: dict[int, str | None]) -> None:
    models = ["H200", "H200", "L40S"][: len(hour.gpus)]
    found, expected = uses(hour, models, owners), Reference(hour).uses(models, owners)
    expected = {key: use for key, use in expected.items() if use.used > 0}
    assert {key: structs.asdict(use) for key, use in found.items()} == {
        key: close(use) for key, use in expected.items()
    }


@given(hours())
def test_parts_of_runs_are_those_of_the_plain_rules(hour: Hour) -> None:
    found, expected = run_parts(hour), Reference(hour).parts()
    assert {run: structs.asdict(part) for run, part in found.items()} == {
        run: close(part) for run, part in expected.items()
    }


@given(hours(), st.fixed_dictionaries(dict.fromkeys(range(1, 5), USERS)))
def test_every_second_in_use_is_held_by_somebody_and_no_other(hour: Hour, owners: dict[int, str | None]) -> None:
    """In use: seen, and in state BUSY or IDLE or with a run on it."""
    is_used = (hour.states == BUSY) | (hour.states == IDLE)
    for part in hour.runs:
        is_used[part.gpu] |= part.present
    used = sum(use.used for use in uses(hour, [LABEL] * len(hour.gpus), owners).values())
    assert used == pytest.approx(float(hour.observed[is_used].sum()))


def test_a_process_on_four_gpus_counts_on_four() -> None:
    hour = make_hour([[BUSY, BUSY]] * 4, runs=[make_run(1, gpu, [GIB, GIB]) for gpu in range(4)])
    assert uses(hour, [LABEL] * 4, {1: "alice"})["alice", LABEL].used == 80
    assert (run_parts(hour)[1].seconds, run_parts(hour)[1].wall_seconds) == (80, 20)
    assert run_parts(hour)[1].memory_peak == 4 * GIB


def test_two_users_share_a_gpu_by_memory() -> None:
    hour = make_hour([[BUSY]], runs=[make_run(1, 0, [3 * GIB]), make_run(2, 0, [GIB])], power_watts=[[400]])
    found = uses(hour, [LABEL], {1: "alice", 2: "bob"})
    assert (found["alice", LABEL].used, found["bob", LABEL].used) == (7.5, 2.5)
    assert (found["alice", LABEL].joules, run_parts(hour)[2].joules) == (3000, 1000)


@pytest.mark.parametrize("memory", [(NAN, GIB), (0.0, 0.0), (NAN, NAN)])
def test_users_share_equally_where_memory_tells_nothing(memory: tuple[float, float]) -> None:
    hour = make_hour([[BUSY]], runs=[make_run(1, 0, [memory[0]]), make_run(2, 0, [memory[1]])])
    found = uses(hour, [LABEL], {1: "alice", 2: "bob"})
    assert (found["alice", LABEL].used, found["bob", LABEL].used) == (5, 5)


def test_many_runs_of_one_user_do_not_take_a_larger_share() -> None:
    runs = [make_run(run, 0, [NAN]) for run in (1, 2, 3)]
    found = uses(make_hour([[BUSY]], runs=runs), [LABEL], {1: "alice", 2: "alice", 3: "bob"})
    assert (found["alice", LABEL].used, found["bob", LABEL].used) == (5, 5)


@pytest.mark.parametrize("state", [BUSY, IDLE])
def test_somebody_whom_nobody_sees_is_nobody_we_know(state: int) -> None:
    found = uses(make_hour([[state, FREE]], memory_used_bytes=[[5 * GIB, GIB]]), [LABEL], {})
    assert {key: (use.used, use.peak) for key, use in found.items()} == {(None, LABEL): (10, 5 * GIB)}


@pytest.mark.parametrize("state", [ABSENT, UNKNOWN])
def test_what_was_not_observed_is_nobodys(state: int) -> None:
    hour = make_hour([[state]], runs=[make_run(1, 0, [GIB])])
    assert (uses(hour, [LABEL], {1: "alice"}), run_parts(hour)) == ({}, {})


def test_unknown_utilization_and_power_are_not_zero() -> None:
    hour = make_hour(
        [[BUSY, IDLE]], runs=[make_run(1, 0, [GIB, GIB])], utilization_percent=[[80, NAN]], power_watts=[[NAN, 300]]
    )
    use = uses(hour, [LABEL], {1: "alice"})["alice", LABEL]
    assert (use.used, use.active, use.measured) == (20, 8, 10)
    assert (use.idle, use.joules, use.metered) == (10, 3000, 10)


def test_a_run_has_its_own_utilization_where_that_is_known() -> None:
    run = make_run(1, 0, [GIB, GIB], utilization=[20, NAN])
    part = run_parts(make_hour([[BUSY, BUSY]], runs=[run], utilization_percent=[[90, 60]]))[1]
    assert (part.utilization_sum, part.utilization_seconds) == (800, 20)


def test_memory_of_a_run_is_known_only_where_it_is_known_on_all_its_gpus() -> None:
    runs = [make_run(1, 0, [GIB, GIB]), make_run(1, 1, [GIB, NAN])]
    part = run_parts(make_hour([[BUSY, BUSY]] * 2, runs=runs))[1]
    assert (part.memory_sum, part.memory_seconds, part.memory_peak) == (20 * GIB, 10, 2 * GIB)


def test_what_is_taken_back_leaves_the_peak() -> None:
    part = RunPart(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    part.add(RunPart(10, 20, 30, 40, 50, 60, 70, 80, 90, 100))
    assert structs.astuple(part) == (11, 22, 33, 44, 50, 66, 77, 88, 99, 110)
    part.add(RunPart(10, 20, 30, 40, 50, 60, 70, 80, 90, 100), -1.0)
    assert structs.astuple(part) == (1, 2, 3, 4, 50, 6, 7, 8, 9, 10)


def test_an_hour_without_samples_has_no_uses() -> None:
    hour = make_hour([[]], runs=[make_run(1, 0, [])])
    assert (uses(hour, [LABEL], {1: "alice"}), run_parts(hour)) == ({}, {})


def test_the_example_of_the_documents_is_right() -> None:
    """docs/accounting.md: 12 to 13 alice, 13 to 14 with bob, half an hour of bob's notebook, an hour free."""
    hour = make_hour(
        [[BUSY, BUSY, IDLE, FREE]],
        covered=[3600, 3600, 1800, 3600],
        runs=[
            make_run(1, 0, [60 * GIB] * 4, there="xx.."),
            make_run(2, 0, [20 * GIB] * 4, there=".xx."),
        ],
        utilization_percent=[[90, 100, 0, 0]],
        power_watts=[[600, 600, 120, 120]],
    )
    found = uses(hour, [LABEL], {1: "alice", 2: "bob"})
    told = {
        user: [use.used / 3600, use.active / 3600, use.idle / 3600, use.joules / 3.6e6]
        for (user, _), use in found.items()
    }
    assert told == {"alice": pytest.approx([1.75, 1.65, 0, 1.05]), "bob": pytest.approx([0.75, 0.25, 0.5, 0.21])}
    assert float(hour.observed.sum()) == 3.5 * 3600
