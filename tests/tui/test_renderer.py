"""Pictures fit every terminal: as many lines as it has, each exactly as wide."""

import pytest

from fakes.fleets import fleet_of
from fakes.reports import make_busy_gpu, make_gpu
from fakes.tops import make_top, press
from gpudeck.tui.app import find_changes
from gpudeck.tui.feed import FeedLost
from gpudeck.tui.renderer import ScreenRenderer
from gpudeck.views.table import draw_share, width_of

VIEWS = {
    "fleet": "",
    "models": "g",
    "users": "gg",
    "flat": "ggg",
    "processes": "p",
    "people": "u",
    "host": ["enter"],
    "gpu": ["down", "enter"],
    "help": "?",
    "filter": "/free and much more than fits into a terminal that is narrow",
}
STRANGE = [
    make_busy_gpu(0, "用户名很长很长很长", uuid="GPU-x", name="NVIDIA \x1b[31mred"),
    make_gpu(1, uuid="GPU-y", processes=None, processes_reason="no permission"),
]


@pytest.mark.parametrize("size", [(20, 5), (40, 8), (80, 24), (81, 25), (120, 40), (200, 50), (300, 100)])
@pytest.mark.parametrize("keys", VIEWS.values(), ids=VIEWS.keys())
def test_every_line_is_as_wide_as_the_terminal(keys: list[str], size: tuple[int, int]) -> None:
    top = make_top(fleet_of(("gpu01", STRANGE), ("空のホスト".encode().hex(), [])))
    press(top, *keys)
    for lost in (None, FeedLost("away " * 40)):
        top.take(lost) if lost else None
        top.arrange()
        lines = ScreenRenderer(top).draw(*size)
        assert len(lines) == size[1]
        assert {sum(width_of(text) for text, _ in line) for line in lines} == {size[0]}
        assert all(text.isprintable() for line in lines for text, _ in line)


def test_eighty_columns_have_what_a_person_looks_for() -> None:
    head = "".join(text for text, _ in ScreenRenderer(make_top()).draw(80, 24)[2])
    assert head.split() == ["HOST", "GPU", "MODEL", "STATE", "UTIL", "MEMORY", "GiB", "TEMP", "USERS", "SINCE"]


def test_host_without_gpus_says_why_in_a_whole_line() -> None:
    fleet = fleet_of(("gpu01", []))
    fleet.hosts[0].problems = ["nvidia-smi is not installed: install the driver, then look again"]
    drawn = ["".join(text for text, _ in line) for line in ScreenRenderer(make_top(fleet)).draw(80, 24)]
    assert drawn[4].strip() == "gpu01  nvidia-smi is not installed: install the driver, then look again"


def test_fleet_without_hosts_says_so() -> None:
    drawn = ["".join(text for text, _ in line) for line in ScreenRenderer(make_top(fleet_of())).draw(80, 24)]
    assert drawn[3].strip() == "No host has reported yet."


@pytest.mark.parametrize(
    ("share", "drawn"),
    [(None, "–"), (0.0, "░░░░"), (0.02, "█░░░"), (0.5, "██░░"), (0.98, "███░"), (1.0, "████"), (0.005, "░░░░")],
)
def test_bar_is_empty_or_full_only_where_that_is_so(share: float | None, drawn: str) -> None:
    assert draw_share(share, 4) == drawn


def test_only_the_line_that_changed_is_drawn_again_up_to_the_change() -> None:
    top = make_top()
    artist = ScreenRenderer(top)
    before = artist.draw(80, 24)
    gpu = top.fleet.hosts[0].gpus[1]
    gpu.temperature_celsius = 99
    after = artist.draw(80, 24)
    (region,) = find_changes(before, after)
    assert (region.x, region.y, region.height) == (0, 5, 1)
    line = "".join(text for text, _ in after[5])
    assert line[: region.width].rstrip().endswith("99°C")
    assert find_changes(after, after) == []


def test_row_that_takes_another_shape_is_drawn_again_whole() -> None:
    changes = find_changes([[("ab", ""), ("cd", "")]], [[("abc", "bold")], [("x", "")]])
    assert [(region.x, region.y, region.width) for region in changes] == [(0, 0, 3), (0, 1, 1)]


def test_order_that_is_in_force_stands_out_in_the_head() -> None:
    top = make_top()
    press(top, "M")
    head = ScreenRenderer(top).draw(120, 24)[2]
    assert {text.strip() for text, colour in head if colour == "sorted"} == {"MEMORY", "GiB"}
