"""The fleet as text: aligned, honest about the unknown, and harmless to a terminal."""

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth

from fakes.clock import FakeClock
from fakes.fleets import fleet_of
from fakes.reports import make_busy_gpu, make_envelope, make_gpu, make_process
from gpudeck.fleet.hub import Hub
from gpudeck.model.report import GpuEvent, Report
from gpudeck.model.target import Target
from gpudeck.model.text import clean, without_maker
from gpudeck.model.view import Fleet
from gpudeck.views.filter import choose_hosts
from gpudeck.views.table import LEAST, fit, in_ascii
from gpudeck.views.text import draw_bar, render_fleet, render_hosts


def test_a_line_a_gpu_with_its_state_in_words() -> None:
    lines = render_fleet(fleet_of(("gpu01", [make_gpu(0), make_busy_gpu(1)]))).splitlines()
    assert "● free" in lines[3]
    assert lines[4].split()[:6] == ["gpu01", "1", "A100-SXM4-80GB", "■", "busy", "97%"]
    assert "alice" in lines[4]


def test_the_state_is_a_whole_word_in_eighty_columns() -> None:
    (host,) = fleet_of(("gpu01", [make_gpu()])).hosts
    (gpu,) = host.gpus
    hosts = [msgspec.structs.replace(host, gpus=[msgspec.structs.replace(gpu, availability="allocated")])]
    assert "◇ allocated" in render_fleet(msgspec.structs.replace(fleet_of(), hosts=hosts), width=80)


def test_unknown_is_a_dash_and_never_a_zero() -> None:
    gpu = make_gpu(metrics={"utilization_percent": None, "temperature_celsius": None, "power_watts": None})
    line = render_fleet(fleet_of(("gpu01", [gpu]))).splitlines()[3]
    assert "0%" not in line
    assert line.count("–") == 4


def test_unknown_memory_is_a_dash_and_no_empty_bar() -> None:
    gpu = make_gpu(metrics={"memory_used_bytes": None})
    line = render_fleet(fleet_of(("gpu01", [gpu]))).splitlines()[3]
    assert ("░" in line, "–/80" in line) == (False, True)


@pytest.mark.parametrize(
    ("used", "bar"),
    [
        (0, "░░░░░░░░"),
        (0.5, "░░░░░░░░"),
        (2, "█░░░░░░░"),
        (50, "████░░░░"),
        (98, "███████░"),
        (100, "████████"),
        (None, "–"),
    ],
)
def test_bar_is_neither_empty_nor_full_where_the_memory_is_not(used: float | None, bar: str) -> None:
    assert draw_bar(used, 100) == bar
    assert draw_bar(used, None) == "–"


def test_stale_is_not_free_and_says_its_age() -> None:
    text = render_fleet(fleet_of(("gpu01", [make_gpu()]), silent_for=125))
    assert "● 0 free" in text
    assert "? unknown" in text
    assert "last report 2m ago" in text


def test_the_demo_says_so() -> None:
    assert render_fleet(fleet_of(demo=True)).startswith("DEMO DATA")


def test_an_empty_fleet_tells_the_next_step() -> None:
    assert "gpudeck agent --hub" in render_fleet(fleet_of())


def test_detail_lists_the_processes() -> None:
    process = make_process(4711, "alice", container="trainer", job="slurm 77")
    text = render_fleet(fleet_of(("gpu01", [make_gpu(processes=[process])])), detail=True)
    assert all(word in text for word in ("4711", "trainer, slurm 77", "python train.py"))


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    fleet = fleet_of(("a-rather-long-host-name", [make_busy_gpu(n, user="somebody-long") for n in range(3)]))
    texts = [
        render_fleet(shown, width=width, detail=True)
        for shown in (fleet, msgspec.structs.replace(fleet, demo=True), fleet_of())
    ]
    assert max(wcswidth(line) for text in texts for line in text.splitlines()) <= width


def test_the_headline_says_less_before_it_is_cut() -> None:
    fleet = fleet_of(("gpu01", [make_busy_gpu()]), demo=True)
    heads = [render_fleet(fleet, width=width).splitlines()[0] for width in (200, 80, 40, 20)]
    assert heads == [
        "DEMO DATA, simulated  1 of 1 host up, 1 GPU:  ● 0 free  ■ 1 busy  ◐ 0 idle  ◆ 0 reserved  ? 0 unknown",
        "DEMO  ● 0 free  ■ 1 busy  ◐ 0 idle  ◆ 0 reserved  ? 0 unknown",
        "DEMO  ● 0 free  ■ 1 busy",
        "DEMO  ● 0 free  ■ 1…",
    ]


