"""GPUs that could be used now as a table; and in the table of the fleet, who has those that nobody is on."""

import pytest
from wcwidth import wcswidth

from fakes.fleets import fleet_of, make
from fakes.offers import make_offer
from fakes.reports import make_gpu
from gpudeck.model.reservation import GpuReservation
from gpudeck.views.lists import render_free
from gpudeck.views.text import render_fleet


def test_table_has_the_order_that_it_is_given_and_no_blanks_at_the_end() -> None:
    gpus = [make_offer("gpu07", 1), make_offer("узел-三", 0, memory_total_bytes=None, display_name="ev\x1bil")]
    lines = render_free(gpus).splitlines()
    assert [line.split()[:2] for line in lines] == [["HOST", "GPU"], ["gpu07", "1"], ["узел-三", "0"]]
    assert all(line == line.rstrip() for line in lines)
    assert "–" in lines[2]


@pytest.mark.parametrize("width", [20, 40, 80])
def test_columns_go_before_a_line_is_too_wide(width: int) -> None:
    lines = render_free([make_offer("gpu07", 1, uuid=f"GPU-{'a' * 36}")], width=width).splitlines()
    assert all(wcswidth(line) <= width for line in lines)
    assert lines[0].startswith("HOST")


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"kind": "claim"}, "taken by ada, starting"),
        ({"kind": "claim", "availability": "busy"}, ""),
        ({}, "reserved by ada, 4h left"),
        ({"why": "paper"}, "reserved by ada, 4h left: paper"),
        ({"availability": "busy", "why": "paper"}, "reserved by ada, 4h left: paper"),
        ({"availability": "busy", "conflict": "bob is on it, though it is ada's"}, "bob is on it, though it is ada's"),
        ({"health": "91 °C"}, "91 °C · reserved by ada, 4h left"),
    ],
)
def test_who_has_a_gpu_for_how_long_and_why_is_told(changes: dict[str, str], note: str) -> None:
    fleet = fleet_of(("gpu07", [make_gpu()]))
    gpu = fleet.hosts[0].gpus[0]
    reservation = {"user": "ada", "kind": changes.get("kind", "reservation"), "note": changes.get("why", "")}
    gpu.availability = changes.get("availability", "reserved")
    gpu.reservation = make(GpuReservation, until=fleet.time + 4 * 3600 - 1, **reservation)
    gpu.reservation_conflict, gpu.health_reason = changes.get("conflict"), changes.get("health")
    line = render_fleet(fleet).splitlines()[3]
    assert line.rstrip().endswith(note)
    assert ("ada" in line) == bool(note)
