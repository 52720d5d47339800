"""The truth table of free, busy, idle, reserved and unknown."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpudeck.model.gpu_state import AVAILABILITIES, UNUSED, AvailabilitySettings, judge

SETTINGS = AvailabilitySettings()
GIB = 2**30
EMPTY = {"processes": 0, "memory_used_bytes": 0, "utilization_percent": 0, "idle_seconds": 0, "reserved": False}


def judge_with(**facts: Any) -> str:
    return judge(settings=SETTINGS, **(EMPTY | facts))[0]


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, "free"),
        ({"reserved": True}, "reserved"),
        ({"drained": True}, "drained"),
        ({"allocated": True}, "allocated"),
        ({"allocated": True, "drained": True, "reserved": True}, "allocated"),
        ({"utilization_percent": 97, "allocated": True}, "busy"),
        ({"processes": 1, "idle_seconds": 600, "allocated": True}, "idle"),
        ({"drained": True, "reserved": True}, "drained"),
        ({"utilization_percent": 97, "drained": True}, "busy"),
        ({"processes": 1, "idle_seconds": 600, "drained": True}, "idle"),
        ({"utilization_percent": 97}, "busy"),
        ({"utilization_percent": 97, "reserved": True}, "busy"),
        ({"processes": 1, "idle_seconds": 599}, "busy"),
        ({"processes": 1, "idle_seconds": 600}, "idle"),
        ({"processes": 1, "idle_seconds": 600, "reserved": True}, "idle"),
        ({"memory_used_bytes": 20 * GIB, "idle_seconds": 3600}, "idle"),
        ({"memory_used_bytes": 300 * 2**20}, "free"),
        ({"utilization_percent": 4}, "free"),
        ({"processes": None}, "free"),
        ({"processes": None, "memory_used_bytes": None}, "unknown"),
        ({"processes": None, "utilization_percent": None}, "unknown"),
        ({"memory_used_bytes": None}, "free"),
        ({"utilization_percent": None}, "free"),
        ({"utilization_percent": None, "processes": 2, "idle_seconds": 9999}, "busy"),
        ({"processes": None, "memory_used_bytes": None, "utilization_percent": 50}, "busy"),
    ],
)
def test_availability_follows_the_facts(facts: dict[str, Any], expected: str) -> None:
    assert judge_with(**facts) == expected


def test_memory_without_a_process_is_explained_as_orphaned() -> None:
    verdict = judge(settings=SETTINGS, **(EMPTY | {"memory_used_bytes": 20 * GIB, "idle_seconds": 3600}))
    assert verdict == ("idle", "memory is in use, but no process is on it")


@given(
    processes=st.none() | st.integers(0, 50),
    memory=st.none() | st.floats(0, 200 * GIB),
    utilization=st.none() | st.floats(0, 100),
    idle=st.floats(0, 1e6),
    reserved=st.booleans(),
    drained=st.booleans(),
)
def test_nothing_occupied_or_unread_is_ever_free(
    processes: int | None, memory: float | None, utilization: float | None, idle: float, reserved: bool, drained: bool
) -> None:
    word, reason = judge(
        processes=processes,
        memory_used_bytes=memory,
        utilization_percent=utilization,
        idle_seconds=idle,
        reserved=reserved,
        drained=drained,
        settings=SETTINGS,
    )
    assert word in AVAILABILITIES
    proven_empty = (
        not processes and (memory or 0) <= SETTINGS.empty_bytes and (utilization or 0) < SETTINGS.work_percent
    )
    something_read = processes is not None or (memory is not None and utilization is not None)
    assert (word in UNUSED) == (proven_empty and something_read)
    assert (word == "drained") == (word in UNUSED and drained)
    assert (word == "unknown") <= (reason is not None)