def test_the_state_stays_when_only_the_hosts_name_has_room() -> None:
    fleet = fleet_of(("a-host-with-a-rather-long-name", [make_busy_gpu()]))
    assert render_fleet(fleet, width=24).splitlines()[2:] == ["HOST              STATE", "a-host-with-a-r…  ■ busy"]


def test_a_long_command_is_cut_to_what_is_left() -> None:
    process = msgspec.structs.replace(make_process(), command="python train.py " + "--option " * 30)
    lines = render_fleet(fleet_of(("gpu01", [make_gpu(processes=[process])])), detail=True, width=70).splitlines()
    assert ("python train.py --" in lines[-2], wcswidth(lines[-2])) == (True, 70)


def test_a_long_note_is_cut_to_what_is_left() -> None:
    fleet = fleet_of(("gpu01", [make_gpu()]), silent_for=125)
    lines = render_fleet(fleet, width=110).splitlines()
    assert ("down: last r" in lines[3], lines[3].endswith("…"), wcswidth(lines[3])) == (True, True, 110)


def test_totals_are_those_of_the_hosts_shown() -> None:
    fleet = fleet_of(("gpu01", [make_gpu(), make_busy_gpu(1)]), ("gpu02", [make_busy_gpu()]))
    text = render_fleet(choose_hosts(fleet, ["gpu02"]))
    assert text.startswith("1 of 1 host up, 1 GPU:  ● 0 free  ■ 1 busy  ")


def test_narrow_terminals_keep_what_matters_most() -> None:
    lines = render_fleet(fleet_of(("gpu01", [make_busy_gpu()])), width=40).splitlines()
    assert lines[2].split() == ["HOST", "GPU", "STATE", "UTIL", "GiB", "USERS"]


def test_eighty_columns_show_what_people_ask_for() -> None:
    header = render_fleet(fleet_of(("gpu01", [make_busy_gpu()])), width=80).splitlines()[2].split()
    assert {"HOST", "GPU", "MEMORY", "UTIL", "TEMP", "STATE", "USERS", "SINCE"} <= set(header)


@pytest.mark.parametrize("name", ["\x1b[31mred", "a\nb", "\u202eabc", "\x07bell", "\x9b31m", "tab\there"])
def test_nothing_a_terminal_would_obey_gets_through(name: str) -> None:
    text = render_fleet(fleet_of(("gpu01", [make_busy_gpu(user=name, name=name)])), detail=True)
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == len(render_fleet(fleet_of(("gpu01", [make_busy_gpu()])), detail=True).splitlines())


def test_colour_only_when_asked() -> None:
    fleet = fleet_of(("gpu01", [make_gpu()]))
    assert ("\x1b[" in render_fleet(fleet), "\x1b[32m" in render_fleet(fleet, colour=True)) == (False, True)


def test_a_box_a_host_with_its_name_and_its_parts() -> None:
    process = make_process(4711, "alice")
    older = make_gpu(metrics={"sm_activity_percent": None})
    fleet = fleet_of(("gpu01", [make_gpu(processes=[process])]), ("gpu02", [older]))
    lines = render_fleet(fleet, detail=True).splitlines()
    assert [line[:12] for line in lines if line.startswith(("╭", "├", "╰"))] == [
        "╭─ gpu01 · u",
        "├─ activity ",
        "├─ processes",
        "╰───────────",
        "╭─ gpu02 · u",
        "╰───────────",
    ]


def test_activity_and_traffic_of_a_gpu_that_measures_them() -> None:
    rates = {"nvlink_receive_bytes_per_second": 70.5e9, "nvlink_transmit_bytes_per_second": None}
    gpu = make_gpu(metrics={"sm_activity_percent": 96, "tensor_activity_percent": None, **rates})
    lines = render_fleet(fleet_of(("gpu01", [gpu])), detail=True).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith("├─ activity"))
    assert lines[at + 1].split()[1:5] == ["GPU", "SM", "OCCUPANCY", "TENSOR"]
    assert lines[at + 2].split()[1:14] == [
        "0",
        "96%",
        "0%",
        "–",
        "0%",
        "0%",
        "0%",
        "0%",
        "70.5",
        "GB/s",
        "–",
        "0.0",
        "GB/s",
    ]


def test_processes_that_are_not_known_are_told_in_the_box() -> None:
    gpu = make_gpu(processes=None, processes_reason="no permission")
    text = render_fleet(fleet_of(("gpu01", [gpu])), detail=True)
    assert "not known: no permission" in text


