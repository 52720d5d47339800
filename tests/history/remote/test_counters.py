"""Counters of who used what: by the rules of accounting, and never smaller than they were."""

import struct
from pathlib import Path

import pytest

from gpudeck.history.remote.encoder import EVERY, EncodedSeries, UsageCounters, use_of
from gpudeck.history.sample import GPU_NAMES, STATE_NUMBERS, GpuSample, HostSample, ProcessSample

AT = 1_790_000_000.0


def gpu(state: str, *people: tuple[str | None, int | None], **values: float) -> GpuSample:
    processes = tuple(
        ProcessSample(pid, AT, user, None, None, None, memory, None) for pid, (user, memory) in enumerate(people)
    )
    return GpuSample(
        "GPU-1", "0", "H200", STATE_NUMBERS[state], tuple(values.get(name) for name in GPU_NAMES), processes
    )


def sample(*gpus: GpuSample, at: float = AT) -> HostSample:
    return HostSample("id", "gpu01", at, 10.0, (), gpus)


def totals(parts: list[EncodedSeries]) -> list[float]:
    """The values in the order in which they are written: a sample is 0x09 and a double, 0x10 and the time."""
    body = b"".join(part.body for part in parts)
    marks = [at for at in range(len(body)) if body[at : at + 3] == b"\x12\x10\x09"]
    return [struct.unpack_from("<d", body, at + 3)[0] for at in marks]


def test_user_has_the_whole_gpu_alone() -> None:
    shown = gpu("busy", ("alice", 5), utilization_percent=50, power_watts=300)
    assert use_of(shown, 10) == [("alice", [10, 5, 0, 3000])]


def test_users_share_by_memory_whatever_the_number_of_their_programs() -> None:
    shown = gpu("idle", ("alice", 1), ("bob", 2), ("alice", 1), power_watts=100)
    assert use_of(shown, 10) == [("alice", [5, None, 5, 500]), ("bob", [5, None, 5, 500])]


@pytest.mark.parametrize("sizes", [(None, 3), (0, 0)])
def test_users_share_equally_where_memory_says_nothing(sizes: tuple[int | None, int | None]) -> None:
    shown = gpu("busy", ("alice", sizes[0]), ("bob", sizes[1]))
    assert use_of(shown, 10) == [("alice", [5, None, 0, None]), ("bob", [5, None, 0, None])]


def test_gpu_in_use_by_nobody_in_sight_is_used_by_nobody_known() -> None:
    assert use_of(gpu("idle"), 10) == [(None, [10, None, 10, None])]


@pytest.mark.parametrize("state", ["free", "reserved"])
def test_free_gpu_is_used_by_nobody(state: str) -> None:
    assert use_of(gpu(state), 10) == []


def test_gpu_in_an_unknown_state_is_nobodys() -> None:
    assert use_of(gpu("unknown", ("alice", 5)), 10) == []


def test_counter_begins_at_zero_when_its_use_began(tmp_path: Path) -> None:
    counters = UsageCounters(tmp_path / "counters")
    counters.count(sample(gpu("busy", ("alice", 1), utilization_percent=10)), 10)
    # Held, worked and idle, at the beginning and now; nothing was metered.
    assert totals(counters.take_changed(AT)) == [0, 0, 0, 10, 1, 0]


def test_nothing_is_told_of_those_who_did_nothing(tmp_path: Path) -> None:
    counters = UsageCounters(tmp_path / "counters")
    counters.count(sample(gpu("busy", ("alice", 1))), 10)
    counters.take_changed(AT)
    assert counters.take_changed(AT + 1000) == []


def test_counters_are_told_now_and_then(tmp_path: Path) -> None:
    counters = UsageCounters(tmp_path / "counters")
    counters.count(sample(gpu("busy", ("alice", 1))), 10)
    counters.take_changed(AT)
    counters.count(sample(gpu("busy", ("alice", 1)), at=AT + 10), 10)
    assert counters.take_changed(AT + 10) == []
    assert totals(counters.take_changed(AT + EVERY)) == [20, 0]


def test_counters_go_on_after_a_restart(tmp_path: Path) -> None:
    counters = UsageCounters(tmp_path / "counters")
    counters.count(sample(gpu("busy", ("alice", 1))), 10)
    counters.take_changed(AT)
    assert counters.save()
    again = UsageCounters(tmp_path / "counters")
    again.count(sample(gpu("busy", ("alice", 1)), at=AT + 60), 10)
    assert totals(again.take_changed(AT + 60)) == [10, 0, 20, 0]


def test_counters_that_cannot_be_saved_say_so(tmp_path: Path) -> None:
    counters = UsageCounters(tmp_path / "nowhere" / "counters")
    counters.count(sample(gpu("busy", ("alice", 1))), 10)
    counters.take_changed(AT)
    assert not counters.save()
    assert "cannot be saved" in (counters.problem or "")


def test_damaged_file_is_put_aside(tmp_path: Path) -> None:
    (tmp_path / "counters").write_bytes(b"rubbish")
    counters = UsageCounters(tmp_path / "counters")
    counters.count(sample(gpu("busy", ("alice", 1))), 10)
    assert totals(counters.take_changed(AT))[-2:] == [10, 0]
    assert (tmp_path / "counters.damaged").read_bytes() == b"rubbish"


def test_clock_that_was_ahead_does_not_mute_the_counters(tmp_path: Path) -> None:
    counters = UsageCounters(tmp_path / "counters")
    counters.count(sample(gpu("busy", ("alice", 1)), at=AT + 10**6), 10)
    counters.take_changed(AT + 10**6)
    counters.count(sample(gpu("busy", ("alice", 1))), 10)
    assert totals(counters.take_changed(AT))[-2:] == [20, 0]
