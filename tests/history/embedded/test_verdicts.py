"""Verdicts from the real store: samples in, what each run did out."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.history.base import RunsQuery, VerdictQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GpuSample, HostSample, ProcessSample
from gpudeck.history.settings import HistorySettings
from gpudeck.model.job import RunVerdict
from history.embedded.feeding import GIB, START, gpu, process, sample, values


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(START)


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[EmbeddedStore]:
    store = EmbeddedStore(tmp_path / "history.db", HistorySettings(min_free=0), clock)
    yield store
    store.close()


def feed(store: EmbeddedStore, clock: FakeClock, samples: list[HostSample]) -> None:
    clock.now = max(clock.now, samples[-1].at)
    store.take(samples)
    assert store.flush()


def judge(store: EmbeddedStore, now: float) -> dict[int, RunVerdict]:
    """By pid."""
    runs = store.runs(RunsQuery()).runs
    queries = [
        VerdictQuery(
            tuple(run.gpus),
            run.seen_at,
            now if run.ended_at is None else run.ended_at,
            run.id,
            run.ended_at is not None,
            run.command,
        )
        for run in runs
    ]
    return dict(zip((run.pid for run in runs), store.verdicts(queries), strict=True))


def rules(verdict: RunVerdict) -> list[str]:
    return [one.rule for one in verdict.suggestions]


def test_work_of_others_on_the_same_gpu_is_not_its_own(store: EmbeddedStore, clock: FakeClock) -> None:
    both = [sample(START + 10 * at, gpu("GPU-0", process(7, "ada"), process(8, "bob"))) for at in range(300)]
    feed(store, clock, both)
    assert {pid: (one.rating, rules(one)) for pid, one in judge(store, clock.now).items()} == {
        7: ("unknown", []),
        8: ("unknown", []),
    }


def test_a_gpu_that_does_not_work_works_for_none_of_them(store: EmbeddedStore, clock: FakeClock) -> None:
    idle = [
        sample(START + 10 * at, gpu("GPU-0", process(7, "ada"), process(8, "bob"), utilization=0.0))
        for at in range(300)
    ]
    feed(store, clock, idle)
    assert {pid: rules(one) for pid, one in judge(store, clock.now).items()} == {7: ["never_used"], 8: ["never_used"]}


def test_a_run_is_judged_over_the_hours_that_it_was_there_alone(store: EmbeddedStore, clock: FakeClock) -> None:
    """Before and after it others were idle on the same GPU; an hour of it is sealed, another one is open."""
    taken = []
    for at in range(900):
        who = process(6, "bob") if at < 200 else process(7, "ada") if at < 700 else process(8, "bob")
        taken.append(sample(START + 10 * at, gpu("GPU-0", who, utilization=90.0 if 200 <= at < 700 else 0.0)))
    feed(store, clock, taken)
    found = judge(store, clock.now)
    assert (found[7].rating, found[7].text) == ("good", "Mean utilization 90 % over 1h 23m on 1 GPU.")
    assert [rules(found[pid]) for pid in (6, 8)] == [["never_used"], ["never_used"]]


def test_a_job_on_two_hosts_is_judged_as_one(store: EmbeddedStore, clock: FakeClock) -> None:
    for host, level in (("gpu01", 90.0), ("gpu02", 0.0)):
        feed(
            store,
            clock,
            [
                sample(START + 3 + 10 * at, gpu(f"GPU-{host}", process(7, "ada"), utilization=level), host=host)
                for at in range(200)
            ],
        )
    query = VerdictQuery(("GPU-gpu01", "GPU-gpu02", "GPU-nowhere"), START, START + 2000)
    (verdict,) = store.verdicts([query])
    assert rules(verdict) == ["unused_gpus"]
    assert verdict.suggestions[0].evidence == "1 of 2 GPUs did no work (GPU gpu02:2)"


def test_a_crash_loop_is_seen_while_it_goes_on(store: EmbeddedStore, clock: FakeClock) -> None:
    def start(pid: int) -> ProcessSample:
        return process(pid, "ada", started_at=START + 100.0 * pid)._replace(command="python train.py")

    def on_gpu(at: int) -> GpuSample:
        there = [start(at // 10)] if at % 10 < 7 else []
        return GpuSample("GPU-0", "0", "H200", 3, values(utilization_percent=0.0), tuple(there))

    feed(store, clock, [sample(START + 10 * at, on_gpu(at)) for at in range(57)])
    found = judge(store, clock.now)
    assert rules(found[5]) == ["restart_loop"]
    assert found[5].suggestions[0].evidence == "6 starts of the same command within 9m"
    assert rules(found[1]) == []


def test_memory_that_grows_until_it_ends_is_its_own(store: EmbeddedStore, clock: FakeClock) -> None:
    def on_gpu(at: int) -> GpuSample:
        memory = 40.0 if at < 115 else 79.0
        there = (process(7, "ada", memory),) if at < 120 else ()
        known = values(utilization_percent=90.0, memory_total_bytes=80.0 * GIB, memory_used_bytes=79.0 * GIB)
        return GpuSample("GPU-0", "0", "H200", 3, known, there)

    feed(store, clock, [sample(START + 10 * at, on_gpu(at)) for at in range(130)])
    assert rules(judge(store, clock.now)[7]) == ["out_of_memory"]


def test_what_is_not_kept_is_unknown(store: EmbeddedStore) -> None:
    gone, nobody = store.verdicts([VerdictQuery(("GPU-gone",), START, START + 9), VerdictQuery((), START, START + 9)])
    assert (gone.rating, gone.reason) == ("unknown", "its samples are not kept, or no longer")
    assert nobody == gone


def test_the_verdict_on_what_is_over_is_kept(store: EmbeddedStore, clock: FakeClock) -> None:
    feed(store, clock, [sample(START + 10 * at, gpu("GPU-0", process(7, "ada"))) for at in range(60)])
    query = VerdictQuery(("GPU-0",), START, START + 600)
    (first,) = store.verdicts([query])
    assert store.verdicts([query, query]) == [first, first]
