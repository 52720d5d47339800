"""Who is on which GPUs, as the table and the API tell it."""

from fakes.reports import GIB, make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.fleet.state import FleetState
from gpudeck.model import view
from gpudeck.model.gpu_state import FleetSettings
from gpudeck.model.report import GpuReading, Process
from gpudeck.views.users import NOBODY, describe_users, render_users

NOW = 1_794_700_000.0


def fleet_of(**hosts: list[GpuReading]) -> view.Fleet:
    fleet = FleetState(FleetSettings())
    for name, gpus in hosts.items():
        fleet.apply(make_envelope(name, 1, gpus), via="push", now=NOW)
    fleet.age(NOW)
    return fleet.view(NOW)


def used(index: int, host: str, *processes: Process) -> GpuReading:
    return make_gpu(index, uuid=f"{host}-{index}", processes=list(processes), metrics={"utilization_percent": 50})


def test_people_are_by_memory_then_by_processes_with_gpus_host_by_host() -> None:
    fleet = fleet_of(
        a=[
            used(0, "a", make_process(1, "ben", 10), make_process(2, "zoe", 4)),
            used(1, "a", make_process(1, "ben", 10), make_process(3, "ann", 2), make_process(4, "ann", 2)),
        ],
        b=[used(3, "b", make_process(1, "zoe", 0), make_process(9, "eve", 40))],
    )
    told = [(one.user, one.memory_used_bytes, one.processes, one.gpus) for one in describe_users(fleet).users]
    assert told == [
        ("eve", 40 * GIB, 1, ["b-3"]),
        ("ben", 20 * GIB, 1, ["a-0,1"]),
        ("ann", 4 * GIB, 2, ["a-1"]),
        ("zoe", 4 * GIB, 2, ["a-0", "b-3"]),
    ]
    lines = render_users(fleet).splitlines()
    assert lines[0].split() == ["USER", "GiB", "PROCESSES", "GPUs"]
    assert [line.split() for line in lines[3:]] == [["ann", "4.0", "2", "a-1"], ["zoe", "4.0", "2", "a-0", "b-3"]]


def test_more_processes_come_first_among_those_of_the_same_memory() -> None:
    fleet = fleet_of(a=[used(0, "a", make_process(1, "ann", 4), make_process(2, "zoe", 2), make_process(3, "zoe", 2))])
    assert [one.user for one in describe_users(fleet).users] == ["zoe", "ann"]


def test_memory_that_is_not_known_is_null_with_its_reason_and_comes_last() -> None:
    nameless = Process(pid=5, user="ann", reasons={"memory_used_bytes": "not told"})
    fleet = fleet_of(a=[used(0, "a", nameless, make_process(1, "zoe", 0))])
    first, second = describe_users(fleet).users
    assert (first.user, second.user, second.memory_used_bytes) == ("zoe", "ann", None)
    assert second.reasons["memory_used_bytes"]
    assert render_users(fleet).splitlines()[2].split() == ["ann", "–", "1", "a-0"]


def test_whom_nobody_could_name_is_one_row_and_a_silent_host_counts_for_nobody() -> None:
    fleet = FleetState(FleetSettings())
    fleet.apply(make_envelope("dead", 1, [make_busy_gpu(0, "ann", uuid="GPU-9")]), via="push", now=NOW)
    fleet.apply(make_envelope("live", 1, [used(0, "live", make_process(1, None, 1))]), via="push", now=NOW + 100)
    fleet.age(NOW + 101)
    told = describe_users(fleet.view(NOW + 101)).users
    assert [(one.user, one.gpus) for one in told] == [(None, ["live-0"])]
    assert told[0].reasons["user"]


def test_nobody_is_said_in_words_and_no_name_moves_a_terminal() -> None:
    assert render_users(fleet_of(a=[make_gpu()])) == f"{NOBODY}\n"
    text = render_users(fleet_of(a=[used(0, "a", make_process(1, "a\x1b[2J", 1))]), width=30)
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 30
