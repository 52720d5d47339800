"""The table and the boxes keep their borders, whatever hosts, models, people and programs are called."""

from pathlib import Path
from typing import Any

import pytest
from wcwidth import wcswidth

from fakes.vesta import VestaHub, make_post

LONG = "a-name-that-is-much-longer-than-its-column-and-goes-on-and-on"
NAMES = ["gpu1", LONG, "机器一号服务器在三楼的机房里面", "größe", "наука-сервер", "e\u0301" * 30]


@pytest.fixture
def vesta(tmp_path: Path) -> VestaHub:
    return VestaHub(tmp_path)


def widths(text: str) -> set[int]:
    return {wcswidth(line) for line in text.splitlines() if line}


@pytest.mark.parametrize("name", NAMES)
def test_the_table_is_as_wide_as_its_border(vesta: VestaHub, name: str) -> None:
    vesta.report(name, make_post(2, gpu_name=name))
    for _ in range(2):
        assert widths(vesta.get("/?term=true").text) == widths(vesta.get("/gpu_table?term=true").text) == {80}
        vesta.clock.advance(100)


@pytest.mark.parametrize("name", NAMES)
def test_the_boxes_are_closed(vesta: VestaHub, name: str) -> None:
    processes = [{"pid": "1", "name": name, "user": name, "used_memory": 100_000}] * 3
    vesta.report(name, make_post(2, gpu_name=name, processes=processes))
    lines = vesta.get("/?term=true&detail=true").text.splitlines()
    boxed = [line for line in lines if line.startswith(("  ┌", "  │", "  └"))]
    assert {wcswidth(line) for line in boxed} == {78}
    assert {line[-1] for line in boxed} == {"┐", "│", "┘"}
    assert {wcswidth(line) for line in lines if line.startswith(("#", "-", "_"))} == {80}


def test_long_program_names_keep_their_end_as_there(vesta: VestaHub) -> None:
    names = ["/usr/bin/a-very-long-program-name-here", "exactly-25-characters-abc"]
    processes = [{"pid": "1", "name": name, "user": "ada", "used_memory": 1618} for name in names]
    vesta.report("gpu1", make_post(1, processes=processes))
    lines = vesta.get("/?term=true&detail=true").text.splitlines()
    assert "  │  ├── …y-long-program-name-here  1618MiB ada                              │" in lines
    assert "  │  └── exactly-25-characters-abc  1618MiB ada                              │" in lines


def test_numbers_of_a_large_gpu_stand_where_vesta_puts_them(vesta: VestaHub) -> None:
    vesta.report("gpu1", make_post(1, used_memory=20_000, total_memory=143_360, available_memory=122_745))
    line = "  │ 20000 / 143360MiB          122745MiB           92%         80°C          │"
    assert line in vesta.get("/?term=true&detail=true").text.splitlines()


@pytest.mark.parametrize("width", [60, 80, 120, 240])
def test_the_width_can_be_set(tmp_path: Path, width: int) -> None:
    vesta = VestaHub(tmp_path, term_width=width)
    vesta.report("gpu1", make_post(2))
    vesta.address = "2001:db8:1234:5678:9abc:def0:1234:5678"
    vesta.add("gpu2")
    for path in ("/?term=true", "/gpu_table?term=true"):
        assert widths(vesta.get(path).text) == {width}
    lines = vesta.get("/?term=true&detail=true").text.splitlines()
    assert {wcswidth(line) for line in lines if line.startswith("  │")} == {width - 2}


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        ({"used_memory": None}, "|gpu1              | 0:GeForce GTX 1080 Ti  |      - /  11169 |    92 %|  80 °C|"),
        ({"gpu_volatile": None}, "|gpu1              | 0:GeForce GTX 1080 Ti  |   8018 /  11169 |     - %|  80 °C|"),
        ({"temperature": "?"}, "|gpu1              | 0:GeForce GTX 1080 Ti  |   8018 /  11169 |    92 %|   - °C|"),
    ],
)
def test_what_is_unknown_is_a_dash_and_no_zero(vesta: VestaHub, changes: dict[str, Any], row: str) -> None:
    vesta.report("gpu1", make_post(1, **changes))
    assert row in vesta.get("/?term=true").text.splitlines()
    assert " 0 /" not in vesta.get("/?term=true&detail=true").text


def test_unknown_processes_are_not_nobody(vesta: VestaHub) -> None:
    vesta.report("gpu1", make_post(1, processes=None))
    assert "the processes are unknown" in vesta.get("/?term=true&detail=true").text
    assert vesta.states()["gpu1"]["data"][0]["gpu_data"]["gpu:0"]["processes"] is None


def test_control_characters_do_not_reach_a_terminal(vesta: VestaHub) -> None:
    processes = [{"pid": "1", "name": "\x1b[2Jx", "user": "a\x07", "used_memory": 1}]
    vesta.report("gpu1", make_post(1, gpu_name="x\x1b]0;title\x07", timestamp="\x1b[31m", processes=processes))
    for path in ("/?term=true", "/?term=true&detail=true"):
        assert vesta.get(path).text.replace("\n", "").isprintable()


def test_without_hosts_there_is_an_empty_table(vesta: VestaHub) -> None:
    assert len(vesta.get("/?term=true").text.splitlines()) == 5
    assert vesta.states() == {}
