"""What a person used over time, and who had the memory of a GPU."""

import numpy as np
import pytest

from fakes.past import T0, FakePast, make_hour, without
from gpudeck.history.answers import answer_series
from gpudeck.history.base import HistoryRefused, SeriesQuery, UsageAmounts
from gpudeck.history.hour import BUSY, FREE, UNKNOWN, RunSlice
from gpudeck.model.history import Answer, Point

HOUR = 3600
NOW = T0 + 86_400.0
GB = 1e9


def ask_user(past: FakePast, metric: str, user: str = "alice", points: int = 4, now: float = NOW) -> list[Point]:
    answer = answer_series(past, SeriesQuery(metric, T0, T0 + 4 * HOUR, points, user=user), now)
    (one,) = answer.series
    assert (one.user, answer.resolution) == (user, "hour")
    return one.points


def used(hour: int, user: str | None, **sums: float) -> tuple[tuple[int, str, str | None, str], UsageAmounts]:
    return (T0 + hour * HOUR, "", user, "H200"), UsageAmounts(**({"measured": 1.0, "metered": 1.0} | sums))


def past_of(*uses: tuple[tuple[int, str, str | None, str], UsageAmounts], hours: int = 4) -> FakePast:
    past = FakePast(*(make_hour(T0 + HOUR * n, gpus=4) for n in range(hours)))
    past.known_uses = list(uses)
    return past


def test_person_has_so_many_gpus_on_average() -> None:
    use = {"used": 2.0 * HOUR, "active": 1.0 * HOUR, "idle": 0.5 * HOUR, "joules": 700.0 * HOUR}
    past = past_of(used(0, "alice", **use), used(0, "bob", used=9.0 * HOUR), used(1, "alice", used=4.0 * HOUR))
    assert [point[1] for point in ask_user(past, "gpus_used")] == [2.0, 4.0, 0.0, 0.0]
    assert ask_user(past, "gpus_active")[0] == (T0, 1.0, 1.0, 1.0)
    assert ask_user(past, "gpus_idle")[0][1] == 0.5
    assert ask_user(past, "power_watts")[0][1] == 700.0


def test_longer_step_has_the_band_of_its_hours() -> None:
    past = past_of(used(0, "alice", used=2.0 * HOUR), used(1, "alice", used=4.0 * HOUR))
    assert ask_user(past, "gpus_used", points=2) == [(T0, 3.0, 2.0, 4.0), (T0 + 2 * HOUR, 0.0, 0.0, 0.0)]


def test_several_models_of_one_person_add_up() -> None:
    past = past_of(used(0, "alice", used=1.0 * HOUR), used(0, "alice", used=2.0 * HOUR))
    assert ask_user(past, "gpus_used")[0][1] == 3.0


def test_hour_that_nobody_observed_has_no_point() -> None:
    past = past_of(used(0, "alice", used=2.0 * HOUR), hours=2)
    assert [point[0] for point in ask_user(past, "gpus_used")] == [T0, T0 + HOUR]


def test_hour_that_was_observed_in_part_counts_by_that_part() -> None:
    past = FakePast(without(make_hour(gpus=4), 90, 360))
    past.known_uses = [used(0, "alice", used=2.0 * 900)]
    assert ask_user(past, "gpus_used") == [(T0, 2.0, 2.0, 2.0)]


def test_what_could_not_be_measured_has_no_point() -> None:
    past = past_of(used(0, "alice", used=2.0 * HOUR, measured=0.0, metered=0.0))
    assert next(point[0] for point in ask_user(past, "gpus_active")) == T0 + HOUR
    assert next(point[0] for point in ask_user(past, "power_watts")) == T0 + HOUR


def test_uses_outlive_the_fleets_own_sums() -> None:
    past = FakePast()
    past.known_uses = [used(1, "alice", used=2.0 * HOUR), used(2, "bob", used=1.0 * HOUR)]
    assert [point[:2] for point in ask_user(past, "gpus_used")] == [(T0 + HOUR, 2.0), (T0 + 2 * HOUR, 0.0)]


