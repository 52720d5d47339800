"""Waste: idle episodes from samples and quarter hours, over-sized GPUs, what could have been released, the trend."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from fakes.clock import FakeClock
from gpudeck.history.base import HistoryRefused, IdleEpisode, IdleQuery, ModelSize, UsageQuery
from gpudeck.history.embedded.store import EmbeddedStore
from gpudeck.history.sample import GPU_NAMES, HOST_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample
from gpudeck.history.settings import HistorySettings, UsageSettings
from gpudeck.history.waste import describe_waste, find_smaller, previous_period_start
from gpudeck.model.usage import Waste

HOUR = 3600.0
T0 = 1_789_920_000.0  # midnight in UTC
GIB = 2.0**30
H200, L40S, V100, MI300X = "NVIDIA H200", "NVIDIA L40S", "NVIDIA V100", "AMD MI300X"
SIZES = {
    H200: ModelSize(141 * GIB, "nvidia"),
    L40S: ModelSize(48 * GIB, "nvidia"),
    V100: ModelSize(32 * GIB, "nvidia"),
    MI300X: ModelSize(16 * GIB, "amd"),
}
PRICES = UsageSettings(currency="EUR", prices={"H200": 3.0, "V100": 1.0})


def close(hours: float) -> object:
    """A sample stands for the half minute before it, and each cut may be one off."""
    return pytest.approx(hours, abs=0.02)


def count_hours(one: IdleEpisode) -> float:
    return sum(end - start for start, end in one.spans) / HOUR


Stay = tuple[float, float, str, Sequence[str]]
"""From and until which hour after T0, in which state, with whom."""


def sample(at: float, stays: Sequence[Stay], memory: float = 20 * GIB) -> HostSample | None:
    """One GPU; None in between."""
    found = [stay for stay in stays if stay[0] * HOUR < at - T0 <= stay[1] * HOUR]
    if not found:
        return None
    _, _, state, users = found[0]
    people = [
        ProcessSample(100 + ord(user[0]), T0, user, "python", None, None, int(memory / len(users)), None)
        for user in users
    ]
    values = dict.fromkeys(GPU_NAMES) | {"memory_used_bytes": memory, "utilization_percent": 50.0}
    gpu = GpuSample("GPU-1", "0", H200, STATE_NUMBERS[state], tuple(values.values()), tuple(people))
    return HostSample("id-1", "gpu01", at, 30.0, (None,) * len(HOST_NAMES), (gpu,))


class Past:
    """A store with one GPU that was as the stays say, for four hours."""

    def __init__(self, path: Path, stays: Sequence[Stay], hours: int = 4, settings: HistorySettings | None = None):
        self.clock = FakeClock(T0)
        self.store = EmbeddedStore(path / "history.db", settings or HistorySettings(), self.clock, prices=PRICES)
        found = [sample(T0 + 30.0 * number, stays) for number in range(hours * 120 + 1)]
        self.store.take([one for one in found if one is not None])
        self.clock.advance(hours * HOUR)
        self.end = T0 + hours * HOUR
        assert self.store.flush()

    def episodes(self) -> list[IdleEpisode]:
        return self.store.idle(IdleQuery(T0, self.end))

    def waste(self, by: str = "user", start: float = T0, end: float | None = None) -> Waste:
        query = UsageQuery(by, start, end or self.end)  # type: ignore[arg-type]
        before = UsageQuery(by, previous_period_start(query.start, query.end), query.start)  # type: ignore[arg-type]
        usages = self.store.usage(query), self.store.usage(before)
        return describe_waste(*usages, self.store.waste(query, SIZES), self.store.waste(before, SIZES))


@pytest.fixture
def past(tmp_path: Path) -> Iterator[Past]:
    """Alice works for half an hour and then idles; bob idles from the third hour on."""
    made = Past(tmp_path, [(-1, 0.5, "busy", ["alice"]), (0.5, 2.5, "idle", ["alice"]), (2.5, 4, "idle", ["bob"])])
    yield made
    made.store.close()


def spans(episodes: Sequence[IdleEpisode]) -> list[tuple[tuple[str, ...], list[tuple[float, float]]]]:
    """Of each episode its users, and its spans in hours after T0."""
    return [(one.users, [((start - T0) / HOUR, (end - T0) / HOUR) for start, end in one.spans]) for one in episodes]


def test_an_episode_ends_where_its_users_change(past: Past) -> None:
    assert spans(past.episodes()) == [
        (("alice",), [(close(0.5), close(2.5))]),
        (("bob",), [(close(2.5), close(4))]),
    ]


def test_a_gap_is_no_idle_time_and_work_ends_an_episode(tmp_path: Path) -> None:
    stays = [
        (0, 1, "idle", ["alice"]),
        (1.2, 2, "idle", ["alice"]),
        (2, 2.1, "busy", ["alice"]),
        (2.1, 4, "idle", ["alice"]),
    ]
    found = Past(tmp_path, stays).episodes()
    assert [one.users for one in found] == [("alice",), ("alice",)]
    # The sample after a gap covers one interval.
    assert [len(one.spans) for one in found] == [2, 1]
    assert count_hours(found[0]) == close(1.8)
    assert count_hours(found[1]) == close(1.9)


def test_what_is_unknown_is_not_idle(tmp_path: Path) -> None:
    [found] = Past(
        tmp_path, [(0, 1, "idle", ["alice"]), (1, 1.5, "unknown", []), (1.5, 2, "idle", ["alice"])]
    ).episodes()
    assert count_hours(found) == close(1.5)


def test_an_allocated_gpu_is_idle_where_that_is_asked_for(tmp_path: Path) -> None:
    past = Past(tmp_path, [(0, 2, "allocated", []), (2, 4, "free", [])])
    assert past.episodes() == []
    [found] = past.store.idle(IdleQuery(T0, past.end, with_allocated=True))
    assert (found.users, count_hours(found)) == ((), close(2))


def test_where_samples_are_no_longer_kept_quarter_hours_say_it(tmp_path: Path) -> None:
    stays = [(0, 0.4, "busy", ["alice"]), (0.4, 2.6, "idle", ["alice"]), (2.6, 4, "busy", ["alice"])]
    past = Past(tmp_path, stays, settings=HistorySettings(raw=HOUR))
    before = spans(past.episodes())
    past.clock.advance(12 * HOUR)
    late = sample(past.clock() - 5, [(0, 99, "free", [])])
    past.store.take([late] if late else [])
    assert past.store.flush()
    assert before == spans(past.episodes()) == [(("alice",), [(close(0.4), close(2.6))])]


def test_a_store_without_samples_says_so(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "history.db", HistorySettings(), keep_samples=False)
    with pytest.raises(HistoryRefused, match="keeps no samples"):
        store.idle(IdleQuery(T0, T0 + HOUR))
    store.close()


def test_idle_hours_have_a_cost_and_what_could_have_been_released(past: Past) -> None:
    found = past.waste()
    alice, bob = sorted(found.rows, key=lambda row: row.name or "")
    assert (alice.idle.hours, alice.idle.cost) == (close(2), close(6))
    assert (alice.released.hours, alice.released.cost) == (close(1), close(3))
    assert (bob.released.hours, bob.idle.hours) == (close(0.5), close(1.5))
    assert (found.total.released.hours, found.total.released.cost) == (close(1.5), pytest.approx(4.5, abs=0.1))
    assert (found.coverage, found.currency) == (close(1), "EUR")


def test_an_episode_that_began_before_the_period_is_releasable_from_its_begin_on(past: Past) -> None:
    found = past.waste(start=T0 + 1.75 * HOUR)
    assert found.total.released.hours == close(0.75 + 0.5)


def test_hours_at_work_that_fit_on_a_smaller_model_are_oversized(past: Past) -> None:
    """20 GiB fit into 90 % of a V100, but not the idle hours: those are counted already."""
    found = past.waste()
    assert (found.total.oversized.hours, found.total.oversized.cost) == (close(0.5), close(1))
    [one] = found.smaller
    assert (one.model, one.smaller, one.hours) == (H200, V100, close(0.5))
    assert found.judged_hours == close(4)


def test_what_schedulers_know_is_unknown_without_one(past: Past) -> None:
    assert past.waste().total.unused.hours is None


def test_the_trend_is_known_only_where_the_period_before_was_recorded(past: Past) -> None:
    assert past.waste(start=T0 + 1.9 * HOUR).total.idle.before is None
    later = past.waste(start=T0 + 2 * HOUR)
    assert (later.total.idle.hours, later.total.idle.before) == (close(2), close(1.5))
    first = past.waste(end=T0 + 2 * HOUR).total
    assert first.oversized.hours
    assert first.released.hours
    assert (later.total.oversized.before, later.total.released.before) == (first.oversized.hours, first.released.hours)
    assert past.waste(start=T0 + 1.9 * HOUR).total.released.before is None
    rows = {row.name: row.idle.before for row in later.rows}
    assert rows == {"alice": close(1.5), "bob": close(0)}


@pytest.mark.parametrize(
    ("peak", "prices", "smaller"),
    [
        (20 * GIB, {}, V100),
        (28.9 * GIB, {}, L40S),
        (44 * GIB, {}, None),
        # Nothing is saved with a model that costs as much.
        (20 * GIB, {"H200": 1.0, "V100": 1.0}, L40S),
    ],
)
def test_the_smallest_model_that_fits_of_the_same_vendor(
    peak: float, prices: dict[str, float], smaller: str | None
) -> None:
    assert find_smaller(H200, peak, SIZES, prices) == smaller


def test_models_of_nearly_the_same_size_are_not_smaller() -> None:
    sizes = {"A": ModelSize(80 * GIB, "nvidia"), "B": ModelSize(79 * GIB, "nvidia")}
    assert find_smaller("A", 10 * GIB, sizes, {}) is None


@pytest.mark.parametrize("shared", ["process", "job"])
def test_an_episode_knows_the_other_gpus_of_its_processes_and_jobs(tmp_path: Path, shared: str) -> None:
    with closing(EmbeddedStore(tmp_path / "history.db", HistorySettings(), FakeClock(T0))) as store:
        values = tuple((dict.fromkeys(GPU_NAMES) | {"utilization_percent": 50.0}).values())
        for number in range(100):
            gpus = []
            for index, state in enumerate(("idle", "busy", "idle")):
                pid, job = (1, None) if shared == "process" and index < 2 else (index, "4711" if index < 2 else None)
                running = ProcessSample(pid, T0, "alice", "python", None, job, 2**30, None)
                gpus.append(GpuSample(f"GPU-{index}", str(index), H200, STATE_NUMBERS[state], values, (running,)))
            at = T0 + 30.0 * number
            store.take([HostSample("id-1", "gpu01", at, 30.0, (None,) * len(HOST_NAMES), tuple(gpus))])
        store.flush()
        found = store.idle(IdleQuery(T0, T0 + HOUR))
    assert [(one.gpu, one.sharing) for one in found] == [
        ("GPU-0", {"GPU-1": pytest.approx(T0 + 99 * 30)}),
        ("GPU-2", {}),
    ]
