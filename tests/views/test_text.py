"""The fleet as text: aligned, honest about the unknown, and harmless to a terminal."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from fakes.clock import FakeClock
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.hub.hub import Hub
from gpudeck.model.names import without_maker
from gpudeck.model.report import GpuEvent, GpuReading, Report
from gpudeck.model.target import Target
from gpudeck.views.hosts import render_hosts
from gpudeck.views.safe import clean
from gpudeck.views.table import fit
from gpudeck.views.text import choose_hosts, render_fleet


def fleet_of(*hosts: tuple[str, list[GpuReading]], silent_for: float = 0, demo: bool = False) -> dict[str, Any]:
    clock = FakeClock()
    hub = Hub(now=clock, demo=demo)
    for name, gpus in hosts:
        hub.fleet.apply(make_envelope(name, gpus=gpus), via="push", now=clock())
    clock.advance(silent_for)
    hub.stream.tick()
    fleet: dict[str, Any] = msgspec.json.decode(hub.stream.document())
    return fleet


def test_a_line_a_gpu_with_its_state_in_words() -> None:
    lines = render_fleet(fleet_of(("gpu01", [make_gpu(0), make_busy_gpu(1)]))).splitlines()
    assert "● free" in lines[3]
    assert lines[4].split()[:6] == ["gpu01", "1", "A100-SXM4-80GB", "■", "busy", "97%"]
    assert "alice" in lines[4]


def test_unknown_is_a_dash_and_never_a_zero() -> None:
    gpu = make_gpu(metrics={"utilization_percent": None, "temperature_celsius": None, "power_watts": None})
    line = render_fleet(fleet_of(("gpu01", [gpu]))).splitlines()[3]
    assert "0%" not in line
    assert line.count("–") == 4


def test_stale_is_not_free_and_says_its_age() -> None:
    text = render_fleet(fleet_of(("gpu01", [make_gpu()]), silent_for=125))
    assert "● 0 free" in text
    assert "? unknown" in text
    assert "last report 2m ago" in text


def test_the_demo_says_so() -> None:
    assert render_fleet(fleet_of(demo=True)).startswith("DEMO DATA")


def test_an_empty_fleet_tells_the_next_step() -> None:
    assert "gpudeck agent --hub" in render_fleet(fleet_of())


def test_hosts_can_be_chosen() -> None:
    text = render_fleet(fleet_of(("gpu01", [make_gpu()]), ("gpu02", [make_gpu()])), hosts=["gpu02"])
    assert ("gpu01" in text, "gpu02" in text) == (False, True)


def test_detail_lists_the_processes() -> None:
    process = make_process(4711, "alice", container="trainer", job="slurm 77")
    text = render_fleet(fleet_of(("gpu01", [make_gpu(processes=[process])])), detail=True)
    assert all(word in text for word in ("4711", "trainer, slurm 77", "python train.py"))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    fleet = fleet_of(("a-rather-long-host-name", [make_busy_gpu(n, user="somebody-long") for n in range(3)]))
    texts = [render_fleet(shown, width=width, detail=True) for shown in (fleet, fleet | {"demo": True}, fleet_of())]
    assert max(wcswidth(line) for text in texts for line in text.splitlines()) <= width


def test_the_headline_says_less_before_it_is_cut() -> None:
    fleet = fleet_of(("gpu01", [make_busy_gpu()]), demo=True)
    heads = [render_fleet(fleet, width=width).splitlines()[0] for width in (200, 70, 40, 20)]
    assert heads == [
        "DEMO DATA, simulated  1 of 1 hosts up, 1 GPUs:  ● 0 free  ■ 1 busy  ◐ 0 held  ◆ 0 booked  ? 0 unknown",
        "DEMO  ● 0 free  ■ 1 busy  ◐ 0 held  ◆ 0 booked  ? 0 unknown",
        "DEMO  ● 0 free  ■ 1 busy",
        "DEMO  ● 0 free  ■ 1…",
    ]


def test_the_state_stays_when_only_the_hosts_name_has_room() -> None:
    fleet = fleet_of(("a-host-with-a-rather-long-name", [make_busy_gpu()]))
    assert render_fleet(fleet, width=24).splitlines()[2:] == ["HOST              STATE", "a-host-with-a-r…  ■ busy"]


def test_a_long_command_is_cut_to_what_is_left() -> None:
    process = msgspec.structs.replace(make_process(), command="python train.py " + "--option " * 30)
    lines = render_fleet(fleet_of(("gpu01", [make_gpu(processes=[process])])), detail=True, width=70).splitlines()
    assert ("python train.py --" in lines[-1], wcswidth(lines[-1])) == (True, 70)


def test_a_long_note_is_cut_to_what_is_left() -> None:
    fleet = fleet_of(("gpu01", [make_gpu()]), silent_for=125)
    lines = render_fleet(fleet, width=110).splitlines()
    assert ("down: last r" in lines[3], lines[3].endswith("…"), wcswidth(lines[3])) == (True, True, 110)


def test_totals_are_those_of_the_hosts_shown() -> None:
    fleet = fleet_of(("gpu01", [make_gpu(), make_busy_gpu(1)]), ("gpu02", [make_busy_gpu()]))
    everybody = [host["name"] for host in fleet["hosts"]]
    assert choose_hosts(fleet, everybody)["totals"] == fleet["totals"]
    assert render_fleet(fleet, hosts=["gpu02"]).startswith("1 of 1 hosts up, 1 GPUs:  ● 0 free  ■ 1 busy  ")


def test_narrow_terminals_keep_what_matters_most() -> None:
    lines = render_fleet(fleet_of(("gpu01", [make_busy_gpu()])), width=40).splitlines()
    assert lines[2].split() == ["HOST", "GPU", "STATE", "UTIL", "USERS"]


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "\u202eabc", "\x07bell", "\x9b31m", "tab\there"])
def test_nothing_a_terminal_would_obey_gets_through(name: str) -> None:
    text = render_fleet(fleet_of(("gpu01", [make_busy_gpu(user=name, name=name)])), detail=True)
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == len(render_fleet(fleet_of(("gpu01", [make_busy_gpu()])), detail=True).splitlines())


def test_colour_only_when_asked() -> None:
    fleet = fleet_of(("gpu01", [make_gpu()]))
    assert ("\x1b[" in render_fleet(fleet), "\x1b[32m" in render_fleet(fleet, colour=True)) == (False, True)


_names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)


@given(st.lists(_names, min_size=1, max_size=5))
def test_columns_stay_aligned_for_any_name(users: list[str]) -> None:
    fleet = fleet_of(("gpu01", [make_busy_gpu(n, user=user) for n, user in enumerate(users)]))
    lines = render_fleet(fleet).splitlines()[2:]
    ends = {wcswidth(line[: line.rindex("0s") + 2]) for line in lines[1:]}
    assert len(lines) == len(users) + 1
    assert len(ends) == 1


@given(st.text(max_size=60), st.integers(1, 40), st.sampled_from(["left", "right"]))
def test_fitting_gives_exactly_the_width(text: str, width: int, align: str) -> None:
    assert wcswidth(fit(clean(text), width, align)) == width


@pytest.mark.parametrize(
    ("name", "short"),
    [("NVIDIA H200", "H200"), ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("AMD Instinct MI300X", "MI300X"), ("X", "X")],
)
def test_models_lose_their_maker(name: str, short: str) -> None:
    assert without_maker(name) == short


def test_detail_lists_faults_with_their_owner_the_newest_first() -> None:
    then = FakeClock()()
    events = [GpuEvent(then - 7200, 79, None, "GPU has fallen off the bus."), GpuEvent(then - 60, 31, 4711, "\x1b[2J")]
    text = render_fleet(fleet_of(("gpu01", [make_busy_gpu(0, events=events)])), detail=True)
    newest, oldest = text.splitlines()[-2:]
    assert newest.split()[:5] == ["0", "1m", "31", "4711", "alice"]
    assert oldest.split()[:6] == ["0", "2h", "0m", "79", "–", "–"]
    assert "it has fallen off the bus: GPU has fallen off the bus." in oldest
    assert "\x1b" not in text


def test_table_notes_a_critical_fault() -> None:
    gpu = make_gpu(0, events=[GpuEvent(FakeClock()(), 48)])
    assert "XID 48: " in render_fleet(fleet_of(("gpu01", [gpu])))


REASON = "gpu09 does not let ada in (no key was there to try). Make a key: ssh-keygen  and then: ssh-copy-id ada@gpu09"


def awaited_fleet(*, troubled: int = 1) -> dict[str, Any]:
    """One host with a GPU and a problem, and others that never answered."""
    clock = FakeClock()
    hub = Hub(now=clock)
    names = [f"gpu{number:02}" for number in range(9, 9 + troubled)]
    hub.fleet.expect([Target(name=name) for name in names])
    for name in names:
        hub.fleet.note_failure(name, REASON.replace("gpu09", name))
    lost = Report(gpus=[make_gpu()], problems=["a GPU fell off the bus"])
    hub.fleet.apply(msgspec.structs.replace(make_envelope("gpu01"), report=lost), via="push", now=clock())
    hub.stream.tick()
    fleet: dict[str, Any] = msgspec.json.decode(hub.stream.document())
    return fleet


@pytest.mark.parametrize("detail", [False, True])
def test_problems_of_hosts_are_told_whole_whatever_the_width(detail: bool) -> None:
    text = render_fleet(awaited_fleet(), width=80, detail=detail)
    assert "a GPU fell off the bus" in text
    assert REASON in text


def test_host_that_never_reported_is_noted_with_what_keeps_it() -> None:
    line = next(line for line in render_fleet(awaited_fleet()).splitlines() if line.startswith("gpu09"))
    assert "does not let ada in" in line


def test_many_problems_of_hosts_are_counted() -> None:
    lines = render_fleet(awaited_fleet(troubled=40)).splitlines()
    assert lines[-1] == "! 22 more problems of hosts: gpudeck hosts list"
    assert sum(line.startswith("! ") for line in lines) == 20


def test_list_of_hosts_has_their_problems_below_it_in_full() -> None:
    lines = render_hosts(awaited_fleet()["hosts"], width=40).splitlines()
    assert lines[-3:] == ["", "! gpu01: a GPU fell off the bus", f"! {REASON}"]