def run_on(run: int, first: int, end: int, memory: float, gpu: int = 0) -> RunSlice:
    present = np.zeros(360, dtype=bool)
    present[first:end] = True
    return RunSlice(run, gpu, present, np.where(present, memory, np.nan), np.full(360, np.nan))


def ask_memory(past: FakePast, points: int = 2) -> Answer:
    return answer_series(past, SeriesQuery("memory_used_bytes", T0, T0 + HOUR, points, gpu="GPU-100", by="user"), NOW)


def shares(answer: Answer) -> dict[str | None, list[Point]]:
    assert {one.gpu for one in answer.series} <= {"GPU-100"}
    return {one.user: one.points for one in answer.series}


def test_memory_of_a_gpu_is_split_by_its_users() -> None:
    runs = [run_on(1, 0, 180, GB), run_on(2, 0, 360, 2 * GB), run_on(3, 0, 90, 4 * GB), run_on(4, 0, 360, GB, gpu=1)]
    past = FakePast(make_hour(gpus=2, memory_used_bytes=9 * GB, runs=runs))
    past.owners = {1: "alice", 2: "bob", 3: "alice", 4: "carol"}
    answer = ask_memory(past)
    assert (answer.step, answer.resolution) == (1800, "raw")
    assert shares(answer) == {
        "alice": [(T0, 3 * GB, GB, 5 * GB)],
        "bob": [(T0, 2 * GB, 2 * GB, 2 * GB), (T0 + 1800.0, 2 * GB, 2 * GB, 2 * GB)],
    }


def test_nobody_knows_whose_memory_it_is_where_no_program_is_seen_on_a_gpu_in_use() -> None:
    states = np.where(np.arange(360) < 180, BUSY, FREE)
    past = FakePast(make_hour(memory_used_bytes=9 * GB, states=states, runs=[run_on(1, 0, 90, GB)]))
    past.owners = {1: None}
    assert shares(ask_memory(past)) == {None: [(T0, 5 * GB, GB, 9 * GB)]}


def test_unknown_memory_of_a_program_is_not_zero() -> None:
    past = FakePast(make_hour(memory_used_bytes=9 * GB, runs=[run_on(1, 0, 180, np.nan), run_on(1, 180, 360, GB)]))
    past.owners = {1: "alice"}
    assert shares(ask_memory(past)) == {"alice": [(T0 + 1800.0, GB, GB, GB)]}


def test_moment_at_which_the_gpu_could_not_be_read_counts_for_nobody() -> None:
    states = np.where(np.arange(360) < 90, UNKNOWN, BUSY)
    past = FakePast(make_hour(memory_used_bytes=9 * GB, states=states, runs=[run_on(1, 90, 360, GB)]))
    past.owners = {1: "alice"}
    assert shares(ask_memory(past))["alice"][0] == (T0, GB, GB, GB)


def test_free_gpu_has_no_users() -> None:
    assert ask_memory(FakePast(make_hour(memory_used_bytes=0, states=FREE))).series == []


def test_users_before_the_oldest_sample_are_refused_with_the_first_moment_that_is_kept() -> None:
    past = FakePast(make_hour(memory_used_bytes=0), make_hour(T0 + HOUR), raw_since=T0 + HOUR)
    with pytest.raises(HistoryRefused, match=f"start={T0 + HOUR}") as refused:
        ask_memory(past)
    assert refused.value.code == "too_old"


def test_users_of_many_weeks_are_refused() -> None:
    past = FakePast(make_hour(memory_used_bytes=0))
    with pytest.raises(HistoryRefused, match="at most 41 days"):
        answer_series(past, SeriesQuery("memory_used_bytes", T0, T0 + 5e6, gpu="GPU-100", by="user"), T0 + 5e6)