def test_what_fits_nothing_says_so() -> None:
    nobody = choose_hosts(fleet_of(("gpu01", [make_gpu()])), ["gpu02"])
    assert render_fleet(nobody, empty="Nothing matches.").endswith("\n\nNothing matches.\n")


def test_terminals_that_know_ascii_alone_get_signs_of_the_same_width() -> None:
    text = render_fleet(fleet_of(("gpu01", [make_busy_gpu()])), detail=True)
    plain = in_ascii(text)
    assert (plain.isascii(), len(plain)) == (True, len(text))


_NAMES = st.one_of(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=30),
    st.text("机器学习한국어ＡＢｱ👩🏽🚀🇩🇪é\u0301\ufe0f\u200dא\x1b\x9b\n\t\u202e", min_size=1, max_size=30),
)
_WIDTHS = st.one_of(st.none(), st.integers(LEAST, 300))
_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def tables_in(text: str) -> list[set[int]]:
    """The widths of the lines of each table: the headline, and what is wrong, are none."""
    blocks = text.split("\n\n")[1:]
    return [{wcswidth(line) for line in block.splitlines() if not line.startswith("! ")} for block in blocks]


@given(st.lists(_NAMES, min_size=1, max_size=4), _WIDTHS, st.booleans())
def test_no_line_is_wider_than_asked_and_none_ends_in_blanks(names: list[str], width: int | None, detail: bool) -> None:
    gpus = [make_busy_gpu(n, user=name, name=name, uuid=f"GPU-{n}") for n, name in enumerate(names)]
    text = render_fleet(fleet_of(("gpu01", gpus), ("gpu02", [make_gpu()])), width=width, detail=detail)
    assert not [line for line in text.splitlines() if line.endswith(" ")]
    # Boxes have a frame, whose lines are equally wide.
    assert not detail or {len(found) for found in tables_in(text)} == {1}
    assert max(map(wcswidth, text.splitlines())) <= (width or 100_000)


@given(st.lists(_NAMES, min_size=1, max_size=4), _WIDTHS, st.booleans())
def test_no_control_character_passes_and_colours_change_nothing_else(
    names: list[str], width: int | None, detail: bool
) -> None:
    gpus = [make_busy_gpu(n, user=name, name=name, uuid=f"GPU-{n}") for n, name in enumerate(names)]
    fleet = fleet_of(("gpu01", gpus))
    plain = render_fleet(fleet, width=width, detail=detail)
    assert plain.replace("\n", "").isprintable()
    assert _ANSI.sub("", render_fleet(fleet, width=width, detail=detail, colour=True)) == plain


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
    newest, oldest = text.splitlines()[-3:-1]
    assert newest.split()[:6] == ["│", "0", "1m", "31", "4711", "alice"]
    assert oldest.split()[:7] == ["│", "0", "2h", "0m", "79", "–", "–"]
    assert "it fell off the bus: GPU has fallen off the bus." in oldest
    assert "\x1b" not in text


def test_table_notes_a_critical_fault() -> None:
    gpu = make_gpu(0, events=[GpuEvent(FakeClock()(), 48)])
    assert "XID 48: " in render_fleet(fleet_of(("gpu01", [gpu])))


REASON = "gpu09 does not let ada in (no key was there to try). Make a key: ssh-keygen  and then: ssh-copy-id ada@gpu09"


def awaited_fleet(*, troubled: int = 1) -> Fleet:
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
    return hub.fleet.view(hub.stream.time)


@pytest.mark.parametrize("detail", [False, True])
def test_problems_of_hosts_are_told_whole_whatever_the_width(detail: bool) -> None:
    text = render_fleet(awaited_fleet(), width=80, detail=detail)
    assert "a GPU fell off the bus" in text
    assert REASON in text


def test_host_that_never_reported_is_noted_with_what_keeps_it() -> None:
    lines = render_fleet(awaited_fleet()).splitlines()
    assert "does not let ada in" in next(line for line in lines if line.startswith("gpu09"))
    # A row that is not cut says it once and for all.
    assert [line for line in lines if line.startswith("! ")] == ["! gpu01: a GPU fell off the bus"]


def test_many_problems_of_hosts_are_counted() -> None:
    lines = render_fleet(awaited_fleet(troubled=40), width=80).splitlines()
    assert lines[-1] == "! 22 more problems of hosts: gpudeck hosts list"
    assert sum(line.startswith("! ") for line in lines) == 20


def test_list_of_hosts_has_their_problems_below_it_in_full() -> None:
    lines = render_hosts(awaited_fleet().hosts, width=40).splitlines()
    assert lines[-3:] == ["", "! gpu01: a GPU fell off the bus", f"! {REASON}"]
